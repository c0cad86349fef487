"""Jobs that stand aside for others: when they enter their queue, and when they never will."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import Dependency, JobState
from ledger.names import JobId
from ledger.policy import Limits, Organization, Policy, WorkloadClass
from scheduling.aside import UNKNOWN_WITHIN_MS
from scheduling.decide import Scheduler
from scheduling.explain import Explainer
from tests.scheduling.test_waits import parts
from tests.world import World, job_id, lost_job, running_job, world_of_one_node

COMPLETED, FAILED = JobState.COMPLETED, JobState.FAILED
NEVER, PENDING, ASSIGNED = JobState.DEPENDENCY_NEVER, JobState.PENDING, JobState.ASSIGNED


def after(*jobs: JobId, end: str = "ok") -> tuple[Dependency, ...]:
    return tuple(Dependency(job=job, end=end) for job in jobs)


def run(world: World, job: JobId, rc: int = 0) -> None:
    """The job, which is assigned or runs, ends now."""
    world.finish(job, rc=rc)
    world.turn()


def state_of(world: World, job: JobId) -> tuple[JobState, str]:
    return world.job(job).state, world.job(job).reason


# --- how a dependency must end -----------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "rc", "expected"),
    [
        ("ok", 0, (ASSIGNED, "")),
        ("ok", 3, (NEVER, "it waits for afterok:aaaaaaaa, which ended FAILED (rc 3)")),
        ("any", 0, (ASSIGNED, "")),
        ("any", 3, (ASSIGNED, "")),
        ("notok", 0, (NEVER, "it waits for afternotok:aaaaaaaa, which ended COMPLETED (rc 0)")),
        ("notok", 3, (ASSIGNED, "")),
    ],
)
def test_the_end_of_a_job_lets_its_dependent_go_or_ends_it(
    end: str, rc: int, expected: tuple[JobState, str]
) -> None:
    """Two slots, so that nothing but the dependency keeps the dependent from starting."""
    world = world_of_one_node(2)
    first = running_job(world)
    second = world.submit(after=after(first, end=end))
    world.turn()
    assert (world.job(second).state, world.job(second).in_queue) == (PENDING, False)
    run(world, first, rc)
    assert state_of(world, second) == expected


def test_all_conditions_must_hold_and_the_first_that_cannot_ends_the_job() -> None:
    world = world_of_one_node(3)
    jobs = [running_job(world) for _ in range(2)]
    both = world.submit(after=after(*jobs))
    either_way = world.submit(after=(*after(jobs[0]), *after(jobs[1], end="any")))
    world.turn()
    run(world, jobs[0])
    assert [world.job(job).state for job in (both, either_way)] == [PENDING, PENDING]
    run(world, jobs[1], rc=1)
    assert world.job(both).reason == "it waits for afterok:aaaaaaab, which ended FAILED (rc 1)"
    assert world.job(either_way).state is ASSIGNED


def test_a_failure_ends_the_dependent_while_others_still_run() -> None:
    world = world_of_one_node(2)
    slow, broken = running_job(world), running_job(world)
    job = world.submit(after=after(slow, broken))
    world.turn()
    run(world, broken, rc=1)
    assert world.job(job).state is NEVER


def test_an_end_that_came_before_the_submit_counts() -> None:
    world = world_of_one_node(2)
    good, bad = running_job(world), running_job(world)
    run(world, good)
    run(world, bad, rc=9)
    jobs = [world.submit(after=after(good)), world.submit(after=after(bad))]
    world.turn()
    assert [world.job(job).state for job in jobs] == [ASSIGNED, NEVER]


def test_an_archived_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.transitions.RECENT_ENDED_MAX", 0)
    world = world_of_one_node(2)
    good, bad = running_job(world), running_job(world)
    run(world, good)
    run(world, bad, rc=9)
    world.turn()
    assert set(world.state.archive) == {good, bad}
    jobs = [world.submit(after=after(good)), world.submit(after=after(bad))]
    decisions = world.turn()
    assert e.JobResumed(job=jobs[0]) in decisions
    reason = "it waits for afterok:aaaaaaab, which ended FAILED (rc 9)"
    assert e.DependencyMissed(job=jobs[1], reason=reason) in decisions


@pytest.mark.parametrize(("end", "expected"), [("ok", NEVER), ("any", ASSIGNED)])
def test_a_cancelled_job_is_an_end_that_is_not_ok(end: str, expected: JobState) -> None:
    world = world_of_one_node()
    first = world.submit(held=True)
    second = world.submit(after=after(first, end=end))
    world.turn()
    world.cancel(first)
    world.turn()
    assert world.job(second).state is expected


def test_what_never_runs_is_passed_on_in_the_same_page() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    chain = [first]
    for _ in range(3):
        chain.append(world.submit(after=after(chain[-1])))
    rescue = world.submit(after=after(chain[-1], end="notok"))
    world.turn()
    run(world, first, rc=1)
    assert [state_of(world, job) for job in chain[1:]] == [
        (NEVER, "it waits for afterok:aaaaaaaa, which ended FAILED (rc 1)"),
        (NEVER, "it waits for afterok:aaaaaaab, which ended DEPENDENCY_NEVER"),
        (NEVER, "it waits for afterok:aaaaaaac, which ended DEPENDENCY_NEVER"),
    ]
    assert world.job(rescue).state is ASSIGNED


# --- what is not final, or taken back ------------------------------------------------------


def test_a_failure_that_is_tried_again_is_no_end() -> None:
    world = world_of_one_node(2)
    first = running_job(world, retries=1)
    second = world.submit(after=after(first))
    world.turn()
    run(world, first, rc=1)
    assert (world.job(first).state, world.job(second).state) == (JobState.HELD, PENDING)
    world.turn(after_ms=5_000)
    run(world, first, rc=0)
    assert world.job(second).state is ASSIGNED


def test_a_loss_is_an_end_and_when_it_is_found_the_dependent_may_be_retried() -> None:
    world = world_of_one_node(2)
    first = lost_job(world)
    strict, lax = world.submit(after=after(first)), world.submit(after=after(first, end="any"))
    world.turn()
    assert state_of(world, strict) == (
        NEVER,
        "it waits for afterok:aaaaaaaa, which ended NODE_FAIL",
    )
    assert world.job(lax).in_queue
    world.node_is("n1", e.Liveness.FRESH)
    world.turn()
    assert world.job(first).state is JobState.RUNNING
    world.retry(strict)
    world.turn()
    assert (world.job(strict).state, world.job(strict).in_queue) == (PENDING, False)
    run(world, first)
    assert world.job(strict).state is not NEVER
    assert world.job(strict).entered_at == world.at


def test_a_retried_dependent_asks_anew_and_ends_again_where_nothing_has_changed() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    second = world.submit(after=after(first))
    run(world, first, rc=1)
    world.retry(second)
    world.turn()
    assert world.job(second).state is NEVER
    world.retry(first)
    world.retry(second)
    world.turn()
    assert (world.job(second).state, world.job(second).in_queue) == (PENDING, False)
    run(world, first)
    assert world.job(second).state is ASSIGNED


def test_what_has_entered_its_queue_stays_there_when_the_dependency_is_retried() -> None:
    world = world_of_one_node(1)
    first = running_job(world)
    second = world.submit(after=after(first, end="notok"))
    run(world, first, rc=1)
    assert world.job(second).state is ASSIGNED
    world.retry(first)
    world.start(second)
    world.turn()
    run(world, second, rc=0)
    assert world.job(second).state is COMPLETED


def test_a_job_that_has_run_waits_for_nobody_any_more() -> None:
    world = world_of_one_node(1)
    first = running_job(world)
    second = world.submit(after=after(first, end="any"))
    run(world, first, rc=1)
    run(world, second, rc=1)
    world.retry(first)
    world.retry(second)
    world.turn()
    assert world.job(first).state is ASSIGNED
    assert world.job(second).in_queue


def test_all_conditions_must_hold_at_the_same_time() -> None:
    """The failed one is retried before the other ends, so that its failure is no end any more."""
    world = world_of_one_node(3)
    first, second = running_job(world), running_job(world)
    third = world.submit(after=(*after(first, end="notok"), *after(second)))
    run(world, first, rc=1)
    world.retry(first)
    run(world, second)
    assert (world.job(third).state, world.job(third).in_queue) == (PENDING, False)
    run(world, first, rc=1)
    assert world.job(third).state is ASSIGNED


# --- what nobody knows ---------------------------------------------------------------------


def test_a_dependency_whose_submit_comes_later_is_waited_for() -> None:
    world = world_of_one_node(2)
    second = world.submit(after=after(job_id(1)))
    world.turn()
    world.turn(after_ms=UNKNOWN_WITHIN_MS - 1)
    first = world.submit()
    world.turn()
    assert first == job_id(1)
    assert world.job(second).state is PENDING
    world.turn(after_ms=UNKNOWN_WITHIN_MS)
    run(world, first)
    assert world.job(second).state is ASSIGNED


@pytest.mark.parametrize("end", e.ENDS)
def test_a_dependency_that_no_page_has_is_not_waited_for_for_ever(end: str) -> None:
    world = world_of_one_node()
    job = world.submit(after=after(job_id(30), end=end))
    world.turn()
    assert world.scheduler.next_due_ms() == world.at + UNKNOWN_WITHIN_MS
    world.turn(after_ms=UNKNOWN_WITHIN_MS - 1)
    assert world.job(job).state is PENDING
    world.turn(after_ms=1)
    reason = f"it waits for after{end}:{job_id(30)}, which no page of the ledger has"
    assert state_of(world, job) == (NEVER, reason)


def test_a_refused_submit_is_an_end_that_is_not_ok() -> None:
    world = world_of_one_node()
    world.submit()
    refused = e.FactRefused(
        key="facts/20260101T00/20260101T000000000Z.cli~aaaaaaaa.0.submit",
        writer=world.facts.pop().fact.writer, n=0, reason="too large", job=job_id(0),
    )  # fmt: skip
    world.see(refused)
    jobs = [world.submit(after=after(job_id(0), end=end)) for end in ("ok", "notok")]
    world.turn()
    assert state_of(world, jobs[0]) == (
        NEVER,
        f"it waits for afterok:{job_id(0)}, whose submit was refused",
    )
    assert world.job(jobs[1]).state is ASSIGNED


# --- circles -------------------------------------------------------------------------------


@pytest.mark.parametrize("one_page", [True, False])
@pytest.mark.parametrize("length", [2, 3, 5])
def test_jobs_that_wait_for_each_other_all_end(length: int, one_page: bool) -> None:
    """By ``--key`` a job can be named before it is there, so that circles can be written."""
    world = world_of_one_node()
    jobs = []
    for number in range(length):
        jobs.append(world.submit(after=after(job_id((number + 1) % length))))
        if not one_page:
            world.turn()
    world.turn()
    assert [world.job(job).state for job in jobs] == [NEVER] * length
    closing = jobs[0] if one_page else jobs[-1]
    before = jobs[(jobs.index(closing) - 1) % length]
    assert world.job(closing).reason == f"it waits for itself, through {before}"


def test_a_circle_of_any_ends_is_broken_once_and_the_others_run() -> None:
    world = world_of_one_node(2)
    first = world.submit(after=after(job_id(1), end="any"))
    second = world.submit(after=after(job_id(0), end="any"))
    world.turn()
    assert [world.job(job).state for job in (first, second)] == [NEVER, ASSIGNED]


def test_a_circle_that_a_release_closes_is_broken_too() -> None:
    world = world_of_one_node(2)
    first = world.submit(after=after(job_id(1), end="any"), held=True)
    second = world.submit(after=after(job_id(0), end="any"))
    world.turn()
    assert world.job(second).state is PENDING
    world.release(first)
    world.turn()
    assert sorted([world.job(first).state, world.job(second).state]) == [ASSIGNED, NEVER]


def test_a_job_that_waits_for_itself_or_for_nonsense_is_rejected() -> None:
    world = world_of_one_node()
    own = world.submit(after=after(job_id(0)))
    odd = world.submit(after=after(JobId("NO"), end="ok"))
    when = world.submit(after=after(own, end="later"))
    many = world.submit(after=after(*map(job_id, range(100, 1_101))))
    world.turn()
    assert [world.job(job).state for job in (own, odd, when, many)] == [JobState.REJECTED] * 4
    assert world.job(own).reason == "it waits for itself"


# --- what else may happen meanwhile --------------------------------------------------------


def test_what_stands_aside_can_be_cancelled_and_expires_at_its_deadline() -> None:
    world = world_of_one_node()
    first = running_job(world)
    doomed, late = (
        world.submit(after=after(first)),
        world.submit(after=after(first), deadline_at=world.at + 5_000),
    )
    world.turn()
    world.cancel(doomed)
    world.turn()
    assert world.job(doomed).state is JobState.CANCELLED
    world.turn(after_ms=5_000)
    assert world.job(late).state is JobState.EXPIRED


def test_a_held_job_waits_for_its_user_and_then_for_what_it_names() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    second = world.submit(after=after(first))
    world.turn()
    world.hold(second)
    world.turn()
    assert world.job(second).state is JobState.HELD
    world.release(second)
    world.turn()
    assert (world.job(second).state, world.job(second).in_queue) == (PENDING, False)
    world.hold(second)
    run(world, first, rc=1)
    assert world.job(second).state is JobState.HELD
    world.release(second)
    world.turn()
    assert world.job(second).state is NEVER


def test_the_age_at_which_waiting_jobs_expire_counts_from_the_entry() -> None:
    limits = Limits(queue_age_ms=10_000)
    world = world_of_one_node(1, Policy(organizations={"a": Organization(limits=limits)}))
    first = running_job(world)
    second = world.submit(after=after(first, end="any"))
    world.turn(after_ms=30_000)
    assert world.job(second).state is PENDING
    running_job_of_b = world.submit("b")
    world.turn()
    world.finish(first)
    world.turn()
    assert world.assigned()[-1] == running_job_of_b
    world.turn(after_ms=9_999)
    assert world.job(second).in_queue
    world.turn(after_ms=1)
    assert world.job(second).state is JobState.EXPIRED


def test_what_stands_aside_counts_for_the_length_of_a_queue() -> None:
    """Else anybody could have any number of jobs stand ready behind one that he holds."""
    limits = Limits(queue_length=2)
    world = world_of_one_node(1, Policy(organizations={"a": Organization(limits=limits)}))
    first = running_job(world)
    jobs = [world.submit(after=after(first)) for _ in range(3)]
    world.turn()
    assert [world.job(job).state for job in jobs] == [PENDING, PENDING, JobState.REJECTED]


def test_an_overdue_job_is_one_that_waits_too_long_in_its_queue() -> None:
    policy = Policy(classes={"batch": WorkloadClass(wait_target_ms=10_000)})
    world = world_of_one_node(1, policy)
    first = running_job(world)
    second = world.submit(after=after(first))
    world.turn(after_ms=60_000)
    assert not Explainer(world.projection).is_overdue(world.job(second))


def test_it_earns_no_credit_and_keeps_its_arrival() -> None:
    """a's first job stands aside while its second waits: the flow counts one that waits. When
    the slot is free, the first goes before the second, which was submitted later.
    """
    world = world_of_one_node(1)
    gate = running_job(world, organization="c")
    second = world.submit("a", after=after(gate))
    third = world.submit("a")
    world.turn()
    flow = world.state.flows["a/batch/default"]  # type: ignore[index]
    assert flow.waiting == 1
    run(world, gate)
    assert world.assigned()[-1] == second
    assert (world.job(third).state, flow.waiting) == (PENDING, 1)


def test_a_flow_whose_only_job_stands_aside_begins_level_with_those_that_wait() -> None:
    """b has been served 3 jobs of 1 s (virtual time 3 * 10^9 at weight 1) when a's job enters."""
    world = world_of_one_node(2)
    gate = running_job(world, organization="c", estimate_ms=60_000)
    aside = world.submit("a", after=after(gate))
    for _ in range(3):
        run(world, running_job(world, organization="b"))
    world.submit("b")
    world.turn()
    world.submit("b")
    world.turn()
    assert "a/batch/default" not in world.state.flows
    world.finish(gate)
    world.turn()
    level = world.state.flows["a/batch/default"].since  # type: ignore[index]
    assert level >= 3 * 10**9
    assert world.job(aside).entered_at == world.at


def test_a_new_leader_lets_go_what_was_left_undecided() -> None:
    world = world_of_one_node(2)
    first = running_job(world)
    second = world.submit(after=after(first))
    world.turn()
    world.scheduler = Scheduler(world.projection)
    assert world.turn() == []
    run(world, first)
    assert world.job(second).state is ASSIGNED


# --- what people are told ------------------------------------------------------------------


def test_it_says_for_whom_it_waits_and_how_these_stand() -> None:
    world = world_of_one_node(1)
    first = running_job(world)
    jobs = [first, *(world.submit(held=True) for _ in range(4))]
    one = world.submit(after=after(first, end="any"))
    many = world.submit(after=after(*jobs, job_id(40)))
    world.turn()
    explainer = Explainer(world.projection)
    assert explainer.why(world.job(one)) == "waits for afterany:aaaaaaaa (RUNNING)"
    assert explainer.why(world.job(many)) == (
        "waits for afterok:aaaaaaaa (RUNNING), afterok:aaaaaaab (HELD), afterok:aaaaaaac (HELD)"
        " and 3 more"
    )


def test_the_wait_has_a_part_for_the_dependency() -> None:
    """Submitted at 0 s, aside until 30 s, then one slot is busy with another's job for 12 s."""
    world = world_of_one_node(1)
    first = running_job(world)
    second = world.submit(after=after(first))
    other = world.submit("b")
    world.turn()
    world.at += 30_000
    run(world, first)
    assert world.assigned()[-1] == other
    world.at += 12_000
    run(world, other)
    world.start(second)
    world.turn()
    assert parts(world, second) == {"dependency": 30, "others' turn": 12}
