"""What was owed and got while a pool was contested: by hand, and against a plain reckoning."""

from __future__ import annotations

import random
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.events import JobState
from ledger.policy import Organization, Policy, Pool
from ledger.projection import Projection
from ledger.state import State
from scheduling.contest import Contest, Part
from scheduling.followed import Followed
from scheduling.waterfill import water_filling
from tests.world import START_MS, World, sha256_of

WEIGHTS = {"a": 3_000, "b": 1_000}


def contest_of(world: World, *, begin: int = 0, end: int = 1 << 60) -> Contest:
    followed = Followed(State(ledger="test"))
    contest = Contest(followed, begin=begin, end=end)
    for page in world.pages:
        followed.fold(page, sha256_of(page))
    return contest


def fleet(slots: int, discipline: str = "wfq") -> World:
    world = World(
        Policy(
            organizations={name: Organization(weight=weight) for name, weight in WEIGHTS.items()},
            pools={"default": Pool(discipline=discipline)},
        )
    )
    world.node_up("n1", slots)
    world.turn()
    return world


def start_all(world: World) -> None:
    for worker in list(world.state.workers.values()):
        if worker.occupant is not None:
            world.start(worker.occupant.job)


def part(contest: Contest, organization: str) -> Part:
    return contest.parts["default", organization]


def owed(contest: Contest, organization: str) -> int:
    """Where it comes out even."""
    slot_ms = part(contest, organization).owed
    assert slot_ms.denominator == 1
    return int(slot_ms)


# -- by hand


def test_slots_are_owed_by_weight_while_both_have_more_work_than_slots() -> None:
    """Four slots, weights 3 and 1, a second: 3,000 and 1,000 slot-milliseconds."""
    world = fleet(4)
    for organization in "ab":
        for _ in range(6):
            world.submit(organization)
    world.turn()
    world.turn(after_ms=1_000)
    contest = contest_of(world)
    assert contest.contested_ms == {"default": 1_000}
    assert (owed(contest, "a"), owed(contest, "b")) == (3_000, 1_000)
    assert part(contest, "a").got + part(contest, "b").got == 4_000
    assert (part(contest, "a").weight, part(contest, "a").contested_ms) == (3_000, 1_000)


def test_nobody_is_owed_more_than_he_wants_and_the_rest_goes_to_the_others() -> None:
    """Of four slots a, whose weight is 3 of 4, wants one only: b is owed three."""
    world = fleet(4)
    world.submit("a")
    for _ in range(6):
        world.submit("b")
    world.turn()
    world.turn(after_ms=100)
    contest = contest_of(world)
    assert (owed(contest, "a"), owed(contest, "b")) == (100, 300)
    assert (part(contest, "a").sated_ms, part(contest, "b").sated_ms) == (100, 0)


def test_what_runs_when_the_contest_begins_is_carried() -> None:
    """b holds both slots when a comes; for 500 ms it is owed half a slot and holds two."""
    world = fleet(2)
    for _ in range(2):
        world.submit("b")
    world.turn()
    start_all(world)
    world.turn(after_ms=300)
    for _ in range(2):
        world.submit("a")
    world.turn()
    world.turn(after_ms=500)
    contest = contest_of(world)
    assert contest.contested_ms == {"default": 500}
    assert (owed(contest, "b"), part(contest, "b").got) == (250, 1_000)
    assert part(contest, "b").carried == 1_000
    assert (owed(contest, "a"), part(contest, "a").got) == (750, 0)


def test_what_is_dispatched_while_the_pool_is_contested_is_not_carried() -> None:
    """One slot: a's first job is there before b comes; the next ones begin in the contest."""
    world = fleet(1)
    for _ in range(4):
        world.submit("a")
    world.turn()
    start_all(world)
    world.turn(after_ms=100)
    for _ in range(4):
        world.submit("b")
    world.turn()
    for _ in range(2):
        world.turn(after_ms=100)
        world.finish(next(iter(world.state.workers.values())).occupant.job)  # type: ignore[union-attr]
        world.turn()
        start_all(world)
        world.turn()
    world.turn(after_ms=100)
    contest = contest_of(world)
    parts = [contest.parts["default", name] for name in "ab"]
    assert sum(one.got for one in parts) == 300
    assert [one.carried for one in parts] == [100, 0]


def test_who_has_another_flow_that_can_be_served_is_not_blocked() -> None:
    world = fleet(1)
    world.node_up("n2", 1)
    world.turn()
    world.retire("n2-cpu0")
    world.turn()
    for organization in "bba":
        world.submit(organization)
    world.submit("a", workload_class="system", worker="n2-cpu0")
    world.turn()
    world.turn(after_ms=700)
    contest = contest_of(world)
    assert contest.contested_ms == {"default": 700}
    assert part(contest, "a").blocked_ms == {}


def test_one_organization_alone_and_an_idle_pool_are_no_contest() -> None:
    world = fleet(1)
    for _ in range(3):
        world.submit("a")
    world.turn()
    world.turn(after_ms=1_000)
    assert contest_of(world).parts == {}


def test_a_flow_that_nothing_can_serve_is_owed_nothing_and_why_is_told() -> None:
    """a's job is pinned to a node that is not up; b's jobs have the only slot."""
    world = fleet(1)
    world.node_up("n2", 1)
    world.turn()
    world.retire("n2-cpu0")
    world.turn()
    for _ in range(2):
        world.submit("b")
    world.turn()
    world.submit("a", worker="n2-cpu0")
    world.turn()
    world.turn(after_ms=700)
    contest = contest_of(world)
    assert contest.contested_ms == {}
    ((reason, blocked_ms),) = part(contest, "a").blocked_ms.items()
    assert "n2-cpu0" in reason
    assert blocked_ms == 700


def test_only_what_lies_in_the_period_is_counted() -> None:
    world = fleet(4)
    for organization in "ab":
        for _ in range(6):
            world.submit(organization)
    world.turn()
    world.turn(after_ms=1_000)
    contest = contest_of(world, begin=START_MS + 200, end=START_MS + 600)
    assert contest.contested_ms == {"default": 400}
    assert owed(contest, "a") == 1_200


def test_charges_are_those_of_the_pages_after_which_the_pool_was_contested() -> None:
    """Two slots: the first page charges 1,000 and 1,000, the next, which ends it, 7,000."""
    world = fleet(2)
    world.submit("a")
    world.submit("b")
    world.submit("b", estimate_ms=7_000)
    world.turn()
    start_all(world)
    (a, *_) = world.assigned()
    world.turn(after_ms=10)
    world.finish(a)
    world.turn(after_ms=10)
    contest = contest_of(world)
    charged = {name: part(contest, name).dispatched for name in "ab"}
    assert sum(charged.values()) == 2_000
    assert part(contest, "b").largest == 1_000


def shared(capacity: int, demand: dict[str, int], weights: dict[str, int]) -> dict[str, Fraction]:
    exact = ({name: Fraction(n) for name, n in of.items()} for of in (demand, weights))
    return water_filling(Fraction(capacity), *exact)


@pytest.mark.parametrize(
    ("capacity", "demand", "given"),
    [
        (4, {"a": 9, "b": 9}, {"a": 3, "b": 1}),
        (4, {"a": 1, "b": 9}, {"a": 1, "b": 3}),
        (4, {"a": 2, "b": 2}, {"a": 2, "b": 2}),
        (5, {"a": 9, "b": 9}, {"a": Fraction(15, 4), "b": Fraction(5, 4)}),
        (0, {"a": 9, "b": 9}, {"a": 0, "b": 0}),
    ],
)
def test_water_filling(
    capacity: int, demand: dict[str, int], given: dict[str, int | Fraction]
) -> None:
    assert shared(capacity, demand, WEIGHTS) == given


@given(
    capacity=st.integers(0, 30),
    claims=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=6),
)
def test_water_filling_gives_all_and_leaves_nobody_short_below_another(
    capacity: int, claims: list[tuple[int, int]]
) -> None:
    demand = {str(n): wanted for n, (wanted, _) in enumerate(claims)}
    weights = {str(n): weight for n, (_, weight) in enumerate(claims)}
    given = shared(capacity, demand, weights)
    assert sum(given.values()) == min(capacity, sum(demand.values()))
    assert all(0 <= given[name] <= demand[name] for name in demand)
    for name in demand:
        if given[name] < demand[name]:
            level = given[name] / weights[name]
            assert all(given[other] / weights[other] <= level for other in demand)


def test_in_a_pool_that_shares_by_flow_more_flows_are_owed_more() -> None:
    """Weights 3 and 1, classes 6 and 1: a has both (18 + 3), b batch alone (1): 21 to 1.

    22 slots for a second: 21,000 and 1,000; where organizations share it would be 3 to 1.
    """
    pool = Pool(share="flow", class_weights={"interactive": 6_000, "batch": 1_000})
    organizations = {name: Organization(weight=weight) for name, weight in WEIGHTS.items()}
    world = World(Policy(organizations=organizations, pools={"default": pool}))
    world.node_up("n1", 22)
    world.turn()
    for organization, workload_class in (("a", "batch"), ("a", "interactive"), ("b", "batch")):
        for _ in range(44):
            world.submit(organization, workload_class=workload_class)
    world.turn()
    world.turn(after_ms=1_000)
    contest = contest_of(world)
    assert (owed(contest, "a"), owed(contest, "b")) == (21_000, 1_000)
    assert part(contest, "a").weight == 21_000


# -- against a reckoning that looks at everything after every page


def plainly(world: World) -> tuple[dict[str, Fraction], dict[str, int]]:
    """Owed and got by organization: each page folded, and the whole state looked through."""
    projection = Projection(State(ledger="test"))
    owed: dict[str, Fraction] = defaultdict(Fraction)
    got: dict[str, int] = defaultdict(int)
    for page, following in zip(world.pages, world.pages[1:], strict=False):
        projection.apply(page, sha256_of(page))
        state, span_ms = projection.state, following.at - page.at
        held: dict[str, int] = defaultdict(int)
        demand: dict[str, int] = defaultdict(int)
        waits = 0
        for worker in state.workers.values():
            if worker.occupant is not None:
                organization = state.jobs[worker.occupant.job].spec.organization
                held[organization] += 1
                demand[organization] += 1
        for job in state.jobs.values():
            if job.state is JobState.PENDING and not state.flows[job.spec.flow].blocked:
                demand[job.spec.organization] += job.spec.slots
                waits += 1
        if not waits or len(demand) < 2:
            continue
        for organization, slots in drop_by_drop(sum(held.values()), demand).items():
            owed[organization] += slots * span_ms
            got[organization] += held[organization] * span_ms
    return owed, got


def drop_by_drop(capacity: int, demand: dict[str, int]) -> dict[str, Fraction]:
    """Raise the level of all together until one is full, then of the others."""
    given = {name: Fraction(0) for name in demand}
    left = Fraction(capacity)
    while left:
        open_ones = [name for name in demand if given[name] < demand[name]]
        total = sum(WEIGHTS[name] for name in open_ones)
        step = min(
            left / total, *((demand[name] - given[name]) / WEIGHTS[name] for name in open_ones)
        )
        for name in open_ones:
            given[name] += step * WEIGHTS[name]
        left -= step * total
    return given


@pytest.mark.parametrize("seed", range(10))
def test_the_numbers_are_those_of_a_plain_reckoning(seed: int) -> None:
    rng = random.Random(seed)
    world = fleet(4, rng.choice(("wfq", "sfq", "fifo", "strict")))
    for _ in range(80):
        for _ in range(rng.randrange(3)):
            world.submit(rng.choice("aab"), slots=rng.choice((1, 1, 2)), estimate_ms=50)
        world.turn(after_ms=rng.randrange(1, 30))
        for worker in list(world.state.workers.values()):
            ref = worker.occupant
            if ref is None or world.attempt(ref.job).lead != worker.name:
                continue
            if world.attempt(ref.job).started_at is None:
                world.start(ref.job)
            elif rng.random() < 0.4:
                world.finish(ref.job)
    world.turn(after_ms=10)
    owed, got = plainly(world)
    contest = contest_of(world)
    assert sum(owed.values()) > 1_000
    assert {name: one.owed for (_, name), one in contest.parts.items()} == owed
    assert {name: one.got for (_, name), one in contest.parts.items()} == got
    assert sum(owed.values()) == sum(got.values())
