"""The penalty for much GPU memory: docs/FAIRNESS.md, "What a job is charged"."""

from __future__ import annotations

import pytest

from ledger.estimates import cost_of
from ledger.events import JobState
from ledger.names import FlowId
from ledger.policy import Policy, Pool
from tests.world import World

GB = 10**9


def world(threshold_bytes: int, slots: int = 4) -> World:
    pool = Pool(discipline="sfq", memory_threshold_bytes=threshold_bytes)
    made = World(Policy(pools={"default": pool}))
    made.node_up("n1", slots, kind="gpu", gpu_memory_bytes=80 * GB)
    made.turn()
    return made


def test_the_example_of_the_page() -> None:
    """2 x 10,000 + 10,000 = 30,000 at dispatch; 14,000 + 7,000 = 21,000 in the end."""
    made = world(40 * GB)
    job = made.submit(slots=2, gpu_memory_bytes=60 * GB, estimate_ms=10_000)
    made.submit("b", estimate_ms=3_600_000)  # a pool that is wholly idle forgets all debt
    made.turn()
    assert made.attempt(job).cost_ms == 30_000
    assert made.state.flows[FlowId("a/batch/default")].finish == 30_000 * 1_000_000
    made.start(job)
    made.turn(after_ms=7_000)
    made.finish(job)
    made.turn()
    assert made.state.flows[FlowId("a/batch/default")].finish == 21_000 * 1_000_000


@pytest.mark.parametrize(
    ("slot_ms", "rate", "cost"),
    [
        (20_000, (60, 40), 30_000),
        (1, (41, 40), 2),
        (0, (60, 40), 0),
        (7, (1, 1), 7),
        (1_000, (80, 10), 8_000),
    ],
)
def test_the_penalty_is_rounded_up(slot_ms: int, rate: tuple[int, int], cost: int) -> None:
    assert cost_of(slot_ms, rate) == cost


@pytest.mark.parametrize(
    ("threshold_bytes", "asked_bytes"), [(0, 60 * GB), (40 * GB, 40 * GB), (40 * GB, 0)]
)
def test_there_is_none_up_to_the_threshold_or_without_one(
    threshold_bytes: int, asked_bytes: int
) -> None:
    made = world(threshold_bytes)
    job = made.submit(gpu_memory_bytes=asked_bytes, estimate_ms=10_000)
    made.turn()
    assert made.attempt(job).cost_ms == 10_000


def test_an_overrun_begins_when_the_run_is_longer_and_is_charged_with_the_penalty() -> None:
    """Charged 15,000 for 10 s: at 9.999 s nothing grows; at 10 s it becomes 15,000 + 15,000 / 8."""
    made = world(40 * GB)
    job = made.submit(gpu_memory_bytes=60 * GB, estimate_ms=10_000)
    made.turn()
    made.start(job)
    made.turn(after_ms=9_999)
    assert made.attempt(job).cost_ms == 15_000
    made.turn(after_ms=1)
    assert made.attempt(job).cost_ms == 16_875


def test_the_threshold_of_the_dispatch_settles_it() -> None:
    made = world(40 * GB)
    job = made.submit(gpu_memory_bytes=60 * GB, estimate_ms=10_000)
    made.submit("b", estimate_ms=3_600_000)
    made.turn()
    made.start(job)
    made.apply_policy(Policy(pools={"default": Pool(discipline="sfq")}))
    made.turn(after_ms=2_000)
    made.finish(job)
    made.turn()
    assert made.state.flows[FlowId("a/batch/default")].finish == 3_000 * 1_000_000


def test_who_asks_for_twice_the_threshold_has_a_third_beside_who_asks_for_less() -> None:
    """One slot, jobs of 1 s, equal weights: of 60 dispatches 20 and 40."""
    made = world(40 * GB, slots=1)
    for _ in range(60):
        made.submit("a", gpu_memory_bytes=80 * GB)
        made.submit("b", gpu_memory_bytes=20 * GB)
    for _ in range(60):
        made.turn()
        [job] = [job.id for job in made.state.jobs.values() if job.state is JobState.ASSIGNED]
        made.start(job)
        made.turn(after_ms=1_000)
        made.finish(job)
    served = [made.job(job).placed.organization for job in made.assigned()]
    assert (served.count("a"), served.count("b")) == (20, 40)
