"""The figures of the demo and the bench, against ledgers whose times were chosen by hand."""

from __future__ import annotations

import pytest

from ledger.names import FlowId, JobId
from ledger.policy import Organization, Policy, Pool
from simulation.memory import ManualClock, MemoryStore
from tests.simulation.ledgers import bodies_of, write_ledger
from tests.world import START_MS, World
from tools.fairness import fairness
from tools.figures import gaps_ms, percentile, waits_ms, walk

A, B = FlowId("a/batch/default"), FlowId("b/batch/default")


def one_slot(discipline: str = "sfq") -> World:
    """Organizations a and b with weights 2 and 1 share one slot."""
    world = World(
        Policy(
            organizations={"a": Organization(weight=2_000), "b": Organization(weight=1_000)},
            pools={"default": Pool(discipline=discipline)},
        )
    )
    world.node_up("n1", 1)
    return world


def run(world: World, job: JobId, *, run_ms: int, gap_ms: int = 0) -> None:
    """Let an assigned job start after ``gap_ms`` and end ``run_ms`` later."""
    world.at += gap_ms
    world.start(job)
    world.turn()
    world.at += run_ms
    world.finish(job)
    world.turn()


def store_of(world: World) -> MemoryStore:
    store = MemoryStore(ManualClock(START_MS))
    write_ledger(store, bodies_of(world))
    return store


@pytest.mark.parametrize(
    ("values", "percent", "rank"),
    [
        ([7], 50, 7),
        ([7], 95, 7),
        ([3, 1, 2], 50, 2),
        (list(range(1, 101)), 50, 50),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 11)), 95, 10),
    ],
)
def test_a_percentile_is_the_nearest_rank(values: list[int], percent: int, rank: int) -> None:
    assert percentile(values, percent) == rank


def test_waits_and_gaps_count_from_what_happened() -> None:
    world = one_slot()
    first, second = world.submit("a"), world.submit("a")
    world.turn()
    run(world, first, gap_ms=300, run_ms=1_000)
    run(world, second, gap_ms=400, run_ms=1_000)
    world.at += 5_000
    late = world.submit("a")
    world.turn()
    run(world, late, gap_ms=250, run_ms=1_000)
    jobs = list(world.state.jobs.values())
    # The second was submitted with the first: 300 + 1000 + 400.
    assert waits_ms(jobs) == [300, 1_700, 250]
    # Nothing waited during the five seconds before the last one was submitted.
    assert gaps_ms(jobs) == [400, 250]


def test_walking_gives_the_state_after_each_page() -> None:
    world = one_slot()
    world.submit("a")
    world.turn()
    assert [state.seq for state in walk(store_of(world), "test")] == list(range(len(world.pages)))


def test_charged_service_is_measured_while_all_are_backlogged() -> None:
    """Start tags in seconds: a 0, .5, 1, 1.5, 2; b 0, 1, 2. So a b a a b a ... until b's last."""
    world = one_slot()
    for organization, jobs in (("a", 6), ("b", 3)):
        for _ in range(jobs):
            world.submit(organization, estimate_ms=1_000)
    world.turn()
    while (occupant := world.state.workers["n1-cpu0"].occupant) is not None:  # type: ignore[index]
        run(world, occupant.job, run_ms=1_000)
    order = "".join(world.job(job).spec.organization for job in world.assigned())
    assert order == "abaabaaba"[: len(order)]

    measured = fairness(store_of(world), "test", [A, B], lambda job: True)
    assert measured is not None
    a, b = measured.shares
    # b's third job starts as the eighth; the window ends with the page before.
    assert (a.charged_ms, b.charged_ms) == (4_000, 2_000)
    assert (a.owed_ms, b.owed_ms) == (4_000, 2_000)
    (pair,) = measured.pairs
    assert pair.difference_ms == 0
    assert pair.bound_ms == 1_000 / 2 + 1_000 / 1
    # w_a * w_b / (w_a + w_b) times the bound of the pair.
    assert a.bound_ms == b.bound_ms == pytest.approx(2 / 3 * 1_500)


def test_wrong_estimates_widen_the_bound_by_what_they_were_wrong() -> None:
    world = one_slot()
    for _ in range(3):
        world.submit("a", estimate_ms=1_000)
        world.submit("b", estimate_ms=1_000)
    world.turn()
    while (occupant := world.state.workers["n1-cpu0"].occupant) is not None:  # type: ignore[index]
        run(world, occupant.job, run_ms=600)
    measured = fairness(store_of(world), "test", [A, B], lambda job: True)
    assert measured is not None
    (pair,) = measured.pairs
    # One in flight each, wrong by 400 ms: 1.5 s + 2 * (0.4 / 2 + 0.4 / 1).
    assert pair.bound_ms == pytest.approx(1_500 + 2 * (200 + 400))
    assert pair.difference_ms <= pair.bound_ms


def test_a_fifo_pool_breaks_the_bound_of_the_shares() -> None:
    world = one_slot("fifo")
    for organization in ("a", "b"):
        for _ in range(8):
            world.submit(organization, estimate_ms=1_000)
    world.turn()
    while (occupant := world.state.workers["n1-cpu0"].occupant) is not None:  # type: ignore[index]
        run(world, occupant.job, run_ms=1_000)
    measured = fairness(store_of(world), "test", [A, B], lambda job: True)
    assert measured is not None
    (pair,) = measured.pairs
    assert pair.difference_ms > pair.bound_ms


def test_flows_that_were_never_backlogged_together_have_no_shares() -> None:
    world = one_slot()
    world.submit("a")
    world.turn()
    assert fairness(store_of(world), "test", [A, B], lambda job: True) is None
