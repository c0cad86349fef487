"""What each event means: the fold, rule by rule.

The rules are those of docs/ARCHITECTURE.md, "Rules the model forced". Each test fails
without its rule. What the leader decides in answer is in tests/scheduling.
"""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from ledger import events as e
from ledger.errors import LedgerError, UpgradeError
from ledger.events import AttemptRef, JobState, Liveness, encode
from ledger.keys import FactKey
from ledger.names import Epoch, NodeName, Seq, WorkerName, WriterName
from ledger.projection import Projection
from ledger.state import Phase
from tests.world import (
    START_MS,
    World,
    assigned_job,
    job_id,
    lost_job,
    running_job,
    world_of_one_node,
)

W0 = WorkerName("n1-cpu0")
OTHER = WriterName("dispatcher-n2~bbbbbbbb")


def page_after(projection: Projection, **fields: object) -> e.Page:
    """The successor of the last folded page, by the current leader unless said."""
    state = projection.state
    plain: dict[str, object] = {
        "ledger": state.ledger,
        "seq": Seq(state.seq + 1),
        "epoch": state.epoch,
        "leader": state.leader,
        "at": state.at,
        "prev_sha256": state.page_sha256,
        "rules": 1,
        "fair": "",
        "put_id": e.PutId("x"),
    }
    return e.Page(**(plain | fields))  # type: ignore[arg-type]


def apply(projection: Projection, page: e.Page) -> bool:
    return projection.apply(page, hashlib.sha256(encode(page)).hexdigest())


def posted(fact: e.AnyFact, writer: str, n: int) -> e.Posted:
    name = WriterName(writer)
    key = FactKey(stamp_ms=START_MS, writer=name, n=n, kind=e.kind_of(fact)).format()
    return e.Posted(key=key, fact=msgspec.structs.replace(fact, writer=name, n=n))


# --- the chain --------------------------------------------------------------------------


def test_a_page_of_another_ledger_a_gap_and_a_broken_chain_are_refused() -> None:
    projection = world_of_one_node().fold()
    wrong: list[tuple[dict[str, object], str]] = [
        ({"ledger": "other"}, "page 2 belongs to ledger other"),
        ({"seq": Seq(3)}, "page 3 cannot follow page 1"),
        ({"seq": Seq(1)}, "page 1 cannot follow page 1"),
        ({"prev_sha256": "0" * 64}, "broken chain at page 2"),
    ]
    for fields, message in wrong:
        with pytest.raises(LedgerError, match=message):
            apply(projection, page_after(projection, **fields))
    assert apply(projection, page_after(projection))


def test_a_page_of_a_newer_format_asks_for_an_upgrade() -> None:
    projection = world_of_one_node().fold()
    with pytest.raises(UpgradeError, match=r"page 2 has format 2.*upgrade gpuq"):
        apply(projection, page_after(projection, v=2))


# --- rule 3: who may post ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "leader"),
    [
        pytest.param(1, OTHER, id="another leader of the same epoch"),
        pytest.param(0, None, id="an older epoch"),
        pytest.param(2, None, id="a newer epoch without an election"),
    ],
)
def test_a_page_that_is_not_the_leaders_is_void(epoch: int, leader: WriterName | None) -> None:
    made = world_of_one_node()
    projection = made.fold()
    before = msgspec.to_builtins(projection.state)
    spec = e.JobSpec(
        id=job_id(7), name="x", organization="a", workload_class="batch", pool="p", user="u"
    )
    page = page_after(
        projection,
        epoch=Epoch(epoch),
        leader=leader or projection.state.leader,
        at=projection.state.at + 5,
        facts=(posted(e.Submitted(at=0, job=spec), "cli~cccccccc", 0),),
        seen=(e.NodeSeen(node=NodeName("n1"), liveness=Liveness.GONE),),
    )
    assert not apply(projection, page)
    # It takes its place in the chain and changes nothing else.
    sha256 = hashlib.sha256(encode(page)).hexdigest()
    expected = before | {"seq": 2, "page_sha256": sha256, "void_pages": 1}
    assert msgspec.to_builtins(projection.state) == expected


@pytest.mark.parametrize(("epoch", "is_legitimate"), [(1, False), (2, True), (3, False)])
def test_an_election_is_of_the_next_epoch_or_void(epoch: int, is_legitimate: bool) -> None:
    projection = world_of_one_node().fold()
    page = page_after(
        projection, epoch=Epoch(epoch), leader=OTHER, decisions=(e.Elected(format=1),)
    )
    assert apply(projection, page) is is_legitimate
    assert (projection.state.leader == OTHER) is is_legitimate


def test_after_an_election_the_former_leaders_pages_are_void() -> None:
    projection = world_of_one_node().fold()
    former = projection.state.leader
    apply(
        projection,
        page_after(projection, epoch=Epoch(2), leader=OTHER, decisions=(e.Elected(format=1),)),
    )
    assert not apply(projection, page_after(projection, epoch=Epoch(1), leader=former))
    assert apply(projection, page_after(projection))


def test_time_never_goes_back() -> None:
    projection = world_of_one_node().fold()
    apply(projection, page_after(projection, at=START_MS + 500))
    apply(projection, page_after(projection, at=START_MS + 200))
    assert projection.state.at == START_MS + 500


# --- rules 15 and 16: admission and order -----------------------------------------------


def test_a_refused_fact_uses_up_its_number_and_its_job_is_known_as_refused() -> None:
    made = world_of_one_node()
    made.see(
        e.FactRefused(
            key="k", writer=WriterName("cli~zzzzzzzz"), n=4, reason="too large", job="aaaaaaah"
        )
    )
    made.turn()
    assert made.state.writers[WriterName("cli~zzzzzzzz")] == 5
    assert made.state.refused == {"aaaaaaah": "too large"}


def test_the_next_number_of_a_writer_does_not_fall() -> None:
    made = world_of_one_node()
    made.submit()
    made.submit()
    made.turn()
    writer = WriterName("cli-a~aaaaaaaa")
    made.see(e.FactRefused(key="k", writer=writer, n=0, reason="seen twice"))
    made.turn()
    assert made.state.writers[writer] == 2
    projection = made.fold()
    spec = made.job(job_id(0)).spec
    again = posted(e.Submitted(at=0, job=spec), writer, 0)
    apply(projection, page_after(projection, facts=(again,)))
    assert projection.state.writers[writer] == 2


def test_the_newest_stamp_is_that_of_an_admitted_fact() -> None:
    made = world_of_one_node()
    made.at += 7
    made.submit()
    made.turn()
    assert made.state.newest_stamp_ms == START_MS + 7
    made.turn(after_ms=100)
    assert made.state.newest_stamp_ms == START_MS + 7


def test_within_a_page_facts_come_before_seen_and_decisions() -> None:
    """The ready fact says fresh, the leader's own look says stale: the look counts."""
    made = World()
    made.node_is("n1", Liveness.STALE)
    made.node_up("n1", 1)
    job = made.submit()
    assert [d for d in made.turn() if isinstance(d, e.AttemptAssigned)] == []
    assert made.job(job).state is JobState.PENDING


# --- rules 1 and 2: messages ------------------------------------------------------------


def test_a_stop_has_its_number_and_worker_in_the_page() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.cancel(job)
    stop = e.StopOrdered(job=job, attempt=1, worker=W0, message=1, reason="cancelled")
    assert made.turn() == [stop]
    message = made.state.workers[W0].messages[1]
    assert message == e.StopMessage(
        ledger="test",
        worker=W0,
        n=1,
        seq=Seq(4),
        job=job,
        attempt=1,
        reason="cancelled",
        machine="n1",
    )


def test_a_message_number_that_is_not_the_next_cannot_be_folded() -> None:
    made = world_of_one_node()
    job = running_job(made)
    projection = made.fold()
    for number in (0, 2):
        stop = e.StopOrdered(job=job, attempt=1, worker=W0, message=number, reason="r")
        with pytest.raises(AssertionError):
            projection.apply_decision(stop)


def test_a_message_is_kept_until_the_cursor_has_passed_it() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    assert sorted(made.state.workers[W0].messages) == [0]
    run = made.state.workers[W0].messages[0]
    assert isinstance(run, e.RunMessage)
    assert (run.n, run.seq, run.job.id, run.attempt, run.slots) == (0, 2, job, 1, (W0,))
    made.start(job)
    made.turn()
    assert made.state.workers[W0].messages == {}


def test_a_message_of_a_revoked_attempt_is_kept_all_the_same() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    made.cancel(job)
    made.turn()
    made.claim(job, "revoke")
    made.turn()
    assert made.job(job).state is JobState.CANCELLED
    assert sorted(made.state.workers[W0].messages) == [0]
    made.skip(W0)
    made.turn()
    assert made.state.workers[W0].messages == {}


def test_a_message_above_the_cursor_is_kept() -> None:
    """A stop follows a run that its worker has not yet passed: the start passes only the run."""
    made = world_of_one_node()
    job = assigned_job(made)
    made.cancel(job)
    made.turn()
    made.claim(job, "start")
    made.turn()
    assert sorted(made.state.workers[W0].messages) == [0, 1]
    made.start(job)
    made.turn()
    assert sorted(made.state.workers[W0].messages) == [1]


def test_an_older_cursor_brings_nothing_back() -> None:
    made = world_of_one_node()
    running_job(made)
    made.ready_again(W0, cursor=0, running=[AttemptRef(job_id(0), 1)])
    made.turn()
    assert made.state.workers[W0].cursor == 1


# --- rule 7: cancel ---------------------------------------------------------------------


def test_a_cancel_of_an_unknown_job_waits_for_its_submit() -> None:
    made = world_of_one_node()
    made.cancel(job_id(0))
    made.turn()
    job = made.submit()
    assert made.turn() == []
    assert made.job(job).state is JobState.CANCELLED
    assert made.state.pending_cancels == {}


def test_a_cancel_in_the_same_page_as_its_submit_counts() -> None:
    made = world_of_one_node()
    made.cancel(job_id(0))
    job = made.submit(held=True)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED


@pytest.mark.parametrize("held", [False, True])
def test_a_queued_job_is_cancelled_by_the_fold(held: bool) -> None:
    made = World()
    job = made.submit(held=held)
    made.turn()
    made.cancel(job)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED
    assert made.job(job).ended_at == made.state.at
    assert all(flow.waiting == 0 for flow in made.state.flows.values())


def test_an_assigned_job_is_cancelled_by_a_revoke() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    made.cancel(job)
    assert made.turn() == [e.RevokeBegun(job=job, attempt=1, reason="cancelled")]
    assert made.state.revoking == [AttemptRef(job, 1)]
    assert made.job(job).state is JobState.ASSIGNED
    made.claim(job, "revoke")
    assert made.turn() == [e.JobRequeued(job=job, reason="cancelled")]
    assert made.job(job).state is JobState.CANCELLED
    assert made.state.revoking == []
    assert not made.attempt(job).ran


def test_a_claim_is_settled_once() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    made.cancel(job)
    made.turn()
    made.claim(job, "revoke")
    made.turn()
    before = made.attempt(job).ended_at
    made.claim(job, "revoke")
    made.turn(after_ms=5)
    assert made.attempt(job).ended_at == before


def test_a_revoke_that_lost_to_a_start_becomes_a_stop() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    made.cancel(job)
    made.turn()
    made.claim(job, "start")
    assert [e.kind_of(d) for d in made.turn()] == ["stop"]
    assert made.job(job).state is JobState.STOPPING
    made.finish(job, outcome="stopped", rc=143)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED


def test_a_second_cancel_changes_nothing() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.cancel(job)
    made.turn()
    made.cancel(job)
    assert made.turn() == []


@pytest.mark.parametrize(
    ("job_grace_ms", "first_ms", "second_ms", "in_force_ms"),
    [
        (0, 600_000, 1_000, 1_000),
        (0, 0, 1_000, 1_000),
        (0, 0, 29_999, 29_999),  # the default is 30 s
        (0, 0, 240_000, None),
        (2_000, 0, 1_000, 1_000),
        (2_000, 0, 3_000, None),
        (0, 1_000, 600_000, None),
        (0, 1_000, 1_000, None),
        (0, 1_000, 0, None),
    ],
)
def test_a_second_cancel_with_a_shorter_grace_orders_one_further_stop(
    job_grace_ms: int, first_ms: int, second_ms: int, in_force_ms: int | None
) -> None:
    made = world_of_one_node()
    job = running_job(made, grace_ms=job_grace_ms)
    made.cancel(job, first_ms)
    made.turn()
    made.cancel(job, second_ms)
    further = e.StopOrdered(
        job=job, attempt=1, worker=W0, message=2, reason="cancelled", grace_ms=in_force_ms or 0
    )
    assert made.turn() == ([] if in_force_ms is None else [further])
    assert made.turn() == []
    cancel = made.job(job).cancel
    assert cancel is not None
    assert cancel.grace_ms == in_force_ms or in_force_ms is None
    made.finish(job, outcome="stopped", rc=137)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED


def test_a_cancel_hastens_what_a_drain_stops() -> None:
    made = world_of_one_node()
    job = running_job(made, grace_ms=600_000)
    made.drain("n1", now=True)
    made.turn()
    made.cancel(job, 1_000)
    [stop] = made.turn()
    assert isinstance(stop, e.StopOrdered)
    assert (stop.message, stop.grace_ms) == (2, 1_000)


def test_a_cancel_that_comes_too_late_leaves_the_end_as_it_was() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.finish(job)
    made.turn()
    made.cancel(job)
    made.turn()
    assert made.job(job).state is JobState.COMPLETED


def test_a_job_that_ends_by_itself_before_its_stop_keeps_its_own_end() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.cancel(job)
    made.turn()
    made.finish(job, rc=0)
    made.turn()
    assert made.job(job).state is JobState.COMPLETED


def test_a_job_whose_node_is_gone_can_be_cancelled() -> None:
    """Its end is provisional: when the node comes back the copy is stopped, not found."""
    made = world_of_one_node()
    job = lost_job(made)
    assert made.job(job).state is JobState.NODE_FAIL
    made.cancel(job)
    made.turn()
    assert made.job(job).state is JobState.CANCELLED
    made.node_is("n1", Liveness.FRESH)
    assert [e.kind_of(d) for d in made.turn()] == ["stop"]
    assert made.job(job).state is JobState.CANCELLED


def test_a_cancel_of_an_archived_job_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.transitions.RECENT_ENDED_MAX", 0)
    made = world_of_one_node()
    job = running_job(made)
    made.finish(job)
    made.turn()
    made.cancel(job)
    made.turn()
    assert made.state.pending_cancels == {}


# --- rule 7: attempts only move forward -------------------------------------------------


def test_finish_implies_start_and_a_late_start_changes_nothing() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    made.finish(job, rc=3)
    made.turn(after_ms=10)
    assert (made.job(job).state, made.attempt(job).rc) == (JobState.FAILED, 3)
    made.start(job)
    made.turn()
    assert (made.job(job).state, made.attempt(job).phase) == (JobState.FAILED, Phase.ENDED)


def test_the_first_finish_counts() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.finish(job, rc=0)
    made.finish(job, rc=9)
    made.turn()
    assert (made.job(job).state, made.attempt(job).rc) == (JobState.COMPLETED, 0)


@pytest.mark.parametrize(
    ("expected", "outcome", "rc"),
    [
        (JobState.COMPLETED, "exited", 0),
        (JobState.FAILED, "exited", 1),
        (JobState.FAILED, "failed_to_start", 126),
        (JobState.TIMEOUT, "timeout", 143),
        (JobState.OUT_OF_MEMORY, "oom", 137),
        (JobState.NODE_FAIL, "exclusive", 137),
    ],
)
def test_what_an_outcome_means(expected: JobState, outcome: str, rc: int) -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.finish(job, rc=rc, outcome=outcome)
    made.turn()
    assert made.job(job).state is expected


def test_a_late_finish_of_a_lost_attempt_ends_the_job() -> None:
    made = world_of_one_node()
    job = lost_job(made)
    assert made.job(job).state is JobState.NODE_FAIL
    made.finish(job, rc=0)
    made.turn()
    assert (made.job(job).state, made.job(job).reason) == (JobState.COMPLETED, "")
    assert made.state.ended == [job]


def test_a_late_finish_ends_a_job_that_waits_to_run_again() -> None:
    made = world_of_one_node()
    job = lost_job(made, idempotent=True)
    assert made.job(job).state is JobState.PENDING
    made.finish(job, rc=0)
    made.turn()
    assert made.job(job).state is JobState.COMPLETED
    assert made.state.flows[made.job(job).spec.flow].waiting == 0


def test_a_late_finish_is_superseded_once_the_next_attempt_is_assigned() -> None:
    made = world_of_one_node()
    job = lost_job(made, idempotent=True)
    made.node_up("n2", 1)
    made.turn()
    assert len(made.job(job).attempts) == 2
    made.finish(job, rc=0, number=1)
    made.turn()
    assert made.attempt(job, 1).superseded
    assert (made.attempt(job, 1).rc, made.job(job).state) == (0, JobState.ASSIGNED)


def test_a_late_finish_does_not_undo_a_cancel() -> None:
    made = world_of_one_node()
    job = lost_job(made, idempotent=True)
    made.cancel(job)
    made.turn()
    made.finish(job, rc=0)
    made.turn()
    assert (made.job(job).state, made.attempt(job).rc) == (JobState.CANCELLED, 0)


def test_a_finish_after_a_lost_report_counts() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.lost(job)
    made.turn()
    assert made.job(job).state is JobState.NODE_FAIL
    made.finish(job, rc=0)
    made.turn()
    assert made.job(job).state is JobState.COMPLETED


def test_a_lost_report_of_a_job_that_never_ran_sends_it_back() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.lost(job, ran=False)
    assert [e.kind_of(d) for d in made.turn()] == ["requeue", "assign"]


def test_a_job_thought_lost_that_never_ran_goes_back() -> None:
    """Its node froze between claim and exec, came back and says that it did not start it."""
    made = world_of_one_node()
    job = lost_job(made)
    assert made.job(job).state is JobState.NODE_FAIL
    made.lost(job, ran=False)
    assert "requeue" in [e.kind_of(d) for d in made.turn()]
    assert made.job(job).state is JobState.PENDING


def test_an_exclusive_job_that_may_rerun_goes_back_when_its_runner_ended_it() -> None:
    made = world_of_one_node()
    job = running_job(made, exclusive=True, idempotent=True)
    made.finish(job, outcome="exclusive", rc=137)
    assert [e.kind_of(d) for d in made.turn()] == ["requeue", "assign"]
