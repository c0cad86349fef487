"""How much of something was begun within the last minute.

Owns two counters that the fold keeps: the window of an external service, over every 60 s of
which requests and tokens must hold, and the rate at which somebody may submit. Pure
integers; the caller brings the time.
"""

from __future__ import annotations

import msgspec

MINUTE_MS = 60_000


class Reserved(msgspec.Struct, kw_only=True):
    """What one attempt takes of a window."""

    requests: int
    tokens: int
    started_at: int | None = None
    """It counts until a minute after its start; without one it has not begun yet."""


class Window(msgspec.Struct, kw_only=True):
    """What counts against the limits of one external service now."""

    requests: int = 0
    tokens: int = 0
    reserved: dict[str, Reserved] = {}

    def reserve(self, who: str, requests: int, tokens: int) -> None:
        """``who`` (an attempt) is about to begin."""
        self.reserved[who] = Reserved(requests=requests, tokens=tokens)
        self._add(requests, tokens)

    def start(self, who: str, at: int) -> None:
        """It began, at ``at`` (ms since the epoch)."""
        known = self.reserved.get(who)
        if known is not None and known.started_at is None:
            known.started_at = at

    def lower(self, who: str, requests: int, tokens: int) -> None:
        """It is over and took this much; more than was reserved counts as well."""
        known = self.reserved.get(who)
        if known is not None:
            self._add(requests - known.requests, tokens - known.tokens)
            known.requests, known.tokens = requests, tokens

    def give_back(self, who: str) -> None:
        """It never began."""
        known = self.reserved.pop(who, None)
        if known is not None:
            self._add(-known.requests, -known.tokens)

    def forget(self, at: int) -> None:
        """What began a minute before ``at`` no longer counts. O(reserved)."""
        for who in [who for who, known in self.reserved.items() if _ends(known, at)]:
            self.give_back(who)

    def next_change_ms(self) -> int | None:
        """When the next one stops to count. O(reserved)."""
        starts = [r.started_at for r in self.reserved.values() if r.started_at is not None]
        return min(starts) + MINUTE_MS if starts else None

    def _add(self, requests: int, tokens: int) -> None:
        self.requests += requests
        self.tokens += tokens


def _ends(reserved: Reserved, at: int) -> bool:
    return reserved.started_at is not None and reserved.started_at + MINUTE_MS <= at


def admits(due_at: int, at: int, *, per_minute: int, burst: int) -> bool:
    """Whether one more may come at ``at``; ``due_at`` is what the last ``next_due`` said.

    The generic cell rate algorithm (ITU-T I.371): ``burst`` at once, then an even pace.
    """
    return due_at - at <= (burst - 1) * MINUTE_MS // per_minute


def next_due(due_at: int, at: int, *, per_minute: int) -> int:
    """When one more is due at an even pace, after one that came at ``at``."""
    return max(due_at, at) + -(-MINUTE_MS // per_minute)
