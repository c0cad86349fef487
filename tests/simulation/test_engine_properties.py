"""What holds of every run, whatever arrives: conservation, no idle slot, the fairness bound."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.policy import DISCIPLINES, Organization, Policy, Pool
from simulation.engine import Outcome, simulate
from simulation.metrics import report
from simulation.service_gap import worst_gaps
from simulation.sharing import intervals
from simulation.workload import SimJob, Workload, node

SLOTS = 4

WEIGHTS = st.fixed_dictionaries({name: st.integers(1, 9) for name in "abc"})


def job(organization: str, arrival: int, duration: int, slots: int, estimate: int) -> SimJob:
    return SimJob(
        name=organization,
        organization=organization,
        arrival_ms=1_000 * arrival,
        duration_ms=1_000 * duration,
        slots=slots,
        estimate_ms=1_000 * (estimate or duration),
    )


def jobs(*, widest: int, estimates: st.SearchStrategy[int]) -> st.SearchStrategy[list[SimJob]]:
    return st.lists(
        st.builds(
            job,
            st.sampled_from("abc"),
            st.integers(0, 40),
            st.integers(1, 20),
            st.integers(1, widest),
            estimates,
        ),
        max_size=60,
    )


def run(arrived: list[SimJob], discipline: str, weights: dict[str, int]) -> Outcome:
    policy = Policy(
        organizations={name: Organization(weight=1_000 * w) for name, w in weights.items()},
        pools={"default": Pool(discipline=discipline)},
    )
    return simulate(Workload(title="t", jobs=tuple(arrived), slots=node("n", SLOTS)), policy)


@settings(max_examples=60, deadline=None)
@given(
    arrived=jobs(widest=SLOTS, estimates=st.integers(0, 40)),
    discipline=st.sampled_from(DISCIPLINES),
    weights=WEIGHTS,
)
def test_every_job_runs_once_for_its_time_and_no_slot_runs_two(
    arrived: list[SimJob], discipline: str, weights: dict[str, int]
) -> None:
    outcome = run(arrived, discipline, weights)
    spans: dict[str, list[tuple[int, int]]] = {}
    for made in outcome.runs:
        assert made.start_ms is not None
        assert made.end_ms == made.start_ms + made.job.duration_ms
        assert made.start_ms >= made.job.arrival_ms
        assert len(set(made.workers)) == made.job.slots
        for worker in made.workers:
            spans.setdefault(worker, []).append((made.start_ms, made.end_ms))
    for of_one in spans.values():
        ordered = sorted(of_one)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))


@settings(max_examples=60, deadline=None)
@given(
    arrived=jobs(widest=1, estimates=st.integers(0, 40)),
    discipline=st.sampled_from(DISCIPLINES),
    weights=WEIGHTS,
)
def test_no_slot_idles_while_a_job_of_one_slot_waits(
    arrived: list[SimJob], discipline: str, weights: dict[str, int]
) -> None:
    for interval in intervals(run(arrived, discipline, weights), "default"):
        assert not interval.waiting_jobs or sum(interval.running.values()) == SLOTS


@settings(max_examples=100, deadline=None)
@given(arrived=jobs(widest=1, estimates=st.just(0)), weights=WEIGHTS)
def test_sfq_keeps_its_bound_between_any_two_flows_that_wait(
    arrived: list[SimJob], weights: dict[str, int]
) -> None:
    """The theorem of start-time fair queuing, for exact estimates and jobs of one slot.

    A charge is rounded up, by less than one in ten million of what is charged here.
    """
    gaps = worst_gaps(run(arrived, "sfq", weights), "default")
    assert all(gap <= 1 + 1e-6 for gap in gaps.values())


@settings(max_examples=60, deadline=None)
@given(
    arrived=jobs(widest=SLOTS, estimates=st.integers(0, 40)),
    discipline=st.sampled_from(DISCIPLINES),
    weights=WEIGHTS,
)
def test_shares_never_add_up_to_more_than_there_is(
    arrived: list[SimJob], discipline: str, weights: dict[str, int]
) -> None:
    made = report("x", run(arrived, discipline, weights))
    for shares in (
        [flow.contested_share or 0.0 for flow in made.flows],
        [flow.owed_share or 0.0 for flow in made.flows],
    ):
        assert sum(shares) <= 1 + 1e-9
    assert sum(flow.served_slot_s for flow in made.flows) == sum(
        j.slots * j.duration_ms / 1_000 for j in arrived
    )
