"""Resumable jobs give way when their quantum is over and somebody else waits."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import Policy, Pool, WorkloadClass
from tests.world import World

QUANTUM_MS = 60_000
POLICY = Policy(
    classes={
        "batch": WorkloadClass(quantum_ms=QUANTUM_MS),
        "interactive": WorkloadClass(weight=6_000),
    },
    pools={"default": Pool(discipline="sfq")},
)


def running(*, resumable: bool = True, slots: int = 1) -> tuple[World, JobId]:
    """A one-slot world (or larger) whose slots a batch job of ``a`` has."""
    made = World(POLICY)
    made.node_up("n1", slots)
    made.turn()
    job = made.submit("a", slots=slots, estimate_ms=3_600_000, resumable=resumable)
    made.turn()
    made.start(job)
    made.turn()
    return made, job


def stops(decisions: list[e.AnyDecision]) -> list[tuple[JobId, str]]:
    return [(d.job, d.reason) for d in decisions if isinstance(d, e.StopOrdered)]


def test_it_runs_on_while_nobody_waits_and_yields_as_soon_as_somebody_does() -> None:
    made, job = running()
    assert stops(made.turn(after_ms=2 * QUANTUM_MS)) == []
    made.submit("b", workload_class="interactive")
    assert stops(made.turn()) == [(job, e.YIELDED)]


def test_it_does_not_yield_to_who_may_not_run_there() -> None:
    made, job = running()
    made.node_up("n2", 1)
    made.turn()
    other = made.submit("c", estimate_ms=3_600_000)
    made.turn()
    made.start(other)
    made.submit("b", workload_class="interactive", exclude=("n1",))
    assert stops(made.turn(after_ms=2 * QUANTUM_MS)) == []
    made.submit("b", workload_class="interactive", exclude=("n2",))
    assert stops(made.turn()) == [(job, e.YIELDED)]


def test_who_waits_already_gets_the_slot_when_the_quantum_is_over() -> None:
    """The quantum ends at 60 s: at 59.999 nothing happens, and the leader wakes for the end."""
    made, job = running()
    request = made.submit("b", workload_class="interactive")
    assert stops(made.turn(after_ms=QUANTUM_MS - 1)) == []
    assert made.scheduler.next_due_ms() == made.at + 1
    assert stops(made.turn(after_ms=1)) == [(job, e.YIELDED)]
    arrival = made.job(job).arrival
    made.finish(job, rc=e.YIELD_RC, outcome="stopped")
    made.turn(after_ms=1_000)
    assert made.job(request).state is JobState.ASSIGNED
    assert (made.job(job).state, made.job(job).arrival) == (JobState.PENDING, arrival)
    assert made.job(job).requeues == 0
    made.start(request)
    made.turn()
    made.finish(request)
    made.turn(after_ms=1_000)
    assert made.job(job).state is JobState.ASSIGNED
    assert made.attempt(job).number == 2
    # It was charged an hour and settled with the 61 s that it ran.
    assert made.attempt(job, 1).settled


@pytest.mark.parametrize(("rc", "state"), [(0, JobState.COMPLETED), (1, JobState.FAILED)])
def test_one_that_ends_instead_of_saving_has_ended(rc: int, state: JobState) -> None:
    made, job = running()
    made.submit("b")
    made.turn(after_ms=QUANTUM_MS)
    made.finish(job, rc=rc, outcome="stopped")
    made.turn()
    assert made.job(job).state is state


def test_a_job_that_is_not_resumable_is_never_cut() -> None:
    made, _ = running(resumable=False)
    made.submit("b")
    assert stops(made.turn(after_ms=10 * QUANTUM_MS)) == []


def test_it_does_not_yield_to_its_own_flow_nor_to_what_would_not_fit() -> None:
    made, _ = running()
    made.submit("a")
    assert stops(made.turn(after_ms=QUANTUM_MS)) == []
    made.submit("b", worker="n9-cpu0")
    assert stops(made.turn()) == []


def test_one_at_a_time() -> None:
    """Two slots, two that run over, two that wait: the second yields after the first has."""
    made = World(POLICY)
    made.node_up("n1", 2)
    made.turn()
    jobs = [made.submit(name, estimate_ms=3_600_000, resumable=True) for name in "ab"]
    made.turn()
    for job in jobs:
        made.start(job)
    made.turn()
    for _ in range(2):
        made.submit("c")
    assert stops(made.turn(after_ms=QUANTUM_MS)) == [(jobs[0], e.YIELDED)]
    made.submit("d")
    assert stops(made.turn(after_ms=1_000)) == []
    made.finish(jobs[0], rc=e.YIELD_RC, outcome="stopped")
    assert stops(made.turn()) == [(jobs[1], e.YIELDED)]


def test_a_cancel_while_it_saves_ends_it() -> None:
    made, job = running()
    made.submit("b")
    made.turn(after_ms=QUANTUM_MS)
    made.cancel(job)
    made.turn()
    made.finish(job, rc=e.YIELD_RC, outcome="stopped")
    made.turn()
    assert made.job(job).state is JobState.CANCELLED
