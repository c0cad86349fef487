"""What occupies a slot, who may have a name, what is charged, what is kept: move by move.

The rules are those of docs/ARCHITECTURE.md, "Rules the model forced". Each test fails
without its rule.
"""

from __future__ import annotations

import msgspec
import pytest

from ledger import events as e
from ledger.events import AttemptRef, JobState, Liveness
from ledger.fair_state import SCALE
from ledger.names import FlowId, NodeName, WorkerName
from ledger.policy import Organization, Policy, Pool, WorkloadClass
from ledger.transitions import RECENT_ENDED_MAX, REQUEUES_MAX
from tests.world import World, assigned_job, job_id, lost_job, running_job, world_of_one_node

W0 = WorkerName("n1-cpu0")


# --- rule 5: what holds a slot ----------------------------------------------------------


def occupant(made: World, worker: str = W0) -> AttemptRef | None:
    return made.state.workers[WorkerName(worker)].occupant


def test_a_slot_is_taken_from_assignment_to_finish() -> None:
    made = world_of_one_node()
    job = assigned_job(made)
    assert occupant(made) == AttemptRef(job, 1)
    made.start(job)
    made.turn()
    assert occupant(made) == AttemptRef(job, 1)
    made.finish(job)
    made.turn()
    assert occupant(made) is None


def test_lost_alone_frees_no_slot() -> None:
    made = world_of_one_node()
    job = lost_job(made)
    assert occupant(made) == AttemptRef(job, 1)


def test_a_lost_report_frees_the_slot() -> None:
    made = world_of_one_node()
    job = lost_job(made)
    made.lost(job)
    made.turn()
    assert occupant(made) is None


def test_a_revoke_won_frees_the_slot_and_one_lost_does_not() -> None:
    for owner, expected in [("revoke", None), ("start", AttemptRef(job_id(0), 1))]:
        made = world_of_one_node()
        job = assigned_job(made)
        made.cancel(job)
        made.turn()
        assert occupant(made) == AttemptRef(job, 1)
        made.claim(job, owner)
        made.turn()
        assert occupant(made) == expected


def test_all_slots_of_an_attempt_are_taken_and_freed_together() -> None:
    made = world_of_one_node(slots=2)
    job = running_job(made, slots=2)
    assert occupant(made, "n1-cpu0") == occupant(made, "n1-cpu1") == AttemptRef(job, 1)
    made.finish(job)
    made.turn()
    assert occupant(made, "n1-cpu0") is None
    assert occupant(made, "n1-cpu1") is None


# --- rule 9: ready ----------------------------------------------------------------------


def test_ready_ends_the_occupancy_that_it_does_not_list() -> None:
    made = world_of_one_node()
    running_job(made)
    made.ready_again(W0)
    made.turn()
    assert occupant(made) is None


def test_ready_keeps_the_occupancy_that_it_lists() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.ready_again(W0, running=[AttemptRef(job, 1)])
    made.turn()
    assert occupant(made) == AttemptRef(job, 1)


def test_ready_keeps_an_attempt_whose_message_is_still_to_be_handled() -> None:
    """The worker died between assignment and claim: its next incarnation runs the job."""
    made = world_of_one_node()
    job = assigned_job(made)
    made.ready_again(W0)
    assert made.turn() == []
    assert occupant(made) == AttemptRef(job, 1)


def test_ready_of_a_follower_leaves_the_slots_of_the_lead_alone() -> None:
    """Also where its own mailbox is further on than the message to the lead."""
    made = world_of_one_node(slots=2)
    first = assigned_job(made, worker="n1-cpu1")
    made.finish(first)
    made.turn()
    job = running_job(made, slots=2, worker="n1-cpu0")
    assert made.attempt(job).message < made.state.workers[WorkerName("n1-cpu1")].cursor
    made.ready_again("n1-cpu1")
    made.turn()
    assert occupant(made, "n1-cpu1") == AttemptRef(job, 1)


def test_the_slots_of_a_lead_that_comes_back_only_to_retire_are_freed_by_what_it_tells() -> None:
    made = world_of_one_node(slots=2)
    job = running_job(made, slots=2, worker="n1-cpu1")
    lead = WorkerName("n1-cpu1")
    made.ready_again("n1-cpu0")
    made.turn()
    # It may still run: as long as its lead has not denied that, no other job may have the slot.
    assert occupant(made, "n1-cpu0") == AttemptRef(job, 1)
    made.ready_again(lead)
    made.turn()
    assert occupant(made, "n1-cpu0") == AttemptRef(job, 1)
    made.lost(job)
    made.retire(lead)
    made.turn()
    assert occupant(made, "n1-cpu0") is None
    following = made.submit()
    made.turn()
    assert made.attempt(following).slots == ("n1-cpu0",)


def test_ready_brings_a_retired_or_troubled_worker_back() -> None:
    made = world_of_one_node()
    made.retire(W0)
    made.see(e.SlotSeen(worker=W0, problem="hung"))
    made.turn()
    made.ready_again(W0)
    made.turn()
    worker = made.state.workers[W0]
    assert (worker.retired, worker.problem) == ("", "")


def test_a_former_incarnation_cannot_retire_its_successor() -> None:
    made = world_of_one_node()
    former = made.state.workers[W0].writer
    made.ready_again(W0)
    made.turn()
    made.fact(e.WorkerRetired(at=made.at, worker=W0, cursor=0), former)
    made.turn()
    assert made.state.workers[W0].retired == ""


def test_what_a_former_incarnation_said_and_is_heard_of_late_changes_nothing() -> None:
    made = world_of_one_node()
    slot = made.state.workers[W0].slot
    made.ready(W0, slot, incarnation="bbbbbbbb", number=3)
    job = running_job(made)
    made.ready(W0, slot, incarnation="cccccccc", number=2)
    made.fact(e.WorkerRetired(at=made.at, worker=W0, cursor=0), f"{W0}~cccccccc")
    made.turn()
    worker = made.state.workers[W0]
    assert (worker.writer, worker.incarnation, worker.retired) == (f"{W0}~bbbbbbbb", 3, "")
    assert occupant(made, W0) == AttemptRef(job, 1)


@pytest.mark.parametrize("number", [0, 3, 4])  # 3: its notes were lost before that was heard of
def test_an_incarnation_that_is_not_known_to_be_older_is_believed(number: int) -> None:
    made = world_of_one_node()
    slot = made.state.workers[W0].slot
    made.ready(W0, slot, number=3)
    made.ready(W0, slot, incarnation="bbbbbbbb", number=number)
    made.turn()
    assert made.state.workers[W0].writer == f"{W0}~bbbbbbbb"


# --- rule 11: one machine a name --------------------------------------------------------


def intrude(made: World) -> None:
    made.ready(W0, e.Slot(kind="cpu", index=0), machine="other", incarnation="cccccccc")
    made.turn()


@pytest.mark.parametrize("liveness", [Liveness.FRESH, Liveness.STALE])
def test_a_second_machine_is_refused_while_the_first_is_not_gone(liveness: Liveness) -> None:
    made = world_of_one_node()
    first = made.state.workers[W0].writer
    job = running_job(made)
    made.node_is("n1", liveness)
    made.turn()
    intrude(made)
    node = made.state.nodes[NodeName("n1")]
    assert (node.machine, node.intruder, node.liveness) == ("n1", "other", liveness)
    assert made.state.workers[W0].writer == first
    assert occupant(made) == AttemptRef(job, 1)


def test_a_second_machine_may_have_the_name_of_one_that_is_gone() -> None:
    made = world_of_one_node()
    lost_job(made)
    intrude(made)
    node = made.state.nodes[NodeName("n1")]
    assert (node.machine, node.intruder, node.liveness) == ("other", "", Liveness.FRESH)
    assert occupant(made) is None


def test_a_second_machine_may_have_the_name_of_one_that_has_retired() -> None:
    made = world_of_one_node()
    made.retire(W0)
    made.turn()
    intrude(made)
    assert made.state.nodes[NodeName("n1")].machine == "other"


def test_workers_of_the_former_machine_serve_nothing_until_they_report() -> None:
    """The new machine has one slot where the old one had two."""
    made = world_of_one_node(slots=2)
    made.node_is("n1", Liveness.GONE)
    made.turn()
    intrude(made)
    jobs = [made.submit(), made.submit()]
    made.turn()
    assert [made.job(job).state for job in jobs] == [JobState.ASSIGNED, JobState.PENDING]
    assert made.attempt(jobs[0]).lead == W0


# --- rule 17: keys ----------------------------------------------------------------------


def test_the_same_submit_twice_is_one_job() -> None:
    made = World()
    job = made.submit(key="k")
    made.turn()
    made.fact(e.Submitted(at=made.at, job=made.job(job).spec), "cli-b")
    made.turn()
    assert (len(made.state.jobs), made.job(job).conflicting_submits) == (1, 0)
    assert made.state.flows[made.job(job).spec.flow].waiting == 1


def test_the_same_submit_from_another_machine_is_the_same_job() -> None:
    made = World()
    job = made.submit(key="k", host="here")
    made.turn()
    elsewhere = msgspec.structs.replace(made.job(job).spec, host="there")
    made.fact(e.Submitted(at=made.at, job=elsewhere), "cli-b")
    made.turn()
    assert made.job(job).conflicting_submits == 0


def test_the_same_key_with_another_body_is_counted_and_changes_nothing() -> None:
    made = World()
    job = made.submit(key="k")
    made.turn()
    spec = made.job(job).spec
    made.fact(e.Submitted(at=made.at, job=msgspec.structs.replace(spec, argv=("other",))), "cli-b")
    made.turn()
    assert made.job(job).spec == spec
    assert made.job(job).conflicting_submits == 1


def test_a_key_is_remembered_when_its_job_is_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.transitions.RECENT_ENDED_MAX", 0)
    made = world_of_one_node()
    job = running_job(made, key="k")
    spec = made.job(job).spec
    made.finish(job, rc=4)
    made.turn()
    assert made.state.jobs == {}
    archived = made.state.archive[job]
    assert (archived.state, archived.rc) == (JobState.FAILED, 4)
    made.fact(e.Submitted(at=made.at, job=spec), "cli-b")
    assert made.turn() == []
    assert made.state.jobs == {}


# --- rule 22: settlement, arrival order -------------------------------------------------


def finish_tag(made: World, organization: str = "a") -> int:
    """Of the batch flow, in slot-milliseconds at weight 1."""
    tag = made.state.flows[FlowId(f"{organization}/batch/default")].finish
    assert tag % SCALE == 0
    return tag // SCALE


def test_a_finish_settles_what_was_used() -> None:
    made = world_of_one_node()
    job = running_job(made, estimate_ms=1000)
    assert finish_tag(made) == 1000
    made.at += 300
    made.finish(job)
    made.turn()
    assert finish_tag(made) == 300


def test_two_slots_cost_twice_the_time() -> None:
    made = world_of_one_node(slots=2)
    job = running_job(made, slots=2, estimate_ms=1000)
    assert finish_tag(made) == 2000
    made.at += 300
    made.finish(job)
    made.turn()
    assert finish_tag(made) == 600


def test_a_revoked_attempt_costs_nothing() -> None:
    made = world_of_one_node()
    job = assigned_job(made, estimate_ms=1000)
    assert finish_tag(made) == 1000
    made.cancel(job)
    made.turn()
    made.at += 500
    made.claim(job, "revoke")
    made.turn()
    assert finish_tag(made) == 0


def test_a_lost_attempt_is_settled_once_and_what_follows_is_free() -> None:
    """Declared lost after 200 ms, found at 500, finished at 900: 200 were charged."""
    made = world_of_one_node()
    job = running_job(made, estimate_ms=1000)
    made.node_is("n1", Liveness.GONE)
    made.turn(after_ms=200)
    assert finish_tag(made) == 200
    made.node_is("n1", Liveness.FRESH)
    assert [e.kind_of(d) for d in made.turn(after_ms=300)] == ["found"]
    made.at += 400
    made.finish(job)
    made.turn()
    assert finish_tag(made) == 200
    assert made.state.flows[made.job(job).spec.flow].running == 0


def test_a_lost_report_settles_by_whether_it_ran() -> None:
    for ran, expected in [(True, 250), (False, 0)]:
        made = world_of_one_node()
        job = running_job(made, estimate_ms=1000)
        made.cancel(job)  # so that it is not assigned again
        made.at += 250
        made.lost(job, ran=ran)
        made.turn()
        assert (made.job(job).state, finish_tag(made)) == (JobState.CANCELLED, expected)


def test_the_weight_of_the_dispatch_is_that_of_the_settlement() -> None:
    """Charged 1000 at weight 1; at the end its organization weighs 2: 400 are 400."""
    made = world_of_one_node()
    job = running_job(made, estimate_ms=1000)
    made.apply_policy(Policy(organizations={"a": Organization(weight=2000)}))
    made.at += 400
    made.finish(job)
    made.turn()
    assert finish_tag(made) == 400


def test_a_requeued_job_keeps_its_place() -> None:
    made = world_of_one_node()
    first = running_job(made, idempotent=True)
    second, third = made.submit(), made.submit()
    made.lost(first)
    made.turn()
    # Its slot is free again, and it goes before those that came after it.
    assert made.job(first).state is JobState.ASSIGNED
    assert [made.job(job).state for job in (second, third)] == [JobState.PENDING] * 2


def test_a_job_that_goes_back_too_often_is_held() -> None:
    made = world_of_one_node()
    job = made.submit()
    for _ in range(REQUEUES_MAX):
        made.turn()
        made.lost(job, ran=False)
        made.turn()
        assert made.job(job).state is JobState.ASSIGNED
    made.lost(job, ran=False)
    made.turn()
    assert made.job(job).state is JobState.HELD
    assert made.job(job).reason == "requeued 6 times, last because state lost"
    made.release(job)
    made.turn()
    assert (made.job(job).state, made.job(job).requeues) == (JobState.ASSIGNED, 0)


# --- holds, drains, policies ------------------------------------------------------------


def test_hold_and_release() -> None:
    made = World()
    job = made.submit()
    made.turn()
    made.hold(job)
    made.turn()
    assert (made.job(job).state, made.job(job).reason) == (JobState.HELD, "held by test")
    assert made.state.flows[made.job(job).spec.flow].waiting == 0
    made.node_up("n1", 1)
    assert made.turn() == []
    made.release(job)
    made.turn()
    assert made.job(job).state is JobState.ASSIGNED


def test_a_hold_of_a_running_job_changes_nothing() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.hold(job)
    made.turn()
    assert made.job(job).state is JobState.RUNNING


def test_a_drained_node_takes_nothing_until_it_is_undrained() -> None:
    made = world_of_one_node()
    made.drain("n1")
    job = made.submit()
    made.turn()
    assert made.job(job).state is JobState.PENDING
    made.undrain("n1")
    made.turn()
    assert made.job(job).state is JobState.ASSIGNED


def test_a_running_job_is_not_stopped_by_a_drain() -> None:
    made = world_of_one_node()
    job = running_job(made)
    made.drain("n1")
    assert made.turn() == []
    assert made.job(job).state is JobState.RUNNING


def test_a_roster_moves_a_worker_to_its_pool_and_back() -> None:
    made = world_of_one_node(policy=Policy(pools={"h100": Pool(workers=("n1",))}))
    assert made.state.workers[W0].pool == "h100"
    made.apply_policy(Policy())
    made.turn()
    assert made.state.workers[W0].pool == "default"
    assert made.state.policy_version == 2


# --- the archive ------------------------------------------------------------------------


def test_recent_jobs_are_kept_whole_and_older_ones_as_a_line() -> None:
    made = World()
    jobs = [made.submit() for _ in range(RECENT_ENDED_MAX + RECENT_ENDED_MAX // 4)]
    for job in jobs:
        made.cancel(job)
    made.turn()
    assert len(made.state.jobs) == RECENT_ENDED_MAX
    assert list(made.state.archive) == jobs[: RECENT_ENDED_MAX // 4]
    assert made.state.ended == jobs[RECENT_ENDED_MAX // 4 :]


def test_a_job_that_still_holds_a_slot_is_not_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.transitions.RECENT_ENDED_MAX", 0)
    made = world_of_one_node()
    job = lost_job(made)
    assert made.job(job).state is JobState.NODE_FAIL
    made.lost(job)
    made.turn()
    assert list(made.state.archive) == [job]


# --- weights that no policy file would allow --------------------------------------------


def test_a_weight_of_zero_or_less_stops_nobody() -> None:
    """Whoever puts such a fact must not stop every reader for ever."""
    for weight in (0, -5):
        policy = Policy(
            organizations={"a": Organization(weight=weight)},
            classes={"batch": WorkloadClass(weight=weight)},
        )
        made = world_of_one_node(policy=policy)
        job = made.submit()
        made.turn()
        assert made.job(job).state is JobState.ASSIGNED
