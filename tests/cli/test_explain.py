"""Why a job waits, in one phrase, from decisions that the real scheduler made."""

from __future__ import annotations

from ledger import events as e
from ledger.names import FlowId, JobId
from ledger.policy import FlowAgreement, Limits, Policy, Pool, WorkloadClass
from scheduling.explain import Explainer
from tests.world import START_MS, World, world_of_one_node


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


def test_a_full_limit_is_named_with_its_numbers() -> None:
    """Two slots: flow a may have one of them; then the pool one."""
    own = {FlowId("a/batch/default"): FlowAgreement(limits=Limits(slots=1))}
    world = world_of_one_node(2, Policy(flows=own, pools={"default": Pool()}))
    world.submit("a")
    second, third = world.submit("a"), world.submit("a")
    world.turn()
    limit = "flow a/batch/default runs 1 of at most 1 slots"
    assert why(world, second) == limit
    assert why(world, third) == f"1 before it in a/batch; {limit}"
    world = world_of_one_node(2, Policy(pools={"default": Pool(limits=Limits(slots=1))}))
    world.submit("a")
    second = world.submit("b")
    world.turn()
    assert why(world, second) == "next of its flow; pool default runs 1 of at most 1 slots"


def test_a_job_that_is_tried_again_says_in_how_long() -> None:
    """The delay before a second attempt is at most 5 s: rounded up to whole seconds."""
    world = world_of_one_node()
    job = world.submit("a", retries=1)
    world.turn()
    world.start(job)
    world.finish(job, rc=3)
    world.turn()
    left_ms = world.job(job).wakes_at - world.at
    assert 0 < left_ms <= 5_000
    reason = f"attempt 1 ended FAILED (rc 3); tried again in {-(-left_ms // 1_000)} s"
    assert why(world, job) == reason
    late = Explainer(world.projection, world.at + left_ms)
    assert late.why(world.job(job)) == "attempt 1 ended FAILED (rc 3); tried again now due"


def test_a_wait_is_overdue_beyond_the_target_and_only_while_it_lasts() -> None:
    world = world_of_one_node(1, Policy(classes={"batch": WorkloadClass(wait_target_ms=5_000)}))
    first, second = world.submit("a"), world.submit("a")
    world.turn()
    for late_ms, is_overdue in ((5_000, False), (5_001, True)):
        explainer = Explainer(world.projection, START_MS + late_ms)
        assert explainer.is_overdue(world.job(second)) is is_overdue
        assert not explainer.is_overdue(world.job(first))
