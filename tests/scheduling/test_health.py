"""Nodes that make jobs fail are blocked and probed; commands that fail everywhere are held.

Expected values are worked by hand from docs/ARCHITECTURE.md, "Bad nodes and bad commands".
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from ledger import events as e
from ledger.checkpoint import encode_checkpoint
from ledger.events import JobState, Liveness
from ledger.names import JobId, NodeName
from ledger.policy import Policy, Pool
from ledger.state import NodeHealth, Phase
from tests.scheduling.test_histories import SLOTS, Histories
from tests.world import World

MINUTE_MS = 60_000
N1, N2 = "n1-cpu0", "n2-cpu0"


@pytest.fixture
def world() -> Iterator[World]:
    """Two nodes, two slots each. In the end a plain reader comes to the same state."""
    made = World()
    made.node_up("n1", 2)
    made.node_up("n2", 2)
    made.turn()
    yield made
    assert encode_checkpoint(made.fold().state) == encode_checkpoint(made.state)


def begin(world: World, command: str, on: str, organization: str = "a", **spec: object) -> JobId:
    """A job that runs ``command`` on that worker, and has been reported to run."""
    job = world.submit(organization, argv=(command,), worker=on, **spec)  # type: ignore[arg-type]
    world.turn()
    assert world.job(job).state is JobState.ASSIGNED, world.job(job).reason
    world.start(job)
    world.turn()
    return job


def run(
    world: World,
    command: str,
    on: str = N1,
    organization: str = "a",
    *,
    rc: int = 1,
    after_ms: int = 1_000,
    outcome: str = "exited",
    **spec: object,
) -> JobId:
    """The same, until it has ended."""
    job = begin(world, command, on, organization, **spec)
    end(world, job, rc=rc, after_ms=after_ms, outcome=outcome)
    return job


def end(world: World, job: JobId, *, after_ms: int, rc: int = 1, outcome: str = "exited") -> None:
    world.at += after_ms
    world.finish(job, rc=rc, outcome=outcome)
    world.turn()


def health(world: World, node: str = "n1") -> NodeHealth:
    return world.state.nodes[NodeName(node)].health


def make_bad(world: World) -> None:
    """Three jobs of two flows fail on n1; it is blocked now."""
    for command, organization in (("x", "a"), ("y", "b"), ("z", "a")):
        run(world, command, N1, organization)
    assert health(world).blocked


def probe_opens(world: World) -> None:
    world.turn(after_ms=health(world).until - world.at)
    assert health(world).probing


# --- when a node is blocked


ROWS = {
    "three commands of two flows": ([("a", "x", {}), ("a", "y", {}), ("b", "z", {})], True),
    "two are not yet three": ([("a", "x", {}), ("b", "y", {})], False),
    "one flow may simply be wrong": ([("a", c, {}) for c in "xyzuvw"], False),
    "one command counts once": ([("a", "x", {}), ("b", "x", {}), ("b", "x", {})], False),
    "two commands, one of them twice": ([("a", "x", {}), ("b", "y", {}), ("a", "x", {})], False),
    "a success ends the row": (
        [("a", "x", {}), ("b", "y", {}), ("a", "ok", {"rc": 0}), ("a", "z", {})], False),
    "who lasts 10 s has used the node": (
        [("a", "x", {}), ("b", "y", {}), ("a", "s", {"after_ms": 10_000}), ("a", "z", {})], False),
    "a moment less is fast": (
        [("a", "x", {}), ("b", "y", {}), ("a", "z", {"after_ms": 9_999})], True),
    "what cannot be started fails as well": (
        [("a", c, {"outcome": "failed_to_start", "rc": 127}) for c in "xy"] + [("b", "z", {})],
        True),
    "time limits and memory say nothing of a node": (
        [("a", "x", {}), ("b", "y", {}), ("b", "u", {"outcome": "timeout"}),
         ("b", "v", {"outcome": "oom"})], False),
    "nor do they end the row": (
        [("a", "x", {}), ("b", "y", {}), ("b", "u", {"outcome": "timeout"}), ("a", "z", {})], True),
}  # fmt: skip


@pytest.mark.parametrize(("row", "is_blocked"), ROWS.values(), ids=ROWS)
def test_which_rows_of_fast_failures_block_a_node(
    world: World, row: list[tuple[str, str, dict[str, object]]], is_blocked: bool
) -> None:
    for organization, command, end in row:
        run(world, command, N1, organization, **end)  # type: ignore[arg-type]
    assert bool(health(world).blocked) is is_blocked


def test_a_command_that_succeeded_elsewhere_speaks_against_the_node_each_time(
    world: World,
) -> None:
    run(world, "good", N2, rc=0)
    for _ in range(2):
        run(world, "good", N1)
    assert not health(world).blocked
    run(world, "good", N1)
    assert health(world).blocked


def test_a_command_that_fails_on_two_nodes_speaks_against_neither(world: World) -> None:
    x = run(world, "x", N1)
    run(world, "y", N1, "b")
    run(world, "y", N2, "b")  # so n1 was not to blame for y
    z = run(world, "z", N1, "b")
    assert [failure.job for failure in health(world).failures] == [x, z]
    assert health(world, "n2").failures == []
    run(world, "w", N1)
    assert health(world).blocked


def test_what_blocks_a_node_is_said_and_it_takes_no_job(world: World) -> None:
    jobs = [run(world, c, N1, o) for c, o in (("x", "a"), ("y", "b"), ("z", "a"))]
    decision = next(d for d in world.decisions if isinstance(d, e.NodeBlocked))
    assert decision == e.NodeBlocked(
        node=NodeName("n1"),
        reason=f"3 jobs in a row ({', '.join(jobs)}) failed within 10 s of the start: "
        "one job tries it after 10 min, or 'gpuq undrain n1'",
        until=world.at + 10 * MINUTE_MS,
        pause_ms=10 * MINUTE_MS,
    )
    waiting = [world.submit(argv=("fine",)) for _ in range(4)]
    world.turn()
    assert {world.attempt(j).lead for j in waiting[:2]} == {"n2-cpu0", "n2-cpu1"}
    assert [world.job(j).state for j in waiting[2:]] == [JobState.PENDING] * 2


def test_a_job_that_was_told_to_stop_says_nothing_of_its_node(world: World) -> None:
    run(world, "x", N1)
    run(world, "y", N1, "b")
    stopped = begin(world, "z", N1)
    world.cancel(stopped)
    world.turn()
    world.finish(stopped, rc=1)
    world.turn()
    assert not health(world).blocked


# --- what becomes of the jobs


def test_a_job_that_may_run_again_is_given_back_and_that_does_not_count(world: World) -> None:
    first = run(world, "x", N1, idempotent=True)
    second = run(world, "y", N1, "b", idempotent=True)
    third = begin(world, "z", N1, idempotent=True)
    world.at += 1_000
    world.finish(third, rc=1)
    world.turn()
    job = world.job(third)
    assert (job.state, job.requeues, job.ended_at) == (JobState.PENDING, 0, None)
    assert job.reason == "it failed on n1, which is blocked"
    assert [world.job(j).state for j in (first, second)] == [JobState.FAILED] * 2


@pytest.mark.parametrize(
    ("outcome", "state"), [("failed_to_start", JobState.PENDING), ("exited", JobState.FAILED)]
)
def test_what_never_ran_is_given_back_and_what_ran_has_failed(
    world: World, outcome: str, state: JobState
) -> None:
    run(world, "x", N1)
    run(world, "y", N1, "b")
    third = run(world, "z", N1, outcome=outcome, rc=127)
    assert world.job(third).state is state


def test_a_cancelled_job_is_not_given_back(world: World) -> None:
    run(world, "x", N1)
    run(world, "y", N1, "b")
    third = begin(world, "z", N1, idempotent=True)
    world.cancel(third)
    world.finish(third, rc=1)
    world.turn()
    assert health(world).blocked
    assert world.job(third).state is JobState.FAILED


def test_what_fails_elsewhere_too_is_not_given_back(world: World) -> None:
    run(world, "p", N2)
    make_bad(world)
    probe_opens(world)
    probe = run(world, "p", N1, idempotent=True)
    assert world.job(probe).state is JobState.FAILED


def test_what_still_ran_there_and_fails_later_is_given_back_as_well(world: World) -> None:
    late = begin(world, "late", "n1-cpu1", idempotent=True)
    make_bad(world)
    world.at = (world.attempt(late).started_at or 0) + 9_000
    world.finish(late, rc=1)
    world.turn()
    assert (world.job(late).state, world.job(late).requeues) == (JobState.PENDING, 0)


def test_what_was_not_yet_started_there_goes_back_and_that_does_not_count(world: World) -> None:
    unclaimed = world.submit("a", argv=("u",), worker="n1-cpu1")
    make_bad(world)
    world.claim(unclaimed, "revoke")
    world.turn()
    assert (world.job(unclaimed).state, world.job(unclaimed).requeues) == (JobState.PENDING, 0)


def test_a_job_is_given_back_three_times_and_its_fourth_failure_stands(world: World) -> None:
    make_bad(world)
    job = world.submit(argv=("j",), worker=N1, idempotent=True)
    states = []
    for _ in range(4):
        probe_opens(world)
        world.start(job)
        world.turn()
        world.at += 1_000
        world.finish(job, rc=1)
        world.turn()
        states.append(world.job(job).state)
    assert states == [JobState.PENDING] * 3 + [JobState.FAILED]
    assert world.job(job).requeues == 0
    assert health(world).pause_ms == 160 * MINUTE_MS  # 10, 20, 40, 80, 160
    probe_opens(world)
    run(world, "another", N1)
    assert health(world).pause_ms == 160 * MINUTE_MS


def test_what_fails_on_a_node_to_blame_uses_up_no_retry(world: World) -> None:
    """One retry asked for: the fast failure on n1 counts for nothing, the next two do.

    Of ``early``'s nobody could know that the node is to blame, so its flow has paid for it.
    """
    early = begin(world, "early", N1, retries=1)
    late = begin(world, "late", "n1-cpu1", retries=1)
    both = (early, late)
    end(world, early, after_ms=1_000)
    flow = world.job(early).spec.flow
    paid = world.projection.retry_budget(flow)
    run(world, "y", N1, "b")
    run(world, "z", N1, "c")
    assert health(world).blocked
    end(world, late, after_ms=1_000)
    assert world.projection.retry_budget(flow) == paid
    for job in both:
        world.move(job)
    for _ in range(2):
        world.turn(after_ms=20_000)
        for job in both:
            assert world.attempt(job).lead.startswith("n2")
            world.start(job)
        world.turn()
        for job in both:
            end(world, job, after_ms=60_000)
    for job in both:
        assert (world.job(job).state, len(world.job(job).attempts)) == (JobState.FAILED, 3)


# --- probing


def test_one_job_probes_the_node_after_ten_minutes_and_its_success_frees_it(world: World) -> None:
    make_bad(world)
    jobs = [world.submit(argv=(str(i),), worker=w) for i, w in enumerate((N1, "n1-cpu1"))]
    blocked_at = world.at
    world.turn(after_ms=10 * MINUTE_MS - 1)
    assert {world.job(j).state for j in jobs} == {JobState.PENDING}
    world.turn(after_ms=1)
    assert world.at == blocked_at + 10 * MINUTE_MS
    probe, other = sorted(jobs, key=lambda j: world.job(j).state)
    assert (world.job(probe).state, world.job(other).state) == (JobState.ASSIGNED, "PENDING")
    world.start(probe)
    world.turn()
    world.finish(probe)
    decisions = world.turn()
    assert e.NodeFreed(node=NodeName("n1"), reason=f"{probe} ran well there") in decisions
    assert world.job(other).state is JobState.ASSIGNED
    assert health(world) == NodeHealth()


def test_a_probe_that_outlasts_the_others_frees_the_node_while_it_runs(world: World) -> None:
    make_bad(world)
    probe_opens(world)
    probe = begin(world, "long", N1, estimate_ms=MINUTE_MS)
    assert world.scheduler.next_due_ms() == (world.attempt(probe).started_at or 0) + 10_000
    world.turn(after_ms=9_999)
    assert health(world).blocked
    world.turn(after_ms=1)
    assert (health(world).blocked, world.job(probe).state) == ("", JobState.RUNNING)


def test_a_probe_that_fails_blocks_the_node_for_twice_as_long(world: World) -> None:
    make_bad(world)
    assert world.scheduler.next_due_ms() == health(world).until
    probe_opens(world)
    probe = run(world, "p", N1)
    assert world.job(probe).state is JobState.FAILED
    assert (health(world).probing, health(world).until) == (False, world.at + 20 * MINUTE_MS)
    assert health(world).blocked == (
        f"{probe}, which tried it, failed within 10 s of the start: one job tries it after "
        "20 min, or 'gpuq undrain n1'"
    )


@pytest.mark.parametrize("how", ["cancelled", "lost", "its command fails elsewhere too"])
def test_a_probe_that_shows_nothing_is_followed_by_another(world: World, how: str) -> None:
    run(world, "p", N2)
    make_bad(world)
    probe_opens(world)
    probe = begin(world, "p", N1)
    if how == "cancelled":
        world.cancel(probe)
        world.turn()
        world.finish(probe, rc=143, outcome="stopped")
    elif how == "lost":
        world.lost(probe)
    else:
        world.finish(probe, rc=1)
    world.turn()
    assert (health(world).probing, health(world).probe) == (True, None)
    assert health(world).pause_ms == 10 * MINUTE_MS
    run(world, "q", N1, rc=0)
    assert health(world) == NodeHealth()


def test_a_probe_whose_node_is_silent_is_followed_by_another_in_the_same_page(
    world: World,
) -> None:
    make_bad(world)
    probe_opens(world)
    probe = begin(world, "p", N1)
    world.node_is("n1", Liveness.GONE)
    world.turn()
    assert world.attempt(probe).phase is Phase.LOST
    assert (health(world).probing, health(world).probe) == (True, None)


def test_a_probe_closes_its_node_to_what_was_reserved_there() -> None:
    """Also where it serves another pool, which was looked at before."""
    for pool in ("p1", "p2"):
        pools = {"p1": Pool(workers=("n1-cpu0", "n1-cpu1")), "p2": Pool(workers=("n1-cpu2",))}
        world = World(Policy(pools=pools))
        world.node_up("n1", 3)
        world.turn()
        begin(world, "long", N1, pool="p1", estimate_ms=60 * MINUTE_MS)
        for command, organization in (("x", "a"), ("y", "b"), ("z", "a")):
            run(world, command, "n1-cpu1", organization, pool="p1")
        wide = world.submit("c", argv=("wide",), pool="p1", slots=2)
        world.turn()
        small = world.submit("c", argv=("s",), pool=pool, time_limit_ms=1_000)
        world.turn(after_ms=10 * MINUTE_MS)
        assert health(world).probe == e.AttemptRef(small, 1)
        assert e.ReservationEnded(job=wide, pool="p1") in world.pages[-1].decisions
        assert world.state.reservations == {}
        assert world.state.flows[world.job(wide).spec.flow].blocked
        assert encode_checkpoint(world.fold().state) == encode_checkpoint(world.state)


def test_undrain_frees_a_blocked_node_at_once(world: World) -> None:
    make_bad(world)
    world.undrain("n1")
    world.turn()
    run(world, "q", N1, rc=0)


def test_another_machine_under_the_name_is_not_blamed(world: World) -> None:
    make_bad(world)
    world.node_is("n1", Liveness.GONE)
    world.turn()
    world.ready(N1, e.Slot(kind="cpu", index=0), machine="new", incarnation="bbbbbbbb")
    world.turn()
    assert health(world) == NodeHealth()


# --- commands


def test_waiting_copies_of_what_failed_on_two_nodes_are_held_until_a_release(world: World) -> None:
    running = begin(world, "bad", N1)
    copies = [world.submit(argv=("bad",), worker=N1) for _ in range(2)]
    other = world.submit(argv=("good",), worker=N1)
    run(world, "bad", N2)
    world.finish(running, rc=1)
    world.turn()
    assert [world.job(j).state for j in copies] == [JobState.HELD] * 2
    assert world.job(copies[0]).reason == (
        "its command failed within 10 s of its start on n2 and n1: "
        f"'gpuq release {copies[0]}' tries it again"
    )
    assert world.job(other).state is JobState.ASSIGNED
    later = world.submit("b", argv=("bad",))
    world.turn()
    assert world.job(later).state is JobState.HELD
    world.release(later)
    world.turn()
    assert world.job(later).state is JobState.ASSIGNED
    assert [world.job(j).state for j in copies] == [JobState.HELD] * 2


@pytest.mark.parametrize("spec", [{"argv": ("bad", "-v")}, {"script": "9f"}, {"cwd": "/tmp"}])
def test_another_command_is_no_copy(world: World, spec: dict[str, object]) -> None:
    for on in (N1, N2):
        run(world, "bad", on)
    job = world.submit(**({"argv": ("bad",)} | spec))  # type: ignore[arg-type]
    world.turn()
    assert world.job(job).state is JobState.ASSIGNED


def test_a_command_that_also_succeeds_is_not_held(world: World) -> None:
    run(world, "moody", N1, rc=0)
    world.node_up("n3", 1)
    world.turn()
    for on in (N2, "n3-cpu0"):
        run(world, "moody", on)
    copy = world.submit(argv=("moody",))
    world.turn()
    assert world.job(copy).state is JobState.ASSIGNED


def test_a_command_that_fails_twice_on_one_node_is_not_held(world: World) -> None:
    for _ in range(2):
        run(world, "bad", N1)
    copy = world.submit(argv=("bad",))
    world.turn()
    assert world.job(copy).state is JobState.ASSIGNED


def test_a_retry_trusts_the_command_again(world: World) -> None:
    jobs = [run(world, "bad", on) for on in (N1, N2)]
    world.retry(jobs[0])
    world.turn()
    assert world.job(jobs[0]).state is JobState.ASSIGNED


def test_only_so_many_commands_are_remembered_the_newest(world: World) -> None:
    with patch("ledger.health.COMMANDS_MAX", 2):
        for command in ("p", "q", "p", "r"):
            run(world, command, N1, rc=0)
        assert len(world.state.commands) == 2
        run(world, "q", N2, rc=1)  # forgotten: nothing proves it
        run(world, "p", N2, rc=1)
        proven = [failure.proven for failure in health(world, "n2").failures]
    assert proven == [False, False]
    world.pages.clear()
    world.projection = world.fold()


def test_of_a_command_only_so_many_nodes_are_remembered(world: World) -> None:
    for number in range(3, 13):
        world.node_up(f"n{number}", 1)
        world.turn()
        run(world, "c", f"n{number}-cpu0", rc=0)
    (record,) = world.state.commands.values()
    assert record.succeeded_on == [f"n{number}" for number in range(5, 13)]


# --- any history


def walk(seed: int) -> list[e.AnyDecision]:
    """A random life in which a node is bad for a while, and two commands always are."""
    rng, nodes = random.Random(seed), list(SLOTS)
    life = Histories()
    bad = rng.choice(nodes)
    acts = {
        "submit": lambda: life.a_job_is_submitted(
            copies=rng.randint(1, 2),
            held=False,
            organization=rng.choice("abc"),
            argv=(rng.choice("abcdefghijkl"),),
            idempotent=rng.random() < 0.5,
            slots=rng.choice((1, 1, 2)),
            worker="",
            pool="default",
        ),
        "release": lambda: life.a_job_is_held_or_released(index=rng.randrange(64), is_hold=False),
        "cancel": lambda: life.a_job_is_cancelled(index=rng.randrange(64)),
        "undrain": lambda: life.world.undrain(rng.choice(nodes)),
        "elect": life.a_leader_is_elected,
        "restart": lambda: life.a_worker_starts_again(
            index=rng.randrange(64), forgets=rng.random() < 0.5
        ),
        "judge": lambda: life.the_leader_judges_a_node(
            node=rng.choice(nodes), liveness=rng.choice(list(Liveness))
        ),
        "claims": life.the_leader_tries_its_claims,
        "work": lambda: life.workers_look_into_their_mailboxes(
            dies=rng.choice(("", "", "", "before exec"))
        ),
        "time": lambda: life.time_passes(after_ms=rng.randint(0, 3_000)),
    }
    weights = (30, 4, 2, 1, 2, 1, 1, 10, 20, 25)
    try:
        life.nodes_come_up()
        for _ in range(120):
            if rng.random() < 0.04:
                bad = rng.choice([*nodes, "", ""])
            acts[rng.choices(list(acts), weights)[0]]()
            for process in life.processes.workers.values():
                if process.running is not None and rng.random() < 0.4:
                    is_broken = life.world.job(process.running.job).spec.argv[0] in "ab"
                    fails = process.node == bad or is_broken or rng.random() < 0.1
                    life.processes.end(process, outcome="exited", rc=int(fails))
    finally:
        life.teardown()
    return [decision for page in life.world.pages for decision in page.decisions]


def test_in_any_history_all_readers_agree_on_what_is_blocked_and_held() -> None:
    """``Histories`` checks each page; here it is made to meet bad nodes and commands."""
    met: Counter[str] = Counter()
    for seed in range(10):
        for decision in walk(seed):
            met[e.kind_of(decision)] += 1
            met["uncounted"] += isinstance(decision, e.JobRequeued) and not decision.counted
    for kind in ("block_node", "probe_node", "free_node", "hold", "uncounted"):
        assert met[kind] > 0, met
