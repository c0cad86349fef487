"""Operators' requests: drain, drain now, move, retry, and what a cancel leads to in each state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger import events as e
from ledger.events import JobState, Liveness
from ledger.names import JobId
from ledger.policy import Policy, Pool
from ledger.projection import Projection
from ledger.state import Phase, State
from scheduling.explain import Explainer
from scheduling.queues import Waiting
from tests.world import World, assigned_job, lost_job, running_job, sha256_of, world_of_one_node


def kinds(decisions: list[e.AnyDecision]) -> list[str]:
    return [k for d in decisions if (k := e.kind_of(d)) not in ("block", "free")]


def two_nodes() -> World:
    world = World()
    world.node_up("n1", 1)
    world.node_up("n2", 1)
    world.turn()
    return world


def two_pools() -> World:
    """n1 serves ``default``, n2 ``other``."""
    world = World()
    world.node_up("n1", 1)
    world.node_up("n2", 1, pool="other")
    world.turn()
    return world


def counts(world: World, pool: str) -> tuple[int, int]:
    clock = world.state.pools[pool]
    return clock.waiting, clock.running


def check_replays(world: World) -> None:
    """Whoever folds the pages comes to the same state and the same fair digest."""
    reader = Projection(State(ledger="test"))
    for page in world.pages:
        assert reader.apply(page, sha256_of(page))
        assert reader.fair.digest() == page.fair
    assert reader.state == world.state


# --- drain ------------------------------------------------------------------------------


def test_a_drained_node_finishes_what_runs_and_starts_nothing() -> None:
    world = world_of_one_node()
    runs, waits = running_job(world), world.submit()
    world.drain("n1")
    assert kinds(world.turn()) == []
    assert world.job(runs).state is JobState.RUNNING
    world.finish(runs)
    assert kinds(world.turn()) == []
    assert (world.job(runs).state, world.job(waits).state) == (
        JobState.COMPLETED,
        JobState.PENDING,
    )
    world.undrain("n1")
    assert kinds(world.turn()) == ["assign"]


def test_drain_now_stops_what_runs_and_it_runs_elsewhere() -> None:
    world = two_nodes()
    job = running_job(world, grace_ms=7_000)
    world.drain("n1", now=True)
    (stop,) = (d for d in world.turn() if isinstance(d, e.StopOrdered))
    assert (stop.worker, stop.reason, stop.grace_ms) == ("n1-cpu0", "node n1 is drained", 7_000)
    assert world.job(job).state is JobState.STOPPING
    world.finish(job, rc=143, outcome="stopped")
    assert kinds(world.turn()) == ["requeue", "assign"]
    assert world.attempt(job).lead == "n2-cpu0"
    assert [a.outcome for a in world.job(job).attempts] == ["stopped", ""]
    check_replays(world)


def test_what_drain_now_stops_keeps_its_place_in_its_flow() -> None:
    world = world_of_one_node()
    first = running_job(world)
    second = world.submit()
    world.drain("n1", now=True)
    world.turn()
    world.finish(first, rc=143, outcome="stopped")
    world.turn()
    world.undrain("n1")
    world.turn()
    assert world.job(first).state is JobState.ASSIGNED
    assert world.job(second).state is JobState.PENDING


def test_what_ends_by_itself_under_drain_now_has_ended() -> None:
    world = two_nodes()
    job = running_job(world)
    world.drain("n1", now=True)
    world.turn()
    world.finish(job, rc=0)
    assert kinds(world.turn()) == []
    assert world.job(job).state is JobState.COMPLETED


def test_a_cancel_during_drain_now_is_final() -> None:
    world = two_nodes()
    job = running_job(world)
    world.drain("n1", now=True)
    world.turn()
    world.cancel(job)
    world.turn()
    world.finish(job, rc=143, outcome="stopped")
    assert kinds(world.turn()) == []
    assert world.job(job).state is JobState.CANCELLED


def test_a_job_that_began_unseen_is_stopped_by_drain_now_as_well() -> None:
    world = two_nodes()
    job = assigned_job(world)
    world.drain("n1", now=True)
    assert kinds(world.turn()) == ["revoke"]
    world.claim(job, "start")
    assert kinds(world.turn()) == ["stop"]


def test_a_plain_drain_after_drain_now_and_an_undrain_stop_nothing_more() -> None:
    world = world_of_one_node(2)
    for ask in (lambda: world.drain("n1"), lambda: world.undrain("n1")):
        world.drain("n1", now=True)
        world.turn()
        ask()
        world.turn()
        assert not world.state.nodes["n1"].drained_now  # type: ignore[index]


def test_a_drain_outlives_its_nodes_processes() -> None:
    world = world_of_one_node()
    world.drain("n1")
    world.turn()
    world.ready_again("n1-cpu0")
    job = world.submit()
    assert kinds(world.turn()) == []
    assert world.job(job).state is JobState.PENDING


# --- move -------------------------------------------------------------------------------


def test_a_waiting_job_moves_to_another_pool() -> None:
    world = two_pools()
    running_job(world)
    job = world.submit()
    world.turn()
    assert (counts(world, "default"), world.job(job).state) == ((1, 1), JobState.PENDING)
    world.move(job, "other")
    assert kinds(world.turn()) == ["assign"]
    assert (counts(world, "default"), counts(world, "other")) == ((0, 1), (0, 1))
    assert world.attempt(job).lead == "n2-cpu0"
    assert (world.job(job).spec.pool, world.job(job).placed.pool) == ("default", "other")
    world.start(job)
    world.turn()
    world.finish(job)
    world.turn()
    assert counts(world, "other") == (0, 0)
    check_replays(world)


def test_a_pinned_job_moves_to_another_worker_or_to_any() -> None:
    world = two_nodes()
    world.drain("n1")
    world.drain("n2")
    here = world.submit(worker="n1-cpu0", name="here")
    there = world.submit(worker="n1-cpu0", name="there")
    world.turn()
    world.move(here, "default", "")
    world.move(there, "default", "n2-cpu0")
    world.undrain("n2")
    world.turn()
    assert Explainer(world.projection).why(world.job(there)) == f"n2-cpu0 runs {here}"
    world.start(here)
    world.turn()
    world.finish(here)
    world.turn()
    assert world.assigned() == [here, there]
    assert {world.attempt(job).lead for job in (here, there)} == {"n2-cpu0"}


def test_a_moved_job_waits_behind_those_that_arrived_before_it() -> None:
    world = two_pools()
    running_job(world, pool="other")
    early = world.submit()
    late = world.submit(pool="other")
    world.drain("n1")
    world.turn()
    world.move(early, "other")
    world.turn()
    places = [Waiting.of(world.job(job)) for job in (early, late)]
    assert places == sorted(places)
    assert counts(world, "other") == (2, 1)


def test_an_assigned_job_is_taken_back_before_it_moves() -> None:
    world = two_pools()
    job = assigned_job(world)
    world.move(job, "other")
    assert kinds(world.turn()) == ["revoke"]
    assert world.job(job).placed.pool == "default"
    assert counts(world, "default") == (0, 1)
    world.claim(job, "revoke")
    assert kinds(world.turn()) == ["requeue", "assign"]
    assert world.attempt(job).lead == "n2-cpu0"
    assert world.job(job).requeues == 0
    check_replays(world)


def test_a_job_that_was_taken_back_gets_no_credit_in_its_new_pool() -> None:
    world = two_pools()
    for _ in range(3):
        other = running_job(world, organization="b", pool="other", estimate_ms=5_000)
        world.at += 5_000
        world.finish(other)
    running_job(world, organization="b", pool="other")
    job = assigned_job(world, organization="a")
    world.move(job, "other")
    world.turn()
    world.claim(job, "revoke")
    world.turn()
    reached = world.state.pools["other"].virtual_time
    assert reached > 0
    assert world.projection.flow_of(world.job(job)).since == reached


def test_a_job_that_had_begun_does_not_move() -> None:
    world = two_pools()
    job = assigned_job(world)
    world.move(job, "other")
    world.turn()
    world.claim(job, "start")
    world.turn()
    assert (world.job(job).state, world.job(job).moving) == (JobState.RUNNING, None)
    world.drain("n1", now=True)
    world.turn()
    world.finish(job, rc=143, outcome="stopped")
    assert kinds(world.turn()) == ["requeue"]
    assert world.job(job).placed.pool == "default"


def test_to_pin_an_assigned_job_where_it_is_takes_nothing_back() -> None:
    world = two_nodes()
    job = assigned_job(world)
    world.move(job, "default", "n1-cpu0")
    assert kinds(world.turn()) == []
    world.move(job, "default", "n2-cpu0")
    assert kinds(world.turn()) == ["revoke"]


@pytest.mark.parametrize("state", ["running", "ended", "unknown"])
def test_what_cannot_move_stays_as_it_is(state: str) -> None:
    world = two_pools()
    job = running_job(world) if state != "unknown" else JobId("zzzzzzzz")
    if state == "ended":
        world.finish(job)
        world.turn()
    world.move(job, "other")
    assert kinds(world.turn()) == []
    assert all(job.moved is None and job.moving is None for job in world.state.jobs.values())


@pytest.mark.parametrize(("pool", "worker"), [("", ""), ("A b", ""), ("default", "n1")])
def test_a_move_to_what_is_no_name_changes_nothing(pool: str, worker: str) -> None:
    world = two_pools()
    world.drain("n1")
    job = world.submit()
    world.turn()
    world.move(job, pool, worker)
    world.turn()
    assert world.job(job).moved is None


def test_a_held_job_moves_and_stays_held() -> None:
    world = two_pools()
    job = world.submit(held=True)
    world.turn()
    world.move(job, "other")
    world.turn()
    assert (world.job(job).state, world.state.pools) == (JobState.HELD, {})
    world.release(job)
    assert kinds(world.turn()) == ["assign"]
    assert world.attempt(job).lead == "n2-cpu0"


def test_a_reservation_ends_when_its_job_moves_to_another_pool() -> None:
    world = World()
    world.node_up("n1", 2)
    world.node_up("n2", 2, pool="other")
    world.turn()
    running_job(world)
    wide = world.submit("b", slots=2)
    assert kinds(world.turn()) == ["reserve"]
    world.move(wide, "other")
    assert kinds(world.turn()) == ["unreserve", "assign"]
    assert world.attempt(wide).slots == ("n2-cpu0", "n2-cpu1")


def test_a_job_in_a_pool_that_nobody_serves_says_so_and_can_move_back() -> None:
    world = two_pools()
    running_job(world)
    job = world.submit()
    world.turn()
    world.move(job, "nowhere")
    world.turn()
    assert Explainer(world.projection).why(world.job(job)) == "no worker serves pool nowhere"
    assert world.state.flows[world.job(job).placed.flow].blocked
    world.move(job, "other")
    assert kinds(world.turn()) == ["assign"]


def test_moves_of_jobs_under_fifo_keep_the_order_of_arrival() -> None:
    policy = Policy(pools={"default": Pool(workers=("n1",), discipline="fifo")})
    world = world_of_one_node(policy=policy)
    running = running_job(world)
    jobs = [world.submit(organization) for organization in "bca"]
    world.turn()
    world.move(jobs[0], "default", "n1-cpu0")
    world.turn()
    world.finish(running)
    world.turn()
    assert world.assigned() == [running, jobs[0]]


# --- retry ------------------------------------------------------------------------------


def failed(world: World, job: JobId) -> None:
    world.finish(job, rc=1)


def out_of_time(world: World, job: JobId) -> None:
    world.finish(job, rc=143, outcome="timeout")


def out_of_memory(world: World, job: JobId) -> None:
    world.finish(job, rc=137, outcome="oom")


def gone(world: World, job: JobId) -> None:
    world.lost(job)


def cancelled(world: World, job: JobId) -> None:
    world.cancel(job)
    world.turn()
    world.finish(job, rc=143, outcome="stopped")


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (failed, JobState.FAILED),
        (out_of_time, JobState.TIMEOUT),
        (out_of_memory, JobState.OUT_OF_MEMORY),
        (gone, JobState.NODE_FAIL),
        (cancelled, JobState.CANCELLED),
    ],
)
def test_an_ended_job_gets_a_further_attempt(
    end: Callable[[World, JobId], None], state: JobState
) -> None:
    world = world_of_one_node()
    job = running_job(world)
    end(world, job)
    world.turn()
    assert world.job(job).state is state
    world.retry(job)
    assert kinds(world.turn()) == ["assign"]
    assert world.attempt(job).number == 2
    world.start(job)
    world.turn()
    world.finish(job)
    world.turn()
    assert (world.job(job).state, world.state.ended) == (JobState.COMPLETED, [job])
    check_replays(world)


def test_a_job_that_was_cancelled_while_it_waited_can_be_retried() -> None:
    world = world_of_one_node()
    running_job(world)
    job = world.submit()
    world.turn()
    world.cancel(job)
    world.retry(job)
    world.turn()
    assert (world.job(job).state, world.job(job).cancel) == (JobState.PENDING, None)
    world.cancel(job)
    world.turn()
    assert world.job(job).state is JobState.CANCELLED


def test_a_retried_job_waits_behind_those_that_wait() -> None:
    world = world_of_one_node()
    job = running_job(world)
    other = world.submit()
    world.turn()
    world.finish(job, rc=1)
    world.drain("n1")
    world.turn()
    world.retry(job)
    world.turn()
    world.undrain("n1")
    world.turn()
    assert world.assigned() == [job, other]


def test_what_is_done_or_impossible_or_open_is_not_retried() -> None:
    world = world_of_one_node()
    done, impossible = running_job(world), world.submit(gpu_type="h100")
    world.finish(done)
    world.turn()
    runs = running_job(world)
    for job in (done, impossible, runs, JobId("zzzzzzzz")):
        world.retry(job)
    assert kinds(world.turn()) == []
    states = [world.job(job).state for job in (done, impossible, runs)]
    assert states == [JobState.COMPLETED, JobState.REJECTED, JobState.RUNNING]


def test_the_lost_attempt_of_a_retried_job_is_superseded() -> None:
    world = two_nodes()
    job = lost_job(world)
    assert world.job(job).state is JobState.NODE_FAIL
    world.retry(job)
    assert kinds(world.turn()) == ["assign"]
    assert world.attempt(job).lead == "n2-cpu0"
    world.start(job)
    world.node_is("n1", Liveness.FRESH)
    (stop,) = (d for d in world.turn() if isinstance(d, e.StopOrdered))
    assert (stop.attempt, stop.reason) == (1, "superseded")


def test_that_the_lost_attempt_is_gone_for_good_does_not_end_the_retried_job() -> None:
    world = world_of_one_node()
    job = lost_job(world)
    world.retry(job)
    world.turn()
    assert world.job(job).state is JobState.PENDING
    world.ready_again("n1-cpu0", cursor=1)
    world.lost(job)
    assert kinds(world.turn()) == ["assign"]
    assert world.attempt(job).number == 2


def test_a_retried_job_whose_node_returns_first_goes_on_there() -> None:
    world = world_of_one_node()
    job = lost_job(world)
    world.retry(job)
    world.turn()
    world.node_is("n1", Liveness.FRESH)
    assert kinds(world.turn()) == ["found"]
    assert (world.job(job).state, world.attempt(job).phase) == (JobState.RUNNING, Phase.STARTED)
    assert counts(world, "default") == (0, 0)  # it was settled when it was lost
    check_replays(world)


# --- a signal before the time limit -----------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"signal": "KILL", "lead_ms": 5},
            "no signal 'KILL'; signals are HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CONT, URG",
        ),
        ({"signal": "USR1", "lead_ms": -5}, "times, sizes and counts cannot be negative"),
    ],
)
def test_a_signal_that_no_runner_knows_is_rejected(spec: dict[str, object], reason: str) -> None:
    world = world_of_one_node()
    job = world.submit(**spec)  # type: ignore[arg-type]
    world.turn()
    assert (world.job(job).state, world.job(job).reason) == (JobState.REJECTED, reason)


# --- cancel -----------------------------------------------------------------------------


def queued(world: World) -> JobId:
    world.drain("n1")
    job = world.submit()
    world.turn()
    return job


def held(world: World) -> JobId:
    job = world.submit(held=True)
    world.turn()
    return job


def finishing(world: World) -> JobId:
    """Its process has exited; the report comes in the same page as the cancel."""
    job = running_job(world)
    world.finish(job, rc=0)
    return job


def ended(world: World) -> JobId:
    job = running_job(world)
    world.finish(job, rc=3)
    world.turn()
    return job


def late_end(world: World, job: JobId) -> None:
    """It exited by itself before TERM could reach it."""
    world.finish(job, rc=0)


def stopped(world: World, job: JobId) -> None:
    world.finish(job, rc=143, outcome="stopped")


def revoked(world: World, job: JobId) -> None:
    world.claim(job, "revoke")


def claimed_then_stopped(world: World, job: JobId) -> None:
    world.claim(job, "start")
    world.turn()
    assert world.job(job).state is JobState.STOPPING
    stopped(world, job)


def nothing(world: World, job: JobId) -> None:
    pass


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("stands", "then", "final", "cancelled_by"),
    [
        (queued, nothing, JobState.CANCELLED, "test"),
        (held, nothing, JobState.CANCELLED, "test"),
        (assigned_job, revoked, JobState.CANCELLED, "test"),
        (assigned_job, claimed_then_stopped, JobState.CANCELLED, "test"),
        (running_job, stopped, JobState.CANCELLED, "test"),
        (running_job, late_end, JobState.COMPLETED, "test"),
        (finishing, nothing, JobState.COMPLETED, ""),
        (ended, nothing, JobState.FAILED, ""),
    ],
)
def test_a_cancel_in_every_state_leads_to_one_final_state(
    stands: Callable[[World], JobId],
    then: Callable[[World, JobId], None],
    final: JobState,
    cancelled_by: str,
    times: int,
) -> None:
    world = world_of_one_node()
    job = stands(world)
    for _ in range(times):
        world.cancel(job)
        world.turn()
    then(world, job)
    world.turn()
    cancel = world.job(job).cancel
    assert (world.job(job).state, cancel.by if cancel else "") == (final, cancelled_by)
    assert world.state.ended.count(job) == 1
    assert kinds(world.turn()) == []
    check_replays(world)
