"""Where jobs run: slots of one node, by kind, by memory, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger import events as e
from ledger.events import JobState, Liveness
from ledger.names import JobId, WorkerName
from ledger.policy import Policy, Pool
from scheduling.explain import Explainer
from tests.world import World

GIB = 1 << 30


def gpu_world(**nodes: tuple[str, int, int]) -> World:
    """Nodes by name: GPU, GiB of each, number of them."""
    world = World()
    for node, (gpu, gib, slots) in nodes.items():
        world.node_up(node, slots, kind="gpu", gpu=gpu, gpu_memory_bytes=gib * GIB)
    world.turn()
    return world


def place(world: World, **spec: object) -> tuple[str, ...] | str:
    """Submit a job; its slots, or its state if it got none."""
    job = world.submit(**spec)  # type: ignore[arg-type]
    world.turn()
    last = world.job(job).last
    return str(world.job(job).state) if last is None else last.slots


def test_the_smallest_gpu_that_will_do_is_taken() -> None:
    world = gpu_world(n1=("H100", 80, 1), n2=("T4", 16, 1), n3=("A100", 40, 1))
    assert place(world, gpu_memory_bytes=20 * GIB) == ("n3-gpu0",)
    assert place(world) == ("n2-gpu0",)
    assert place(world) == ("n1-gpu0",)
    assert place(world) == "PENDING"


def test_memory_is_a_filter_at_least_so_much() -> None:
    world = gpu_world(n1=("A100", 40, 1))
    assert place(world, gpu_memory_bytes=40 * GIB) == ("n1-gpu0",)


def test_a_gpu_is_asked_for_by_part_of_its_name() -> None:
    world = gpu_world(n1=("NVIDIA A100-SXM4-40GB", 40, 1), n2=("NVIDIA H100 PCIe", 80, 1))
    assert place(world, gpu_type="h100") == ("n2-gpu0",)
    assert place(world, gpu_type="h100") == "PENDING"


def test_an_excluded_node_is_never_taken() -> None:
    """n2 is the better place of those for a job that excludes none: its GPU is smaller."""
    world = gpu_world(n1=("H100", 80, 1), n2=("T4", 16, 2), n3=("H100", 80, 1))
    assert place(world, exclude=("n2", "n1")) == ("n3-gpu0",)
    assert place(world, exclude=("n2", "n3", "n2", "nowhere")) == ("n1-gpu0",)
    assert place(world, exclude=("n2",)) == "PENDING"
    assert place(world, exclude=("n3",)) == ("n2-gpu0",)


def test_a_job_that_was_moved_to_a_worker_of_an_excluded_node_waits_and_says_why() -> None:
    world = gpu_world(n1=("H100", 80, 1), n2=("H100", 80, 1))
    job = world.submit(exclude=("n1",), held=True)
    world.move(job, worker="n1-gpu0")
    world.release(job)
    world.turn()
    assert world.job(job).in_queue
    why = Explainer(world.projection).why(world.job(job))
    assert why == "it excludes n1, the node of n1-gpu0"


def test_a_smaller_gpu_is_taken_before_a_fuller_node() -> None:
    world = gpu_world(n1=("T4", 16, 2), n2=("H100", 80, 1))
    assert place(world) == ("n1-gpu0",)


def test_the_fullest_node_that_fits_is_taken() -> None:
    """So that whole nodes stay free for large jobs."""
    world = gpu_world(n1=("T4", 16, 4), n2=("T4", 16, 2), n3=("T4", 16, 3))
    assert place(world, slots=2) == ("n2-gpu0", "n2-gpu1")
    assert place(world, slots=2) == ("n3-gpu0", "n3-gpu1")
    assert place(world) == ("n3-gpu2",)
    assert place(world, slots=4) == ("n1-gpu0", "n1-gpu1", "n1-gpu2", "n1-gpu3")


def test_slots_of_different_gpus_are_not_mixed() -> None:
    world = World()
    for index, gpu in enumerate(("T4", "A100")):
        world.ready(f"n1-gpu{index}", e.Slot(kind="gpu", index=index, gpu_name=gpu))
    world.turn()
    assert place(world, slots=2) == "REJECTED"


def test_slots_are_taken_in_the_order_of_their_numbers() -> None:
    world = gpu_world(n1=("T4", 16, 11))
    assert place(world, slots=3) == ("n1-gpu0", "n1-gpu1", "n1-gpu2")
    assert place(world, slots=8)[-2:] == ("n1-gpu9", "n1-gpu10")


def test_a_pinned_job_runs_where_it_is_pinned_or_waits() -> None:
    world = gpu_world(n1=("T4", 16, 2))
    assert place(world, worker="n1-gpu1") == ("n1-gpu1",)
    assert place(world, worker="n1-gpu1") == "PENDING"
    assert place(world) == ("n1-gpu0",)


def test_a_pinned_worker_leads_a_job_of_several_slots() -> None:
    world = gpu_world(n1=("T4", 16, 3))
    assert place(world, worker="n1-gpu1", slots=2) == ("n1-gpu1", "n1-gpu0")


def finish_all(world: World, rc: int = 0) -> None:
    for job in world.state.jobs.values():
        if job.state is JobState.ASSIGNED:
            world.finish(job.id, rc=rc)


def names_in_order(world: World, rc: int = 0) -> list[str]:
    """Names of the jobs as one after another is run to its end."""
    while any(job.state is JobState.ASSIGNED for job in world.state.jobs.values()):
        finish_all(world, rc)
        world.turn(after_ms=10)
    return [world.job(job).spec.name for job in world.assigned()]


def test_pinned_jobs_run_in_the_order_of_their_names_and_go_on_after_a_failure() -> None:
    world = gpu_world(n1=("T4", 16, 1))
    for name in ("02_c", "00_a", "10_d", "01_b"):
        world.submit(name=name, worker="n1-gpu0")
    world.turn()
    assert names_in_order(world, rc=3) == ["00_a", "01_b", "02_c", "10_d"]
    assert {job.state for job in world.state.jobs.values()} == {JobState.FAILED}


def test_pinned_jobs_of_equal_names_run_in_the_order_of_arrival() -> None:
    world = gpu_world(n1=("T4", 16, 1))
    jobs = [world.submit(name="same", worker="n1-gpu0") for _ in range(4)]
    world.turn()
    names_in_order(world)
    assert world.assigned() == jobs


def test_jobs_pinned_to_one_worker_keep_the_order_of_names_whatever_they_need() -> None:
    world = gpu_world(n1=("T4", 16, 2))
    world.drain("n1")
    world.submit(name="01_wide", worker="n1-gpu0", slots=2)
    world.submit(name="02_narrow", worker="n1-gpu0")
    world.submit(name="00_narrow", worker="n1-gpu0")
    world.turn()
    world.undrain("n1")
    world.turn()
    assert names_in_order(world) == ["00_narrow", "01_wide", "02_narrow"]


def test_no_job_passes_one_of_an_earlier_name_that_is_pinned_to_the_same_worker() -> None:
    """Not even one that would end before the slots that the other needs are free."""
    world = gpu_world(n1=("T4", 16, 2))
    world.submit("b", worker="n1-gpu1", name="long", time_limit_ms=100_000)
    world.submit(name="01_narrow", worker="n1-gpu0", time_limit_ms=1_000)
    world.submit(name="00_wide", worker="n1-gpu0", slots=2)
    world.turn()
    assert names_in_order(world) == ["long", "00_wide", "01_narrow"]


def test_jobs_that_are_not_pinned_keep_the_order_of_arrival_beside_pinned_ones() -> None:
    world = gpu_world(n1=("T4", 16, 1))
    world.drain("n1")
    for name, worker in [("b", ""), ("z", "n1-gpu0"), ("c", ""), ("a", "n1-gpu0"), ("d", "")]:
        world.submit(name=name, worker=worker)
    world.turn()
    world.undrain("n1")
    world.turn()
    # "z" came before "c", but "a", which goes before "z", came after it.
    assert names_in_order(world) == ["b", "c", "a", "z", "d"]


def test_a_later_job_does_not_pass_a_pinned_one_of_its_flow_by_being_short() -> None:
    world = gpu_world(n1=("T4", 16, 1))
    world.drain("n1")
    world.submit(name="pinned", worker="n1-gpu0", estimate_ms=9_000)
    world.submit(name="short", estimate_ms=1_000)
    world.turn()
    world.undrain("n1")
    world.turn()
    assert names_in_order(world) == ["pinned", "short"]


def test_a_job_pinned_to_a_busy_worker_does_not_hold_up_its_flow() -> None:
    world = gpu_world(n1=("T4", 16, 2))
    world.submit(worker="n1-gpu0")
    world.turn()
    pinned = world.submit(worker="n1-gpu0")
    other = world.submit()
    world.turn()
    assert [world.job(job).state for job in (pinned, other)] == [
        JobState.PENDING,
        JobState.ASSIGNED,
    ]


# --- which slots serve ------------------------------------------------------------------


def stale(world: World) -> None:
    world.node_is("n1", Liveness.STALE)


def gone(world: World) -> None:
    world.node_is("n1", Liveness.GONE)


def drained(world: World) -> None:
    world.drain("n1")


def retired(world: World) -> None:
    world.retire("n1-gpu0")


def troubled(world: World) -> None:
    world.see(e.SlotSeen(worker=WorkerName("n1-gpu0"), problem="GPU memory stays taken"))


def moved(world: World) -> None:
    world.apply_policy(Policy(pools={"default": Pool(), "other": Pool(workers=("n1-gpu0",))}))


@pytest.mark.parametrize("event", [stale, gone, drained, retired, troubled, moved])
def test_a_slot_that_does_not_serve_takes_nothing(event: Callable[[World], None]) -> None:
    world = gpu_world(n1=("T4", 16, 1))
    event(world)
    assert place(world) == "PENDING"


def test_a_slot_whose_mailbox_is_not_done_takes_nothing() -> None:
    """The stop of a job that had ended by itself has still to be passed over."""
    world = gpu_world(n1=("T4", 16, 1))
    job = world.submit()
    world.turn()
    world.start(job)
    world.turn()
    world.cancel(job)
    attempt = world.attempt(job)
    world.turn()
    ended = e.AttemptFinished(
        at=world.at,
        worker=attempt.lead,
        cursor=1,
        job=job,
        attempt=1,
        outcome="exited",
        rc=0,
        started_at=world.at,
        ended_at=world.at,
    )
    world.fact(ended, attempt.lead)
    assert place(world) == "PENDING"
    world.skip("n1-gpu0")
    world.turn()
    assert len(world.assigned()) == 2


def test_a_worker_outside_its_pools_roster_serves_nothing() -> None:
    world = World(Policy(pools={"h100": Pool(workers=("n2",))}))
    world.node_up("n1", 1, pool="h100")
    assert place(world, pool="h100") == "PENDING"
    world.node_up("n2", 1)
    world.turn()
    assert [world.attempt(job).lead for job in world.assigned()] == ["n2-cpu0"]


# --- why a flow is passed over ----------------------------------------------------------


def reasons(world: World) -> list[str]:
    """Of the flows that the last page blocked; ``free`` for one that it freed."""
    said = [d for d in world.pages[-1].decisions if isinstance(d, e.FlowBlocked | e.FlowFreed)]
    return [d.reason if isinstance(d, e.FlowBlocked) else "free" for d in said]


def test_a_flow_that_nothing_serves_says_so_once_and_is_freed_once() -> None:
    world = World()
    world.submit()
    world.turn()
    assert reasons(world) == ["no serving slots of pool default are what its jobs need"]
    world.submit()
    world.turn()
    assert reasons(world) == []
    world.node_up("n1", 1)
    world.turn()
    assert reasons(world) == ["free"]
    assert {flow.blocked for flow in world.state.flows.values()} == {""}


def test_a_flow_whose_last_job_is_cancelled_is_freed() -> None:
    world = World()
    job = world.submit()
    world.turn()
    world.cancel(job)
    world.turn()
    assert reasons(world) == ["free"]


def test_a_pinned_job_names_the_worker_that_does_not_serve() -> None:
    world = World()
    world.submit(worker="n7-gpu0")
    world.turn()
    assert reasons(world) == ["n7-gpu0 does not serve pool default now"]


def test_a_flow_is_blocked_when_its_only_node_goes_and_freed_when_it_comes_back() -> None:
    world = gpu_world(n1=("T4", 16, 1))
    first: list[JobId] = [world.submit(), world.submit()]
    world.turn()
    world.start(first[0])
    world.node_is("n1", Liveness.STALE)
    world.turn()
    assert reasons(world) == ["no serving slots of pool default are what its jobs need"]
    world.node_is("n1", Liveness.FRESH)
    world.turn()
    assert reasons(world) == ["free"]
