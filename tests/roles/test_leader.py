"""The leader and the candidates over a store in memory: election, fencing, delivery."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from ledger import events as e
from ledger.errors import FencedError, InDoubtError, TransientError
from ledger.events import JobState, decode_message, decode_page
from ledger.journal import Journal
from ledger.keys import FactKey, claim_key, message_key, page_key
from ledger.names import JobId, NodeName, WorkerName, WriterName
from ledger.stores.base import Lost, Won
from ledger.timings import Timings
from roles.context import Context
from roles.dispatcher import Dispatcher
from roles.leader import Leader
from roles.wake import LocalNeighbours
from simulation.memory import ManualClock, MemoryStore
from simulation.verify import verify
from tests.world import START_MS, job_id

LEDGER = "test"
TIMINGS = Timings()


class Bench:
    """A store, a clock, and the facts of workers and users that the test plays."""

    def __init__(self, tmp_path: Path, store: MemoryStore | None = None) -> None:
        self.clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
        self.store = store or MemoryStore(self.clock)
        self.tmp_path = tmp_path
        self._numbers: dict[str, int] = {}

    def context(self, seed: int = 0) -> Context:
        return Context(
            store=self.store,
            ledger=LEDGER,
            clock=self.clock,
            rng=random.Random(seed),
            timings=TIMINGS,
            state_dir=self.tmp_path / f"state{seed}",
            host="host",
            machine=f"machine{seed}",
        )

    def dispatcher(self, seed: int = 0) -> Dispatcher:
        context, node = self.context(seed), NodeName(f"n{seed}")
        return Dispatcher(context, node, LocalNeighbours(context, node))

    def leader(self, seed: int = 0) -> Leader:
        """A leader that was just elected."""
        context = self.context(seed)
        journal = Journal(context.store, LEDGER)
        journal.load()
        leader = Leader(context, journal, writer(f"dispatcher-n{seed}"), lambda decisions: None)
        assert leader.elect()
        return leader

    def fact(self, fact: e.AnyFact, name: str = "cli") -> None:
        n = self._numbers.get(name, 0)
        self._numbers[name] = n + 1
        numbered = msgspec.structs.replace(fact, writer=writer(name), n=n)
        key = FactKey(
            stamp_ms=self.store.clock_ms(), writer=writer(name), n=n, kind=e.kind_of(fact)
        )
        self.store.put_once(key.format(), e.encode(numbered))

    def ready(self, worker: str = "n1-cpu0") -> None:
        self.fact(
            e.WorkerReady(
                at=self.store.clock_ms(),
                worker=WorkerName(worker),
                cursor=0,
                node=NodeName(worker.rsplit("-", 1)[0]),
                machine="m",
                pool="default",
                slot=e.Slot(kind="cpu", index=0),
            ),
            worker,
        )

    def submit(self, number: int = 0) -> JobId:
        spec = e.JobSpec(
            id=job_id(number),
            name="job",
            organization="a",
            workload_class="batch",
            pool="default",
            user="u",
        )
        self.fact(e.Submitted(at=self.store.clock_ms(), job=spec))
        return spec.id

    def pages(self) -> list[e.Page]:
        pages: list[e.Page] = []
        while (body := self.store.get(page_key(len(pages)))) is not None:
            pages.append(decode_page(body))
        return pages

    def fold(self) -> Journal:
        journal = Journal(self.store, LEDGER)
        journal.load()
        return journal


def writer(name: str) -> WriterName:
    return WriterName(f"{name}~aaaaaaaa")


def test_first_candidate_of_an_empty_ledger_leads_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    dispatcher = bench.dispatcher()
    dispatcher.step()
    assert dispatcher.leads
    assert [e.kind_of(d) for page in bench.pages() for d in page.decisions] == ["elect"]


def test_submit_is_assigned_and_its_message_delivered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    dispatcher = bench.dispatcher()
    dispatcher.step()
    bench.ready()
    job = bench.submit()
    dispatcher.step()
    body = bench.store.get(message_key("n1-cpu0", 0))
    assert body is not None
    message = decode_message(body)
    assert isinstance(message, e.RunMessage)
    assert (message.job.id, message.attempt, message.seq) == (job, 1, 1)
    report = verify(bench.store, LEDGER)
    assert (report.difference, report.pages) == (None, 2)


def test_an_idle_turn_posts_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    dispatcher = bench.dispatcher()
    for _ in range(20):
        dispatcher.step()
        bench.clock.advance_ms(1_000)
    assert len(bench.pages()) == 1


def test_second_candidate_waits_for_the_lease_and_then_leads(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, second = bench.dispatcher(0), bench.dispatcher(1)
    first.step()
    for _ in range(30):
        first.step()
        second.step()
        bench.clock.advance_ms(5_000)
    assert (first.leads, second.leads) == (True, False)
    silent_ms = 0
    while not second.leads:
        second.step()
        bench.clock.advance_ms(1_000)
        silent_ms += 1_000
        assert silent_ms < 3 * TIMINGS.lease_ms
    assert silent_ms > TIMINGS.lease_ms - TIMINGS.leader_beat_ms
    assert [page.epoch for page in bench.pages()] == [1, 2]


def test_a_frozen_leader_steps_down_before_it_acts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    old = bench.leader(0)
    new = bench.leader(1)
    bench.ready()
    bench.submit()
    old.step()  # its page is Lost: it reads the election
    with pytest.raises(FencedError):
        old.step()
    assert bench.store.get(message_key("n1-cpu0", 0)) is None
    new.step()
    assert bench.store.get(message_key("n1-cpu0", 0)) is not None
    assert verify(bench.store, LEDGER).difference is None


def test_a_new_leader_delivers_what_the_old_one_only_decided(tmp_path: Path) -> None:
    class NoMailbox(MemoryStore):
        refuses = True

        def before(self, op: str, key: str) -> None:
            if self.refuses and op != "get" and key.startswith("mailbox/"):
                raise TransientError("cut")

    clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
    store = NoMailbox(clock)
    bench = Bench(tmp_path, store)
    bench.clock = clock
    bench.ready()
    bench.submit()
    bench.leader(0).step()
    assert store.get(message_key("n1-cpu0", 0)) is None
    store.refuses = False
    bench.leader(1)
    assert store.get(message_key("n1-cpu0", 0)) is not None


class DoubtfulStore(MemoryStore):
    """The next page put is applied (or not), and its answer never comes."""

    applies: bool | None = None

    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        if self.applies is None or not key.startswith("journal/"):
            return super().put_new(key, body, patience_ms=patience_ms)
        applies, self.applies = self.applies, None
        if applies:
            super().put_new(key, body)
        raise InDoubtError("no answer")


@pytest.mark.parametrize("applies", [True, False])
def test_a_page_in_doubt_counts_once_whichever_way_it_went(tmp_path: Path, applies: bool) -> None:
    clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
    store = DoubtfulStore(clock)
    bench = Bench(tmp_path, store)
    leader = bench.leader()
    bench.ready()
    job = bench.submit()
    store.applies = applies
    leader.step()
    leader.step()
    assigns = [d for p in bench.pages() for d in p.decisions if e.kind_of(d) == "assign"]
    assert len(assigns) == 1
    assert bench.store.get(message_key("n1-cpu0", 0)) is not None
    assert bench.fold().projection.state.jobs[job].state is JobState.ASSIGNED
    assert verify(store, LEDGER).difference is None


def test_a_revoke_is_tried_after_the_page_and_its_outcome_is_in_the_next(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    job = bench.submit()
    leader.step()
    bench.fact(e.CancelRequested(at=bench.store.clock_ms(), job=job, by="u"))
    leader.step()
    body = bench.store.get(claim_key(job, 1))
    assert body is not None
    assert e.decode_claim(body).owner == "revoke"
    assert bench.fold().projection.state.jobs[job].state is JobState.ASSIGNED
    leader.step()
    assert bench.fold().projection.state.jobs[job].state is JobState.CANCELLED


def test_a_start_claim_beats_the_revoke_and_the_job_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    job = bench.submit()
    leader.step()
    claim = e.Claim(
        ledger=LEDGER,
        put_id=e.PutId("p"),
        job=job,
        attempt=1,
        owner="start",
        writer=writer("n1-cpu0"),
        at=START_MS,
    )
    bench.store.put_new(claim_key(job, 1), e.encode(claim))
    bench.fact(e.CancelRequested(at=bench.store.clock_ms(), job=job, by="u"))
    leader.step()
    leader.step()
    assert bench.fold().projection.state.jobs[job].state is JobState.STOPPING
    body = bench.store.get(message_key("n1-cpu0", 1))
    assert body is not None
    assert isinstance(decode_message(body), e.StopMessage)


def test_a_silent_node_is_stale_after_three_minutes_and_gone_after_ten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    leader.step()
    seen: list[tuple[int, str]] = []
    for second in range(0, 700, 5):
        leader.step()
        node = bench.fold().projection.state.nodes[NodeName("n1")]
        if not seen or seen[-1][1] != node.liveness.value:
            seen.append((second, node.liveness.value))
        bench.clock.advance_ms(5_000)
    assert [name for _, name in seen] == ["fresh", "stale", "gone"]
    assert 180 <= seen[1][0] <= 190
    assert 600 <= seen[2][0] <= 610


def test_after_a_gap_in_its_own_reading_a_leader_judges_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    leader.step()
    bench.clock.advance_ms(3_600_000)  # the machine slept
    leader.step()
    bench.clock.advance_ms(10_000)
    leader.step()
    assert bench.fold().projection.state.nodes[NodeName("n1")].liveness is e.Liveness.FRESH


class SkewedStore(MemoryStore):
    """A store whose clock, as this machine reckons it, can be made wrong."""

    skew_ms = 0

    def clock_ms(self) -> int:
        return super().clock_ms() + self.skew_ms


@pytest.mark.parametrize(("skew_ms", "leads"), [(-200_000, False), (-30_000, True)])
def test_a_clock_far_behind_the_journal_does_not_lead(
    tmp_path: Path, skew_ms: int, leads: bool
) -> None:
    clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
    store = SkewedStore(clock)
    bench = Bench(tmp_path, store)
    bench.clock = clock
    bench.dispatcher(0).step()
    store.skew_ms = skew_ms
    late = bench.dispatcher(1)
    for _ in range(100):
        late.step()
        bench.clock.advance_ms(500)
    assert late.leads is leads


def test_a_clock_far_ahead_of_the_journal_does_not_lead(tmp_path: Path) -> None:
    clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
    store = SkewedStore(clock)
    bench = Bench(tmp_path, store)
    bench.clock = clock
    first, late = bench.dispatcher(0), bench.dispatcher(1)
    first.step()
    late.step()
    bench.ready()
    first.step()
    late.step()  # sees the page as it comes
    store.skew_ms = 120_000
    for _ in range(100):
        late.step()
        bench.clock.advance_ms(500)
    assert not late.leads
