"""Pools that stand for an external service: requests, tokens and places in flight.

Expected values are worked by hand in each test's comment.
"""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import FlowId, JobId
from ledger.policy import ApiLimits, Policy, Pool
from ledger.rates import Window, admits, next_due
from tests.world import World


def service(api: ApiLimits, slots: int = 8, discipline: str = "sfq") -> World:
    made = World(Policy(pools={"api": Pool(discipline=discipline, api=api)}))
    made.node_up("n1", slots, pool="api")
    made.turn()
    return made


def call(made: World, tokens_in: int = 0, tokens_out: int = 0, organization: str = "a") -> JobId:
    return made.submit(
        organization, pool="api", input_tokens=tokens_in, max_output_tokens=tokens_out
    )


def states(made: World, *jobs: JobId) -> list[JobState]:
    return [made.job(job).state for job in jobs]


def test_tokens_a_minute_hold_over_every_minute() -> None:
    """100 a minute; 58, 80, 175, 175, 175 at once: the 58 at once, the 80 when the minute of
    the 58 is over (58 + 80 > 100), the 175s can never run."""
    made = service(ApiLimits(tokens_per_minute=100))
    small, large, *impossible = [call(made, tokens) for tokens in (58, 80, 175, 175, 175)]
    made.turn()
    assert states(made, small, large) == [JobState.ASSIGNED, JobState.PENDING]
    assert set(states(made, *impossible)) == {JobState.REJECTED}
    assert made.job(impossible[0]).reason == (
        "it may take 175 tokens, and pool 'api' has 100 a minute"
    )
    made.start(small)
    made.turn()
    made.finish(small)
    made.turn(after_ms=59_999)
    assert states(made, large) == [JobState.PENDING]
    assert made.scheduler.next_due_ms() == made.at + 1
    made.turn(after_ms=1)
    assert states(made, large) == [JobState.ASSIGNED]


def test_a_call_that_waits_for_one_limit_uses_up_none_of_the_others() -> None:
    """2 requests a minute, 1 in flight: A runs, B waits, A ends, C arrives: B starts and the
    counter says 2; C waits for the minute of A."""
    made = service(ApiLimits(requests_per_minute=2, in_flight=1))
    a, b = call(made), call(made)
    made.turn()
    assert made.state.windows["api"].requests == 1
    made.start(a)
    made.turn()
    made.finish(a)
    c = call(made)
    made.turn()
    assert states(made, b, c) == [JobState.ASSIGNED, JobState.PENDING]
    assert made.state.windows["api"].requests == 2
    made.start(b)
    made.turn()
    made.finish(b)
    made.turn()
    assert states(made, c) == [JobState.PENDING]
    made.turn(after_ms=60_000)
    assert states(made, c) == [JobState.ASSIGNED]


def test_two_teams_share_the_tokens_of_a_minute() -> None:
    """1,000 tokens a minute, calls of 30: 33 fit, 16 or 17 of each team."""
    made = service(ApiLimits(tokens_per_minute=1_000), slots=80)
    jobs = {name: [call(made, 30, organization=name) for _ in range(40)] for name in "ab"}
    made.turn()
    started = {
        name: states(made, *of_team).count(JobState.ASSIGNED) for name, of_team in jobs.items()
    }
    assert sum(started.values()) == 33
    assert sorted(started.values()) == [16, 17]


def test_what_a_call_did_not_use_is_there_for_the_next_one() -> None:
    """100 a minute; 20 + 70 out reserved, 20 + 10 used: 70 are left, so the 60 can start."""
    made = service(ApiLimits(tokens_per_minute=100))
    first, second = call(made, 20, 70), call(made, 60)
    made.turn()
    made.start(first)
    made.turn(after_ms=1_000)
    assert states(made, second) == [JobState.PENDING]
    made.finish(first, report=e.Report(requests=1, input_tokens=20, output_tokens=10))
    made.turn()
    assert states(made, second) == [JobState.ASSIGNED]


def test_a_call_is_charged_its_tokens_and_settled_with_what_it_reports() -> None:
    """Estimate 20 + 2 x 70 = 160, actual 20 + 2 x 10 = 40; weight 1, so F is 40 in the end.

    One that reports nothing is charged what was estimated: 160, although it ran for an hour.
    """
    made = service(ApiLimits(), slots=2)
    said, silent = call(made, 20, 70, "a"), call(made, 20, 70, "b")
    keep_busy = call(made, 1, 0, "c")  # a pool that is wholly idle forgets all debt
    made.turn()
    assert made.attempt(said).cost_ms == 160
    for job in (said, silent):
        made.start(job)
    made.turn(after_ms=3_600_000)
    made.finish(said, report=e.Report(requests=1, input_tokens=20, output_tokens=10))
    made.finish(silent)
    made.turn()
    assert states(made, keep_busy) == [JobState.ASSIGNED]
    finish = {name: made.state.flows[FlowId(f"{name}/batch/api")].finish for name in "ab"}
    assert finish == {"a": 40_000_000, "b": 160_000_000}


def reporting(made: World, job: JobId, tokens_in: int, tokens_out: int) -> None:
    made.start(job)
    made.turn()
    report = e.Report(requests=1, input_tokens=tokens_in, output_tokens=tokens_out)
    made.finish(job, report=report)
    made.turn()


def test_what_calls_report_changes_the_charge_of_later_ones_of_that_pool_and_class() -> None:
    """20 + 2 x 70 = 160 estimated, 20 + 2 x 10 = 40 taken: the factor is 1 - 0.75 / 16 = 0.953125,
    for whichever organization: 160 x 0.953125 = 152.5, so 153. The other class stays at 160."""
    made = service(ApiLimits())
    first = call(made, 20, 70)
    made.turn()
    reporting(made, first, 20, 10)
    same = call(made, 20, 70, "b")
    other = made.submit(
        "b", pool="api", workload_class="interactive", input_tokens=20, max_output_tokens=70
    )
    made.turn()
    assert [made.attempt(job).cost_ms for job in (same, other)] == [153, 160]
    assert made.state.calibrations["api/batch"].factor_ppm == 953_125


def test_what_waits_is_ranked_with_the_new_factor_in_the_same_page() -> None:
    """One slot, wfq: ``c`` with 98 goes before ``b`` with 100, until a call of b's class takes a
    quarter: then b counts 100 x 0.953125 = 96."""
    made = service(ApiLimits(), slots=1, discipline="wfq")
    running = call(made, 100, 0)
    made.turn()
    later = made.submit("c", pool="api", workload_class="interactive", input_tokens=98)
    sooner = call(made, 100, 0, "b")
    reporting(made, running, 25, 0)
    assert states(made, sooner, later) == [JobState.ASSIGNED, JobState.PENDING]


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        ("exited", None),
        ("exited", e.Report(throttled=3)),
        ("stopped", e.Report(input_tokens=1)),
        ("timeout", e.Report(input_tokens=1)),
    ],
)
def test_calls_that_were_cut_short_or_report_no_tokens_teach_nothing(
    outcome: str, report: e.Report | None
) -> None:
    made = service(ApiLimits())
    job = call(made, 20, 70)
    made.turn()
    made.start(job)
    made.turn()
    made.finish(job, outcome=outcome, report=report)
    made.turn()
    assert made.state.calibrations == {}


def test_the_minute_is_reserved_whole_whatever_was_learnt() -> None:
    """The factor is for charges: of 100 tokens a minute, a call of 20 + 70 still takes 90."""
    made = service(ApiLimits(tokens_per_minute=100))
    first = call(made, 20, 70)
    made.turn()
    reporting(made, first, 1, 1)
    made.turn(after_ms=60_000)
    call(made, 20, 70)
    made.turn()
    assert made.state.windows["api"].tokens == 90


@pytest.mark.parametrize("taken_back", [True, False])
def test_an_attempt_that_never_ran_gives_back_what_it_reserved(taken_back: bool) -> None:
    made = service(ApiLimits(tokens_per_minute=100), slots=2)
    job = call(made, 90)
    made.turn()
    assert made.state.windows["api"].tokens == 90
    if taken_back:
        made.cancel(job)
        made.turn()
        made.claim(job, "revoke")
    else:
        made.cancel(job)
        made.lost(job, ran=False)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED
    assert made.state.windows["api"].tokens == 0


def test_a_pool_of_its_own_never_holds_another() -> None:
    made = World(Policy(pools={"api": Pool(api=ApiLimits(in_flight=1)), "gpu": Pool()}))
    made.node_up("n1", 2, pool="api")
    made.node_up("n2", 1, pool="gpu")
    call(made), call(made)
    gpu = made.submit("a", pool="gpu")
    made.turn()
    assert states(made, gpu) == [JobState.ASSIGNED]


def test_calls_without_tokens_are_refused_where_tokens_count() -> None:
    made = service(ApiLimits(tokens_per_minute=100))
    job = call(made)
    made.turn()
    assert made.job(job).reason == (
        "pool 'api' counts tokens: say --input-tokens and --max-output-tokens"
    )


def test_a_window_counts_what_began_less_than_a_minute_ago() -> None:
    window = Window()
    window.reserve("a.1", 1, 10)
    window.reserve("b.1", 1, 20)
    window.start("a.1", 1_000)
    window.forget(10_000_000)
    assert (window.requests, window.tokens) == (1, 20)
    window.start("b.1", 5_000)
    assert window.next_change_ms() == 65_000
    window.forget(64_999)
    assert window.tokens == 20
    window.forget(65_000)
    assert (window.requests, window.tokens, window.reserved) == (0, 0, {})


def test_the_rate_lets_a_burst_through_and_then_an_even_pace() -> None:
    """6 a minute is one each 10 s; 3 at once: 3 at 0 s, the next ones at 10, 20, ... s."""
    due, passed = 0, []
    for at in range(0, 40_000, 1_000):
        for _ in range(3):
            if admits(due, at, per_minute=6, burst=3):
                due = next_due(due, at, per_minute=6)
                passed.append(at)
    assert passed == [0, 0, 0, 10_000, 20_000, 30_000]
