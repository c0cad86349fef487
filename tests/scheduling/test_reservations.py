"""Jobs that need more slots than are free: what is kept for them, and who may pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger import events as e
from ledger.events import JobState, Liveness
from ledger.names import JobId, NodeName
from ledger.policy import Policy, Pool
from ledger.state import Reservation
from tests.world import START_MS, World

S = 1_000


def starts(world: World) -> list[JobId]:
    """Post a page; the jobs that it assigns."""
    return [d.job for d in world.turn() if isinstance(d, e.AttemptAssigned)]


def busy_world(slots: int, *limits_ms: int, **node: object) -> tuple[World, list[JobId]]:
    """One node, of which one slot is busy for each of ``limits_ms``."""
    world = World()
    world.node_up("n1", slots, **node)  # type: ignore[arg-type]
    jobs = [world.submit("z", time_limit_ms=limit_ms) for limit_ms in limits_ms]
    world.turn()
    for job in jobs:
        world.start(job)
    world.turn()
    return world, jobs


def reservation(world: World) -> Reservation | None:
    return world.state.reservations.get("default")


def test_seventy_short_jobs_pass_a_wide_one_and_do_not_delay_it() -> None:
    """8 slots, one busy for 100 s: 7 free slots for 100 s are 70 jobs of 10 s."""
    world, (long,) = busy_world(8, 100 * S)
    wide = world.submit("a", slots=8)
    assert starts(world) == []
    assert reservation(world) == Reservation(
        job=wide, node=NodeName("n1"), start_at=START_MS + 100 * S, made_at=START_MS
    )
    small = [world.submit("b", time_limit_ms=10 * S) for _ in range(77)]
    ran: list[JobId] = []
    for _ in range(10):
        batch = starts(world)
        assert len(batch) == 7
        for job in batch:
            world.start(job)
        world.turn(after_ms=10 * S)
        for job in batch:
            world.finish(job)
        ran += batch
    assert world.at == START_MS + 100 * S
    assert ran == small[:70]
    world.finish(long)
    assert starts(world) == [wide]
    assert all(world.attempt(job).ended_at <= world.at for job in ran)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("time_limit_ms", "passes"), [(100 * S, True), (100 * S + 1, False), (0, False)]
)
def test_only_a_limit_that_ends_before_the_start_lets_a_job_pass(
    time_limit_ms: int, passes: bool
) -> None:
    world, _ = busy_world(8, 100 * S)
    world.submit("a", slots=8)
    world.turn()
    small = world.submit("b", time_limit_ms=time_limit_ms, estimate_ms=1 * S)
    assert starts(world) == ([small] if passes else [])


def test_jobs_without_a_limit_pass_only_as_far_as_they_fit_beside() -> None:
    """8 slots, 4 busy for 100 s; a job of 6 will leave 2: two may pass, whatever they promise."""
    world, _ = busy_world(8, *[100 * S] * 4)
    wide = world.submit("a", slots=6)
    world.turn(after_ms=1 * S)
    small = [world.submit("b", estimate_ms=1 * S) for _ in range(4)]
    assert starts(world) == small[:2]
    assert world.job(wide).state is JobState.PENDING
    world.turn(after_ms=1 * S)
    assert [world.job(job).state for job in small[2:]] == [JobState.PENDING] * 2


def test_a_job_that_passed_is_charged_and_virtual_time_stands_still() -> None:
    world, _ = busy_world(8, 100 * S)
    world.submit("a", slots=8)
    world.turn()
    before = world.state.pools["default"].virtual_time
    small = world.submit("b", time_limit_ms=10 * S)
    world.turn()
    decision = world.decisions[-1]
    assert isinstance(decision, e.AttemptAssigned)
    assert (decision.job, decision.backfill) == (small, True)
    assert world.state.pools["default"].virtual_time == before
    assert world.state.flows[world.job(small).spec.flow].finish == decision.finish_tag


def test_the_reserved_job_does_not_run_as_backfill() -> None:
    world, (long,) = busy_world(2, 100 * S)
    wide = world.submit("a", slots=2)
    world.turn()
    world.finish(long)
    decisions = world.turn()
    assert [e.kind_of(d) for d in decisions] == ["unreserve", "assign"]
    assert isinstance(decisions[1], e.AttemptAssigned)
    assert (decisions[1].job, decisions[1].backfill) == (wide, False)


def test_the_node_that_is_free_soonest_is_reserved_and_the_other_goes_on() -> None:
    world = World()
    world.node_up("n1", 2)
    world.node_up("n2", 2)
    limits = {"n1": 300 * S, "n2": 50 * S}
    jobs = [
        world.submit("z", worker=f"{node}-cpu{i}", time_limit_ms=limit_ms)
        for node, limit_ms in limits.items()
        for i in range(2)
    ]
    world.turn()
    for job in jobs:
        world.start(job)
    world.finish(jobs[0])
    world.submit("a", slots=2)
    world.turn()
    held = reservation(world)
    assert held is not None
    assert (held.node, held.start_at) == ("n2", START_MS + 50 * S)
    other = world.submit("b")  # no limit: but it runs elsewhere
    assert starts(world) == [other]
    assert world.attempt(other).lead == "n1-cpu0"


def test_a_reserved_job_takes_another_node_that_is_free_sooner_than_thought() -> None:
    world = World()
    world.node_up("n1", 2)
    world.node_up("n2", 2)
    jobs = [world.submit("z", time_limit_ms=limit) for limit in (9 * S, 9 * S, 99 * S, 99 * S)]
    world.turn()
    for job in jobs:
        world.start(job)
    world.finish(jobs[3])
    wide = world.submit("a", slots=2)
    world.turn()
    held = reservation(world)
    assert held is not None
    assert held.node == "n1"
    world.finish(jobs[2])
    assert starts(world) == [wide]
    assert world.attempt(wide).slots == ("n2-cpu0", "n2-cpu1")
    assert reservation(world) is None


def cancelled(world: World, wide: JobId) -> None:
    world.cancel(wide)


def held(world: World, wide: JobId) -> None:
    world.hold(wide)


def node_stale(world: World, wide: JobId) -> None:
    world.node_is("n1", Liveness.STALE)


def node_drained(world: World, wide: JobId) -> None:
    world.drain("n1")


def slot_retired(world: World, wide: JobId) -> None:
    world.retire("n1-cpu1")


def pool_is_fifo(world: World, wide: JobId) -> None:
    world.apply_policy(Policy(pools={"default": Pool(discipline="fifo")}))


@pytest.mark.parametrize(
    "event", [cancelled, held, node_stale, node_drained, slot_retired, pool_is_fifo]
)
def test_a_reservation_ends_when_its_reason_does(event: Callable[[World, JobId], None]) -> None:
    world, _ = busy_world(2, 100 * S)
    wide = world.submit("a", slots=2)
    world.turn()
    assert reservation(world) is not None
    event(world, wide)
    world.turn()
    assert reservation(world) is None


def test_a_reservation_begins_when_the_last_slot_that_it_needs_is_free() -> None:
    """Of 4 slots one is free and the others are in 30, 50 and 100 s; 3 are needed."""
    world, _ = busy_world(4, 100 * S, 30 * S, 50 * S)
    world.submit("a", slots=3)
    world.turn()
    held = reservation(world)
    assert held is not None
    assert held.start_at == START_MS + 50 * S


def test_when_its_node_is_lost_another_node_is_reserved() -> None:
    world, _ = busy_world(2, 100 * S)
    world.node_up("n2", 2)
    world.turn()
    other = world.submit("z", worker="n2-cpu0", time_limit_ms=200 * S)
    world.turn()
    world.start(other)
    wide = world.submit("a", slots=2)
    world.turn()
    world.node_is("n1", Liveness.STALE)
    world.turn()
    assert reservation(world) == Reservation(
        job=wide, node=NodeName("n2"), start_at=START_MS + 200 * S, made_at=START_MS
    )


def test_where_nothing_is_free_nothing_is_reserved_yet() -> None:
    world, jobs = busy_world(2, 100 * S, 50 * S)
    world.submit("a", slots=2)
    world.turn()
    assert reservation(world) is None
    world.finish(jobs[1])
    world.turn()
    assert reservation(world) is not None


def test_a_pool_has_one_reservation_and_the_second_wide_job_waits() -> None:
    world, (long,) = busy_world(2, 100 * S)
    first, second = world.submit("a", slots=2), world.submit("b", slots=2)
    world.turn()
    world.finish(long)
    assert starts(world) == [first]
    assert reservation(world) is None
    assert world.job(second).state is JobState.PENDING


def test_a_wide_job_takes_its_slots_from_one_node() -> None:
    world = World()
    world.node_up("n1", 3)
    world.node_up("n2", 3)
    narrow = [world.submit("z", worker=w, time_limit_ms=9 * S) for w in ("n1-cpu0", "n2-cpu0")]
    world.turn()
    wide = world.submit("a", slots=3)
    assert starts(world) == []
    world.finish(narrow[1])
    assert starts(world) == [wide]
    assert world.attempt(wide).slots == ("n2-cpu0", "n2-cpu1", "n2-cpu2")


def test_what_another_kind_of_slot_frees_is_no_room_beside() -> None:
    """The wide job waits for either kind of GPU of n1, of each of which one is free.

    Three of the four slots are free when it starts, but only two of one kind.
    """
    world = World()
    for index, (name, gib) in enumerate([("T4", 16), ("T4", 16), ("A100", 80), ("A100", 80)]):
        slot = e.Slot(kind="gpu", index=index, gpu_name=name, gpu_memory_bytes=gib << 30)
        world.ready(f"n1-gpu{index}", slot)
    for worker, limit_ms in (("n1-gpu1", 100 * S), ("n1-gpu3", 1_000 * S)):
        world.submit("z", worker=worker, time_limit_ms=limit_ms)
    world.turn()
    world.submit("a", slots=2)
    world.turn()
    held = reservation(world)
    assert held is not None
    assert held.start_at == START_MS + 100 * S
    world.submit("b", gpu_type="T4")
    world.submit("b", gpu_type="A100")
    assert starts(world) == []
    short = world.submit("c", time_limit_ms=10 * S)
    assert starts(world) == [short]
