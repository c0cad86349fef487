"""Writers, a faulty store and a tail, in any order: no fact is lost, doubled or reordered."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ledger.errors import TransientError
from ledger.events import CancelRequested, Posted
from ledger.keys import FactKey
from ledger.names import JobId, WriterName
from ledger.reader import FactTail
from ledger.stores.base import Entry
from ledger.timings import HOUR_MS, MINUTE_MS, SECOND_MS, Timings
from ledger.writer import FactWriter, drain_spools
from simulation.memory import ManualClock, MemorySpools, MemoryStore

T0 = 1_796_058_780_000
TIMINGS = Timings()
LIST_LAG_MS = 90 * SECOND_MS
"""For so long after it landed a key may be missing from a LIST or to a GET."""


class FaultyStore(MemoryStore):
    """Loses answers, lands writes late, lists late and twice, reads late, gives no news."""

    def __init__(self, clock: ManualClock, rng: random.Random) -> None:
        super().__init__(clock)
        self.clock = clock
        self.rng = rng
        self.faulty = True
        self.skew_ms = 0
        self.late: list[tuple[str, bytes]] = []
        self.landed_ms: dict[str, int] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        """What the world does while a slow put is on its way."""

    def clock_ms(self) -> int:
        return super().clock_ms() + self.skew_ms

    def put_once(self, key: str, body: bytes) -> None:
        if self._chance(0.05):
            raise TransientError("refused, and it never lands")
        if self._chance(0.1):
            self.late.append((key, body))
            raise TransientError("no answer, and it lands later")
        if self._chance(0.1):
            self.clock.advance_ms(self.rng.choice([59 * SECOND_MS, 61 * SECOND_MS, 3 * HOUR_MS]))
            self.meanwhile()
        super().put_once(key, body)
        self.landed_ms.setdefault(key, self.clock.boot_ms())
        if self._chance(0.1):
            raise TransientError("no answer, and it landed")

    def land(self, index: int) -> None:
        key, body = self.late.pop(index % len(self.late))
        super().put_once(key, body)
        self.landed_ms.setdefault(key, self.clock.boot_ms())

    def before(self, op: str, key: str) -> None:
        # What happens to a put is decided in put_once: a late one must land.
        if op != "put" and self._chance(0.05):
            raise TransientError(f"no news from {op}")

    def listing(self, prefix: str, entries: list[Entry]) -> Iterable[Entry]:
        shown = [entry for entry in entries if not self._lags(entry.key, 0.3)]
        if self._chance(0.3):
            shown += self.rng.sample(shown, len(shown) // 2)
        return shown

    def get(self, key: str) -> bytes | None:
        body = super().get(key)
        return None if self._lags(key, 0.1) else body

    def _lags(self, key: str, probability: float) -> bool:
        age_ms = self.clock.boot_ms() - self.landed_ms.get(key, 0)
        return age_ms < LIST_LAG_MS and self._chance(probability)

    def _chance(self, probability: float) -> bool:
        return self.faulty and self.rng.random() < probability


class Fold(msgspec.Struct, frozen=True):
    """What the journal says after some page."""

    writers: dict[WriterName, int]
    newest_ms: int | None
    at_ms: int

    def after(self, facts: list[Posted], at_ms: int) -> Fold:
        """Fails where a fact is doubled, skipped or out of its writer's order."""
        writers, newest_ms = dict(self.writers), self.newest_ms
        at_ms = max(at_ms, self.at_ms + 1)
        for posted in facts:
            fact, key = posted.fact, FactKey.parse(posted.key)
            assert (fact.writer, fact.n) == (key.writer, key.n)
            assert fact.n == writers.get(fact.writer, 0)
            writers[fact.writer] = fact.n + 1
            newest_ms = max(newest_ms or 0, min(key.stamp_ms, at_ms))
        return Fold(writers, newest_ms, at_ms)


class Tailing(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(T0, boot_ms=LIST_LAG_MS)
        self.store = FaultyStore(self.clock, self.rng)
        self.spools = MemorySpools()
        self.writers: list[FactWriter] = []
        self.reported: dict[WriterName, int] = {}
        self.folds = [Fold({}, None, 0)]
        self.tail = self.new_tail()
        self.writer_starts()
        self.store.meanwhile = self.others_go_on

    def others_go_on(self) -> None:
        """A one-shot writer reports something, and it is admitted."""
        self.store.meanwhile = lambda: None
        writer = FactWriter(self.store, self.rng, TIMINGS, self.spools, "cli")
        self.report(writer)
        with contextlib.suppress(TransientError):
            writer.flush()
        writer.close()
        self.page_is_won(1)
        self.store.meanwhile = self.others_go_on

    @rule(rounds=st.integers(1, 8))
    def all_are_busy(self, rounds: int) -> None:
        """Everybody reports and flushes, and every few seconds a page is won."""
        for _ in range(rounds):
            for which in range(len(self.writers)):
                self.writer_reports(which, 1)
                self.writer_flushes(which, 0)
            self.clock.advance_ms(5 * SECOND_MS)
            self.page_is_won(1)

    @rule()
    def writer_starts(self) -> None:
        if len(self.writers) < 4:
            self.writers.append(
                FactWriter(self.store, self.rng, TIMINGS, self.spools, "node1-gpu0")
            )

    @rule(which=st.integers(0, 3), count=st.integers(1, 4))
    def writer_reports(self, which: int, count: int) -> None:
        writer = self.writer(which)
        for _ in range(count):
            self.report(writer)

    @rule(which=st.integers(0, 3), skew_ms=st.sampled_from([0, 0, -20 * SECOND_MS, 5 * HOUR_MS]))
    def writer_flushes(self, which: int, skew_ms: int) -> None:
        """A writer whose notion of the store's clock may be wrong."""
        self.store.skew_ms = skew_ms
        with contextlib.suppress(TransientError):
            self.writer(which).flush()
        self.store.skew_ms = 0

    @rule(which=st.integers(0, 3))
    def writer_dies(self, which: int) -> None:
        writer = self.writers.pop(which % len(self.writers))
        self.spools.owned.pop(writer.writer, None)
        self.writer_starts()

    @rule()
    def spools_are_drained(self) -> None:
        with contextlib.suppress(TransientError):
            drain_spools(self.store, TIMINGS, self.spools)

    @precondition(lambda self: self.store.late)
    @rule(index=st.integers(0, 9))
    def write_lands_late(self, index: int) -> None:
        self.store.land(index)

    @rule(which=st.integers(0, 3))
    def beat_names_the_newest(self, which: int) -> None:
        writer = self.writer(which)
        if writer.newest_key:
            self.tail.hint({writer.writer: writer.newest_key})

    @rule(ms=st.sampled_from([SECOND_MS, 20 * SECOND_MS, 5 * MINUTE_MS, 3 * HOUR_MS]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance_ms(ms)

    @rule(times=st.integers(1, 3))
    def page_is_won(self, times: int) -> None:
        for _ in range(times):
            facts = self.poll(self.folds[-1])
            self.folds.append(self.folds[-1].after(facts, self.clock.wall_ms()))
            self.clock.advance_ms(SECOND_MS)

    @rule(taken=st.integers(0, 3))
    def page_is_lost_to_one_with_fewer_facts(self, taken: int) -> None:
        facts = self.poll(self.folds[-1])
        self.folds.append(self.folds[-1].after(facts[:taken], self.clock.wall_ms()))

    @rule(back=st.integers(1, 5))
    def reader_polls_for_an_older_fold(self, back: int) -> None:
        self.poll(self.folds[max(0, len(self.folds) - 1 - back)])

    @rule()
    def another_process_leads(self) -> None:
        self.tail = self.new_tail()

    def teardown(self) -> None:
        """Without faults, everything that was ever reported is admitted."""
        self.store.faulty = False
        for writer in self.writers:
            self.spools.owned.pop(writer.writer, None)
        drain_spools(self.store, TIMINGS, self.spools)
        while self.store.late:
            self.store.land(0)
        self.clock.advance_ms(TIMINGS.overlap_long_every_ms)
        while facts := self.poll(self.folds[-1]):
            self.folds.append(self.folds[-1].after(facts, self.clock.wall_ms()))
        assert self.folds[-1].writers == self.reported
        assert self.spools.records == {}

    def poll(self, fold: Fold) -> list[Posted]:
        """What is given out for ``fold``, checked against it; nothing where there is no news."""
        try:
            page = self.tail.poll(fold.writers, fold.newest_ms, fold.at_ms)
        except TransientError:
            return []
        facts = [posted for posted in page if isinstance(posted, Posted)]
        assert len(facts) == len(page), "a good fact was refused"
        fold.after(facts, fold.at_ms)
        return facts

    def report(self, writer: FactWriter) -> None:
        n = writer.report(CancelRequested(at=T0, job=JobId("abcdefgh")))
        self.reported[writer.writer] = n + 1

    def writer(self, which: int) -> FactWriter:
        return self.writers[which % len(self.writers)]

    def new_tail(self) -> FactTail:
        return FactTail(self.store, self.clock, TIMINGS)


TestTailing = Tailing.TestCase
TestTailing.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
