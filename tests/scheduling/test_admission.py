"""Which submits are rejected, and what the user is told."""

from __future__ import annotations

import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import Policy, Pool
from tests.world import World

GIB = 1 << 30


def fleet(policy: Policy | None = None) -> World:
    """``default``: 2 T4 on n1. ``big``: 4 H100 on n2, 1 on n3."""
    world = World(policy)
    world.node_up("n1", 2, kind="gpu", gpu="Tesla T4", gpu_memory_bytes=16 * GIB)
    world.node_up("n2", 4, kind="gpu", gpu="H100", gpu_memory_bytes=80 * GIB, pool="big")
    world.node_up("n3", 1, kind="gpu", gpu="H100", gpu_memory_bytes=80 * GIB, pool="big")
    world.turn()
    return world


@pytest.mark.parametrize(
    ("reason", "spec"),
    [
        (
            "no class 'h100'; classes are system, interactive, batch",
            {"workload_class": "h100"},
        ),
        ("no 'A100' in pool 'default' (Tesla T4)", {"gpu_type": "A100"}),
        (
            "no GPU of pool 'default' has 40 GiB of memory (the largest has 16 GiB)",
            {"gpu_memory_bytes": 40 * GIB},
        ),
        ("no node of pool 'default' has 3 such slots (at most 2)", {"slots": 3}),
        ("no node of pool 'big' has 5 such slots (at most 4)", {"slots": 5, "pool": "big"}),
        (
            "no node of pool 'big' has 2 such slots (at most 1)",
            {"slots": 2, "pool": "big", "worker": "n3-gpu0"},
        ),
        ("n2-gpu0 serves pool 'big', not 'default'", {"worker": "n2-gpu0"}),
        ("it excludes every node on which pool 'default' is", {"exclude": ("n1",)}),
        (
            "it excludes every node on which pool 'big' is",
            {"exclude": ("n1", "n2", "n3"), "pool": "big"},
        ),
        (
            "it excludes every node on which n2-gpu0 is",
            {"exclude": ("n2",), "pool": "big", "worker": "n2-gpu0"},
        ),
        (
            "it excludes every node on which n9-gpu0 is",
            {"exclude": ("n9",), "worker": "n9-gpu0"},
        ),
        (
            "no node of pool 'big' has 2 such slots (at most 1)",
            {"exclude": ("n2",), "pool": "big", "slots": 2},
        ),
        (
            "it excludes what is no node, or more than 256 of them",
            {"exclude": ("N1",)},
        ),
        (
            "it excludes what is no node, or more than 256 of them",
            {"exclude": tuple(f"x{number}" for number in range(257))},
        ),
        ("a job needs at least one slot, not 0", {"slots": 0}),
        ("a job needs at least one slot, not -2", {"slots": -2}),
        ("times, sizes and counts cannot be negative", {"estimate_ms": -1}),
        ("times, sizes and counts cannot be negative", {"time_limit_ms": -1}),
        ("times, sizes and counts cannot be negative", {"gpu_memory_bytes": -1}),
        ("times, sizes and counts cannot be negative", {"grace_ms": -1}),
        ("'A/b' is not the name of an organization", {"organization": "A/b"}),
        ("'' is not the name of an organization", {"organization": ""}),
        ("'x/y' is not the name of a pool", {"pool": "x/y"}),
    ],
)
@pytest.mark.parametrize("discipline", ["wfq", "sfq", "fifo", "strict"])
def test_what_can_never_run_is_rejected_with_the_reason(
    reason: str, spec: dict[str, object], discipline: str
) -> None:
    world = fleet(Policy(pools={"default": Pool(discipline=discipline), "big": Pool()}))
    job = world.submit(**spec)  # type: ignore[arg-type]
    world.turn()
    assert (world.job(job).state, world.job(job).reason) == (JobState.REJECTED, reason)
    assert world.assigned() == []
    assert all(flow.waiting == 0 for flow in world.state.flows.values())


def test_an_id_that_could_name_no_object_is_rejected() -> None:
    world = fleet()
    job = JobId("../../x")
    spec = e.JobSpec(
        id=job, name="x", organization="a", workload_class="batch", pool="default", user="u"
    )
    world.fact(e.Submitted(at=world.at, job=spec), "cli")
    world.turn()
    assert world.job(job).reason == "'../../x' is not the id of a job"
    assert world.assigned() == []


def test_a_policy_with_pools_knows_all_pools() -> None:
    world = fleet(Policy(pools={"night": Pool()}))
    for pool, state in [
        ("night", JobState.PENDING),
        ("big", JobState.ASSIGNED),
        ("nigth", JobState.REJECTED),
    ]:
        job = world.submit(pool=pool)
        world.turn()
        assert world.job(job).state is state
    assert world.job(job).reason == "no pool 'nigth'; pools are big, default, night"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"pool": "nowhere"}, id="a pool that may still get workers"),
        pytest.param({"worker": "n9-gpu0"}, id="a worker that may still report"),
        pytest.param({"slots": 64, "pool": "nowhere"}, id="of any size"),
        pytest.param({"exclude": ("n1",), "pool": "nowhere"}, id="on another node"),
    ],
)
def test_what_may_run_one_day_waits(spec: dict[str, object]) -> None:
    world = fleet()
    job = world.submit(**spec)  # type: ignore[arg-type]
    world.turn()
    assert world.job(job).state is JobState.PENDING


def test_a_job_cancelled_before_it_was_admitted_is_cancelled() -> None:
    world = fleet()
    job = world.submit(slots=3)
    world.cancel(job)
    world.turn()
    assert world.job(job).state is JobState.CANCELLED
