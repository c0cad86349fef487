"""Whether objects that jobs wait for are there: a few LISTs at a time, and not too often.

Owns the pace: ``LOOKS_MAX`` requests each time that the leader would beat, in turn where more
are waited for. An object that is there stays there, so it is looked for no more.
"""

from __future__ import annotations

from collections.abc import Collection

from ledger.clock import Clock
from ledger.stores.base import Store
from ledger.timings import Timings

LOOKS_MAX = 20
"""Requests at a time; so 100 objects that never come are asked for once a minute each."""


class ArtifactWatch:
    """Looks for objects of one store."""

    def __init__(self, store: Store, clock: Clock, timings: Timings) -> None:
        self._store = store
        self._clock = clock
        self._timings = timings
        self._next_ms = 0
        self._last = ""
        """Behind which the next look begins."""

    def look(self, wanted: Collection[str]) -> list[str]:
        """Those of ``wanted`` that were found now; none where it is too early to look again.

        O(wanted * log wanted). Raises TransientError where the store gives no news.
        """
        now_ms = self._clock.boot_ms()
        if not wanted or now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + self._timings.leader_beat_ms
        in_turn = sorted(wanted, key=lambda path: (path <= self._last, path))[:LOOKS_MAX]
        self._last = in_turn[-1]
        return [path for path in in_turn if self._is_there(path)]

    def _is_there(self, path: str) -> bool:
        """By a LIST: a GET would fetch an object of any size."""
        first = next(iter(self._store.list(path)), None)
        return first is not None and first.key == path
