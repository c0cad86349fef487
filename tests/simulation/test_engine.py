"""The engine: order within an instant, slots over time, and that it decides as a leader does."""

from __future__ import annotations

import random

import pytest

from ledger import events as e
from ledger.estimates import DEFAULT_COST_MS
from ledger.policy import DISCIPLINES, Organization, Policy, Pool
from scheduling.decide import Scheduler
from simulation.engine import Outcome, simulate
from simulation.workload import SimJob, Workload, node, on_counting_pool, under
from tests.world import World, job_id

SECOND = 1_000


def job(
    organization: str, arrival_s: int, duration_s: int, slots: int = 1, **more: object
) -> SimJob:
    return SimJob(
        name=organization,
        organization=organization,
        arrival_ms=arrival_s * SECOND,
        duration_ms=duration_s * SECOND,
        slots=slots,
        **{"estimate_ms": duration_s * SECOND, **more},  # type: ignore[arg-type]
    )


def workload(*jobs: SimJob, slots: int = 1) -> Workload:
    return Workload(title="test", jobs=jobs, slots=node("n1", slots))


def spans_s(outcome: Outcome) -> list[tuple[float | None, float | None]]:
    return [
        (
            None if run.start_ms is None else run.start_ms / SECOND,
            None if run.end_ms is None else run.end_ms / SECOND,
        )
        for run in outcome.runs
    ]


def fifo(*pools: str) -> Policy:
    return Policy(pools={name: Pool(discipline="fifo") for name in pools or ("default",)})


def test_jobs_of_one_slot_run_one_after_the_other() -> None:
    outcome = simulate(workload(job("a", 5, 10), job("b", 6, 3)), fifo())
    assert spans_s(outcome) == [(5, 15), (15, 18)]
    assert outcome.ended_at_ms == 18 * SECOND


def test_what_ends_frees_its_slots_before_what_arrives_at_that_instant_is_placed() -> None:
    outcome = simulate(workload(job("a", 0, 10, slots=2), job("b", 10, 1, slots=2), slots=2))
    assert spans_s(outcome) == [(0, 10), (10, 11)]


def test_arrivals_of_one_instant_queue_in_the_order_of_the_workload() -> None:
    jobs = [job("c", 1, 2), job("a", 1, 2), job("b", 1, 2), job("d", 0, 2)]
    outcome = simulate(workload(*jobs), fifo())
    assert spans_s(outcome) == [(2, 4), (4, 6), (6, 8), (0, 2)]


def test_a_job_that_takes_no_time_is_over_at_once() -> None:
    outcome = simulate(workload(job("a", 3, 0, estimate_ms=1), job("b", 3, 1)), fifo())
    assert spans_s(outcome) == [(3, 3), (3, 4)]


def test_under_fifo_nothing_passes_a_head_that_does_not_fit() -> None:
    jobs = [job("a", 0, 10), job("b", 1, 5, slots=2), job("c", 2, 1)]
    assert spans_s(simulate(workload(*jobs, slots=2), fifo())) == [(0, 10), (10, 15), (15, 16)]


def test_a_job_with_a_limit_passes_a_reservation_that_it_does_not_delay() -> None:
    """b is reserved both slots at 10 s; c ends by its limit at 3 s, d would end at 22 s."""
    jobs = [
        job("a", 0, 10, time_limit_ms=10 * SECOND),
        job("b", 1, 5, slots=2),
        job("c", 2, 1, time_limit_ms=SECOND),
        job("d", 2, 20, time_limit_ms=20 * SECOND),
    ]
    outcome = simulate(workload(*jobs, slots=2), under(workload(*jobs, slots=2), "sfq"))
    assert spans_s(outcome)[:3] == [(0, 10), (10, 15), (2, 3)]
    assert [run.backfill for run in outcome.runs[:3]] == [False, False, True]
    assert outcome.runs[3].start_ms == 15 * SECOND


def test_sfq_alternates_between_two_backlogged_flows_and_weights_count() -> None:
    """One slot, jobs of 1 s, a has weight 2: start tags a 0, .5, 1, ...; b 0, 1, 2, ..."""
    jobs = [job(name, 0, 1) for name in "ab" for _ in range(6)]
    made = workload(*jobs)
    policy = Policy(
        organizations={"a": Organization(weight=2_000)}, pools={"default": Pool(discipline="sfq")}
    )
    outcome = simulate(made, policy)
    order = sorted(outcome.runs, key=lambda run: run.start_ms or 0)
    assert "".join(run.job.organization for run in order) == "abaabaabab" + "bb"


def test_a_job_that_no_node_can_hold_is_refused_and_the_rest_goes_on() -> None:
    outcome = simulate(workload(job("a", 0, 1, slots=3), job("b", 0, 1), slots=2), fifo())
    assert outcome.runs[0].refused == "no node of pool 'default' has 3 such slots (at most 2)"
    assert spans_s(outcome) == [(None, None), (0, 1)]


def test_a_run_that_has_a_horizon_ends_there() -> None:
    made = Workload(
        title="t",
        jobs=(job("a", 0, 10), job("a", 0, 10), job("a", 30, 1)),
        slots=node("n1", 1),
        until_ms=15 * SECOND,
    )
    outcome = simulate(made)
    assert spans_s(outcome) == [(0, 10), (10, None), (None, None)]
    assert outcome.ended_at_ms == 15 * SECOND


def test_slots_come_and_go_and_what_runs_then_runs_on() -> None:
    """n1 leaves at 5 s under the first job; n2 serves from 20 s on."""
    slots = (*node("n1", 1, until_ms=5 * SECOND), *node("n2", 1, from_ms=20 * SECOND))
    made = Workload(title="t", jobs=(job("a", 0, 10), job("a", 1, 4)), slots=slots)
    assert spans_s(simulate(made)) == [(0, 10), (20, 24)]


def test_a_slot_that_returns_under_its_own_job_takes_no_other_meanwhile() -> None:
    slots = (
        *node("n1", 1, until_ms=5 * SECOND),
        *node("n1", 1, from_ms=7 * SECOND),
    )
    made = Workload(title="t", jobs=(job("a", 0, 10), job("a", 1, 4)), slots=slots)
    assert spans_s(simulate(made)) == [(0, 10), (10, 14)]


def test_jobs_for_which_slots_never_come_stay_unfinished() -> None:
    made = workload(job("a", 0, 1, pool="elsewhere"), job("b", 0, 1))
    assert spans_s(simulate(made)) == [(None, None), (0, 1)]


def test_what_is_not_estimated_is_charged_the_default_and_later_what_its_like_took() -> None:
    outcome = simulate(workload(job("a", 0, 30, estimate_ms=0), job("a", 40, 30, estimate_ms=0)))
    assert [run.cost_ms for run in outcome.runs] == [DEFAULT_COST_MS, 30 * SECOND]


def test_an_overrun_is_charged_at_the_moment_at_which_the_estimate_is_used_up() -> None:
    """Alone and long before the next event: 10 s estimated, so the first overrun is at 10 s."""
    outcome = simulate(workload(job("a", 0, 1_000, estimate_ms=10 * SECOND)))
    overruns = [at for at, decision in outcome.decisions if isinstance(decision, e.OverrunCharged)]
    assert overruns[0] == 10 * SECOND
    assert spans_s(outcome) == [(0, 1_000)]


def some_jobs(rng: random.Random) -> list[SimJob]:
    classes = ("batch", "interactive", "system")
    return [
        job(
            rng.choice("abc"),
            rng.randrange(60),
            rng.randrange(1, 30),
            slots=rng.choice((1, 1, 2, 4)),
            workload_class=rng.choice(classes),
            estimate_ms=rng.choice((0, 5, 20)) * SECOND,
            time_limit_ms=rng.choice((0, 0, 40)) * SECOND,
        )
        for _ in range(60)
    ]


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("seed", range(4))
def test_it_decides_what_a_leader_decides_page_by_page(discipline: str, seed: int) -> None:
    """The same facts given to ``take_turn`` in a world of whole, hashed pages.

    The world posts each start in a page of its own; the engine saves that page.
    """
    jobs = sorted(some_jobs(random.Random(seed)), key=lambda job: job.arrival_ms)
    made = workload(*jobs, slots=4)
    policy = under(made, discipline)
    outcome = simulate(made, policy)
    assert replayed(outcome, policy) == [
        decision for _, decision in outcome.decisions if isinstance(decision, e.AttemptAssigned)
    ]


def replayed(outcome: Outcome, policy: Policy) -> list[e.AttemptAssigned]:
    """The assignments of a world that is told of every start and end when the engine had it."""
    world = World(policy)
    base = world.at
    world.node_up("n1", 4)
    world.turn()
    runs = outcome.runs
    instants = {at for at, _ in outcome.decisions}
    instants |= {run.job.arrival_ms for run in runs}
    instants |= {run.end_ms for run in runs if run.end_ms is not None}
    for at in sorted(instants):
        world.at = base + at
        ends = [(run.dispatch, index) for index, run in enumerate(runs) if run.end_ms == at]
        for _, index in sorted(ends):
            world.finish(job_id(index))
        for run in runs:
            if run.job.arrival_ms == at:
                its = run.job
                world.submit(
                    its.organization,
                    workload_class=its.workload_class,
                    name=its.name,
                    slots=its.slots,
                    estimate_ms=its.estimate_ms,
                    time_limit_ms=its.time_limit_ms,
                )
        decided = world.turn()
        for decision in decided:
            if isinstance(decision, e.AttemptAssigned):
                world.start(decision.job)
        world.turn()
    return [d for d in world.decisions if isinstance(d, e.AttemptAssigned)]


def test_a_new_scheduler_finds_nothing_left_to_decide_at_the_end() -> None:
    jobs = some_jobs(random.Random(9))
    made = on_counting_pool(workload(*jobs), 4)
    outcome = simulate(made)
    assert Scheduler(outcome.projection).decide(outcome.ended_at_ms) == []
    assert all(run.end_ms is not None for run in outcome.runs)


def test_the_details_of_old_jobs_are_forgotten_so_that_memory_stays_bounded() -> None:
    made = workload(*(job("a", second, 1) for second in range(3_000)))
    state = simulate(made).projection.state
    assert len(state.jobs) < 1_500
    assert len(state.jobs) + len(state.archive) == 3_000
