"""A bucket in memory, and one process's faulty connection to it.

Owns the faults that no server makes on demand: a lost reply after the write, a write that
lands late (after a GET said 404), 409 with nothing stored, 412 on one's own write (the
SDK sent it twice), 5xx, LISTs that skip, repeat or delay keys, outages. Settlement of doubt
is the product's own code (``SettlingStore``); only the raw requests are played here.
"""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from ledger.clock import Clock
from ledger.errors import TransientError
from ledger.stores.base import Entry
from ledger.stores.settling import NotSentError, Sender, SettlingStore
from simulation.hub import Hub


class Faults(msgspec.Struct, kw_only=True):
    """Probabilities per request, and durations in milliseconds. All zero: a true store."""

    lost_reply: float = 0.0
    late_landing: float = 0.0
    conflict: float = 0.0
    own_412: float = 0.0
    error: float = 0.0
    list_skips: float = 0.0
    list_repeats: float = 0.0
    list_delay_ms: int = 0
    late_ms: int = 20_000
    latency_ms: int = 30
    sdk_retries: bool = False
    """A broken variant: a lost reply is retried below us, unseen."""


class Bucket:
    """What stands there, and since when. Shared by all processes."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.bodies: dict[str, bytes] = {}
        self.landed_ms: dict[str, int] = {}
        self.played: Counter[str] = Counter()
        """Faults that really happened, by kind."""
        self.watchers: list[Callable[[str, bytes], None]] = []
        self._keys: list[str] = []

    def create(self, key: str, body: bytes) -> bool:
        """Create unless it exists: the one atomic step."""
        if key in self.bodies:
            return False
        self.bodies[key] = body
        self.landed_ms[key] = self.hub.now_ms
        insort(self._keys, key)
        for watcher in self.watchers:
            watcher(key, body)
        return True

    def keys(self, prefix: str, start_after: str = "") -> list[str]:
        first = bisect_right(self._keys, start_after) if start_after else 0
        first = max(first, bisect_right(self._keys, prefix) - (prefix in self.bodies))
        found = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return found


class Connection(SettlingStore):
    """One process's view of the bucket through a faulty network and its machine's clock."""

    url = "sim://bucket"

    def __init__(
        self,
        bucket: Bucket,
        *,
        clock: Clock,
        rng: random.Random,
        faults: Faults,
        is_cut: Callable[[], bool],
        error_ms: Callable[[], int],
    ) -> None:
        super().__init__(clock=clock, rng=rng)
        self._bucket = bucket
        self._faults = faults
        self._is_cut = is_cut
        self._error_ms = error_ms
        self._offset_ms: int | None = None
        self._newest_ms = 0

    def clock_ms(self) -> int:
        """The store's clock, good to a second: an offset to the machine's boot clock."""
        if self._offset_ms is None:
            inexact_ms = self._rng.randint(-1_000, 1_000)
            self._offset_ms = self._bucket.hub.now_ms + inexact_ms - self._clock.boot_ms()
        reading_ms = self._clock.boot_ms() + self._offset_ms + self._error_ms()
        self._newest_ms = max(self._newest_ms, reading_ms)
        return self._newest_ms

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self._counts.add("LIST")
        self._travel()
        faults, now_ms = self._faults, self._bucket.hub.now_ms
        entries: list[Entry] = []
        for key in self._bucket.keys(prefix, start_after):
            delayed = now_ms - self._bucket.landed_ms[key] < self._delay_of(key)
            if delayed or self._draw("list skips a key", faults.list_skips):
                self._bucket.played["list delays a key"] += delayed
                continue
            entries.append(Entry(key, len(self._bucket.bodies[key])))
            if self._draw("list repeats a key", faults.list_repeats):
                entries.append(entries[-1])
        self._travel_back()
        return iter(entries)

    def _delay_of(self, key: str) -> int:
        """How long LIST does not show a key; fixed by the key, so that runs repeat."""
        if not self._faults.list_delay_ms:
            return 0
        return sum(key.encode()) * 7919 % self._faults.list_delay_ms

    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        return self.list(prefix, start_after)

    def versioning(self) -> bool | None:
        return False

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        self._counts.add("PUT")
        self._travel()
        faults = self._faults
        if self._draw("409 with nothing stored", faults.conflict):
            raise TransientError("409")
        if self._draw("write lands late", faults.late_landing):
            at_ms = self._bucket.hub.now_ms + self._rng.randint(1, faults.late_ms)
            self._bucket.hub.call_at(at_ms, lambda: self._land(key, body))
            self._wait_out()
        created = self._bucket.create(key, body)
        if created and self._draw("412 on one's own write", faults.own_412):
            created = False
        elif created and self._draw("lost reply", faults.lost_reply):
            if faults.sdk_retries:
                return self._bucket.create(key, body)
            self._wait_out()
        self._travel_back()
        return created

    def _land(self, key: str, body: bytes) -> None:
        self._bucket.create(key, body)

    def _read(self, key: str) -> bytes | None:
        self._counts.add("GET")
        self._travel()
        body = self._bucket.bodies.get(key)
        self._travel_back()
        return body

    def _travel(self) -> None:
        """The way there: latency, outage, server error."""
        self._bucket.hub.sleep_ms(self._rng.randint(1, self._faults.latency_ms))
        if self._is_cut():
            self._bucket.played["no route"] += 1
            self._bucket.hub.sleep_ms(1_000)
            raise NotSentError("no route to the bucket")
        if self._draw("server error", self._faults.error):
            raise TransientError("503")

    def _travel_back(self) -> None:
        self._bucket.hub.sleep_ms(self._rng.randint(1, self._faults.latency_ms))

    def _wait_out(self) -> None:
        """The client's own time-out, after which it knows nothing."""
        self._bucket.hub.sleep_ms(self._rng.randint(500, 5_000))
        raise TransientError("timed out")

    def _draw(self, kind: str, probability: float) -> bool:
        hit = probability > 0 and self._rng.random() < probability
        self._bucket.played[kind] += hit
        return hit
