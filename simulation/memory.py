"""A store, spools and a clock that live in memory: the world of tests and simulations.

Owns ``MemoryStore`` (the store contract with exact semantics, counted requests and places
where a subclass puts faults), ``MemorySpools`` (spools whose owners can be killed) and
``ManualClock``. Refuses what the contract refuses: nothing is overwritten or deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ledger.clock import Clock
from ledger.errors import LedgerError
from ledger.events import AnyFact
from ledger.names import WriterName
from ledger.spool import Acknowledged, Reported, SpoolContent, SpoolRecord, content_of
from ledger.stores.base import Entry, Lost, Store, Won

_KEYS_PER_LIST = 1000


class ManualClock:
    """A clock that moves only when told: by ``advance_ms`` or by somebody's sleep."""

    def __init__(self, wall_ms: int = 0, boot_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.advance_ms(duration_ms)

    def advance_ms(self, duration_ms: int) -> None:
        """Let ``duration_ms`` (>= 0) pass on both clocks."""
        if duration_ms < 0:
            raise ValueError(f"time does not go back by {-duration_ms} ms")
        self._wall_ms += duration_ms
        self._boot_ms += duration_ms

    def step_wall_ms(self, step_ms: int) -> None:
        """Set the wall clock forward, or back if ``step_ms`` is negative, and nothing else."""
        self._wall_ms += step_ms


class MemoryStore(Store):
    """An exact store in memory. The store's clock is the wall clock of ``clock``.

    ``counts`` holds the number of requests by kind (``put``, ``get``, ``list``), as a
    bucket would bill them. Subclasses make faults in ``before``, ``after`` and ``listing``.
    """

    def __init__(self, clock: Clock, *, url: str = "memory:") -> None:
        self.url = url
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._newest_ms = clock.wall_ms()
        self._bodies: dict[str, bytes] = {}
        self._keys: list[str] = []

    def before(self, op: str, key: str) -> None:
        """Called before a request has its effect; may raise TransientError."""

    def after(self, op: str, key: str) -> None:
        """Called when it had its effect; raising here is a lost answer."""

    def listing(self, prefix: str, entries: list[Entry]) -> Iterable[Entry]:
        """What a LIST answers, given the true ``entries``."""
        return entries

    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        """O(keys). Nothing is ever in doubt here: own bytes (and put_id) there means Won."""
        there = self._put(key, body)
        return Won() if there == body else Lost(there)

    def put_once(self, key: str, body: bytes) -> None:
        """O(keys)."""
        if self._put(key, body) != body:
            raise LedgerError(f"{key} exists in {self.url} with another body")

    def get(self, key: str) -> bytes | None:
        """O(1)."""
        self.before("get", key)
        self.counts["get"] += 1
        body = self._bodies.get(key)
        self.after("get", key)
        return body

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """O(log keys + entries). Sees what was there when it was called."""
        self.before("list", prefix)
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        entries = []
        for key in self._keys[first:]:
            if not key.startswith(prefix):
                break
            entries.append(Entry(key, len(self._bodies[key])))
        self.counts["list"] += 1 + len(entries) // _KEYS_PER_LIST
        self.after("list", prefix)
        return iter(self.listing(prefix, entries))

    def clock_ms(self) -> int:
        self._newest_ms = max(self._newest_ms, self._clock.wall_ms())
        return self._newest_ms

    def _put(self, key: str, body: bytes) -> bytes:
        """Create ``key`` if it is not there; the bytes that stand there now."""
        self.before("put", key)
        self.counts["put"] += 1
        if key not in self._bodies:
            self._bodies[key] = body
            # Keys of the ledger are ASCII, whose order as text is their order as bytes.
            insort(self._keys, key)
        self.after("put", key)
        return self._bodies[key]


class MemorySpool:
    """One writer's spool in a ``MemorySpools``."""

    def __init__(self, storage: MemorySpools, writer: WriterName) -> None:
        self.writer = writer
        self._storage = storage

    def append_fact(self, fact: AnyFact) -> None:
        self._storage.records[self.writer].append(Reported(fact=fact))

    def append_acknowledged(self, n: int, key: str) -> None:
        self._storage.records[self.writer].append(Acknowledged(n=n, key=key))

    def content(self) -> SpoolContent:
        return content_of(self._storage.records[self.writer], self.writer)

    def close(self) -> None:
        self._storage.owned.pop(self.writer, None)

    def remove(self) -> None:
        self.close()
        del self._storage.records[self.writer]


class MemorySpools:
    """The spools of one simulated disk, each held by whoever made or took it last.

    ``holder`` names the process that is running; when it dies, ``release`` makes its
    spools anybody's, as the kernel does with locks.
    """

    def __init__(self, holder: Callable[[], object] = lambda: None) -> None:
        self.records: dict[WriterName, list[SpoolRecord]] = {}
        self.owned: dict[WriterName, object] = {}
        self._holder = holder

    def create(self, writer: WriterName) -> MemorySpool:
        if writer in self.records:
            raise LedgerError(f"there is a spool of {writer} already")
        self.records[writer] = []
        return self._take(writer)

    def abandoned(self) -> Iterator[MemorySpool]:
        for writer in sorted(self.records):
            if writer in self.records and writer not in self.owned:
                yield self._take(writer)

    def release(self, holder: object) -> None:
        """The process ``holder`` is dead."""
        self.owned = {w: owner for w, owner in self.owned.items() if owner is not holder}

    def _take(self, writer: WriterName) -> MemorySpool:
        self.owned[writer] = self._holder()
        return MemorySpool(self, writer)
