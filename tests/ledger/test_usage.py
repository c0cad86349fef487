"""What the audit knows of attempts and slots, held against the facts as they stand in pages."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger import events as e
from ledger.bill import bill
from ledger.events import Liveness, encode
from ledger.names import JobId, NodeName, WorkerName
from ledger.policy import Policy, Pool, WorkloadClass
from ledger.projection import Projection
from ledger.state import State
from ledger.usage import Became, SlotUp, UsageLog, Use
from tests.world import START_MS, World, running_job, sha256_of, world_of_one_node

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1" / "journal"


def log_of(world: World) -> UsageLog:
    return log_of_pages(world.pages)


def log_of_pages(pages: Sequence[e.Page]) -> UsageLog:
    projection = Projection(State(ledger=pages[0].ledger))
    log = UsageLog(projection)
    for page in pages:
        if projection.apply(page, sha256_of(page)):
            log.page(page)
    return log


def only(world: World) -> Use:
    (use,) = log_of(world).uses()
    return use


def spans(world: World) -> list[tuple[str, int, int]]:
    """Of each slot from when to when it was there, in ms since the world began."""
    return [(up.worker, up.up_at - START_MS, up.down_at - START_MS) for up in log_of(world).slots()]


# -- attempts


@pytest.mark.parametrize(
    ("outcome", "rc", "became"),
    [
        ("exited", 0, Became.DONE),
        ("exited", 3, Became.FAILED),
        ("timeout", 143, Became.FAILED),
        ("oom", 137, Became.FAILED),
        ("failed_to_start", 127, Became.FAILED),
        ("exclusive", 137, Became.LOST),
    ],
)
def test_what_became_of_an_attempt_follows_from_its_end(
    outcome: str, rc: int, became: Became
) -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.at += 250
    world.finish(job, rc=rc, outcome=outcome)
    world.turn()
    use = only(world)
    assert (use.became, use.ended_at - use.started_at) == (became, 250)


def test_a_cancelled_attempt_is_cancelled_and_one_stopped_for_its_node_is_lost() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.cancel(job)
    world.turn(after_ms=100)
    world.finish(job, rc=143, outcome="stopped")
    world.turn()
    assert only(world).became is Became.CANCELLED
    world.retry(job)
    world.turn()
    assert only(world).became is Became.CANCELLED

    world = world_of_one_node()
    job = running_job(world)
    world.drain("n1", now=True)
    world.turn(after_ms=100)
    world.finish(job, rc=143, outcome="stopped")
    world.turn()
    assert only(world).became is Became.LOST


@pytest.mark.parametrize(
    ("rc", "became"),
    [(e.YIELD_RC, Became.DONE), (0, Became.DONE), (1, Became.FAILED)],
)
def test_one_that_gave_way_at_the_end_of_its_quantum_has_saved(rc: int, became: Became) -> None:
    job, world = yielding_job()
    world.finish(job, rc=rc, outcome="stopped")
    world.turn(after_ms=100)
    assert [use.became for use in log_of(world).uses() if use.job == job] == [became]


def test_one_that_was_cancelled_while_it_gave_way_is_cancelled() -> None:
    job, world = yielding_job()
    world.cancel(job)
    world.turn(after_ms=100)
    world.finish(job, rc=e.YIELD_RC, outcome="stopped")
    world.turn()
    assert [use.became for use in log_of(world).uses() if use.job == job] == [Became.CANCELLED]


def yielding_job() -> tuple[JobId, World]:
    """A resumable job with a quantum of a second, which is told to give way to another."""
    world = world_of_one_node(policy=Policy(classes={"batch": WorkloadClass(quantum_ms=1_000)}))
    job = running_job(world, resumable=True)
    world.submit("b")
    world.turn(after_ms=1_000)
    assert world.attempt(job).stop_reason == e.YIELDED
    return job, world


def test_a_late_end_of_an_attempt_that_a_newer_one_has_replaced_is_lost_work() -> None:
    world = world_of_one_node()
    job = running_job(world, idempotent=True)
    world.node_is("n1", Liveness.GONE)
    world.node_up("n2", 1)
    world.turn(after_ms=100)
    world.turn()
    assert world.attempt(job).number == 2
    world.start(job)
    world.node_is("n1", Liveness.FRESH)
    world.turn()
    world.at += 50
    world.finish(job, number=1)
    world.turn()
    assert [(use.attempt, use.became) for use in log_of(world).uses()] == [
        (1, Became.LOST),
        (2, Became.RUNNING),
    ]
    first, _ = log_of(world).uses()
    assert first.ended_at - first.started_at == 150


def test_what_runs_is_counted_up_to_the_last_page() -> None:
    world = world_of_one_node()
    running_job(world)
    world.turn(after_ms=700)
    use = only(world)
    assert (use.became, use.ended_at - use.started_at) == (Became.RUNNING, 700)


def test_what_never_ran_is_no_use() -> None:
    world = world_of_one_node()
    world.submit()
    world.turn()
    assert list(log_of(world).uses()) == []


def test_an_attempt_declared_lost_ends_with_that_page_until_it_is_found() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.node_is("n1", Liveness.GONE)
    world.turn(after_ms=400)
    world.turn(after_ms=5_000)
    use = only(world)
    assert (use.became, use.ended_at - use.started_at) == (Became.LOST, 400)

    world.node_is("n1", Liveness.FRESH)
    world.turn()
    world.at += 100
    world.finish(job)
    world.turn()
    use = only(world)
    assert (use.became, use.ended_at - use.started_at) == (Became.DONE, 5_500)


def test_an_attempt_that_its_worker_lost_ends_when_it_said_so() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.at += 60
    world.lost(job)
    world.turn(after_ms=1_000)
    use = only(world)
    assert (use.became, use.ended_at - use.started_at) == (Became.LOST, 60)


def test_a_retried_job_has_two_attempts_under_the_pool_in_which_each_was_assigned() -> None:
    world = World(Policy(pools={"default": Pool(), "other": Pool()}))
    world.node_up("n1", 1)
    world.node_up("n2", 1, pool="other")
    world.turn()
    job = running_job(world)
    world.finish(job, rc=1)
    world.turn()
    world.retry(job)
    world.hold(job)
    world.turn()
    world.move(job, pool="other")
    world.release(job)
    world.turn()
    world.start(job)
    world.turn()
    uses = list(log_of(world).uses())
    assert [(use.attempt, use.pool, use.became) for use in uses] == [
        (1, "default", Became.FAILED),
        (2, "other", Became.RUNNING),
    ]


def test_jobs_that_the_fold_has_archived_are_still_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,600 jobs of 5 ms each, of which the fold keeps the last 1,000 or so.

    The log looks for archived ones when it holds 100, 300, 700 and 1,500 attempts.
    """
    monkeypatch.setattr("ledger.usage._SWEEP_EVERY", 100)
    world = world_of_one_node()
    for _ in range(1_600):
        world.submit()
    world.turn()
    for _ in range(1_600):
        job = world.assigned()[-1]
        world.start(job)
        world.at += 5
        world.finish(job)
        world.turn()
    assert len(world.state.archive) > 200
    uses = list(log_of(world).uses())
    assert len({use.job for use in uses}) == 1_600
    assert sum(use.ended_at - use.started_at for use in uses) == 1_600 * 5


# -- slots


def test_a_slot_is_there_from_its_ready_to_its_retirement() -> None:
    world = World()
    world.at += 10
    world.node_up("n1", 1)
    world.turn()
    world.at += 90
    world.retire("n1-cpu0")
    world.turn(after_ms=5_000)
    assert spans(world) == [("n1-cpu0", 10, 100)]


def test_the_night_between_two_incarnations_told_in_one_page_is_not_rented() -> None:
    world = world_of_one_node()
    world.at += 100
    world.retire("n1-cpu0")
    world.at += 9_000
    world.ready_again("n1-cpu0")
    world.at += 50
    world.turn()
    assert spans(world) == [("n1-cpu0", 0, 100), ("n1-cpu0", 9_100, 9_150)]


def test_a_node_that_is_gone_is_not_there_until_it_is_heard_of_again() -> None:
    world = world_of_one_node()
    world.node_is("n1", Liveness.GONE)
    world.turn(after_ms=100)
    world.node_is("n1", Liveness.FRESH)
    world.turn(after_ms=100)
    world.turn(after_ms=100)
    assert spans(world) == [("n1-cpu0", 0, 100), ("n1-cpu0", 200, 300)]


def test_a_second_machine_under_the_name_of_a_serving_node_rents_nothing() -> None:
    world = world_of_one_node()
    slot = e.Slot(kind="cpu", index=0)
    world.ready("n1-cpu0", slot, machine="other", incarnation="cccccccc")
    world.turn(after_ms=100)
    world.fact(
        e.WorkerRetired(at=world.at, worker=WorkerName("n1-cpu0"), cursor=0), "n1-cpu0~cccccccc"
    )
    world.turn(after_ms=100)
    assert spans(world) == [("n1-cpu0", 0, 200)]


def test_a_former_incarnation_told_of_late_rents_nothing() -> None:
    """The third start was told first; the second, with another price, counts no more."""
    world = World()
    slot = e.Slot(kind="cpu", index=0)
    world.ready("n1-cpu0", slot, incarnation="cccccccc", number=3)
    world.turn(after_ms=100)
    world.ready("n1-cpu0", e.Slot(kind="cpu", index=0, gpu_uuid="other"), number=2)
    world.turn(after_ms=100)
    assert spans(world) == [("n1-cpu0", 0, 200)]


def test_a_policy_that_gives_a_worker_to_another_pool_ends_a_span() -> None:
    world = world_of_one_node()
    world.apply_policy(Policy(pools={"h100": Pool(workers=("n1",))}))
    world.turn(after_ms=100)
    world.turn(after_ms=100)
    pools = [(up.pool, up.down_at - up.up_at) for up in log_of(world).slots()]
    assert pools == [("default", 100), ("h100", 100)]


def test_what_a_node_costs_is_what_its_workers_said() -> None:
    world = World()
    world.fact(
        e.WorkerReady(
            at=world.at, worker=WorkerName("n1-gpu0"), cursor=0, node=NodeName("n1"),
            machine="m", pool="default", price_micros=2_500_000,
            slot=e.Slot(kind="gpu", index=0, gpu_uuid="GPU-1"),
        ),
        "n1-gpu0",
    )  # fmt: skip
    world.turn()
    assert log_of(world).slots() == [
        SlotUp(
            worker=WorkerName("n1-gpu0"), node=NodeName("n1"), gpu="GPU-1", pool="default",
            up_at=START_MS, down_at=START_MS, price_micros=2_500_000,
        )
    ]  # fmt: skip


# -- against the facts themselves


def naive_busy(bodies: Sequence[bytes]) -> dict[str, set[int]]:
    """By slot the milliseconds in which it was busy, from the JSON of the pages alone."""
    assigned: dict[tuple[str, int], list[str]] = {}
    begun: dict[tuple[str, int], int] = {}
    ended: dict[tuple[str, int], int] = {}
    last = 0
    for body in bodies:
        page: dict[str, Any] = json.loads(body)
        last = page["at"]
        for fact in (posted["fact"] for posted in page["facts"]):
            ref = (fact.get("job"), fact.get("attempt"))
            match fact["kind"]:
                case "start":
                    begun[ref] = fact["at"]
                case "finish":
                    begun[ref], ended[ref] = fact["started_at"], fact["ended_at"]
                case "lost":
                    ended[ref] = fact["at"]
        for decision in page["decisions"]:
            ref = (decision.get("job"), decision.get("attempt"))
            if decision["kind"] == "assign":
                assigned[ref] = decision["slots"]
    busy: dict[str, set[int]] = defaultdict(set)
    for ref, begin in begun.items():
        for slot in assigned[ref]:
            busy[slot].update(range(begin, ended.get(ref, last)))
    return busy


def random_world(seed: int) -> World:
    """Jobs of one and two slots on three nodes; they end, fail, are cancelled and lost."""
    rng = random.Random(seed)
    world = World()
    for node in ("n1", "n2", "n3"):
        world.node_up(node, 2)
    for _ in range(60):
        for _ in range(rng.randrange(3)):
            world.submit(
                rng.choice("abc"), slots=rng.choice((1, 1, 2)), estimate_ms=rng.randrange(5, 90)
            )
        world.turn(after_ms=rng.randrange(1, 12))
        for worker in list(world.state.workers.values()):
            ref = worker.occupant
            if ref is None or world.attempt(ref.job).lead != worker.name:
                continue
            match rng.randrange(8):
                case _ if world.attempt(ref.job).started_at is None:
                    world.start(ref.job)
                case 0:
                    world.cancel(ref.job)
                case 1:
                    world.lost(ref.job)
                case 2 | 3:
                    world.finish(ref.job, rc=rng.choice((0, 0, 1)))
                case _:
                    pass
    world.turn(after_ms=5)
    return world


@pytest.mark.parametrize("seed", range(12))
def test_sums_are_the_busy_time_of_the_slots_to_the_millisecond(seed: int) -> None:
    world = random_world(seed)
    busy = naive_busy([encode(page) for page in world.pages])
    log = log_of(world)
    uses, slots = list(log.uses()), log.slots()
    assert len({use.became for use in uses}) >= 3
    rng = random.Random(seed)
    first, last = START_MS, world.at
    for _ in range(10):
        begin, end = sorted(rng.randrange(first, last + 1) for _ in range(2))
        for by in (["org"], ["gpu"], ["user", "job", "day"]):
            made = bill(uses, slots, begin=begin, end=end, by=by)
            wanted = sum(len(of_slot & set(range(begin, end))) for of_slot in busy.values())
            assert made.total.occupied_slot_ms == wanted
            assert sum(group.occupied_slot_ms for group in made.used.values()) == wanted
            there = 6 * (end - begin)
            assert made.total.occupied_slot_ms + made.total.idle_slot_ms == there


def test_the_golden_ledger_was_busy_as_long_as_its_facts_say() -> None:
    """Real workers, whose clocks differ: overlapping records would show here."""
    bodies = [path.read_bytes() for path in sorted(GOLDEN.iterdir())]
    log = log_of_pages([e.decode_page(body) for body in bodies])
    busy = naive_busy(bodies)
    made = bill(log.uses(), log.slots(), begin=0, end=1 << 50, by=["gpu"])
    assert {key: group.occupied_slot_ms for (key,), group in made.used.items()} == {
        slot: len(of_slot) for slot, of_slot in busy.items()
    }
