"""What metrics count, from pages; expected values worked by hand."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.arrays import member_id
from ledger.checkpoint import decode_checkpoint, encode_checkpoint
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import ApiLimits, Policy, Pool, WorkloadClass
from ledger.state import State
from scheduling.followed import Followed
from scheduling.metrics import Cost, Distribution, Group, Key, Metrics
from tests.world import START_MS, World, sha256_of, world_of_one_node


def counted(
    world: World, *by: str, since_ms: int = 0, state: State | None = None
) -> dict[Key, Group]:
    followed = Followed(state or State(ledger="test"))
    metrics = Metrics(followed, since_ms, by)
    for page in world.pages[followed.state.seq + 1 :]:
        followed.fold(page, sha256_of(page))
    return metrics.groups_at(world.at)


def run(world: World, job: JobId, *, after_ms: int, for_ms: int, rc: int = 0) -> None:
    """It starts ``after_ms`` from now, and ends."""
    world.at += after_ms
    world.start(job)
    world.turn(after_ms=for_ms)
    world.finish(job, rc=rc)
    world.turn()


def test_percentiles_are_the_nearest_rank_of_buckets() -> None:
    """Of 1..100 ms the 50th, 95th and 99th; 1,000,000 lies in a bucket of 2^13 = 8,192.

    1,000,000 = 122 * 8,192 + 576, so the bucket ends at 123 * 8,192 - 1.
    """
    distribution = Distribution()
    assert distribution.percentile(50) is None
    for value_ms in range(100, 0, -1):
        distribution.add(value_ms)
    assert [distribution.percentile(p) for p in (50, 95, 99, 100)] == [50, 95, 99, 100]
    single = Distribution()
    single.add(1_000_000)
    assert single.percentile(50) == 123 * 8_192 - 1


@pytest.mark.parametrize("value_ms", [0, 1, 127, 128, 129, 255, 256, 5_000, 86_400_000, 10**12])
def test_a_bucket_ends_at_most_a_64th_above_its_value(value_ms: int) -> None:
    distribution = Distribution()
    distribution.add(value_ms)
    upper_ms = distribution.percentile(100)
    assert upper_ms is not None
    assert value_ms <= upper_ms <= value_ms + value_ms // 64


def test_starts_ends_and_costs_of_each_group() -> None:
    """a's job waits 50 ms, runs 2 s (10 s were estimated); b's waits 2.05 s + 30 ms and fails.

    b submits a second job, which waits and is cancelled.
    """
    world = world_of_one_node()
    first = world.submit("a", estimate_ms=10_000)
    second, third = world.submit("b", estimate_ms=10_000), world.submit("b")
    world.turn()
    run(world, first, after_ms=50, for_ms=2_000)
    world.cancel(third)
    run(world, second, after_ms=30, for_ms=1_000, rc=1)
    groups = counted(world, "org")
    a, b = groups["a",], groups["b",]
    assert (a.submitted, a.started, a.attempts) == (1, 1, 1)
    assert (a.waits.percentile(50), a.ended) == (50, {JobState.COMPLETED: 1})
    assert a.slot_ms == Cost(estimated=10_000, actual=2_000)
    assert (b.submitted, b.started, b.attempts) == (2, 1, 1)
    assert b.ended == {JobState.FAILED: 1, JobState.CANCELLED: 1}
    # 2,080 ms lie in a bucket of 2^5 = 32: 65 * 32 = 2,080, so it ends at 66 * 32 - 1.
    assert b.waits.percentile(99) == 2_111
    assert (b.cancelled_waiting, b.cancelled_started) == (1, 0)
    assert counted(world)[()].started == 2
    assert list(counted(world, "class", "pool")) == [("batch", "default")]


def test_what_was_before_is_not_counted_wherever_the_fold_began() -> None:
    """From 10 s on: one job starts that was submitted before, and ends; it cost 3 s."""
    world = world_of_one_node()
    first, second = world.submit("a"), world.submit("a")
    world.turn()
    run(world, first, after_ms=0, for_ms=4_000)
    saved = decode_checkpoint(encode_checkpoint(world.state))
    assert saved is not None
    run(world, second, after_ms=6_000, for_ms=3_000)
    for state in (None, saved.state):
        group = counted(world, since_ms=START_MS + 10_000, state=state)[()]
        assert (group.submitted, group.started, group.attempts) == (0, 1, 0)
        assert group.ended == {JobState.COMPLETED: 1}
        assert group.slot_ms == Cost(estimated=1_000, actual=3_000)


def test_retries_losses_and_cancels_of_what_ran() -> None:
    """Attempts: one that fails, its retry (cancelled), one that is lost, its successor."""
    world = world_of_one_node(2)
    fails = world.submit("a", retries=1)
    world.turn()
    run(world, fails, after_ms=0, for_ms=100, rc=1)
    world.turn(after_ms=10_000)
    world.start(fails)
    is_lost = world.submit("a", idempotent=True)
    world.turn()
    world.cancel(fails)
    world.start(is_lost)
    world.turn()
    world.lost(is_lost)
    cancelled_at = world.at
    world.turn(after_ms=700)
    world.finish(fails, outcome="stopped", rc=143)
    world.turn()
    assert world.attempt(fails).ended_at == cancelled_at + 700
    group = counted(world)[()]
    assert (group.attempts, group.retries, group.lost) == (4, 1, 1)
    assert (group.cancelled_waiting, group.cancelled_started) == (0, 1)
    assert group.after_cancel_slot_ms == 700


def test_a_user_who_tries_again_is_a_retry() -> None:
    world = world_of_one_node()
    job = world.submit("a")
    world.turn()
    run(world, job, after_ms=0, for_ms=100, rc=1)
    world.retry(job)
    world.turn()
    assert counted(world)[()].retries == 1


def test_calls_count_tokens_and_what_they_reported() -> None:
    """100 input and 50 output tokens are estimated as 200, and were 90 + 2 * 10."""
    world = world_of_one_node(1, Policy(pools={"default": Pool(api=ApiLimits(in_flight=1))}))
    job = world.submit("a", input_tokens=100, max_output_tokens=50)
    world.turn()
    world.start(job)
    world.turn()
    report = e.Report(requests=3, input_tokens=90, output_tokens=10, throttled=2, timeouts=1)
    world.finish(job, report=report)
    world.turn()
    group = counted(world)[()]
    assert group.tokens == Cost(estimated=200, actual=110)
    assert group.slot_ms == Cost()
    assert (group.calls, group.throttled, group.timeouts) == (3, 2, 1)


def test_overdue_waits_are_counted_when_they_end_and_while_they_last() -> None:
    """The target is 5 s: one starts after 6 s, one waits for 6 s and longer, one is held."""
    world = world_of_one_node(1, Policy(classes={"batch": WorkloadClass(wait_target_ms=5_000)}))
    world.submit("a", held=True)
    first = world.submit("a")
    world.submit("a")
    world.turn()
    world.at += 6_000
    world.start(first)
    world.turn()
    group = counted(world)[()]
    assert (group.overdue, group.late, group.waiting, group.held) == (1, 2, 1, 1)


def test_an_array_counts_as_its_members() -> None:
    """Five submitted; one completes, and of the others four are cancelled before they begin."""
    world = world_of_one_node()
    array = world.submit(array=e.ArraySpec(ranges=((0, 4, 1),)))
    world.turn()
    assert (counted(world)[()].submitted, counted(world)[()].waiting) == (5, 4)
    world.start(member_id(array, 0))
    world.turn()
    world.finish(member_id(array, 0))
    world.cancel(array)
    world.turn()
    group = counted(world)[()]
    assert group.ended == {JobState.COMPLETED: 1, JobState.CANCELLED: 4}
    assert (group.started, group.waiting, group.cancelled_waiting) == (1, 0, 4)


def test_a_loss_that_is_taken_back_was_none() -> None:
    world = world_of_one_node()
    job = world.submit("a")
    world.turn()
    world.start(job)
    world.turn()
    world.node_is("n1", e.Liveness.GONE)
    world.turn()
    lost = counted(world)[()]
    assert (lost.lost, lost.ended[JobState.NODE_FAIL]) == (1, 1)
    world.node_is("n1", e.Liveness.FRESH)
    world.turn()
    world.finish(job)
    world.turn()
    found = counted(world)[()]
    assert (found.lost, found.ended[JobState.NODE_FAIL], found.ended[JobState.COMPLETED]) == (
        0, 0, 1,
    )  # fmt: skip
