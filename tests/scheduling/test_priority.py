"""Priority orders the jobs of one flow, and moves nothing between flows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import DISCIPLINES, Policy, Pool
from scheduling.explain import Explainer
from tests.world import World, running_job, world_of_one_node


def served(world: World, first: JobId) -> list[JobId]:
    """One slot: which jobs it gets after ``first``, one after the other."""
    job = first
    while True:
        world.finish(job)
        world.turn(after_ms=1_000)
        if world.assigned()[-1] == job:
            return world.assigned()[world.assigned().index(first) + 1 :]
        job = world.assigned()[-1]


def pool(discipline: str) -> Policy:
    return Policy(pools={"default": Pool(discipline=discipline)})


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_more_goes_first_and_equals_in_order_of_arrival(discipline: str) -> None:
    world = world_of_one_node(1, pool(discipline))
    first = running_job(world)
    priorities = (0, -5, 100, 0, 7, 100, -100)
    jobs = [world.submit(priority=priority) for priority in priorities]
    world.turn()
    expected = [jobs[at] for at in (2, 5, 4, 0, 3, 1, 6)]
    assert served(world, first) == expected


def test_it_holds_between_jobs_that_need_different_things() -> None:
    """Two slots; what needs both goes first because of its priority, and they are kept for it."""
    world = world_of_one_node(2)
    first, second = running_job(world), running_job(world)
    low, wide = world.submit(), world.submit(slots=2, priority=1)
    world.turn()
    world.finish(first)
    world.turn()
    assert world.job(low).state is JobState.PENDING
    assert world.state.reservations["default"].job == wide
    world.finish(second)
    world.turn()
    assert (world.job(wide).state, world.job(low).state) == (JobState.ASSIGNED, JobState.PENDING)


def test_pinned_jobs_go_by_priority_before_they_go_by_name() -> None:
    world = world_of_one_node()
    first = running_job(world)
    jobs = [
        world.submit(name=name, worker="n1-cpu0", priority=priority)
        for name, priority in (("a", 0), ("b", 3), ("c", 3), ("d", 0))
    ]
    world.turn()
    assert served(world, first) == [jobs[at] for at in (1, 2, 0, 3)]


def turns(discipline: str, priorities: Sequence[int]) -> list[str]:
    """Equal jobs of two flows of equal weights, submitted in turn: whose the slot is."""
    world = world_of_one_node(1, pool(discipline))
    first = running_job(world, organization="c")
    for priority in priorities:
        world.submit("a", priority=priority)
        world.submit("b")
    world.turn()
    return [world.job(job).spec.organization for job in served(world, first)]


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("priorities", [(-100, 50, 100, 0), (100, 100, 100, 100), (0, 0, 0, 1)])
def test_no_flow_is_served_earlier_by_its_own_priorities(
    discipline: str, priorities: tuple[int, ...]
) -> None:
    """Without any they alternate: after n jobs a has had (n + 1) // 2 turns."""
    assert turns(discipline, (0, 0, 0, 0)) == ["a", "b"] * 4
    given = turns(discipline, priorities)
    assert sorted(given) == ["a"] * 4 + ["b"] * 4
    for number in range(len(given)):
        assert given[:number].count("a") <= (number + 1) // 2
    if len(set(priorities)) == 1:
        assert given == ["a", "b"] * 4


@pytest.mark.parametrize("discipline", ["fifo", "strict"])
def test_in_order_of_arrival_no_flow_comes_earlier_by_a_priority(discipline: str) -> None:
    """Arrivals a1, b, a2. a's turn is that of its head: a2 goes before a1, and b before both."""
    world = world_of_one_node(1, pool(discipline))
    first = running_job(world, organization="c")
    a1, b, a2 = world.submit("a"), world.submit("b"), world.submit("a", priority=100)
    world.turn()
    assert served(world, first) == [b, a2, a1]


def test_a_job_that_failed_does_not_pass_those_that_ask_for_nothing_when_tried_again() -> None:
    world = world_of_one_node()
    first = running_job(world, priority=100, retries=1)
    plain, urgent = world.submit(), world.submit(priority=1)
    world.turn()
    world.finish(first, rc=1)
    world.turn()
    world.turn(after_ms=5_000)
    assert world.job(first).in_queue
    low = world.submit(priority=-1)
    world.turn()
    assert served(world, urgent) == [plain, first, low]


def test_a_job_that_a_user_retries_goes_behind_those_that_wait() -> None:
    world = world_of_one_node()
    first = running_job(world, priority=100)
    jobs = [world.submit(), world.submit()]
    world.turn()
    world.finish(first, rc=1)
    world.turn()
    world.retry(first)
    world.turn()
    assert served(world, jobs[0]) == [jobs[1], first]


def test_a_job_that_had_not_run_keeps_its_priority_when_it_is_retried() -> None:
    world = world_of_one_node()
    first = running_job(world)
    plain, urgent = world.submit(), world.submit(priority=1)
    world.cancel(urgent)
    world.turn()
    world.retry(urgent)
    world.turn()
    assert served(world, first) == [urgent, plain]


@pytest.mark.parametrize(("priority", "is_taken"), [(100, 1), (-100, 1), (101, 0), (-101, 0)])
def test_a_priority_has_a_range(priority: int, is_taken: bool) -> None:
    world = world_of_one_node()
    job = world.submit(priority=priority)
    world.turn()
    assert (world.job(job).state is JobState.ASSIGNED) == is_taken


def test_it_says_how_many_go_before() -> None:
    world = world_of_one_node()
    running_job(world)
    jobs = [world.submit(priority=priority) for priority in (0, 9, 0)]
    world.turn()
    explainer = Explainer(world.projection)
    assert [explainer.why(world.job(job)) for job in jobs] == [
        "1 before it in a/batch",
        "next of its flow; a slot must become free",
        "2 before it in a/batch",
    ]
