"""What one process says or does wrong stays its own trouble: no leader dies of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger import events as e
from ledger.errors import InDoubtError
from ledger.events import JobState, Liveness
from ledger.keys import BeatKey, claim_key
from ledger.names import JobId, NodeName, WorkerName, WriterName
from ledger.stores.base import Lost, Won
from roles.dispatcher import Dispatcher
from roles.wake import LocalNeighbours
from simulation.memory import ManualClock, MemoryStore
from tests.roles.test_leader import Bench
from tests.world import START_MS, assigned_job, world_of_one_node


@pytest.mark.parametrize(
    ("worker", "writer", "cursor"),
    [
        ("n1-cpu0", "n1-cpu0", 10**8),
        ("n1-cpu0", "n1-cpu0", -1),
        ("n1-cpu0", "n1-cpu1", 0),
        ("n2-cpu0", "n2-cpu0", 0),
        ("a b", "w", 0),
        ("../x", "w", 0),
        ("", "w", 0),
    ],
)
def test_a_worker_that_cannot_be_is_refused(
    tmp_path: Path, worker: str, writer: str, cursor: int
) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    ready = e.WorkerReady(
        at=START_MS,
        worker=WorkerName(worker),
        cursor=cursor,
        node=NodeName("n1"),
        machine="m",
        pool="default",
        slot=e.Slot(kind="cpu", index=0),
    )
    bench.fact(ready, writer)
    bench.submit()
    leader.step()
    bench.leader(1).step()
    refused = [seen for page in bench.pages() for seen in page.seen]
    assert [e.kind_of(seen) for seen in refused] == ["refused"]
    assert not bench.fold().projection.state.workers


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"v":2,"owner":"start"}',
        e.encode(
            e.Claim(
                ledger="other",
                put_id=e.PutId("x"),
                job=JobId("zzzzzzzz"),
                attempt=9,
                owner="started-v2",
                writer=WriterName("n1-cpu0~aaaaaaaa"),
                at=1,
            )
        ),
    ],
)
def test_a_claim_that_cannot_be_read_decides_nothing(tmp_path: Path, body: bytes) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    job = bench.submit()
    leader.step()
    bench.store.put_once(claim_key(job, 1), body)
    bench.fact(e.CancelRequested(at=START_MS, job=job, by="u"))
    for _ in range(3):
        leader.step()
    other = bench.submit(7)
    leader.step()
    state = bench.fold().projection.state
    assert state.jobs[job].state is JobState.ASSIGNED
    assert other in state.jobs


class NoJournal(MemoryStore):
    """One machine's connection, over which pages do not go through and all else does."""

    def __init__(self, clock: ManualClock, store: MemoryStore) -> None:
        super().__init__(clock)
        self._clock_of_test = clock
        self._store = store
        self.cut = False
        self.put_once = store.put_once  # type: ignore[method-assign]
        self.get = store.get  # type: ignore[method-assign]
        self.list = store.list  # type: ignore[method-assign]

    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        if self.cut and key.startswith("journal/"):
            self._clock_of_test.advance_ms(1_000)
            raise InDoubtError("no answer")
        return self._store.put_new(key, body, patience_ms=patience_ms)


def test_a_leader_whose_pages_do_not_go_through_is_replaced(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    cut = NoJournal(bench.clock, bench.store)
    whole, bench.store = bench.store, cut
    context = bench.context(0)
    bench.store = whole
    first = Dispatcher(context, NodeName("n0"), LocalNeighbours(context, NodeName("n0")))
    first.step()
    assert first.leads
    second = bench.dispatcher(1)
    cut.cut = True
    job = bench.submit()
    for _ in range(300):
        first.step()
        second.step()
        bench.clock.advance_ms(1_000)
    assert job in bench.fold().projection.state.jobs
    assert not first.leads


def test_a_beat_of_megabytes_makes_no_page_of_megabytes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader = bench.leader()
    bench.ready()
    leader.step()
    bench.clock.advance_ms(6_000)
    key = BeatKey(stamp_ms=bench.store.clock_ms(), writer=WriterName("node-n1~aaaaaaaa"), n=0)
    beat = e.Beat(
        writer=key.writer,
        n=0,
        at=1,
        node=NodeName("n1"),
        machine="m",
        slots={"n1-cpu0": e.SlotBeat(alive=True, problem="x" * 2_000_000)},
    )
    bench.store.put_once(key.format(), e.encode(beat))
    leader.step()
    assert max(len(e.encode(page)) for page in bench.pages()) < 10_000


def test_what_a_hung_worker_does_not_claim_is_taken_back() -> None:
    world = world_of_one_node(2)
    job = assigned_job(world)
    world.turn(after_ms=179_000)
    assert world.job(job).state is JobState.ASSIGNED
    assert [e.kind_of(d) for d in world.turn(after_ms=1_000)] == ["revoke"]


def test_a_loss_before_the_start_was_told_is_charged() -> None:
    """One slot from its assignment to the loss, an hour later: 3,600,000 slot-ms."""
    world = world_of_one_node()
    job = assigned_job(world, estimate_ms=1_000)
    world.cancel(job)
    world.turn()
    world.claim(job, "start")
    world.turn()
    world.node_is("n1", Liveness.GONE)
    world.turn(after_ms=3_600_000)
    flow = next(iter(world.state.flows.values()))
    assert flow.finish == 3_600_000 * 1_000_000
