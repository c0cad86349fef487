"""The figures of an outcome, worked by hand for runs that are small enough."""

from __future__ import annotations

import pytest

from ledger.policy import Limits, Organization, Policy, Pool
from scheduling.waterfill import capped_filling, water_filling
from simulation.engine import Outcome, simulate
from simulation.metrics import Figures, changes, jain, percentile, report
from simulation.service_gap import worst_gaps
from simulation.sharing import flow_weights
from simulation.workload import SimJob, Workload, node

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


def outcome(
    *jobs: SimJob,
    slots: int = 1,
    discipline: str = "fifo",
    until_s: int | None = None,
    **weights: int,
) -> Outcome:
    policy = Policy(
        organizations={name: Organization(weight=1_000 * w) for name, w in weights.items()},
        pools={"default": Pool(discipline=discipline)},
    )
    until_ms = None if until_s is None else until_s * SECOND
    return simulate(
        Workload(title="t", jobs=jobs, slots=node("n", slots), until_ms=until_ms), policy
    )


def figures(made: Outcome, name: str) -> Figures:
    flows = {flow.name.split("/")[0]: flow for flow in report("x", made).flows}
    return flows[name]


def test_waits_and_totals() -> None:
    """One slot: a runs 0-4, 4-8; b arrives at 2 and runs 8-9, so waits are 0, 4 and 6 s."""
    made = report("fifo", outcome(job("a", 0, 4), job("a", 0, 4), job("b", 2, 1)))
    assert (made.jobs, made.total_wait_s, made.zero_wait_jobs, made.max_wait_s) == (3, 10, 1, 6)
    assert (made.makespan_s, made.last_end_s, made.pool_gpus) == (9, 9, 1)
    assert made.utilisation == 1.0
    assert (made.unfinished_jobs, made.unfinished_slot_s) == (0, 0)


def test_the_makespan_counts_from_the_first_arrival_and_half_seconds_are_kept() -> None:
    late = SimJob(name="a", organization="a", arrival_ms=10_000, duration_ms=1_500)
    made = report("fifo", outcome(late))
    assert (made.makespan_s, made.last_end_s) == (1.5, 11.5)


def test_what_has_not_begun_counts_with_the_wait_so_far() -> None:
    """a holds the slot until 10 s; at the horizon, 7 s, b has waited 5 s and 3 s are not done."""
    made = outcome(job("a", 0, 10), job("b", 2, 1), until_s=7)
    assert figures(made, "b").max_wait_s == 5
    assert figures(made, "b").slowdown_mean is None
    assert report("x", made).unfinished_slot_s == 3 + 1
    assert figures(made, "a").served_slot_s == 7


def test_shares_count_only_while_two_organizations_contend() -> None:
    """Slot of a until 10 s, of b until 14 s. b waits from 4 to 10 s: 6 s contested.

    Of the slot b is owed half while both ask, but no more than the 4 s that it brought: from 4
    s to 10 s it is owed 3 s, a 3 s, and a has had all 6 s.
    """
    made = outcome(job("a", 0, 10), job("b", 4, 4))
    assert report("x", made).contested_s == 6
    assert figures(made, "a").contested_share == 1.0
    assert figures(made, "a").owed_share == pytest.approx(0.5)
    assert figures(made, "b").contested_share == 0.0
    assert figures(made, "b").owed_share == pytest.approx(0.5)


def test_nobody_is_owed_more_than_he_brought() -> None:
    """b brings 1 s, is owed half the slot, so all of it from 4 to 6 s; the other 4 s are a's."""
    made = outcome(job("a", 0, 10), job("b", 4, 1))
    assert figures(made, "b").owed_share == pytest.approx(1 / 6)
    assert figures(made, "a").owed_share == pytest.approx(5 / 6)


def test_weights_divide_what_is_owed() -> None:
    """From 1 s to 10 s a and b ask for the one slot with weights 3 and 1."""
    made = outcome(job("a", 0, 10), job("b", 1, 100), a=3)
    assert figures(made, "a").owed_share == pytest.approx(3 / 4)
    assert figures(made, "b").owed_share == pytest.approx(1 / 4)


def test_water_filling() -> None:
    """8 slots, weights 1, 1, 2; the first asks for 1 only, so 7 are divided 1 to 2."""
    flows = [(name, "batch") for name in "abc"]
    demand = dict(zip(flows, (1.0, 9.0, 9.0), strict=True))
    weights = dict(zip(flows, (1.0, 1.0, 2.0), strict=True))
    given = water_filling(8.0, demand, weights)
    assert [given[flow] for flow in flows] == pytest.approx([1, 7 / 3, 14 / 3])
    assert sum(given.values()) == pytest.approx(8)


def test_water_filling_under_caps() -> None:
    """12 slots, equal weights. a and b have 4 together, so 2 each; c wants 1; d gets the 7 left."""
    demand = {"a": 9.0, "b": 9.0, "c": 1.0, "d": 9.0}
    caps = [(["a", "b"], 4.0), (["b", "c"], 8.0)]
    given = capped_filling(12.0, demand, dict.fromkeys(demand, 1.0), caps)
    assert given == pytest.approx({"a": 2, "b": 2, "c": 1, "d": 7})


def test_without_caps_it_is_plain_water_filling() -> None:
    demand = {"a": 1.0, "b": 9.0, "c": 9.0}
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert capped_filling(8.0, demand, weights, []) == pytest.approx(
        water_filling(8.0, demand, weights)
    )


@pytest.mark.parametrize("limits", [{"slots": 1}, {"slots_percent": 25}])
def test_nobody_is_owed_what_his_own_limit_forbids(limits: dict[str, int]) -> None:
    """4 slots, each asks for 4 (a of 8 s, b of 4 s). a may run 1, so b is owed the other 3.

    From 0 to 4 s a has 1 and b 3; b's fourth job then runs beside a's second, 4 s to 8 s.
    b brought 16 slot-seconds: owed 12 by 4 s, and at 3 slots the last 4 by 5 1/3 s. Contested
    for 8 s, until b has ended: a is owed its 1 slot throughout, 8 of 32 slot-seconds.
    """
    limited = {"a": Organization(limits=Limits(**limits)), "b": Organization()}
    jobs = [job("a", 0, 8) for _ in range(4)] + [job("b", 0, 4) for _ in range(4)]
    policy = Policy(organizations=limited, pools={"default": Pool(discipline="sfq")})
    made = simulate(Workload(title="t", jobs=tuple(jobs), slots=node("n", 4)), policy)
    assert report("x", made).contested_s == 8
    assert figures(made, "a").owed_share == pytest.approx(8 / 32)
    assert figures(made, "a").contested_share == pytest.approx(8 / 32)
    assert figures(made, "b").owed_share == pytest.approx(16 / 32)
    assert figures(made, "b").contested_share == pytest.approx(16 / 32)


def test_weights_are_those_of_the_pool_and_of_its_way_to_share() -> None:
    """By organization a's two classes divide its 1 as 6:1; by flow they have 6 and 1 whole."""
    flows = [("a", "interactive"), ("a", "batch"), ("b", "batch")]
    of_pool = {"class_weights": {"interactive": 6_000, "batch": 1_000}}
    pools = {"org": Pool(**of_pool), "flow": Pool(share="flow", **of_pool)}  # type: ignore[arg-type]
    policy = Policy(pools=pools)
    shared = flow_weights(flows, policy, "org")
    assert [shared[flow] for flow in flows] == pytest.approx([6 / 7, 1 / 7, 1])
    assert flow_weights(flows, policy, "flow") == dict(zip(flows, (6, 1, 1), strict=True))


def test_jain_is_one_where_all_are_even_and_one_nth_where_one_has_all() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([]) is None


def test_percentiles_are_of_the_nearest_rank() -> None:
    """Of 15, 20, 35, 40, 50: P30 is the 2nd, P40 the 2nd, P50 the 3rd, P100 the last."""
    values = [15, 20, 35, 40, 50]
    assert [percentile(values, p) for p in (30, 40, 50, 95, 100)] == [20, 20, 35, 50, 50]
    assert percentile([], 50) is None


def test_slowdown_is_time_in_system_over_time_alone_on_the_owed_share() -> None:
    """Two slots, a and b owed one each. b's job of two slots takes 4 s, alone on one 8 s.

    a runs 0-4. b waits until 4 and ends at 8: 8 s in the system over 8 s alone.
    """
    made = outcome(job("a", 0, 4), job("b", 0, 4, slots=2), slots=2)
    assert figures(made, "a").slowdown_mean == pytest.approx(1.0)
    assert figures(made, "b").slowdown_mean == pytest.approx(1.0)


def test_the_gap_of_sfq_keeps_within_its_bound_and_fifo_breaks_it() -> None:
    """20 jobs of a stand before 20 of b: under fifo a is ahead by 20 jobs, and 2 are allowed."""
    jobs = [job(name, 0, 5) for name in "ab" for _ in range(20)]
    assert worst_gaps(outcome(*jobs), "default")["a/batch/default"] == 20 / 2
    assert worst_gaps(outcome(*jobs, discipline="sfq"), "default")["b/batch/default"] == 1 / 2


def test_estimates_widen_the_bound_by_what_is_in_flight() -> None:
    """a estimates 1 s for 5 s: 5 + 2 * 1 * 4 for a, 5 for b; under fifo a is ahead by 20 * 5."""
    jobs = [
        *(job("a", 0, 5, estimate_ms=SECOND) for _ in range(20)),
        *(job("b", 0, 5) for _ in range(20)),
    ]
    gaps = worst_gaps(outcome(*jobs), "default")
    # The last job of a is charged 1 s when it starts, which ends the time in which both wait.
    assert gaps["a/batch/default"] == pytest.approx((19 * 5 + 1) / (5 + 8 + 5))


def test_flows_that_never_wait_at_once_have_no_gap() -> None:
    assert worst_gaps(outcome(job("a", 0, 5), job("b", 10, 5)), "default") == {}


def test_changes_count_who_starts_earlier_and_later() -> None:
    made = outcome(job("a", 0, 4), job("a", 0, 4), job("b", 0, 1))  # starts at 0, 4 and 8 s
    change = changes("recorded", [0, 6 * SECOND, 7 * SECOND], made)
    assert (change.same, change.earlier, change.later) == (1, 1, 1)
    assert (change.earlier_max_s, change.later_max_s) == (2, 1)


def test_classes_and_pools_are_sums_of_their_flows() -> None:
    jobs = [job("a", 0, 4), job("b", 0, 4, workload_class="interactive"), job("b", 0, 4)]
    made = report("x", outcome(*jobs, slots=1))
    assert {group.name: group.jobs for group in made.classes} == {"batch": 2, "interactive": 1}
    assert [group.name for group in made.pools] == ["default"]
    for name in ("jobs", "served_slot_s", "total_wait_s", "contested_share", "owed_share"):
        of_flows = sum(getattr(flow, name) for flow in made.flows)
        assert sum(getattr(group, name) for group in made.classes) == pytest.approx(of_flows)
        assert getattr(made.pools[0], name) == pytest.approx(of_flows)
