"""What the leader decides about attempts whose node, worker or job has changed.

The rules are those of docs/ARCHITECTURE.md, "Rules the model forced".
"""

from __future__ import annotations

import msgspec
import pytest

from ledger import events as e
from ledger.events import AttemptRef, JobState, Liveness
from ledger.names import Seq, WorkerName
from ledger.state import Phase
from scheduling.decide import Scheduler
from tests.world import (
    START_MS,
    World,
    assigned_job,
    lost_job,
    running_job,
    sha256_of,
    world_of_one_node,
)

W0 = WorkerName("n1-cpu0")


def kinds(world: World) -> list[str]:
    """Post a page; the kinds of its decisions, without those about flows."""
    return [k for d in world.turn() if (k := e.kind_of(d)) not in ("block", "free")]


# --- nothing is left to decide ----------------------------------------------------------


def test_a_second_look_at_the_same_time_decides_nothing() -> None:
    world = world_of_one_node(2)
    for _ in range(5):
        world.submit()
    world.turn()
    assert world.turn() == []
    assert world.turn(elected=True)[1:] == []


def test_an_election_by_itself_decides_nothing_else() -> None:
    world = world_of_one_node()
    running_job(world)
    world.submit(slots=1)
    world.submit("b", slots=2)
    world.turn()
    assert world.turn(elected=True) == [e.Elected(format=e.SCHEMA)]


def test_a_new_leader_looks_at_all_that_was_left_undecided() -> None:
    """By a page of other rules, say: its facts count, and nobody acted on them."""
    world = World()
    world.node_up("n1", 1)
    job = world.submit()
    left = msgspec.structs.replace(
        world.pages[0],
        seq=Seq(1),
        prev_sha256=world.state.page_sha256,
        facts=tuple(world.facts),
        decisions=(),
    )
    world.facts = []
    world.projection.apply(left, sha256_of(left))
    world.scheduler = Scheduler(world.projection)
    assert world.turn() == []
    assert "assign" in [e.kind_of(d) for d in world.turn(elected=True)]
    assert world.job(job).state is JobState.ASSIGNED


# --- a node that is silent --------------------------------------------------------------


def test_what_is_not_claimed_is_taken_back_from_a_stale_node() -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    world.node_is("n1", Liveness.STALE)
    decisions = world.turn()
    assert decisions[0] == e.RevokeBegun(job=job, attempt=1, reason="node n1 is stale")
    assert world.job(job).state is JobState.ASSIGNED
    world.claim(job, "revoke")
    assert kinds(world) == ["requeue"]
    assert world.job(job).state is JobState.PENDING


def test_what_runs_on_a_stale_node_runs_on() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.node_is("n1", Liveness.STALE)
    assert kinds(world) == []
    assert world.job(job).state is JobState.RUNNING


def test_what_ran_on_a_node_that_is_gone_is_lost() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.node_is("n1", Liveness.GONE)
    assert world.turn()[0] == e.LossDeclared(job=job, attempt=1)
    assert world.job(job).state is JobState.NODE_FAIL


def test_only_a_known_start_is_lost_and_an_open_claim_is_revoked_first() -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    world.node_is("n1", Liveness.GONE)
    assert kinds(world) == ["revoke"]
    world.claim(job, "start")
    assert kinds(world) == ["lost"]


def test_a_lost_job_runs_again_only_where_that_is_allowed() -> None:
    for idempotent, expected in [(True, JobState.PENDING), (False, JobState.NODE_FAIL)]:
        world = world_of_one_node()
        job = lost_job(world, idempotent=idempotent)
        assert world.job(job).state is expected


def test_an_attempt_is_found_when_its_node_comes_back() -> None:
    for idempotent in (True, False):
        world = world_of_one_node()
        job = lost_job(world, idempotent=idempotent)
        world.node_is("n1", Liveness.FRESH)
        assert kinds(world) == ["found"]
        assert world.job(job).state is JobState.RUNNING
        assert world.state.ended == []
        world.finish(job)
        world.turn()
        assert world.job(job).state is JobState.COMPLETED


def test_an_attempt_that_was_replaced_is_stopped_when_its_node_comes_back() -> None:
    world = world_of_one_node()
    job = lost_job(world, idempotent=True)
    world.node_up("n2", 1)
    assert kinds(world) == ["assign"]
    world.node_is("n1", Liveness.FRESH)
    stop = e.StopOrdered(job=job, attempt=1, worker=W0, message=1, reason="superseded")
    assert world.turn() == [stop]
    assert world.attempt(job, 1).phase is Phase.LOST
    world.finish(job, number=1, outcome="stopped", rc=143)
    world.turn()
    assert world.attempt(job, 1).phase is Phase.ENDED
    assert world.job(job).state is JobState.ASSIGNED


def test_a_lost_attempt_of_a_cancelled_job_is_stopped_when_its_node_comes_back() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.cancel(job)
    world.node_is("n1", Liveness.GONE)
    assert kinds(world) == ["lost"]
    assert world.job(job).state is JobState.CANCELLED
    world.node_is("n1", Liveness.FRESH)
    assert kinds(world) == ["stop"]


def test_what_its_workers_next_incarnation_does_not_know_is_not_found() -> None:
    """Its slot is free for others: it is for the worker to report it as lost."""
    for event in ("fresh", "elect"):
        world = world_of_one_node()
        job = lost_job(world)
        world.ready_again(W0)
        world.turn()
        if event == "fresh":
            world.node_is("n1", Liveness.FRESH)
        assert "found" not in [e.kind_of(d) for d in world.turn(elected=event == "elect")]
        assert world.job(job).state is JobState.NODE_FAIL


def test_what_another_machine_of_that_name_cannot_know_is_not_found() -> None:
    world = world_of_one_node(2)
    jobs = [running_job(world), running_job(world)]
    world.node_is("n1", Liveness.GONE)
    world.turn()
    world.ready(W0, e.Slot(kind="cpu", index=0), machine="other", incarnation="cccccccc")
    world.turn()
    world.turn(elected=True)
    assert [world.job(job).state for job in jobs] == [JobState.NODE_FAIL] * 2


def test_an_attempt_found_by_the_next_incarnation_goes_on() -> None:
    world = world_of_one_node()
    job = lost_job(world)
    world.ready_again(W0, running=[AttemptRef(job, 1)])
    assert kinds(world) == ["found"]
    assert world.job(job).state is JobState.RUNNING


def test_what_nobody_reports_is_lost_when_the_node_is_gone() -> None:
    """The worker's next incarnation began, and its node died before it could report the loss."""
    world = world_of_one_node()
    job = running_job(world)
    world.ready_again(W0)
    world.turn()
    assert world.job(job).state is JobState.RUNNING
    world.node_is("n1", Liveness.GONE)
    assert kinds(world) == ["lost"]
    assert world.job(job).state is JobState.NODE_FAIL


# --- a worker that is in trouble --------------------------------------------------------


@pytest.mark.parametrize("trouble", ["retired", "problem", "drained"])
def test_what_is_not_claimed_is_taken_back_from_a_slot_in_trouble(trouble: str) -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    if trouble == "retired":
        world.retire(W0)
    elif trouble == "problem":
        world.see(e.SlotSeen(worker=W0, problem="hung"))
    else:
        world.drain("n1")
    assert kinds(world) == ["revoke"]
    world.claim(job, "start")
    assert kinds(world) == []
    assert world.job(job).state is JobState.RUNNING


def test_a_revoke_goes_on_although_the_node_comes_back() -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    world.node_is("n1", Liveness.STALE)
    world.turn()
    world.node_is("n1", Liveness.FRESH)
    assert kinds(world) == []
    assert world.state.revoking == [AttemptRef(job, 1)]


def test_a_job_taken_back_runs_elsewhere_with_the_next_number() -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    world.node_up("n2", 1)
    world.node_is("n1", Liveness.STALE)
    world.turn()
    world.claim(job, "revoke")
    assert kinds(world) == ["requeue", "assign"]
    assert [(a.number, a.lead) for a in world.job(job).attempts] == [(1, W0), (2, "n2-cpu0")]


# --- stops ------------------------------------------------------------------------------


def test_a_stop_carries_the_grace_of_the_cancel_or_the_job() -> None:
    for cancel_ms, expected in [(0, 5_000), (700, 700)]:
        world = world_of_one_node()
        job = running_job(world, grace_ms=5_000)
        world.fact(e.CancelRequested(at=world.at, job=job, grace_ms=cancel_ms), "cli")
        (stop,) = world.turn()
        assert isinstance(stop, e.StopOrdered)
        assert stop.grace_ms == expected


def test_a_cancel_in_the_page_of_the_start_is_a_stop() -> None:
    world = world_of_one_node()
    job = assigned_job(world)
    world.start(job)
    world.cancel(job)
    assert kinds(world) == ["stop"]


def test_a_cancel_in_the_page_of_the_end_is_nothing() -> None:
    world = world_of_one_node()
    job = running_job(world)
    world.cancel(job)
    world.finish(job, rc=1)
    assert kinds(world) == []
    assert world.job(job).state is JobState.FAILED


# --- overruns ---------------------------------------------------------------------------


def test_an_overrun_is_charged_as_it_grows() -> None:
    """Estimate 80 s. At 80 s: 80 + 80/8 = 90. At 90: 90 + 90/8 = 101.25. Ends at 100: 100."""
    world = world_of_one_node()
    job = running_job(world, estimate_ms=80_000)
    assert world.scheduler.next_due_ms() == START_MS + 80_000
    world.at = START_MS + 79_999
    assert world.turn() == []
    for at_ms, cost_ms in [(80_000, 90_000), (90_000, 101_250)]:
        world.at = START_MS + at_ms
        assert world.turn() == [e.OverrunCharged(job=job, attempt=1, cost_ms=cost_ms)]
        assert world.scheduler.next_due_ms() == START_MS + cost_ms
    world.at = START_MS + 100_000
    world.finish(job)
    world.turn()
    assert world.scheduler.next_due_ms() is None
    flow = world.state.flows[world.job(job).spec.flow]
    assert flow.finish == 100_000 * 1_000_000


def test_a_late_look_charges_all_that_was_used() -> None:
    """Two slots, estimate 80 s each; looked at after 200 s: 400 + 160/8 = 420 slot-seconds."""
    world = world_of_one_node(2)
    job = running_job(world, slots=2, estimate_ms=80_000)
    world.at = START_MS + 200_000
    assert world.turn() == [e.OverrunCharged(job=job, attempt=1, cost_ms=420_000)]


def test_what_is_lost_is_charged_no_more() -> None:
    world = world_of_one_node()
    lost_job(world, estimate_ms=1_000)
    assert world.scheduler.next_due_ms() is None
    assert world.turn(after_ms=10_000_000) == []


# --- estimates --------------------------------------------------------------------------


def charged_ms(world: World, **spec: object) -> int:
    """What a job would be charged: it is assigned, and cancelled again."""
    job = assigned_job(world, estimate_ms=0, **spec)
    cost_ms = world.attempt(job).cost_ms
    world.finish(job, outcome="stopped", rc=143)
    world.turn()
    return cost_ms


def test_an_estimate_is_the_users_or_the_limit_or_what_its_like_took_or_ten_minutes() -> None:
    world = world_of_one_node()
    assert charged_ms(world, name="train-1.sh") == 600_000
    assert charged_ms(world, name="train-1.sh", time_limit_ms=7_000) == 7_000
    for run_ms in (1_000, 2_000):
        job = running_job(world, name=f"train-{run_ms}.sh")
        world.at += run_ms
        world.finish(job)
        world.turn()
    # (3 * 1000 + 2000) // 4
    assert charged_ms(world, name="train-99.sh") == 1_250
    assert charged_ms(world, name="other.sh") == 600_000
    assert charged_ms(world, name="train-99.sh", workload_class="interactive") == 600_000


def test_an_estimate_that_is_forgotten_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """a's job was expected to take 1 s, until c's was remembered instead; b's takes 30 s."""
    monkeypatch.setattr("ledger.transitions.RECENT_STEMS_MAX", 1)
    world = world_of_one_node()
    job = running_job(world, name="a")
    world.at += 1_000
    world.finish(job)
    last = running_job(world, organization="c", name="c")
    forgotten = world.submit("a", name="a", estimate_ms=0)
    other = world.submit("b", estimate_ms=30_000)
    world.turn()
    world.at += 1_000
    world.finish(last)
    world.turn()
    assert world.job(forgotten).state is JobState.PENDING
    assert world.job(other).state is JobState.ASSIGNED


def test_stopped_jobs_teach_nothing() -> None:
    world = world_of_one_node()
    job = running_job(world, name="x")
    world.at += 5
    world.cancel(job)
    world.finish(job, outcome="stopped", rc=143)
    world.turn()
    assert world.state.recent_cost_ms == {}
