"""What a worker does while the bucket is away, how it retires, and how often it asks."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.errors import TransientError
from ledger.events import JobState
from ledger.keys import JOURNAL, claim_key, log_key
from ledger.names import WorkerName
from roles.adoption import left_over
from roles.worker import NOT_OFFERED
from tests.roles.worker_rig import NODE, TIMINGS, WORKER, Rig, a_running_job, mend, outage


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- outages


def test_an_end_during_an_outage_is_reported_once_with_its_true_time(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.effects.on_effect = outage("before")
    rig.clock.advance_ms(1_000)
    rig.local(job).finish(4)
    ended_at = rig.clock.wall_ms()
    rig.steps(20, every_ms=30_000)
    assert rig.disk.status.pending_facts == 1
    mend(rig)
    rig.settle()
    (end,) = rig.said(e.AttemptFinished)
    assert (end.rc, end.ended_at) == (4, ended_at)
    assert rig.object(log_key(job, 1)) == b"begin\nend\nrc=4\n"


def test_a_log_that_cannot_be_put_delays_no_report(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.effects.on_effect = outage(f"before put {log_key(job, 1)}")
    rig.local(job).finish(0)
    rig.steps(3, every_ms=TIMINGS.retry_max_ms)
    rig.turn()
    assert rig.job(job).state is JobState.COMPLETED
    following = rig.submit()
    rig.steps(3, every_ms=TIMINGS.retry_max_ms)
    assert rig.disk.executed[f"{following}.1"] == 1, "nor the next job"
    mend(rig)
    rig.local(following).finish(0)
    rig.settle()
    assert rig.object(log_key(job, 1)) == b"begin\nend\nrc=0\n"


def test_the_folder_stays_until_the_end_is_acknowledged(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.effects.on_effect = outage("before put facts/")
    rig.local(job).finish(0)
    rig.steps(3, every_ms=TIMINGS.retry_max_ms)
    assert rig.object(log_key(job, 1)) is not None
    assert list(rig.disk.attempts) == [f"{job}.1"]
    mend(rig)
    rig.steps()
    assert rig.disk.attempts == {}


def test_an_outage_at_the_start_is_waited_out(rig: Rig) -> None:
    rig.effects.on_effect = outage("before")
    rig.steps(5, every_ms=TIMINGS.retry_max_ms)
    assert rig.facts() == []
    mend(rig)
    rig.steps()
    assert len(rig.said(e.WorkerReady)) == 1


def test_an_outage_costs_one_request_per_pause(rig: Rig) -> None:
    a_running_job(rig)
    tried: list[str] = []

    def refuse(_number: int, what: str) -> None:
        tried.append(what)
        raise TransientError("no news")

    rig.effects.on_effect = refuse
    waited_ms = 0
    while waited_ms < 60_000:
        wait_ms = rig.step()
        assert wait_ms is not None
        waited_ms += wait_ms
        rig.clock.advance_ms(wait_ms)
    # Pauses double from 200 ms to 5 s, each between half and all: at most 2.5 s + growth.
    assert 60_000 // 5_000 <= len(tried) <= 60_000 // 2_500 + 6


def test_an_exclusive_job_learns_when_the_bucket_last_heard_of_its_node(rig: Rig) -> None:
    job = a_running_job(rig, exclusive=True)
    rig.clock.advance_ms(TIMINGS.mailbox_alone_ms * 2)
    rig.steps()
    assert rig.local(job).bucket_seen[-1] == rig.clock.boot_ms()
    rig.disk.beats, rig.disk.silent_since_ms = False, rig.clock.boot_ms()
    # The worker beats itself, as soon as it is clear that its supervisor does not.
    rig.steps(30, every_ms=TIMINGS.beat_ms // 10)
    heard_ms = rig.local(job).bucket_seen[-1]
    assert heard_ms > rig.disk.silent_since_ms + 2 * TIMINGS.beat_ms
    # What can be read of the bucket says nothing of what the leader hears.
    rig.effects.on_effect = outage("before put beats/")
    rig.steps(300, every_ms=TIMINGS.beat_ms // 10)
    seen = rig.local(job).bucket_seen
    assert seen[-1] == heard_ms
    assert len(seen) == len(set(seen)), "it is written where it has changed"
    plan = rig.local(job).plan()
    assert plan is not None
    assert plan.exclusive_ms == TIMINGS.exclusive_ms


def test_silence_before_its_start_counts_against_an_exclusive_job(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.disk.beats = False
    ready_ms = rig.clock.boot_ms()
    rig.clock.advance_ms(TIMINGS.beat_ms)
    job = rig.submit(exclusive=True)
    rig.effects.on_effect = outage("before put facts/")
    rig.steps()
    assert rig.local(job).state() == "running"
    assert rig.local(job).bucket_seen == [ready_ms]


# --- retirement


def test_a_retiring_worker_finishes_its_job_and_takes_no_other(rig: Rig) -> None:
    job = a_running_job(rig)
    assert rig.worker is not None
    rig.worker.retire("drained")
    rig.steps()
    rig.turn()
    assert rig.world.state.workers[WORKER].retired == "drained"
    rig.local(job).finish(0)
    assert rig.step() is None
    rig.turn()
    assert rig.job(job).state is JobState.COMPLETED
    assert len(rig.said(e.WorkerRetired)) == 1


def test_a_run_order_after_retirement_is_not_claimed(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    assert rig.worker is not None
    rig.worker.retire("drained")
    assert rig.step() is None
    assert rig.object(claim_key(job, 1)) is None
    rig.turn()
    rig.turn()
    assert rig.job(job).state is JobState.PENDING


def test_told_twice_it_also_stops_what_runs(rig: Rig) -> None:
    job = a_running_job(rig)
    assert rig.worker is not None
    rig.worker.retire("Ctrl-C")
    rig.step()
    rig.worker.stop_jobs("Ctrl-C")
    rig.step()
    assert rig.local(job).stops == [("Ctrl-C", TIMINGS.grace_ms)]


def test_retirement_waits_for_the_bucket_only_for_a_while(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.effects.on_effect = outage("before")
    assert rig.worker is not None
    rig.worker.retire("drained")
    rig.local(job).finish(0)
    waited_ms = 0
    while (wait_ms := rig.step()) is not None:
        waited_ms += wait_ms
        rig.clock.advance_ms(wait_ms)
        assert waited_ms < 2 * TIMINGS.grace_ms
    rig.worker.close()
    mend(rig)
    rig.start()
    rig.settle()
    assert rig.job(job).state is JobState.COMPLETED


# --- requests


def test_an_idle_worker_asks_every_two_or_if_followed_ten_seconds(rig: Rig) -> None:
    for followed, interval_ms in ((False, 2_000), (True, 10_000)):
        rig.disk.followed = followed
        rig.steps()
        rig.clock.advance_ms(20_000)
        rig.steps()
        before = rig.bucket.counts.copy()
        waited_ms = 0
        while waited_ms < 600_000:
            wait_ms = rig.step()
            assert wait_ms is not None
            rig.clock.advance_ms(wait_ms)
            waited_ms += wait_ms
        asked = rig.bucket.counts - before
        assert set(asked) == {"get"}
        assert 0.8 < asked["get"] * interval_ms / 600_000 < 1.25


def test_nothing_below_the_journal_is_asked_for_after_the_start(rig: Rig) -> None:
    a_running_job(rig)
    asked: list[str] = []
    rig.effects.on_effect = lambda number, what: asked.append(what)
    rig.steps(50, every_ms=500)
    assert asked
    assert not [what for what in asked if JOURNAL in what]


# --- a slot that is no longer offered


def test_the_worker_of_a_withdrawn_slot_ends_what_is_underway_and_leaves(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.start(leaving=True)
    rig.steps(2)
    rig.turn()
    worker = rig.world.state.workers[WORKER]
    assert (worker.retired, worker.occupant) == (NOT_OFFERED, e.AttemptRef(job, 1))
    other = rig.submit()
    rig.local(job).finish(6)
    assert [rig.step() for _ in range(2)][-1] is None
    rig.turn()
    assert (rig.job(job).state, rig.attempt(job).rc) == (JobState.FAILED, 6)
    assert rig.job(other).state is JobState.PENDING


def test_the_worker_of_a_withdrawn_slot_tells_of_what_is_no_longer_there(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.disk.attempts.clear()
    rig.start(leaving=True)
    assert rig.step() is None
    rig.turn()
    assert rig.job(job).state is JobState.NODE_FAIL
    assert rig.world.state.workers[WORKER].occupant is None


# --- which slots those are


def withdrawn(rig: Rig, *offered: str, machine: str = "m1") -> set[str]:
    names = [WorkerName(name) for name in offered]
    return set(left_over(rig.world.state, NODE, machine, names))


def test_a_withdrawn_slot_is_left_over_until_it_has_retired_and_leads_nothing(rig: Rig) -> None:
    job = a_running_job(rig)
    assert withdrawn(rig, WORKER) == set()
    assert withdrawn(rig) == {WORKER}
    assert withdrawn(rig, machine="m2") == set()
    rig.world.retire(WORKER)
    rig.turn()
    assert withdrawn(rig) == {WORKER}
    rig.world.finish(job)
    rig.turn()
    assert withdrawn(rig) == set()
