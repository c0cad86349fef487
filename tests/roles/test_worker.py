"""What a worker does with its messages, its jobs and an unreachable bucket."""

from __future__ import annotations

import hashlib

import pytest

from ledger import events as e
from ledger.errors import InDoubtError, LedgerError, RequestError
from ledger.events import AttemptRef, JobState
from ledger.keys import blob_key, claim_key, log_key, log_piece_key, message_key
from ledger.names import JobId, Seq, WorkerName, WriterName
from ledger.state import Phase
from ledger.stores.base import Lost, Won
from roles.processes import Identity
from tests.roles.worker_rig import TIMINGS, WORKER, Death, Rig, a_running_job, outage

FORMER = WriterName(f"{WORKER}~bbbbbbbb")


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- the ordinary course


def test_a_job_runs_and_its_start_end_and_whole_log_are_reported(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.clock.advance_ms(700)
    rig.local(job).finish(3)
    rig.settle()
    assert rig.job(job).state is JobState.FAILED
    attempt = rig.attempt(job)
    assert (attempt.rc, attempt.outcome) == (3, "exited")
    assert attempt.ended_at is not None
    assert attempt.started_at is not None
    assert attempt.ended_at - attempt.started_at == 700
    assert rig.object(log_key(job, 1)) == b"begin\nend\nrc=3\n"
    assert rig.disk.attempts == {}, "its folder is removed"


def test_the_first_fact_of_an_incarnation_is_ready(rig: Rig) -> None:
    rig.steps()
    (ready,) = rig.facts()
    assert isinstance(ready.fact, e.WorkerReady)
    assert (ready.fact.machine, ready.fact.cursor, ready.fact.running) == ("m1", 0, ())


def test_each_fact_carries_the_number_after_the_last_handled_message(rig: Rig) -> None:
    first = a_running_job(rig)
    rig.local(first).finish(0)
    rig.settle()
    rig.submit()
    rig.steps()
    assert [s.cursor for s in rig.said(e.AttemptStarted)] == [1, 2]


def test_the_claim_is_put_after_the_plan_is_on_the_disk(rig: Rig) -> None:
    order: list[str] = []
    rig.effects.on_effect = lambda number, what: order.append(what)
    job = a_running_job(rig)
    claim = f"before put {claim_key(job, 1)}"
    assert order.index(f"disk: after prepare {job}.1") < order.index(claim)
    assert order.index(claim) < order.index(f"disk: before launch {job}.1")


def test_a_script_is_fetched_and_one_without_a_first_line_runs_by_bash(rig: Rig) -> None:
    script = b"echo hello\n"
    sha256 = hashlib.sha256(script).hexdigest()
    rig.store.put_once(blob_key(sha256), script)
    job = a_running_job(rig, script=sha256, argv=("--lr", "1"))
    plan = rig.local(job).plan()
    assert plan is not None
    assert plan.argv == ("bash", f"/fake/{job}.1/script", "--lr", "1")


def test_a_command_that_is_too_long_for_a_fact_is_fetched(rig: Rig) -> None:
    words = b'{"argv":["train","--lr","1"],"env":{"SEED":"7"}}'
    sha256 = hashlib.sha256(words).hexdigest()
    rig.store.put_once(blob_key(sha256), words)
    plan = rig.local(a_running_job(rig, words=sha256, argv=())).plan()
    assert plan is not None
    assert (plan.argv, plan.env["SEED"]) == (("train", "--lr", "1"), "7")


def test_a_command_that_is_not_in_the_store_fails_the_start(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit(words="0" * 64, argv=())
    rig.settle()
    assert "its command blobs/000" in rig.attempt(job).reason
    assert rig.disk.executed == {}


@pytest.mark.parametrize("body", [None, b"something else"])
def test_a_script_that_is_not_what_was_submitted_fails_the_start(
    rig: Rig, body: bytes | None
) -> None:
    sha256 = hashlib.sha256(b"the script").hexdigest()
    if body is not None:
        rig.store.put_once(blob_key(sha256), body)
    rig.steps()
    rig.turn()
    job = rig.submit(script=sha256)
    rig.settle()
    attempt = rig.attempt(job)
    assert (attempt.outcome, attempt.rc) == ("failed_to_start", 127)
    assert "submit it again" in attempt.reason
    assert rig.disk.executed == {}
    assert rig.object(log_key(job, 1)) == b"rc=127\n"


# --- claims


def test_a_claim_lost_to_a_revoke_is_skipped(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    rig.revoke(AttemptRef(job, 1))
    rig.steps()
    assert rig.disk.executed == {}
    assert [s.cursor for s in rig.said(e.MessageSkipped)] == [1]


def test_a_former_claim_of_which_nothing_is_here_is_lost(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    claim = rig.claim(AttemptRef(job, 1), "start", FORMER)
    rig.store.put_new(claim_key(job, 1), e.encode(claim))
    rig.steps()
    (loss,) = rig.said(e.AttemptLost)
    assert (loss.job, loss.ran, loss.cursor) == (job, True, 1)
    assert rig.disk.executed == {}


def test_a_claim_of_another_worker_is_a_broken_ledger(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    claim = rig.claim(AttemptRef(job, 1), "start", WriterName("n2-cpu0~bbbbbbbb"))
    rig.store.put_new(claim_key(job, 1), e.encode(claim))
    with pytest.raises(LedgerError, match="n1-cpu0"):
        rig.step()


class Doubt:
    """``put_new`` of a claim lands, but nobody hears of it for a while."""

    def __init__(self, rig: Rig, *, lands: bool = True) -> None:
        self.lasts = True
        self._put_new = rig.workers_view.put_new
        self._lands = lands
        rig.workers_view.put_new = self  # type: ignore[method-assign]

    def __call__(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        if not self.lasts:
            return self._put_new(key, body)
        if self._lands:
            self._put_new(key, body)
        raise InDoubtError("no news")


def test_a_claim_in_doubt_for_a_moment_still_starts(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    doubt = Doubt(rig)
    rig.steps()
    assert rig.disk.executed == {}
    doubt.lasts = False
    rig.clock.advance_ms(TIMINGS.retry_max_ms)
    rig.steps()
    assert rig.disk.executed == {f"{job}.1": 1}


@pytest.mark.parametrize("lands", [True, False])
def test_a_claim_in_doubt_for_too_long_is_never_started(rig: Rig, lands: bool) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    doubt = Doubt(rig, lands=lands)
    rig.steps()
    rig.clock.advance_ms(TIMINGS.start_within_ms + 1)
    rig.steps()
    doubt.lasts = False
    rig.clock.advance_ms(TIMINGS.retry_max_ms)
    rig.steps()
    (loss,) = rig.said(e.AttemptLost)
    assert (loss.job, loss.ran) == (job, False)
    assert rig.disk.executed == {}
    rig.turn()
    assert rig.job(job).state is JobState.ASSIGNED, "it may run again, because it never ran"
    assert len(rig.job(job).attempts) == 2


def test_a_stop_that_comes_while_its_claim_is_in_doubt_is_obeyed(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    doubt = Doubt(rig)
    rig.steps()
    rig.world.see(e.ClaimSeen(job=job, attempt=1, owner="start"))
    rig.world.cancel(job)
    rig.turn()
    doubt.lasts = False
    rig.clock.advance_ms(TIMINGS.retry_max_ms)
    assert rig.worker is not None
    rig.worker.hurry()
    rig.settle()
    assert rig.job(job).state is JobState.CANCELLED
    started = rig.disk.executed[f"{job}.1"]
    assert started == 0 or rig.attempt(job).outcome == "stopped"


# --- stops


def test_a_stop_is_passed_to_the_runner_with_the_grace_of_the_message(rig: Rig) -> None:
    job = a_running_job(rig, grace_ms=7_000)
    rig.world.cancel(job)
    rig.turn()
    rig.clock.advance_ms(TIMINGS.mailbox_alone_ms * 2)
    rig.steps()
    assert rig.local(job).stops == [("cancelled", 7_000)]
    rig.local(job).finish(143, "stopped")
    rig.settle()
    assert rig.job(job).state is JobState.CANCELLED
    (end,) = rig.said(e.AttemptFinished)
    assert end.cursor == 2


def test_a_stop_of_what_has_ended_is_skipped(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.world.cancel(job)
    rig.turn()
    rig.local(job).finish(0)
    rig.settle()
    rig.clock.advance_ms(TIMINGS.mailbox_alone_ms * 2)
    rig.steps(2)
    assert rig.said(e.MessageSkipped)[-1].cursor == 2
    assert rig.job(job).state is JobState.COMPLETED


# --- adoption


def test_a_running_job_is_adopted_by_the_next_incarnation(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.clock.advance_ms(1)
    rig.steps()
    assert rig.said(e.WorkerReady)[-1].running == (AttemptRef(job, 1),)
    rig.local(job).finish(5)
    rig.settle()
    assert rig.attempt(job).rc == 5
    assert rig.disk.executed == {f"{job}.1": 1}


def test_a_job_that_ended_while_no_worker_was_there_is_reported_with_its_true_end(
    rig: Rig,
) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.clock.advance_ms(1_000)
    rig.local(job).finish(5)
    ended_at = rig.clock.wall_ms()
    rig.clock.advance_ms(3_600_000)
    rig.settle()
    assert (rig.attempt(job).rc, rig.attempt(job).ended_at) == (5, ended_at)


def test_what_runs_here_no_more_and_left_no_trace_is_lost_at_once(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.kill()
    rig.disk.attempts.clear()
    rig.steps()
    (loss,) = rig.said(e.AttemptLost)
    assert (loss.job, loss.ran) == (job, True)
    rig.turn()
    assert rig.job(job).state is JobState.NODE_FAIL
    assert rig.world.state.workers[WORKER].occupant is None


def test_what_was_started_is_announced_by_the_next_incarnation(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()

    def die(_number: int, what: str) -> None:
        if what.startswith("disk: after launch"):
            raise Death

    rig.effects.on_effect = die
    rig.steps()
    assert rig.deaths == 1
    rig.effects.on_effect = lambda number, what: None
    rig.clock.advance_ms(1_000)
    started_at = rig.clock.wall_ms() - 1_000
    rig.steps()
    rig.turn()
    assert rig.job(job).state is JobState.RUNNING
    assert rig.attempt(job).started_at == started_at
    assert rig.disk.executed == {f"{job}.1": 1}


def test_what_the_ledger_takes_for_started_is_lost_once_though_its_order_is_read_again(
    rig: Rig,
) -> None:
    rig.steps()
    rig.turn()
    job = rig.submit()
    claim = rig.claim(AttemptRef(job, 1), "start", FORMER)
    rig.store.put_new(claim_key(job, 1), e.encode(claim))
    rig.world.see(e.ClaimSeen(job=job, attempt=1, owner="start"))
    rig.turn()
    rig.kill()
    rig.steps(2)
    assert len(rig.said(e.AttemptLost)) == 1
    assert rig.said(e.MessageSkipped)[-1].cursor == 1


def test_a_worker_that_lost_its_disk_reads_no_message_twice(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.local(job).finish(0)
    rig.settle()
    rig.kill()
    rig.disk.notes = None
    rig.disk.spools.records.clear()
    rig.clock.advance_ms(1)
    rig.steps()
    assert rig.said(e.WorkerReady)[-1].cursor == 1
    assert rig.said(e.AttemptLost) == []


def test_a_runner_that_died_is_reaped_and_its_attempt_lost(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.local(job).standing = "dead"
    rig.steps()
    rig.turn()
    assert rig.attempt(job).phase is Phase.ENDED
    assert rig.attempt(job).outcome == "lost"
    assert rig.object(log_piece_key(job, 1, 0)) == b"begin\n"


def test_an_adopted_attempt_that_was_superseded_is_killed_without_grace(rig: Rig) -> None:
    job = a_running_job(rig, idempotent=True)
    rig.kill()
    rig.world.node_up("n2", 1)
    rig.world.node_is("n1", e.Liveness.GONE)
    rig.turn()
    assert len(rig.job(job).attempts) == 2
    rig.steps()
    assert rig.local(job).stops[0] == ("superseded", 0)


def test_an_adopted_attempt_whose_stop_was_ordered_is_stopped(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.world.cancel(job)
    rig.turn()
    rig.kill()
    rig.start()
    rig.effects.on_effect = outage(f"before get {message_key(WORKER, 1)}")
    rig.steps()
    assert rig.local(job).stops == [("cancelled", TIMINGS.grace_ms)]


def test_each_incarnation_counts_on_from_the_last_also_without_its_notes(rig: Rig) -> None:
    for notes_are_lost in (False, False, True, False):
        if notes_are_lost:
            rig.disk.notes = None
        rig.start()
        rig.steps()
        rig.turn()
        rig.kill()
        rig.clock.advance_ms(1_000)
    assert [ready.incarnation for ready in rig.said(e.WorkerReady)] == [1, 2, 3, 4]


def test_an_incarnation_that_nobody_has_heard_of_yet_is_counted(rig: Rig) -> None:
    rig.effects.on_effect = outage("before put facts/")
    rig.steps(2)
    rig.kill()
    rig.effects.on_effect = lambda number, what: None
    rig.steps(2)
    assert [ready.incarnation for ready in rig.said(e.WorkerReady)] == [1, 2]


def test_an_adopted_attempt_keeps_the_grace_of_its_stop(rig: Rig) -> None:
    job = a_running_job(rig)
    rig.world.cancel(job, 600_000)
    rig.turn()
    rig.kill()
    rig.start()
    rig.effects.on_effect = outage(f"before get {message_key(WORKER, 1)}")
    rig.steps()
    assert rig.local(job).stops == [("cancelled", 600_000)]


def test_a_second_cancel_reaches_the_runner_with_its_shorter_grace(rig: Rig) -> None:
    job = a_running_job(rig)
    for grace_ms in (600_000, 1_000):
        rig.world.cancel(job, grace_ms)
        rig.turn()
        rig.clock.advance_ms(TIMINGS.mailbox_followed_ms)
        rig.steps()
    assert rig.local(job).stops == [("cancelled", 600_000), ("cancelled", 1_000)]
    rig.local(job).finish(137, outcome="stopped")
    rig.settle()
    assert rig.job(job).state is JobState.CANCELLED
    assert rig.attempt(job).rc == 137


def test_the_job_that_ends_is_not_lost_again_before_the_leader_has_read_of_its_end(
    rig: Rig,
) -> None:
    job = a_running_job(rig)
    rig.local(job).finish(0)
    rig.steps(3)
    assert rig.disk.attempts == {}
    rig.kill()
    rig.steps()
    rig.turn()
    assert rig.said(e.AttemptLost) == []
    assert rig.job(job).state is JobState.COMPLETED


# --- refusals


def test_another_machine_does_not_take_over_the_name_of_a_living_node(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.kill()
    rig.machine = "m2"
    with pytest.raises(RequestError, match="another machine"):
        rig.step()
    assert len(rig.said(e.WorkerReady)) == 1


def test_another_machine_takes_over_when_the_former_is_gone(rig: Rig) -> None:
    rig.steps()
    rig.turn()
    rig.kill()
    rig.machine = "m2"
    rig.world.node_is("n1", e.Liveness.GONE)
    rig.turn()
    rig.steps()
    assert {ready.machine for ready in rig.said(e.WorkerReady)} == {"m1", "m2"}


@pytest.mark.parametrize("body", [b'{"v":99,"kind":"run"}', b'{"v":1,"kind":"dance"}'])
def test_a_message_of_the_future_starts_nothing_and_says_so(rig: Rig, body: bytes) -> None:
    job = a_running_job(rig)
    rig.store.put_once(message_key(WORKER, 1), body)
    rig.clock.advance_ms(TIMINGS.mailbox_alone_ms * 2)
    rig.steps()
    assert "upgrade gpuq" in rig.disk.status.problem
    rig.local(job).finish(0)
    rig.settle()
    assert rig.job(job).state is JobState.COMPLETED, "what ran goes on"
    assert "upgrade gpuq" in rig.disk.status.problem


def test_a_message_of_another_worker_is_a_broken_ledger(rig: Rig) -> None:
    rig.steps()
    stray = e.StopMessage(
        ledger="test",
        worker=WorkerName("n2-cpu0"),
        n=0,
        seq=Seq(0),
        job=JobId("aaaaaaaa"),
        attempt=1,
        reason="",
    )
    rig.store.put_once(message_key(WORKER, 0), e.encode(stray))
    rig.clock.advance_ms(TIMINGS.mailbox_alone_ms * 2)
    with pytest.raises(LedgerError, match="n2-cpu0"):
        rig.step()


def test_what_cannot_be_killed_blocks_the_slot_until_it_is_gone(rig: Rig) -> None:
    job = a_running_job(rig)
    zombie = Identity(99, 1, "boot")
    rig.disk.unkillable.add(zombie)
    rig.local(job).finish(0, unkillable=(zombie,))
    rig.steps()
    rig.turn()
    assert rig.job(job).state is JobState.COMPLETED, "its end is reported all the same"
    following = rig.submit()
    rig.steps()
    assert "cannot be killed" in rig.disk.status.problem
    assert rig.object(claim_key(following, 1)) is None
    assert rig.disk.status.cursor == 1, "the order to run it is not handled"
    rig.disk.unkillable.clear()
    rig.steps()
    assert rig.disk.executed[f"{following}.1"] == 1
    assert rig.disk.status.problem == ""
