"""Jobs that stand aside until their time has come, or an object is in the store."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from scheduling.explain import Explainer
from tests.scheduling.test_aside import ASSIGNED, NEVER, PENDING, after, run
from tests.scheduling.test_waits import parts
from tests.world import running_job, world_of_one_node

# --- not before its time -------------------------------------------------------------------


def test_a_job_enters_its_queue_when_its_time_has_come() -> None:
    """One slot, free all the time."""
    world = world_of_one_node()
    job = world.submit(begin_at=world.at + 10_000)
    world.turn()
    assert (world.job(job).state, world.job(job).in_queue) == (PENDING, False)
    assert world.scheduler.next_due_ms() == world.job(job).spec.begin_at
    assert world.turn(after_ms=9_999) == []
    assert e.JobResumed(job=job) in world.turn(after_ms=1)
    assert world.job(job).state is ASSIGNED


def test_a_time_that_has_passed_keeps_nothing() -> None:
    world = world_of_one_node()
    job = world.submit(begin_at=world.at)
    world.turn()
    assert world.job(job).state is ASSIGNED


@pytest.mark.parametrize("ends_first", [True, False])
def test_both_the_others_and_the_time_are_waited_for(ends_first: bool) -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    job = world.submit(after=after(first), begin_at=world.at + 10_000)
    world.turn()
    if ends_first:
        run(world, first)
        assert world.scheduler.next_due_ms() == world.job(job).spec.begin_at
    else:
        world.turn(after_ms=10_000)
    assert (world.job(job).state, world.job(job).in_queue) == (PENDING, False)
    if ends_first:
        world.turn(after_ms=10_000)
    else:
        run(world, first)
    assert world.job(job).state is ASSIGNED


def test_a_failure_is_passed_on_before_the_time_has_come() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    job = world.submit(after=after(first), begin_at=world.at + 10_000)
    run(world, first, rc=1)
    assert world.job(job).state is NEVER


def test_a_job_that_is_held_until_after_its_time_waits_for_its_user_alone() -> None:
    world = world_of_one_node()
    job = world.submit(begin_at=world.at + 10_000)
    world.turn()
    world.hold(job)
    world.turn(after_ms=10_000)
    assert (world.job(job).state, world.job(job).wakes_at) == (JobState.HELD, 0)
    world.release(job)
    world.turn()
    assert world.job(job).state is ASSIGNED


def test_it_says_when_it_begins() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    at = world.at + 90_000
    jobs = [world.submit(begin_at=at), world.submit(begin_at=at, after=after(first))]
    world.turn(after_ms=1_000)
    explainer = Explainer(world.projection)
    assert [explainer.why(world.job(job)) for job in jobs] == [
        "begins in 89 s",
        "waits for afterok:aaaaaaaa (RUNNING); begins in 89 s",
    ]


def test_the_wait_before_its_time_is_told_apart() -> None:
    """Submitted at 0 s for 50 s; what it waits for ends at 20 s; it starts at 53 s."""
    world = world_of_one_node(2)
    first = running_job(world)
    job = world.submit(after=after(first), begin_at=world.at + 50_000)
    world.turn()
    world.at += 20_000
    run(world, first)
    world.turn(after_ms=30_000)
    world.turn(after_ms=3_000)
    world.start(job)
    world.turn()
    assert parts(world, job) == {
        "dependency": 20,
        "before its begin": 30,
        "assigned, not started": 3,
    }


# --- objects of the store --------------------------------------------------------------------


def test_a_job_waits_until_all_its_objects_were_seen() -> None:
    world = world_of_one_node()
    paths = ("artifacts/a", "data/b.tar")
    job = world.submit(after_artifacts=paths)
    world.turn()
    assert sorted(world.scheduler.wanted_artifacts) == list(paths)
    explainer = Explainer(world.projection)
    assert explainer.why(world.job(job)) == "waits for artifacts/a, data/b.tar"
    world.see(e.ArtifactSeen(path="artifacts/a"))
    world.turn()
    assert sorted(world.scheduler.wanted_artifacts) == ["data/b.tar"]
    assert (world.job(job).state, world.job(job).in_queue) == (PENDING, False)
    world.see(e.ArtifactSeen(path="data/b.tar"))
    world.turn()
    assert world.job(job).state is ASSIGNED
    assert list(world.scheduler.wanted_artifacts) == []


def test_an_object_that_was_seen_is_there_for_all_that_come_later() -> None:
    world = world_of_one_node(2)
    world.submit(after_artifacts=("x",))
    world.turn()
    world.see(e.ArtifactSeen(path="x"))
    world.turn()
    later = world.submit(after_artifacts=("x",))
    world.turn()
    assert world.job(later).state is ASSIGNED


def test_nothing_is_looked_for_when_who_waited_is_cancelled() -> None:
    world = world_of_one_node()
    job = world.submit(after_artifacts=("x",))
    world.turn()
    world.cancel(job)
    world.turn()
    assert list(world.scheduler.wanted_artifacts) == []


@pytest.mark.parametrize("path", ["", "/x", "x/", "a//b", "../x", "a/.b", "a b", "x\n", "x" * 901])
def test_what_is_no_key_of_an_object_is_rejected(path: str) -> None:
    world = world_of_one_node()
    job = world.submit(after_artifacts=(path,))
    world.turn()
    assert world.job(job).state is JobState.REJECTED


def test_the_wait_for_an_object_is_a_dependency() -> None:
    world = world_of_one_node()
    job = world.submit(after_artifacts=("x",))
    world.turn()
    world.at += 20_000
    world.see(e.ArtifactSeen(path="x"))
    world.turn()
    world.start(job)
    world.turn()
    assert parts(world, job) == {"dependency": 20}
