"""The arithmetic of fair sharing: docs/ARCHITECTURE.md, "Fair sharing", worked by hand.

Tags are written in slot-milliseconds at weight 1, times SCALE.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledger.fair_state import SCALE, FairState, Flow, charge
from ledger.policy import WEIGHT_ONE, Organization, Policy

ONE = (1, 1)
POLICY = Policy(organizations={"b": Organization(weight=2 * WEIGHT_ONE)})


def fair_state() -> FairState:
    return FairState({}, {})


def batch(fair: FairState, organization: str = "a", pool: str = "default") -> Flow:
    return fair.flow(organization, "batch", pool)


def run(fair: FairState, flow: Flow, cost_ms: int, *, discipline: str = "wfq") -> int:
    """Dispatch a waiting job of the flow at weight 1; returns what it was charged."""
    tags = fair.tags(flow, cost_ms, POLICY)
    fair.dispatch(
        flow,
        start_tag=tags.start,
        finish_tag=tags.finish,
        discipline=discipline,
        backfill=False,
    )
    return tags.finish - tags.start


def join(fair: FairState, flow: Flow, jobs: int = 1) -> None:
    for _ in range(jobs):
        fair.join(flow)


# --- charges and weights ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "cost_ms", "weight"),
    [
        (0, 0, (1, 1)),
        (SCALE, 1, (1, 1)),
        (7 * SCALE // 6 + 1, 1, (6, 7)),  # 1_166_666.67 goes up
        (SCALE // 3 + 1, 1, (3, 1)),  # 333_333.33 goes up
        (SCALE // 4, 1, (4, 1)),
        (1, 1, (SCALE * 10, 1)),  # a tenth of the smallest unit is not free
        (600_000 * SCALE * 1000, 600_000, (1, 1000)),
    ],
)
def test_a_charge_is_cost_by_weight_rounded_up(
    expected: int, cost_ms: int, weight: tuple[int, int]
) -> None:
    assert charge(cost_ms, weight) == expected


@given(st.integers(0, 10**12), st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_charge_is_the_smallest_integer_not_below_the_exact_one(
    cost_ms: int, numerator: int, denominator: int
) -> None:
    exact = Fraction(cost_ms * SCALE) * denominator / numerator
    assert charge(cost_ms, (numerator, denominator)) == ceil(exact)


def shares(
    policy: Policy, active: list[tuple[str, str]], pool: str = "default"
) -> dict[tuple[str, str], Fraction]:
    """The weight of each flow while exactly ``active`` (organization, class) have jobs."""
    fair = fair_state()
    for organization, workload_class in active:
        fair.join(fair.flow(organization, workload_class, pool))
    return {
        (organization, workload_class): Fraction(
            *fair.weight(fair.flow(organization, workload_class, pool), policy)
        )
        for organization, workload_class in active
    }


def test_one_class_alone_has_the_whole_weight_of_its_organization() -> None:
    expected = {("a", "batch"): Fraction(1), ("b", "interactive"): Fraction(2)}
    assert shares(POLICY, [("a", "batch"), ("b", "interactive")]) == expected


def test_two_active_classes_divide_their_organization_six_to_one() -> None:
    expected = {("a", "interactive"): Fraction(6, 7), ("a", "batch"): Fraction(1, 7)}
    assert shares(POLICY, [("a", "interactive"), ("a", "batch")]) == expected


def test_three_active_classes_divide_a_weight_of_two() -> None:
    expected = {
        ("b", "system"): Fraction(12, 13),
        ("b", "interactive"): Fraction(12, 13),
        ("b", "batch"): Fraction(2, 13),
    }
    assert shares(POLICY, list(expected)) == expected


def test_an_organization_gains_nothing_by_its_class() -> None:
    """Equal weights: one has only batch jobs, the other only interactive ones."""
    expected = {("a", "batch"): Fraction(1), ("c", "interactive"): Fraction(1)}
    assert shares(POLICY, [("a", "batch"), ("c", "interactive")]) == expected


def test_the_classes_of_another_pool_do_not_count() -> None:
    fair = fair_state()
    fair.join(fair.flow("a", "interactive", "h100"))
    fair.join(fair.flow("a", "batch", "default"))
    assert Fraction(*fair.weight(batch(fair), POLICY)) == 1


def test_a_class_counts_while_it_waits_or_runs_and_no_longer() -> None:
    fair = fair_state()
    interactive = fair.flow("a", "interactive", "default")
    fair.join(batch(fair))
    fair.join(interactive)
    assert Fraction(*fair.weight(batch(fair), POLICY)) == Fraction(1, 7)
    run(fair, interactive, 10)
    assert Fraction(*fair.weight(batch(fair), POLICY)) == Fraction(1, 7)
    fair.settle(interactive, 0)
    assert Fraction(*fair.weight(batch(fair), POLICY)) == 1


# --- tags and virtual time --------------------------------------------------------------


def test_tags_grow_by_the_charge_and_wfq_moves_time_to_the_finish_tag() -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 3)
    run(fair, flow, 100)
    assert (flow.finish, fair.pool("default").virtual_time) == (100 * SCALE, 100 * SCALE)
    run(fair, flow, 50)
    assert (flow.finish, fair.pool("default").virtual_time) == (150 * SCALE, 150 * SCALE)


@pytest.mark.parametrize("discipline", ["sfq", "fifo", "strict"])
def test_other_disciplines_move_time_to_the_start_tag(discipline: str) -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 3)
    run(fair, flow, 100, discipline=discipline)
    assert (flow.finish, fair.pool("default").virtual_time) == (100 * SCALE, 0)
    run(fair, flow, 50, discipline=discipline)
    assert (flow.finish, fair.pool("default").virtual_time) == (150 * SCALE, 100 * SCALE)


def test_backfill_is_charged_and_leaves_virtual_time_alone() -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 2)
    fair.dispatch(flow, start_tag=0, finish_tag=100 * SCALE, discipline="wfq", backfill=True)
    assert (flow.finish, fair.pool("default").virtual_time) == (100 * SCALE, 0)


def test_virtual_time_does_not_fall_to_a_smaller_tag() -> None:
    fair = fair_state()
    ahead, behind = batch(fair, "a"), batch(fair, "c")
    join(fair, ahead, 2)
    join(fair, behind, 2)
    run(fair, ahead, 100)
    run(fair, behind, 30)
    assert fair.pool("default").virtual_time == 100 * SCALE


def test_an_idle_flow_that_comes_back_starts_at_virtual_time() -> None:
    """It saved up nothing: from now on both get the same, half each."""
    fair = fair_state()
    busy, late = batch(fair, "a"), batch(fair, "c")
    join(fair, busy, 10)
    for _ in range(5):
        run(fair, busy, 100)
    join(fair, late, 10)
    assert fair.tags(late, 100, POLICY)[:2] == (500 * SCALE, 600 * SCALE)
    assert fair.tags(busy, 100, POLICY)[:2] == (500 * SCALE, 600 * SCALE)


def test_an_arrival_to_a_queue_that_is_not_empty_changes_nothing() -> None:
    fair = fair_state()
    busy, other = batch(fair, "a"), batch(fair, "c")
    join(fair, busy, 3)
    join(fair, other)
    run(fair, busy, 100)
    join(fair, other)
    assert (other.since, other.start_tag) == (0, 0)


def test_a_queue_that_was_empty_starts_anew_although_its_jobs_run() -> None:
    fair = fair_state()
    busy, other = batch(fair, "a"), batch(fair, "c")
    join(fair, busy, 3)
    join(fair, other)
    run(fair, other, 10)
    run(fair, busy, 100)
    join(fair, other)
    assert (other.since, other.start_tag) == (100 * SCALE, 100 * SCALE)


def test_debt_survives_idleness() -> None:
    """Its job took 1000 instead of 100; it went idle; it still owes the difference."""
    fair = fair_state()
    debtor, other = batch(fair, "a"), batch(fair, "c")
    join(fair, debtor)
    join(fair, other, 5)
    charged = run(fair, debtor, 100)
    fair.settle(debtor, charge(1000, ONE) - charged)
    run(fair, other, 100)
    join(fair, debtor)
    assert debtor.start_tag == 1000 * SCALE
    assert batch(fair, "c").start_tag == 100 * SCALE


def test_a_wholly_idle_pool_forgets_all_debt() -> None:
    fair = fair_state()
    debtor = batch(fair, "a")
    join(fair, debtor)
    charged = run(fair, debtor, 100)
    fair.settle(debtor, charge(1000, ONE) - charged)  # nothing waits, nothing runs
    join(fair, debtor)
    join(fair, batch(fair, "c"))
    assert debtor.start_tag == batch(fair, "c").start_tag == 1000 * SCALE


def test_a_pool_with_one_waiting_job_is_not_idle() -> None:
    fair = fair_state()
    debtor, other = batch(fair, "a"), batch(fair, "c")
    join(fair, debtor)
    join(fair, other)
    charged = run(fair, debtor, 100)
    fair.settle(debtor, charge(1000, ONE) - charged)
    assert fair.pool("default").virtual_time == 100 * SCALE


def test_pools_keep_times_of_their_own() -> None:
    fair = fair_state()
    here, there = batch(fair), batch(fair, pool="h100")
    join(fair, here, 2)
    join(fair, there)
    run(fair, here, 100)
    assert (fair.pool("h100").virtual_time, there.start_tag) == (0, 0)


def test_a_queue_that_is_cancelled_costs_nothing() -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 100)
    for _ in range(100):
        fair.leave(flow)
    assert (flow.finish, flow.waiting, fair.pool("default").virtual_time) == (0, 0, 0)


@pytest.mark.parametrize(("actual_ms", "finish_ms"), [(40, 40), (100, 100), (170, 170), (0, 0)])
def test_a_settlement_leaves_exactly_the_charge_of_what_was_used(
    actual_ms: int, finish_ms: int
) -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 2)
    charged = run(fair, flow, 100)
    fair.settle(flow, charge(actual_ms, ONE) - charged)
    assert (flow.finish, flow.running) == (finish_ms * SCALE, 0)


def test_a_flow_freed_from_its_own_limit_may_lead_by_one_job_only() -> None:
    """V is 500; its largest job is worth 100: since becomes 400, not 0."""
    fair = fair_state()
    busy, limited = batch(fair, "a"), batch(fair, "c")
    join(fair, limited)
    join(fair, busy, 6)
    for _ in range(5):
        run(fair, busy, 100)
    fair.block(limited, "it runs 1 of 1 slots", f"flow {limited.id}")
    fair.free(limited, 100 * SCALE)
    assert limited.start_tag == 400 * SCALE


def test_growth_of_a_charge_counts_at_once() -> None:
    fair = fair_state()
    flow = batch(fair)
    join(fair, flow, 2)
    run(fair, flow, 100)
    fair.adjust(flow, 25 * SCALE)
    assert (flow.start_tag, flow.running) == (125 * SCALE, 1)


def test_the_digest_is_that_of_a_fair_state_built_from_the_same_data() -> None:
    fair = fair_state()
    join(fair, batch(fair, "a"), 3)
    fair.digest()
    join(fair, batch(fair, "c"), 2)
    run(fair, batch(fair, "a"), 7)
    again = FairState(dict(reversed(fair.flows.items())), dict(fair.pools))
    assert fair.digest() == again.digest()
    run(fair, batch(fair, "c"), 7)
    assert fair.digest() != again.digest()


# --- the same arithmetic, naively -------------------------------------------------------


class FairStateAgainstItsDefinition(RuleBasedStateMachine):
    """``FairState`` beside the table of docs/ARCHITECTURE.md computed from scratch.

    The model keeps V per pool and [F, since, waiting, running] per flow, and looks at all
    flows each time; the weights are the organizations' own (a: 1, b: 2) by class (6:1).
    """

    flows = st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["interactive", "batch"]),
        st.sampled_from(["p", "q"]),
    )

    def __init__(self) -> None:
        super().__init__()
        self.fair = fair_state()
        self.table: dict[tuple[str, str, str], list[int]] = {}
        self.time = {"p": 0, "q": 0}
        self.running: list[tuple[tuple[str, str, str], int, Fraction]] = []

    def row(self, name: tuple[str, str, str]) -> list[int]:
        return self.table.setdefault(name, [0, 0, 0, 0])

    def weight(self, name: tuple[str, str, str]) -> Fraction:
        organization, workload_class, pool = name
        by_class = {"interactive": 6, "batch": 1}
        active = {
            c
            for (o, c, p), (_, _, waiting, running) in self.table.items()
            if (o, p) == (organization, pool) and waiting + running > 0
        }
        total = sum(by_class[c] for c in active | {workload_class})
        return Fraction({"a": 1, "b": 2}[organization] * by_class[workload_class], total)

    def rest(self, pool: str) -> None:
        rows = [row for name, row in self.table.items() if name[2] == pool]
        if all(row[2] + row[3] == 0 for row in rows):
            self.time[pool] = max([self.time[pool], *(row[0] for row in rows)])

    @rule(name=flows)
    def arrive(self, name: tuple[str, str, str]) -> None:
        self.fair.join(self.fair.flow(*name))
        row = self.row(name)
        if row[2] == 0:
            waiting = [max(r[0], r[1]) for n, r in self.table.items() if n[2] == name[2] and r[2]]
            row[1] = min([self.time[name[2]], *waiting])
        row[2] += 1

    @rule(name=flows)
    def withdraw(self, name: tuple[str, str, str]) -> None:
        if name not in self.table or self.row(name)[2] == 0:
            return
        self.fair.leave(self.fair.flow(*name))
        self.row(name)[2] -= 1
        self.rest(name[2])

    @rule(
        name=flows,
        cost_ms=st.integers(1, 1000),
        discipline=st.sampled_from(["wfq", "sfq"]),
        backfill=st.booleans(),
    )
    def dispatch(
        self, name: tuple[str, str, str], cost_ms: int, discipline: str, backfill: bool
    ) -> None:
        if name not in self.table or self.row(name)[2] == 0:
            return
        row = self.row(name)
        flow = self.fair.flow(*name)
        tags = self.fair.tags(flow, cost_ms, POLICY)
        weight = self.weight(name)
        start = max(row[0], row[1])
        finish = start + ceil(cost_ms * SCALE / weight)
        assert (tags.start, tags.finish, Fraction(*tags.weight)) == (start, finish, weight)
        self.fair.dispatch(
            flow,
            start_tag=tags.start,
            finish_tag=tags.finish,
            discipline=discipline,
            backfill=backfill,
        )
        row[0], row[2], row[3] = finish, row[2] - 1, row[3] + 1
        if not backfill:
            reached = finish if discipline == "wfq" else start
            self.time[name[2]] = max(self.time[name[2]], reached)
        self.running.append((name, cost_ms, weight))

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 99), actual_ms=st.integers(0, 2000))
    def settle(self, index: int, actual_ms: int) -> None:
        name, cost_ms, weight = self.running.pop(index % len(self.running))
        difference = ceil(actual_ms * SCALE / weight) - ceil(cost_ms * SCALE / weight)
        self.fair.settle(self.fair.flow(*name), difference)
        row = self.row(name)
        row[0], row[3] = row[0] + difference, row[3] - 1
        self.rest(name[2])

    @invariant()
    def they_agree(self) -> None:
        for name, (finish, since, waiting, running) in self.table.items():
            flow = self.fair.flow(*name)
            assert (flow.finish, flow.since) == (finish, since)
            assert (flow.waiting, flow.running) == (waiting, running)
        for pool, clock in self.fair.pools.items():
            assert clock.virtual_time == self.time[pool]

    @invariant()
    def the_digest_needs_no_history(self) -> None:
        assert self.fair.digest() == FairState(self.fair.flows, self.fair.pools).digest()


TestFairStateAgainstItsDefinition = FairStateAgainstItsDefinition.TestCase
