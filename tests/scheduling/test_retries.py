"""Further attempts of failed jobs: only where allowed, later, and within a budget."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import Policy, Pool, RetryRule
from ledger.transitions import RETRY_FLOOR
from tests.world import World

LONG_MS = 60_000
"""Nothing that fails after so long speaks against its node."""


def world(rule: RetryRule | None = None, slots: int = 1) -> World:
    made = World(Policy(pools={"default": Pool(retry=rule or RetryRule())}))
    made.node_up("n1", slots)
    made.turn()
    return made


def fail(made: World, job: JobId, *, rc: int = 1, outcome: str = "exited") -> list[e.AnyDecision]:
    made.start(job)
    made.turn(after_ms=LONG_MS)
    made.finish(job, rc=rc, outcome=outcome)
    return made.turn()


def retried(decisions: list[e.AnyDecision]) -> list[e.JobRetried]:
    return [d for d in decisions if isinstance(d, e.JobRetried)]


CASES = [
    ({"retries": 1}, 1, "exited", True),
    ({"retries": 1}, 0, "exited", False),
    ({"retries": 0}, 1, "exited", False),
    ({"retries": 1, "retry_on": ("rc=75",)}, 75, "exited", True),
    ({"retries": 1, "retry_on": ("rc=75",)}, 7, "exited", False),
    ({"retries": 1, "retry_on": ("oom",)}, 137, "oom", True),
    ({"retries": 1}, 137, "oom", False),
    ({"retries": 1, "retry_on": ("timeout",)}, 143, "timeout", False),
    ({"retries": 1, "retry_on": ("timeout",), "idempotent": True}, 143, "timeout", True),
]


@pytest.mark.parametrize(("asked", "rc", "outcome", "again"), CASES)
def test_only_what_the_job_allows_is_tried_again(
    asked: dict[str, object], rc: int, outcome: str, again: bool
) -> None:
    made = world()
    job = made.submit("a", **asked)  # type: ignore[arg-type]
    made.turn()
    assert bool(retried(fail(made, job, rc=rc, outcome=outcome))) is again


def test_it_comes_back_later_and_behind_all_that_wait() -> None:
    """The delay stands in the ledger: 2.5 to 5 s before the second attempt."""
    made = world()
    job = made.submit("a", retries=2)
    made.turn()
    [again] = retried(fail(made, job))
    delay_ms = again.until - made.at
    assert 2_500 <= delay_ms <= 5_000
    assert (made.job(job).state, made.job(job).reason) == (
        JobState.HELD,
        "attempt 1 ended FAILED (rc 1); tried again",
    )
    later = made.submit("a")
    made.turn()
    assert made.job(later).state is JobState.ASSIGNED
    waits = made.submit("a")
    made.turn(after_ms=delay_ms)
    assert made.job(job).state is JobState.PENDING
    fail(made, later, rc=0)
    assert made.assigned()[-1] == job, "it waits from when it failed, and that was before"
    assert made.job(waits).state is JobState.PENDING
    assert 5_000 <= retried(fail(made, job))[0].until - made.at <= 10_000


def test_who_waited_when_it_failed_goes_first_also_after_the_delay() -> None:
    made = world()
    job = made.submit("a", retries=1)
    made.turn()
    waited = [made.submit("a") for _ in range(2)]
    fail(made, job)
    made.turn(after_ms=10_000)
    assert made.job(job).state is JobState.PENDING
    fail(made, waited[0], rc=0)
    assert made.job(waited[1]).state is JobState.ASSIGNED


def test_the_pool_has_the_last_word_on_the_number_of_attempts() -> None:
    """3 retries asked for, 2 attempts allowed: one retry."""
    made = world(RetryRule(attempts_max=2))
    job = made.submit("a", retries=3)
    made.turn()
    assert retried(fail(made, job))
    made.turn(after_ms=10_000)
    assert not retried(fail(made, job))
    assert made.job(job).state is JobState.FAILED


def test_where_every_attempt_fails_the_budget_bounds_them() -> None:
    """300 jobs, 3 retries each, 10 %: at most 1.10 x 300 attempts and the floor of 10."""
    made = world(slots=4)
    jobs = [made.submit("a", retries=3, argv=(str(n),)) for n in range(300)]
    made.turn()
    attempts = 0
    while any(not made.job(job).state.ended for job in jobs if job in made.state.jobs):
        running = {w.occupant.job for w in made.state.workers.values() if w.occupant}
        attempts += len(running)
        for job in running:
            made.start(job)
        made.turn(after_ms=LONG_MS)
        for job in running:
            made.finish(job, rc=1)
        made.turn()
    assert 300 < attempts <= 330 + RETRY_FLOOR


def test_a_retry_that_the_budget_of_the_flow_denied_says_so() -> None:
    """No part of first attempts is added, so that ten retries are all there will ever be."""
    made = world(RetryRule(budget_percent=0))
    for _ in range(RETRY_FLOOR):
        job = made.submit("a", retries=1, argv=(str(made.at),))
        made.turn()
        assert retried(fail(made, job))
        made.cancel(job)
        made.turn()
    denied = made.submit("a", retries=1)
    made.turn()
    made.start(denied)
    made.turn(after_ms=LONG_MS)
    made.finish(denied, rc=3)
    made.turn()
    assert made.job(denied).state is JobState.FAILED
    assert made.job(denied).reason == (
        "not tried again: the retry budget of its flow is used up, 0 % of its first attempts"
    )
    wants_none = made.submit("a")
    made.turn()
    fail(made, wants_none)
    assert made.job(wants_none).reason == ""


def test_a_cancel_or_a_deadline_stops_them() -> None:
    made = world(slots=2)
    cancelled = made.submit("a", retries=3)
    short = made.submit("a", retries=3, deadline_at=made.at + LONG_MS + 1_000)
    made.turn()
    for job in (cancelled, short):
        made.start(job)
    made.turn(after_ms=LONG_MS)
    made.finish(short, rc=1)
    made.finish(cancelled, rc=1)
    made.turn()
    assert made.job(short).state is JobState.FAILED, "the delay would end after its deadline"
    assert made.job(cancelled).state is JobState.HELD
    made.cancel(cancelled)
    made.turn(after_ms=10_000)
    assert made.job(cancelled).state is JobState.CANCELLED


def test_a_user_need_not_wait_for_the_delay() -> None:
    made = world()
    job = made.submit("a", retries=1)
    made.turn()
    fail(made, job)
    made.release(job)
    made.turn()
    assert made.job(job).state is JobState.ASSIGNED
