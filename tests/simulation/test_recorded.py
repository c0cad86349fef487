"""A ledger as a workload, and that its own policy gives its own history again."""

from __future__ import annotations

import random

import pytest

from ledger.clock import SystemClock
from ledger.events import Dependency, JobState, Liveness
from ledger.policy import DISCIPLINES, Policy
from ledger.stores import open_store
from simulation.engine import Run, simulate
from simulation.recorded import as_it_was, recorded, workload_of
from simulation.service_gap import worst_gaps
from simulation.workload import Workload, on_counting_pool
from tests.simulation.ledgers import bodies_of, drain_queue, eventful_world, policy, write_ledger
from tests.world import START_MS, World, running_job, world_of_one_node


def workload(world: World) -> Workload:
    return workload_of(world.pages, "test")


def test_a_job_arrives_when_it_was_submitted_and_takes_what_it_took() -> None:
    world = world_of_one_node()
    world.at += 250
    job = world.submit("astro", name="train.sh", slots=1, estimate_ms=7_000)
    world.turn(after_ms=500)
    world.start(job)
    world.turn(after_ms=4_000)
    world.finish(job)
    world.turn()
    (made,) = workload(world).jobs
    assert (made.name, made.organization, made.estimate_ms) == ("train.sh", "astro", 7_000)
    assert (made.arrival_ms, made.recorded_start_ms) == (START_MS + 250, START_MS + 750)
    assert made.duration_ms == 4_000
    assert made.columns["job"] == job


def test_a_job_that_waited_for_another_and_its_time_arrives_when_both_have_come() -> None:
    """The first ends at 4 s; the second's time is 6 s."""
    world = world_of_one_node()
    world.node_up("n2", 1)
    first = running_job(world)
    begin_at = world.at + 6_000
    second = world.submit(after=(Dependency(job=first),), begin_at=begin_at, exclude=("n1",))
    world.turn(after_ms=4_000)
    world.finish(first)
    world.turn()
    world.turn(after_ms=2_000)
    world.start(second)
    world.turn(after_ms=1_000)
    world.finish(second)
    world.turn()
    made = workload(world).jobs[1]
    assert (made.arrival_ms, made.exclude) == (begin_at, ("n1",))


def test_what_never_ran_to_an_end_is_left_out_and_counted() -> None:
    world = world_of_one_node()
    running_job(world)
    world.cancel(world.submit())
    world.turn()
    made = workload(world)
    assert (made.jobs, made.left_out) == ((), 2)


def test_a_release_and_a_retry_are_new_arrivals_and_a_move_counts() -> None:
    world = world_of_one_node()
    held = world.submit(held=True)
    failed = running_job(world)
    world.at += 1_000
    world.finish(failed, rc=1)
    world.turn(after_ms=20_000)
    world.retry(failed)
    world.release(held)
    world.turn()
    drain_queue(world)
    arrivals = {job.columns["job"]: job.arrival_ms for job in workload(world).jobs}
    assert arrivals == {held: START_MS + 21_000, failed: START_MS + 21_000}


def test_slots_are_there_while_they_would_be_given_work() -> None:
    """n1 is silent from 5 s to 9 s, n2 is drained at 7 s."""
    world = World()
    world.node_up("n1", 1)
    world.node_up("n2", 1)
    world.turn()
    world.node_is("n1", Liveness.STALE)
    world.turn(after_ms=5_000)
    world.drain("n2")
    world.turn(after_ms=2_000)
    world.node_is("n1", Liveness.FRESH)
    world.turn(after_ms=2_000)
    spans = {
        (slot.worker, slot.from_ms - START_MS, slot.until_ms and slot.until_ms - START_MS)
        for slot in workload(world).slots
    }
    assert spans == {("n1-cpu0", 0, 5_000), ("n2-cpu0", 0, 7_000), ("n1-cpu0", 9_000, None)}


def test_a_page_of_a_leader_that_is_none_counts_for_nothing() -> None:
    world = eventful_world()
    assert len(workload(world).jobs) == sum(
        any(attempt.outcome in ("exited", "stopped") for attempt in job.attempts)
        for job in world.state.jobs.values()
    )
    assert world.job(world.assigned()[0]).state is JobState.FAILED


def lived(rng: random.Random, made: Policy) -> World:
    """A world without delay: what is assigned starts at once, and ends at its own time."""
    world = World(made)
    world.node_up("n1", 2)
    world.node_up("n2", 1)
    world.turn()
    ends: dict[str, int] = {}
    for second in range(240):
        world.at = START_MS + 1_000 * second
        for job in [job for job, at in ends.items() if at == second]:
            world.finish(job)  # type: ignore[arg-type]
            del ends[job]
        for _ in range(rng.choice((0, 1, 1, 2)) if second < 40 else 0):
            world.submit(rng.choice(("astro", "bio", "chem")), estimate_ms=0)
        before = set(world.assigned())
        world.turn()
        for job in [job for job in world.assigned() if job not in before]:
            world.start(job)
            ends[job] = second + rng.randrange(2, 7)
        world.turn()
    assert not ends
    return world


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_under_its_own_policy_a_ledger_without_delays_starts_everything_when_it_did(
    discipline: str,
) -> None:
    made = workload(lived(random.Random(7), policy(discipline)))
    assert len(made.jobs) > 20
    outcome = simulate(made)
    assert [run.start_ms for run in outcome.runs] == [job.recorded_start_ms for job in made.jobs]
    waits = {run.wait_ms for run in outcome.runs}
    assert len(waits) > 10


@pytest.mark.parametrize("discipline", ["strict", "wfq", "sfq"])
def test_what_was_is_told_from_the_journal_as_the_engine_would_tell_it(discipline: str) -> None:
    """Of a ledger without delays both must say the same of each job, and in the same order."""
    made = workload(lived(random.Random(7), policy(discipline)))
    was, again = as_it_was(made), simulate(made)
    assert was is not None
    assert [told(run) for run in was.runs] == [told(run) for run in again.runs]
    assert [run.job for run in sorted(was.runs, key=lambda run: run.dispatch)] == [
        run.job for run in sorted(again.runs, key=lambda run: run.dispatch)
    ]
    assert worst_gaps(was, "default") == worst_gaps(again, "default")


def told(run: Run) -> tuple[object, ...]:
    return run.start_ms, run.end_ms, run.workers, run.cost_ms, run.weight, run.backfill


def test_of_two_attempts_that_which_ended_last_is_told() -> None:
    """The first runs 1 s; the retry is assigned 3 s later and runs 5 s."""
    world = world_of_one_node()
    job = running_job(world)
    world.at += 1_000
    world.finish(job, rc=1)
    world.turn(after_ms=2_000)
    world.retry(job)
    world.turn()
    retried = world.at
    world.start(job)
    world.at += 5_000
    world.finish(job)
    world.turn()
    was = as_it_was(workload(world))
    assert was is not None
    assert [(run.start_ms, run.end_ms) for run in was.runs] == [(retried, retried + 5_000)]


def test_a_trace_or_another_pool_says_nothing_of_what_was() -> None:
    made = workload(lived(random.Random(7), policy("wfq")))
    assert as_it_was(on_counting_pool(made, 3)) is None


def test_a_ledger_in_a_store(tmp_path: pytest.TempPathFactory) -> None:
    world = eventful_world()
    store = open_store(str(tmp_path), clock=SystemClock(), rng=random.Random())
    write_ledger(store, bodies_of(world))
    assert recorded(store, "test") == workload(world)
