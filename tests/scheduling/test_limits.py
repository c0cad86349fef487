"""Limits on what runs at once and on what waits: never broken, and nobody else's burden."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import FlowId, JobId
from ledger.policy import (
    FlowAgreement,
    Limits,
    Organization,
    Policy,
    Pool,
    WorkloadClass,
)
from tests.world import World

SECOND_MS = 1_000
POOL = {"default": Pool(discipline="sfq")}


def world(policy: Policy, slots: int = 4) -> World:
    made = World(policy)
    made.node_up("n1", slots)
    made.turn()
    return made


def running(made: World) -> dict[str, int]:
    """Slots that each organization holds."""
    held: dict[str, int] = {}
    for worker in made.state.workers.values():
        if worker.occupant is not None:
            organization = made.job(worker.occupant.job).placed.organization
            held[organization] = held.get(organization, 0) + 1
    return held


def blocks(decisions: list[e.AnyDecision]) -> list[tuple[str, str]]:
    return [(d.flow, d.reason) for d in decisions if isinstance(d, e.FlowBlocked)]


def end(made: World, job: JobId) -> list[e.AnyDecision]:
    made.start(job)
    made.turn(after_ms=SECOND_MS)
    made.finish(job)
    return made.turn()


def test_a_flow_that_two_limits_held_starts_when_the_second_has_room() -> None:
    """Organization a and class batch may have one slot each, and both do: a's batch job waits
    for the one, then only for the other."""
    one = Limits(slots=1)
    classes = {"batch": WorkloadClass(limits=one), "interactive": WorkloadClass()}
    organizations = {"a": Organization(limits=one)}
    made = world(Policy(organizations=organizations, classes=classes, pools=POOL))
    first = made.submit("a", workload_class="interactive")
    second = made.submit("b")
    made.turn()
    waits = made.submit("a")
    made.turn()
    end(made, first)
    assert made.job(waits).state is JobState.PENDING
    end(made, second)
    assert made.job(waits).state is JobState.ASSIGNED


OF_A = [
    Policy(organizations={"a": Organization(limits=Limits(slots=2))}, pools=POOL),
    Policy(flows={FlowId("a/batch/default"): FlowAgreement(limits=Limits(slots=2))}, pools=POOL),
    Policy(organizations={"a": Organization(limits=Limits(slots_percent=50))}, pools=POOL),
]


@pytest.mark.parametrize("policy", OF_A, ids=["organization", "flow", "percent"])
@pytest.mark.parametrize("discipline", ["wfq", "sfq", "fifo", "strict"])
def test_a_flow_at_its_limit_is_skipped_and_others_start_at_once(
    policy: Policy, discipline: str
) -> None:
    """5 slots, of which ``a`` may have 2: it came first with 3 jobs, ``b`` has 2; one is idle."""
    pools = {"default": Pool(discipline=discipline)}
    made = world(
        Policy(organizations=policy.organizations, flows=policy.flows, pools=pools), slots=5
    )
    jobs = [made.submit("a") for _ in range(3)]
    for _ in range(2):
        made.submit("b")
    decided = made.turn()
    assert running(made) == {"a": 2, "b": 2}
    [(flow, reason)] = blocks(decided)
    assert flow == "a/batch/default"
    assert "2 of at most 2 slots" in reason
    end(made, jobs[0])
    assert made.job(jobs[2]).state is JobState.ASSIGNED


def test_the_time_under_a_limit_earns_the_credit_of_one_job_only() -> None:
    """Weight 1, next job of 1 s: freed at most 1,000 slot-ms behind the level, in its units."""
    made = world(OF_A[0], slots=5)
    jobs = [made.submit("a") for _ in range(3)]
    made.turn()
    freed = [d for d in end(made, jobs[0]) if isinstance(d, e.FlowFreed)]
    assert [(d.flow, d.credit) for d in freed] == [("a/batch/default", 1_000 * 1_000_000)]


def test_what_is_lost_does_not_hold_its_owners_limit() -> None:
    """A dead node would else keep the organization from running anything."""
    made = World(OF_A[0])
    made.node_up("n1", 2)
    made.turn()
    for _ in range(2):
        made.submit("a")
    made.turn()
    for job in made.assigned():
        made.start(job)
    made.node_up("n2", 1)
    waits = made.submit("a")
    made.turn()
    assert made.job(waits).state is JobState.PENDING
    made.node_is("n1", e.Liveness.GONE)
    made.turn()
    assert made.job(waits).state is JobState.ASSIGNED


def test_a_class_limit_counts_all_organizations_and_leaves_the_other_classes_their_slots() -> None:
    """``batch`` may have 3 of 4 slots: an interactive request never waits for all of them."""
    policy = Policy(
        classes={"batch": WorkloadClass(limits=Limits(slots=3)), "interactive": WorkloadClass()},
        pools=POOL,
    )
    made = world(policy)
    for organization in "abcd":
        made.submit(organization)
    made.turn()
    assert sum(running(made).values()) == 3
    request = made.submit("e", workload_class="interactive")
    made.turn()
    assert made.job(request).state is JobState.ASSIGNED


def test_a_limit_in_all_pools_eases_in_all_pools() -> None:
    """``a`` may have one slot anywhere: what ends in one pool lets its job in the other start."""
    limits = {"a": Organization(limits=Limits(slots=1))}
    made = World(Policy(organizations=limits, pools={"p": Pool(), "q": Pool()}))
    made.node_up("n1", 1, pool="p")
    made.node_up("n2", 1, pool="q")
    first, second = made.submit("a", pool="p"), made.submit("a", pool="q")
    made.turn()
    assert made.job(second).state is JobState.PENDING
    end(made, first)
    assert made.job(second).state is JobState.ASSIGNED


def test_a_flow_of_which_several_limits_hold_jobs_is_freed_by_each() -> None:
    """Class 3 of 3, ``a`` 1 of 2 slots: its job of 2 slots waits for ``a``, its next for the class.

    When ``b`` ends a job, the class has room for 1: ``a`` is held no more, that very page.
    """
    policy = Policy(
        organizations=OF_A[0].organizations,
        classes={"batch": WorkloadClass(limits=Limits(slots=3))},
        pools=POOL,
    )
    made = world(policy, slots=5)
    for organization in "abb":
        made.submit(organization, estimate_ms=60_000)
    made.turn()
    made.submit("a", slots=2)
    made.submit("a")
    made.turn()
    assert made.state.flows[FlowId("a/batch/default")].limit == "organization a"
    end(made, made.assigned()[1])
    assert made.state.flows[FlowId("a/batch/default")].limit == ""


def test_a_share_of_the_pool_grows_with_the_pool() -> None:
    """Half of 2 slots is 1; half of 4 is 2."""
    made = world(OF_A[2], slots=2)
    jobs = [made.submit("a") for _ in range(3)]
    made.turn()
    assert [made.job(job).state for job in jobs].count(JobState.ASSIGNED) == 1
    made.node_up("n2", 2)
    made.turn()
    assert [made.job(job).state for job in jobs].count(JobState.ASSIGNED) == 2


def test_a_limit_of_the_pool_holds_everybody_and_blocks_no_flow() -> None:
    """The pool may run 1 of its 4 slots; nobody's own limit, so nobody's flow is held."""
    made = world(Policy(pools={"default": Pool(limits=Limits(slots=1))}))
    made.submit("a")
    made.submit("b")
    decided = made.turn()
    assert sum(running(made).values()) == 1
    assert blocks(decided) == []


def test_the_limit_that_is_lifted_frees_the_flow_at_once() -> None:
    made = world(OF_A[0])
    jobs = [made.submit("a") for _ in range(4)]
    made.turn()
    made.apply_policy(Policy(pools=POOL))
    made.turn()
    assert {made.job(job).state for job in jobs} == {JobState.ASSIGNED}


def test_a_flow_that_waits_for_nothing_any_more_is_held_by_nothing() -> None:
    made = world(OF_A[0])
    jobs = [made.submit("a") for _ in range(3)]
    made.turn()
    assert made.state.flows[FlowId("a/batch/default")].limit == "organization a"
    made.cancel(jobs[2])
    made.turn()
    assert made.state.flows[FlowId("a/batch/default")].blocked == ""


def test_a_reservation_falls_with_the_limit_that_keeps_its_job_from_starting() -> None:
    """A 4-slot job gets all slots kept; then its organization may only have 2."""
    made = world(Policy(pools=POOL))
    made.submit("b", estimate_ms=60_000)
    made.turn()
    wide = made.submit("a", slots=4)
    made.turn()
    assert made.state.reservations["default"].job == wide
    made.apply_policy(OF_A[0])
    passed = made.submit("c")
    made.turn()
    assert "default" not in made.state.reservations
    assert made.job(passed).state is JobState.ASSIGNED


def test_a_job_that_its_limit_never_allows_is_rejected_with_the_numbers() -> None:
    made = world(OF_A[0])
    job = made.submit("a", slots=3)
    made.turn()
    assert made.job(job).state is JobState.REJECTED
    assert made.job(job).reason == "it needs 3 slots, and organization a may run 2 at once"


def test_a_strict_class_goes_first_within_its_limit() -> None:
    """One slot: interactive work of whoever goes before batch that came first; 1 at once."""
    classes = {
        "interactive": WorkloadClass(strict=True, limits=Limits(slots=1)),
        "batch": WorkloadClass(),
    }
    made = world(Policy(classes=classes, pools=POOL), slots=2)
    made.submit("a")
    made.submit("a")
    made.turn()
    waiting = [made.submit("a") for _ in range(2)]
    requests = [made.submit("b", workload_class="interactive") for _ in range(2)]
    end(made, made.assigned()[0])
    assert made.job(requests[0]).state is JobState.ASSIGNED
    end(made, made.assigned()[1])
    assert made.job(requests[1]).state is JobState.PENDING
    assert made.job(waiting[0]).state is JobState.ASSIGNED


# --- what waits


def test_a_queue_that_is_full_refuses_the_next() -> None:
    """2 may wait; the third is refused, with the number, and the others stay."""
    limits = {"a": Organization(limits=Limits(slots=1, queue_length=2))}
    made = world(Policy(organizations=limits, pools=POOL), slots=1)
    made.submit("a")
    made.turn()
    jobs = [made.submit("a") for _ in range(3)]
    made.turn()
    states = [made.job(job).state for job in jobs]
    assert states == [JobState.PENDING, JobState.PENDING, JobState.REJECTED]
    assert made.job(jobs[2]).reason == "organization a has 2 jobs waiting, at most 2 may"


def test_a_job_that_waits_longer_than_its_queue_allows_expires_with_the_rule() -> None:
    """45 s: at 44.999 it waits, at 45 it is over; one that runs is not concerned."""
    pool = Pool(queue_age_ms={"interactive": 45_000})
    made = world(Policy(pools={"default": pool}), slots=1)
    runs = made.submit("a", workload_class="interactive")
    made.turn()
    waits = made.submit("a", workload_class="interactive")
    made.turn()
    assert made.scheduler.next_due_ms() is not None
    made.start(runs)
    made.turn(after_ms=44_999)
    assert made.job(waits).state is JobState.PENDING
    made.turn(after_ms=1)
    assert made.job(waits).state is JobState.EXPIRED
    assert made.job(waits).reason == (
        "class interactive in pool default lets no job wait longer than 45 s"
    )
    assert made.job(runs).state is JobState.RUNNING


def test_submissions_beyond_the_rate_are_refused_and_cost_nothing() -> None:
    """6 a minute, 2 at once: 2 pass, the third does not; 10 s later one more does.

    The refused one has not used up the place of the one that comes 10 s later.
    """
    limits = Limits(submissions_per_minute=6, submissions_burst=2)
    made = world(Policy(organizations={"a": Organization(limits=limits)}, pools=POOL))
    jobs = [made.submit("a") for _ in range(3)]
    made.turn()
    made.turn(after_ms=10_000)
    jobs += [made.submit("a") for _ in range(2)]
    other = made.submit("b")
    made.turn()
    rejected = [made.job(job).state is JobState.REJECTED for job in jobs]
    assert rejected == [False, False, True, False, True]
    assert "organization a submits faster" in made.job(jobs[2]).reason
    assert made.job(other).state is JobState.ASSIGNED


# --- deadlines


def test_a_deadline_ends_a_job_wherever_it_waits() -> None:
    made = world(Policy(pools=POOL), slots=1)
    past = made.submit("a", deadline_at=made.at)
    made.submit("a")
    made.turn()
    waits = made.submit("a", deadline_at=made.at + 5_000)
    held = made.submit("a", deadline_at=made.at + 5_000, held=True)
    made.turn()
    assert made.job(past).state is JobState.EXPIRED
    assert made.job(waits).state is JobState.PENDING
    made.turn(after_ms=5_000)
    assert {made.job(job).state for job in (waits, held)} == {JobState.EXPIRED}
    assert made.job(held).reason == "its deadline has passed"


def test_an_assigned_job_is_taken_back_at_its_deadline_and_never_runs() -> None:
    made = world(Policy(pools=POOL), slots=1)
    job = made.submit("a", deadline_at=made.at + 5_000)
    made.turn()
    assert made.job(job).state is JobState.ASSIGNED
    made.turn(after_ms=5_000)
    made.claim(job, "revoke")
    made.turn()
    assert made.job(job).state is JobState.EXPIRED
    assert made.job(job).last is not None
    assert not made.attempt(job).ran


def test_a_job_that_its_worker_stopped_at_the_deadline_is_expired() -> None:
    made = world(Policy(pools=POOL), slots=1)
    job = made.submit("a", deadline_at=made.at + 5_000)
    made.turn()
    made.start(job)
    made.turn(after_ms=5_000)
    made.finish(job, rc=143, outcome="deadline")
    made.turn()
    assert made.job(job).state is JobState.EXPIRED
