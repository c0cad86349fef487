"""Why a job waits, in one phrase, from decisions that the real scheduler made."""

from __future__ import annotations

from ledger import events as e
from ledger.names import JobId
from scheduling.explain import Explainer
from tests.world import World


def why(world: World, job: JobId) -> str:
    return Explainer(world.projection).why(world.job(job))


def test_a_job_that_needs_more_slots_than_are_free_has_them_kept() -> None:
    world = World()
    world.node_up("n1", 2)
    small = world.submit("a")
    world.turn()
    large = world.submit("b", slots=2)
    world.turn()
    assert why(world, large) == "slots of n1 are kept for it until 2 are free"
    assert why(world, small) == ""


def test_a_pinned_job_names_what_its_worker_runs() -> None:
    world = World()
    world.node_up("n1", 2)
    first = world.submit("a", worker="n1-cpu0")
    world.turn()
    second = world.submit("a", worker="n1-cpu0", name="b")
    third = world.submit("a", worker="n1-cpu0", name="a")
    world.turn()
    assert why(world, third) == f"n1-cpu0 runs {first}"
    assert why(world, second) == "1 before it in a/batch"


def test_what_no_serving_slot_offers_is_said() -> None:
    world = World()
    world.node_up("n1", 1, kind="gpu", gpu="NVIDIA A100", gpu_memory_bytes=40_000_000_000)
    world.node_up("n2", 1, kind="gpu", gpu="NVIDIA H100", gpu_memory_bytes=80_000_000_000)
    world.turn()
    job = world.submit("a", gpu_type="h100")
    pinned = world.submit("b", worker="n2-gpu0")
    world.node_is("n2", e.Liveness.STALE)
    world.turn()
    assert why(world, job) == "no serving slots of pool default are what it needs"
    assert why(world, pinned) == "node n2 is stale"


def test_a_job_that_came_back_says_from_what() -> None:
    world = World()
    world.node_up("n1", 1)
    job = world.submit("a", idempotent=True)
    world.turn()
    world.start(job)
    world.turn()
    world.node_is("n1", e.Liveness.GONE)
    world.turn()
    assert why(world, job) == (
        "nothing serves pool default: node n1 is gone (again: attempt 1 was lost)"
    )
