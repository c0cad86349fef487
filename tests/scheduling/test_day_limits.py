"""Limits a day and limits of GPU memory: what counts, until when, and what it costs nobody else.

Expected values are worked by hand in each test's comment. ``START_MS`` is a full hour, so what
ends within the first hour counts until 25 hours after it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger import events as e
from ledger.daily import Use
from ledger.events import JobState
from ledger.names import FlowId, JobId
from ledger.policy import (
    ApiLimits,
    FlowAgreement,
    Limits,
    Organization,
    Policy,
    Pool,
    Price,
    Scope,
    WorkloadClass,
)
from ledger.timings import DAY_MS, HOUR_MS
from scheduling.agreement import agreement, pool_terms
from tests.world import START_MS, World, lost_job, running_job

GIB = 1 << 30
POOL = {"default": Pool(discipline="sfq")}
OF_A = Policy(organizations={"a": Organization(limits=Limits(gpu_seconds_per_day=100))}, pools=POOL)
A = Scope("organization", "a")


def world(policy: Policy, slots: int = 4, kind: str = "gpu") -> World:
    made = World(policy)
    made.node_up("n1", slots, kind=kind, gpu_memory_bytes=80 * GIB if kind == "gpu" else 0)
    made.turn()
    return made


def job(made: World, limit_s: int, organization: str = "a", **more: object) -> JobId:
    return made.submit(
        organization,
        estimate_ms=0,
        time_limit_ms=1_000 * limit_s,
        **more,  # type: ignore[arg-type]
    )


def states(made: World, *jobs: JobId) -> list[JobState]:
    return [made.job(job).state for job in jobs]


def run(made: World, job_id: JobId, run_s: int) -> list[e.AnyDecision]:
    """Play the job from where it stands to its end."""
    if job_id not in made.state.jobs:
        made.turn()
    made.start(job_id)
    made.turn(after_ms=1_000 * run_s)
    made.finish(job_id)
    return made.turn()


def test_what_may_be_used_is_reserved_and_what_was_used_counts() -> None:
    """100 GPU-s a day; two jobs of at most 60 s: 120 > 100, the second waits. The first ran for
    40: 40 + 60 = 100, it may start."""
    made = world(OF_A)
    first, second = job(made, 60), job(made, 60)
    decided = made.turn()
    assert states(made, first, second) == [JobState.ASSIGNED, JobState.PENDING]
    [blocked] = [d for d in decided if isinstance(d, e.FlowBlocked)]
    assert (blocked.limit, blocked.reason) == (
        "organization a",
        "organization a counts 60 of at most 100 GPU-seconds a day, used or reserved; it needs 60",
    )
    run(made, first, 40)
    assert states(made, second) == [JobState.ASSIGNED]
    assert made.projection.daily.total(A) == Use(gpu_ms=40_000)


def test_it_waits_until_a_full_hour_a_day_later_and_has_earned_one_job_of_credit() -> None:
    """100 used within the first hour count until 25 h; then the next of 60 s may start.

    It was blocked meanwhile: it comes back at most its own charge behind, 60 s at weight 1.
    """
    made = world(OF_A)
    run(made, job(made, 100), 100)
    waits, other = job(made, 60), job(made, 3_600, "b")
    made.turn()
    assert states(made, waits, other) == [JobState.PENDING, JobState.ASSIGNED]
    made.turn(after_ms=START_MS + HOUR_MS + DAY_MS - 1 - made.at)
    assert states(made, waits) == [JobState.PENDING]
    made.turn(after_ms=1)
    assert states(made, waits) == [JobState.ASSIGNED]
    [freed] = [d for d in made.decisions if isinstance(d, e.FlowFreed)]
    assert freed.credit == 60_000 * 1_000_000


def test_the_leader_wakes_when_an_hour_ceases_to_count() -> None:
    made = world(OF_A)
    run(made, job(made, 100), 100)
    assert made.scheduler.next_due_ms() is None
    job(made, 60)
    made.turn()
    assert made.scheduler.next_due_ms() == START_MS + HOUR_MS + DAY_MS


def finishes(made: World, job_id: JobId) -> None:
    made.finish(job_id)


def fails(made: World, job_id: JobId) -> None:
    made.finish(job_id, rc=1)


def is_stopped(made: World, job_id: JobId) -> None:
    made.cancel(job_id)
    made.turn()
    made.finish(job_id, rc=143, outcome="stopped")


def times_out(made: World, job_id: JobId) -> None:
    made.finish(job_id, rc=143, outcome="timeout")


def is_reported_lost(made: World, job_id: JobId) -> None:
    made.lost(job_id)


def is_declared_lost(made: World, job_id: JobId) -> None:
    made.node_is("n1", e.Liveness.GONE)


def yields(made: World, job_id: JobId) -> None:
    job(made, 100, "b", slots=2)
    made.turn()
    assert made.attempt(job_id).stop_reason == e.YIELDED
    made.finish(job_id, rc=75, outcome="stopped")


@pytest.mark.parametrize(
    "end",
    [finishes, fails, is_stopped, times_out, is_reported_lost, is_declared_lost, yields],
    ids=lambda end: end.__name__,
)
def test_however_an_attempt_ends_what_it_used_counts_once(
    end: Callable[[World, JobId], None],
) -> None:
    """2 GPUs for 30 s are 60 GPU-s; nothing of the 80 that were reserved is left: 40 more fit."""
    classes = {"batch": WorkloadClass(quantum_ms=10_000), "interactive": WorkloadClass()}
    policy = Policy(organizations=OF_A.organizations, classes=classes, pools=POOL)
    made = world(policy, slots=2)
    first = job(made, 40, slots=2, resumable=True)
    made.turn()
    made.start(first)
    made.turn(after_ms=30_000)
    end(made, first)
    made.turn()
    assert made.attempt(first, 1).draw.booked == Use(gpu_ms=60_000)
    assert made.projection.daily.total(A) == Use(gpu_ms=60_000)
    made.node_up("n2", 4, kind="gpu")
    exceeds, fits = job(made, 41), job(made, 40, workload_class="interactive")
    made.turn()
    assert states(made, exceeds, fits) == [JobState.PENDING, JobState.ASSIGNED]


@pytest.mark.parametrize("how", ["revoked", "lost before it ran", "expired"])
def test_an_attempt_that_never_ran_gives_all_back(how: str) -> None:
    made = world(OF_A)
    deadline_at = made.at + 5_000 if how == "expired" else 0
    first, second = job(made, 80, deadline_at=deadline_at), job(made, 100)
    made.turn()
    assert states(made, first, second) == [JobState.ASSIGNED, JobState.PENDING]
    if how == "lost before it ran":
        made.cancel(first)
        made.lost(first, ran=False)
    else:
        if how == "revoked":
            made.cancel(first)
        made.turn(after_ms=5_000)
        made.claim(first, "revoke")
    made.turn()
    assert states(made, second) == [JobState.ASSIGNED]
    assert made.projection.daily.total(A) == Use()


def test_what_ran_on_after_it_was_lost_counts_as_well() -> None:
    """Silent after 20 s: 20 counts. Found again, it ends after 50 in all: 50 counts, once."""
    made = world(OF_A, slots=1)
    lost = lost_job(made, estimate_ms=0, time_limit_ms=60_000)
    assert made.projection.daily.total(A) == Use()
    made.node_is("n1", e.Liveness.FRESH)
    made.turn(after_ms=20_000)
    assert states(made, lost) == [JobState.RUNNING]
    made.node_is("n1", e.Liveness.GONE)
    made.turn()
    assert made.projection.daily.total(A) == Use(gpu_ms=20_000)
    made.node_is("n1", e.Liveness.FRESH)
    made.turn(after_ms=30_000)
    made.finish(lost)
    made.turn()
    assert made.projection.daily.total(A) == Use(gpu_ms=50_000)


def test_a_job_that_runs_past_its_estimate_counts_for_what_it_uses() -> None:
    """Estimates bind nobody: after 40 s, 10 s reserved have become 40 or more, so 61 do not fit.

    What a time limit allows is reserved from the start, whatever was estimated.
    """
    made = world(OF_A)
    overruns = running_job(made, estimate_ms=10_000)
    made.turn(after_ms=40_000)
    waits, limited = job(made, 61), made.submit("b", estimate_ms=1, time_limit_ms=50_000)
    made.turn()
    assert states(made, waits) == [JobState.PENDING]
    assert made.attempt(overruns).draw.reserved.gpu_ms >= 40_000
    assert made.attempt(limited).draw.reserved == Use(gpu_ms=50_000)


def test_of_a_long_job_at_most_a_day_counts() -> None:
    """1 GPU for a week uses 86,400 GPU-s of any day; 2 GPUs would use 172,800."""
    limits = Limits(gpu_seconds_per_day=86_400)
    made = world(Policy(organizations={"a": Organization(limits=limits)}))
    week_s = 7 * 86_400
    one, two = job(made, week_s), job(made, week_s, slots=2)
    made.turn()
    assert states(made, one, two) == [JobState.ASSIGNED, JobState.REJECTED]
    assert made.job(two).reason == (
        "it may use 172800 GPU-seconds (--time), and organization a may use 86400 a day"
    )


def test_a_job_that_is_too_large_all_alone_is_rejected_with_who_says_so() -> None:
    made = world(OF_A)
    said, nothing = made.submit("a", estimate_ms=101_000), made.submit("a", estimate_ms=0)
    made.turn()
    assert [made.job(each).reason for each in (said, nothing)] == [
        "it may use 101 GPU-seconds (--estimate), and organization a may use 100 a day",
        "it may use 600 GPU-seconds (default), and organization a may use 100 a day",
    ]


def test_slots_without_a_gpu_count_nothing_also_when_gpus_leave_the_pool() -> None:
    made = world(OF_A, kind="cpu")
    first, second = job(made, 90), job(made, 90)
    made.turn()
    assert states(made, first, second) == [JobState.ASSIGNED] * 2
    assert made.attempt(first).draw.reserved == Use()
    made.node_up("n2", 4, kind="gpu")
    made.turn()
    on_cpus = [job(made, 90), job(made, 90)]
    made.turn()
    assert [made.attempt(each).draw.reserved for each in on_cpus] == [Use()] * 2
    on_gpu, waits = job(made, 90), job(made, 90)
    made.turn()
    assert made.attempt(on_gpu).draw.reserved == Use(gpu_ms=90_000)
    assert states(made, waits) == [JobState.PENDING]
    made.node_is("n2", e.Liveness.STALE)
    made.start(first)
    made.turn()
    assert states(made, waits) == [JobState.PENDING]
    assert made.state.flows[FlowId("a/batch/default")].limit == ""


SCOPES = {
    "flow": Policy(
        flows={FlowId("a/batch/default"): FlowAgreement(limits=Limits(gpu_seconds_per_day=100))}
    ),
    "organization": OF_A,
    "class": Policy(
        classes={
            "batch": WorkloadClass(limits=Limits(gpu_seconds_per_day=100)),
            "interactive": WorkloadClass(),
        }
    ),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_limit_holds_those_whom_it_names_and_nobody_else(scope: str) -> None:
    made = world(SCOPES[scope])
    run(made, job(made, 80), 80)
    own, other = job(made, 30), job(made, 30, "b", workload_class="interactive")
    made.turn()
    assert states(made, own, other) == [JobState.PENDING, JobState.ASSIGNED]


def test_an_organization_is_counted_in_all_pools_together() -> None:
    made = World(
        Policy(organizations=OF_A.organizations, pools={"p": Pool(), "q": Pool()}),
    )
    made.node_up("n1", 1, pool="p", kind="gpu")
    made.node_up("n2", 1, pool="q", kind="gpu")
    made.turn()
    first, second = job(made, 60, pool="p"), job(made, 60, pool="q")
    made.turn()
    assert states(made, first, second) == [JobState.ASSIGNED, JobState.PENDING]
    run(made, first, 10)
    assert states(made, second) == [JobState.ASSIGNED]


def test_a_limit_of_the_pool_holds_everybody_and_blocks_no_flow() -> None:
    pool = Pool(discipline="sfq", limits=Limits(gpu_seconds_per_day=100))
    made = world(Policy(pools={"default": pool}))
    first, second, third = job(made, 90), job(made, 20, "b"), job(made, 5, "c")
    run(made, first, 90)
    assert states(made, second, third) == [JobState.PENDING] * 2
    assert not [d for d in made.decisions if isinstance(d, e.FlowBlocked)]
    made.turn(after_ms=START_MS + HOUR_MS + DAY_MS - made.at)
    assert states(made, second, third) == [JobState.ASSIGNED] * 2


def test_a_policy_counts_what_was_used_before_it() -> None:
    made = world(Policy(pools=POOL))
    run(made, job(made, 60), 60)
    made.apply_policy(OF_A)
    fits, exceeds = job(made, 40), job(made, 41)
    made.turn()
    assert states(made, fits, exceeds) == [JobState.ASSIGNED, JobState.PENDING]


def test_the_agreement_says_these_limits_and_prices_in_words() -> None:
    limits = Limits(
        gpu_memory_bytes=GIB, gpu_seconds_per_day=36_000, money_per_day_micros=20_500_000
    )
    policy = Policy(organizations={"a": Organization(limits=limits)})
    [(_, terms)] = agreement(policy)
    assert (
        "limits of its own: at most 1 GiB of GPU memory asked for at once; at most 36000 "
        "GPU-seconds within 24 hours; at most 20.5 of money within 24 hours"
    ) in terms
    assert "input 1000 tokens: 0.003" in list(pool_terms(Pool(price=Price(input_micros=3_000))))


# --- money

PRICE = Price(request_micros=100_000, input_micros=1_000_000, output_micros=4_000_000)


def service(limit_micros: int, price: Price = PRICE) -> World:
    """A service that takes 0.1 a request, 1 for 1,000 tokens in and 4 for 1,000 out."""
    limits = Limits(money_per_day_micros=limit_micros)
    policy = Policy(
        organizations={"a": Organization(limits=limits)},
        pools={"api": Pool(api=ApiLimits(), price=price)},
    )
    made = World(policy)
    made.node_up("n1", 8, pool="api")
    made.turn()
    return made


def call(made: World, tokens_in: int, tokens_out: int, organization: str = "a") -> JobId:
    return made.submit(
        organization, pool="api", input_tokens=tokens_in, max_output_tokens=tokens_out
    )


def test_money_is_reserved_by_what_a_call_may_cost_and_settled_by_what_it_reports() -> None:
    """A call of 500 in and at most 100 out may cost 0.1 + 0.5 + 0.4 = 1: of 2, two may run.

    The first reports 500 in and 25 out: 0.7. 0.7 + 1 + 1 > 2, but one of 0.1 + 0.1 + 0.1 fits.
    """
    made = service(2_000_000)
    first, second, third = (call(made, 500, 100) for _ in range(3))
    made.turn()
    assert states(made, first, second, third) == [JobState.ASSIGNED] * 2 + [JobState.PENDING]
    assert made.state.flows[FlowId("a/batch/api")].blocked == (
        "organization a counts 2 of at most 2 money a day, used or reserved; it needs 1"
    )
    made.start(first)
    made.turn()
    made.finish(first, report=e.Report(requests=1, input_tokens=500, output_tokens=25))
    made.cancel(third)
    small = call(made, 100, 25)
    made.turn()
    assert made.projection.daily.total(A) == Use(money_micros=700_000)
    assert states(made, small) == [JobState.ASSIGNED]


def test_a_call_that_reports_nothing_counts_as_reserved() -> None:
    made = service(2_000_000)
    silent = call(made, 500, 100)
    made.turn()
    made.start(silent)
    made.turn()
    made.finish(silent)
    made.turn()
    assert made.projection.daily.total(A) == Use(money_micros=1_000_000)


def test_the_price_of_the_dispatch_settles_it() -> None:
    made = service(2_000_000)
    first = call(made, 500, 100)
    made.turn()
    made.start(first)
    made.apply_policy(Policy(pools={"api": Pool(api=ApiLimits(), price=Price(request_micros=1))}))
    made.turn()
    made.finish(first, report=e.Report(requests=1, input_tokens=500, output_tokens=25))
    made.turn()
    assert made.projection.daily.total(A) == Use(money_micros=700_000)


def test_calls_that_money_could_never_allow_or_count_are_rejected() -> None:
    made = service(900_000)
    dear, unsaid, others = call(made, 500, 100), call(made, 0, 0), call(made, 500, 100, "b")
    made.turn()
    assert [made.job(each).reason for each in (dear, unsaid)] == [
        "it may cost 1, and organization a may spend 0.9 a day",
        "organization a counts money: say --input-tokens and --max-output-tokens",
    ]
    assert states(made, others) == [JobState.ASSIGNED]


# --- GPU memory


def test_gpu_memory_is_what_running_jobs_asked_for_on_all_their_gpus() -> None:
    """100 GiB: 2 GPUs with 40 GiB each hold 80; 30 more do not fit until they are free."""
    limits = Limits(gpu_memory_bytes=100 * GIB)
    made = world(Policy(organizations={"a": Organization(limits=limits)}, pools=POOL))
    wide = made.submit("a", slots=2, gpu_memory_bytes=40 * GIB)
    made.turn()
    waits = made.submit("a", gpu_memory_bytes=30 * GIB)
    other = made.submit("b", gpu_memory_bytes=30 * GIB)
    made.turn()
    assert states(made, wide, waits, other) == [
        JobState.ASSIGNED,
        JobState.PENDING,
        JobState.ASSIGNED,
    ]
    assert made.state.flows[FlowId("a/batch/default")].blocked == (
        "organization a has 80 GiB of at most 100 GiB GPU memory; it needs 30 GiB"
    )
    run(made, wide, 1)
    assert states(made, waits) == [JobState.ASSIGNED]


def test_a_job_that_asks_for_more_gpu_memory_than_is_allowed_is_rejected() -> None:
    limits = Limits(gpu_memory_bytes=100 * GIB)
    made = world(Policy(flows={FlowId("a/batch/default"): FlowAgreement(limits=limits)}))
    asks = made.submit("a", slots=2, gpu_memory_bytes=60 * GIB)
    made.turn()
    assert made.job(asks).reason == (
        "it asks for 120 GiB of GPU memory, and flow a/batch/default may have 100 GiB at once"
    )
