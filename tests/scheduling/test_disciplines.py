"""Whose turn it is: shares, the bound between flows, and the fixed orders, by real pages."""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import accumulate, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import events as e
from ledger.fair_state import SCALE
from ledger.names import JobId
from ledger.policy import WEIGHT_ONE, Organization, Policy, Pool
from tests.world import World


def policy(discipline: str, **weights: int) -> Policy:
    """Weights in thousandths."""
    return Policy(
        organizations={name: Organization(weight=weight) for name, weight in weights.items()},
        pools={"default": Pool(discipline=discipline, workers=("n*",))},
    )


class Line:
    """A world whose jobs end exactly when they were estimated to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: list[tuple[int, JobId]] = []
        self.dispatched: list[e.AttemptAssigned] = []

    def turn(self) -> None:
        for decision in self.world.turn():
            if isinstance(decision, e.AttemptAssigned):
                self.dispatched.append(decision)
                job = self.world.job(decision.job)
                heapq.heappush(self.ends, (self.world.at + job.spec.estimate_ms, job.id))

    def step(self) -> None:
        """Go to when the next job ends; all that end then, end in one page."""
        self.world.at = self.ends[0][0]
        while self.ends and self.ends[0][0] == self.world.at:
            self.world.finish(heapq.heappop(self.ends)[1])
        self.turn()

    def organizations(self) -> list[str]:
        return [self.world.job(d.job).spec.organization for d in self.dispatched]


def order(world: World) -> list[str]:
    """Names of the jobs in the order in which one slot ran them."""
    line = Line(world)
    line.turn()
    while line.ends:
        line.step()
    return [world.job(d.job).spec.name for d in line.dispatched]


# --- shares -----------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["wfq", "sfq"])
@pytest.mark.parametrize("is_staggered", [False, True], ids=["in step", "staggered"])
def test_weights_4_2_1_give_200_100_50_of_350(discipline: str, is_staggered: bool) -> None:
    world = World(policy(discipline, a=4_000, b=2_000, c=1_000))
    line = Line(world)
    if is_staggered:
        for index in range(4):  # each slot begins a quarter of a job later than the one before
            world.ready(f"n1-cpu{index}", e.Slot(kind="cpu", index=index))
            for organization in "abc":
                world.submit(organization)
            line.turn()
            world.at += 250
    else:
        world.node_up("n1", 4)
    for organization in "cba":
        for _ in range(210):
            world.submit(organization)
    line.turn()
    while len(line.dispatched) < 350:
        line.step()
    first = line.organizations()[:350]
    expected = {"a": 200, "b": 100, "c": 50}
    for organization, jobs in expected.items():
        assert abs(first.count(organization) - jobs) <= 1, (organization, first.count(organization))


def test_two_equal_organizations_get_half_each_whatever_their_classes() -> None:
    world = World(policy("wfq"))
    world.node_up("n1", 2)
    for _ in range(60):
        world.submit("a", workload_class="batch")
        world.submit("b", workload_class="interactive")
    line = Line(world)
    line.turn()
    while len(line.dispatched) < 100:
        line.step()
    assert abs(line.organizations()[:100].count("a") - 50) <= 1


def test_within_an_organization_interactive_gets_six_of_seven() -> None:
    world = World(policy("wfq"))
    world.node_up("n1", 1)
    for _ in range(80):
        world.submit("a", workload_class="batch", name="batch")
        world.submit("a", workload_class="interactive", name="interactive")
    names = order(world)[:70]
    assert abs(names.count("interactive") - 60) <= 1


def test_a_class_that_becomes_active_takes_from_its_sibling_at_once() -> None:
    """a's batch job has finish tag 10 while alone, and 70 beside an interactive one; b's 30."""
    world = World(policy("wfq"))
    world.submit("a", name="a", estimate_ms=10_000)
    world.submit("b", name="b", estimate_ms=30_000)
    world.turn()
    world.submit("a", workload_class="interactive", name="sibling", estimate_ms=900_000)
    world.turn()
    world.node_up("n1", 1)
    assert order(world)[0] == "b"


def test_an_idle_organization_gets_half_at_once_and_nothing_to_catch_up() -> None:
    world = World(policy("wfq"))
    world.node_up("n1", 1)
    for _ in range(100):
        world.submit("a")
    line = Line(world)
    line.turn()
    while len(line.dispatched) < 50:
        line.step()
    for _ in range(50):
        world.submit("b")
    while len(line.dispatched) < 90:
        line.step()
    assert abs(line.organizations()[50:90].count("b") - 20) <= 1


def test_a_cancelled_queue_costs_its_organization_nothing() -> None:
    world = World(policy("wfq"))
    world.node_up("n1", 1)
    for _ in range(30):
        world.cancel(world.submit("a"))
        world.submit("b", name="b")
    for _ in range(30):
        world.submit("a", name="a")
    assert abs(order(world)[:40].count("a") - 20) <= 1


def test_wfq_favours_short_jobs_and_sfq_starts_a_new_flows_long_one() -> None:
    """a's job takes 10 s and came first, b's jobs take 1 s: finish tags 10; 1, 2, ... 10."""
    expected = {"wfq": "bbbbbbbbbab", "sfq": "abbbbbbbbbb"}
    for discipline, names in expected.items():
        world = World(policy(discipline))
        world.submit("a", name="a", estimate_ms=10_000)
        for _ in range(20):
            world.submit("b", name="b", estimate_ms=1_000)
        world.turn()
        world.node_up("n1", 1)
        assert "".join(order(world)).startswith(names), discipline


# --- the bound between two backlogged flows ---------------------------------------------

workloads = st.lists(
    st.tuples(
        st.integers(100, 9_000),  # weight, thousandths
        st.lists(st.integers(1, 5_000), min_size=8, max_size=16),  # job sizes, ms
    ),
    min_size=2,
    max_size=3,
)


@settings(max_examples=500)
@given(workload=workloads, slots=st.integers(1, 4))
def test_charged_service_of_backlogged_flows_stays_within_one_job_each(
    workload: list[tuple[int, list[int]]], slots: int
) -> None:
    """Over every window: |W_f/w_f - W_g/w_g| <= cmax_f/w_f + cmax_g/w_g (start order)."""
    weights = {f"o{i}": weight for i, (weight, _) in enumerate(workload)}
    world = World(policy("sfq", **weights))
    for i, (_, sizes) in enumerate(workload):
        for size_ms in sizes:
            world.submit(f"o{i}", estimate_ms=size_ms)
    world.node_up("n1", slots)
    line = Line(world)
    line.turn()
    while all(flow.waiting for flow in world.state.flows.values()):
        line.step()
    served = list(zip(line.organizations(), (d.cost_ms for d in line.dispatched), strict=True))
    left = {name: len(sizes) for name, (_, sizes) in zip(weights, workload, strict=True)}
    backlogged = 0
    for organization, _ in served:
        backlogged += 1
        left[organization] -= 1
        if left[organization] == 0:
            break
    served = served[:backlogged]
    exact = {name: Fraction(weight, WEIGHT_ONE) for name, weight in weights.items()}
    largest = {name: max(sizes) for name, (_, sizes) in zip(weights, workload, strict=True)}
    rounding = Fraction(len(served), SCALE)
    for f, g in combinations(weights, 2):
        leads = accumulate(
            (
                (organization == f) * cost_ms / exact[f] - (organization == g) * cost_ms / exact[g]
                for organization, cost_ms in served
            ),
            initial=Fraction(0),
        )
        lead = list(leads)
        bound = largest[f] / exact[f] + largest[g] / exact[g]
        assert max(lead) - min(lead) <= bound + rounding


@settings(max_examples=200)
@given(
    weights=st.lists(st.sampled_from([250, 500, 1_000, 2_000, 5_000]), min_size=2, max_size=4),
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5_000)), min_size=1, max_size=40),
    slots=st.integers(1, 4),
    discipline=st.sampled_from(["wfq", "sfq"]),
    factor=st.sampled_from([2, 5, 16, 100]),
)
def test_all_weights_times_the_same_number_change_nothing(
    weights: list[int], sizes: list[tuple[int, int]], slots: int, discipline: str, factor: int
) -> None:
    """Only the ratios count: the same jobs begin, in the same order and at the same times.

    The weights are such that every charge is a whole number. Else it is rounded up by less
    than one in a thousand million of a slot-second, which may turn a tie.
    """
    begun = []
    for times in (1, factor):
        scaled = {f"o{i}": weight * times for i, weight in enumerate(weights)}
        world = World(policy(discipline, **scaled))
        world.node_up("n1", slots)
        line = Line(world)
        for number, (owner, size_ms) in enumerate(sizes):
            owner %= len(weights)
            world.submit(f"o{owner}", name=str(number), estimate_ms=size_ms)
        line.turn()
        while line.ends:
            line.step()
        begun.append(
            [
                (world.job(d.job).spec.name, world.attempt(d.job).assigned_at, d.slots)
                for d in line.dispatched
            ]
        )
    assert len(begun[0]) == len(sizes)
    assert begun[0] == begun[1]


# --- fifo, strict, ties -----------------------------------------------------------------


def test_fifo_is_the_order_of_arrival_whatever_the_weights() -> None:
    world = World(policy("fifo", a=1_000, b=9_000))
    expected = []
    for n in range(12):
        expected.append(f"job {n}")
        world.submit("aab"[n % 3], name=f"job {n}", estimate_ms=1_000 * (12 - n))
    world.node_up("n1", 1)
    assert order(world) == expected


def test_under_fifo_nothing_passes_a_head_that_is_too_wide_for_now() -> None:
    world = World(policy("fifo"))
    world.node_up("n1", 2)
    first = world.submit(name="first", estimate_ms=5_000)
    world.turn()
    world.submit(name="wide", slots=2)
    world.submit("b", name="small", time_limit_ms=10)
    assert world.turn() == []
    world.finish(first)
    assert [
        world.job(d.job).spec.name for d in world.turn() if isinstance(d, e.AttemptAssigned)
    ] == ["wide"]


def test_under_fifo_a_head_that_nothing_serves_blocks_nobody() -> None:
    world = World(policy("fifo"))
    world.node_up("n1", 2)
    world.node_up("n2", 1)
    world.turn()
    world.submit(name="wide", slots=2)
    world.node_is("n1", e.Liveness.STALE)
    world.submit("b", name="small")
    assigned = [d for d in world.turn() if isinstance(d, e.AttemptAssigned)]
    assert [world.job(d.job).spec.name for d in assigned] == ["small"]


def test_strict_serves_system_before_interactive_before_batch() -> None:
    world = World(policy("strict", a=9_000))
    for n in range(3):
        for workload_class in ("batch", "interactive", "system"):
            world.submit("ab"[n % 2], workload_class=workload_class, name=f"{workload_class} {n}")
    world.node_up("n1", 1)
    assert order(world) == [
        f"{c} {n}" for c in ("system", "interactive", "batch") for n in range(3)
    ]


@pytest.mark.parametrize("discipline", ["wfq", "sfq"])
def test_equal_tags_go_by_arrival(discipline: str) -> None:
    world = World(policy(discipline))
    for organization in "dbac":
        world.submit(organization, name=organization)
    world.node_up("n1", 1)
    assert order(world) == ["d", "b", "a", "c"]


def test_within_a_flow_jobs_go_by_arrival_not_by_size() -> None:
    world = World(policy("wfq"))
    for estimate_ms in (9_000, 1_000, 5_000):
        world.submit(name=str(estimate_ms), estimate_ms=estimate_ms)
    world.node_up("n1", 1)
    assert order(world) == ["9000", "1000", "5000"]


def two_kinds(*jobs: tuple[str, str, int, str]) -> list[str]:
    """The order of jobs (name, organization, estimate, kind of GPU) under wfq on one T4."""
    world = World(policy("wfq"))
    for name, organization, estimate_ms, gpu_type in jobs:
        world.submit(organization, name=name, estimate_ms=estimate_ms, gpu_type=gpu_type)
    world.turn()
    world.node_up("n1", 1, kind="gpu", gpu="T4")
    return order(world)


def test_within_a_flow_jobs_go_by_arrival_also_where_they_need_different_things() -> None:
    assert two_kinds(("long", "a", 9_000, "T4"), ("short", "a", 1_000, "")) == ["long", "short"]


def test_the_turn_of_a_flow_is_that_of_its_first_job() -> None:
    """a's short job has finish tag 1, but stands behind the long one with 9; b's has 5."""
    jobs = [("long", "a", 9_000, "T4"), ("short", "a", 1_000, ""), ("b", "b", 5_000, "")]
    assert two_kinds(*jobs) == ["b", "long", "short"]


def test_a_new_policy_counts_from_the_next_dispatch() -> None:
    world = World(policy("wfq", a=1_000, b=1_000))
    world.node_up("n1", 1)
    for _ in range(60):
        world.submit("a")
        world.submit("b")
    line = Line(world)
    line.turn()
    while len(line.dispatched) < 20:
        line.step()
    world.apply_policy(policy("wfq", a=3_000, b=1_000))
    while len(line.dispatched) < 60:
        line.step()
    assert abs(line.organizations()[20:60].count("a") - 30) <= 1


def test_a_change_of_discipline_counts_from_the_next_dispatch() -> None:
    world = World(policy("wfq"))
    world.submit("a", name="long", estimate_ms=10_000)
    world.submit("b", name="short", estimate_ms=1_000)
    world.turn()
    world.apply_policy(policy("fifo"))
    world.node_up("n1", 1)
    assert order(world) == ["long", "short"]
