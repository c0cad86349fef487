"""The gap between two flows: worked by hand, and within its bound whatever the load."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.fair_state import SCALE
from ledger.policy import Limits, Organization, Policy, Pool
from ledger.state import State
from scheduling.followed import Followed
from scheduling.gaps import Gap, Gaps
from tests.scheduling.test_disciplines import Line, policy, workloads
from tests.world import World, sha256_of


def gaps(world: World) -> dict[str, Gap]:
    followed = Followed(State(ledger="test"))
    found = Gaps(followed)
    for page in world.pages:
        followed.fold(page, sha256_of(page))
    return found.worst


def played(world: World, ends: int) -> World:
    """One node of one slot comes up, and so many jobs end as they were estimated to."""
    world.turn()
    world.node_up("n1", 1)
    line = Line(world)
    line.turn()
    for _ in range(ends):
        line.step()
    return world


@pytest.mark.parametrize("discipline", ["wfq", "sfq"])
def test_two_equal_flows_that_take_turns_are_half_their_bound_apart(discipline: str) -> None:
    """Jobs of 1 s, in turn a b a b: a leads by 1 s or by 0; the bound is 1 s + 1 s."""
    world = World(policy(discipline))
    for _ in range(6):
        world.submit("a")
        world.submit("b")
    gap = gaps(played(world, 4))["default"]
    assert gap.ratio == Fraction(1, 2)
    assert gap.flows == ("a/batch/default", "b/batch/default")


def test_a_long_job_counts_as_what_it_is() -> None:
    """By start tags: a's job of 9 s first, then b's of 1 s; a leads by 9 s, b makes up.

    Start tags after the first dispatch are a 9, b 0: b goes nine times, then a ties and is
    first by arrival. The lead was at most 9 s; the bound is 9 s + 1 s.
    """
    world = World(policy("sfq"))
    for _ in range(3):
        world.submit("a", estimate_ms=9_000)
    for _ in range(12):
        world.submit("b")
    assert gaps(played(world, 8))["default"].ratio == Fraction(9, 10)


def test_a_fixed_order_has_no_bound() -> None:
    world = World(policy("fifo"))
    for _ in range(4):
        world.submit("a")
        world.submit("b")
    assert gaps(played(world, 3)) == {}


def test_a_flow_that_its_own_limit_holds_is_not_compared() -> None:
    """a may have one of two slots, its jobs take 40 s and b's 10 s, by start tags.

    a leads by 40 s with its first job; b's first four make that up until, at 40 s, the tags are
    equal and it is a's turn by arrival, which is passed over. So 40 s of 40 s + 10 s, however
    long b is served alone after that.
    """
    world = World(
        Policy(
            organizations={"a": Organization(limits=Limits(slots=1))},
            pools={"default": Pool(discipline="sfq")},
        )
    )
    for _ in range(4):
        world.submit("a", estimate_ms=40_000)
    for _ in range(12):
        world.submit("b", estimate_ms=10_000)
    world.turn()
    world.node_up("n1", 2)
    line = Line(world)
    line.turn()
    first = next(job for _, job in line.ends if world.job(job).spec.organization == "a")
    for _ in range(8):
        world.at += 10_000
        (other,) = [job for _, job in line.ends if job != first]
        line.ends = [each for each in line.ends if each[1] == first]
        world.finish(other)
        line.turn()
    assert gaps(world)["default"].ratio == Fraction(4, 5)


@given(workload=workloads, slots=st.integers(1, 4), discipline=st.sampled_from(["wfq", "sfq"]))
def test_with_exact_estimates_the_gap_stays_within_its_bound(
    workload: list[tuple[int, list[int]]], slots: int, discipline: str
) -> None:
    world = World(policy(discipline, **{f"o{i}": weight for i, (weight, _) in enumerate(workload)}))
    for i, (_, sizes) in enumerate(workload):
        for size_ms in sizes:
            world.submit(f"o{i}", estimate_ms=size_ms)
    world.turn()
    world.node_up("n1", slots)
    line = Line(world)
    line.turn()
    while line.ends:
        line.step()
    rounding = Fraction(len(line.dispatched), SCALE)
    found = gaps(world)["default"]
    assert 0 < found.ratio <= 1 + rounding
