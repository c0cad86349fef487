"""No credit for time in which a flow could not be served, no penalty for a revoke."""

from __future__ import annotations

from ledger import events as e
from ledger.fair_state import SCALE
from ledger.policy import Policy, Pool
from tests.world import World

SFQ = Policy(pools={"default": Pool(workers=("n*",), discipline="sfq")})


def test_a_flow_stuck_on_an_absent_worker_earns_no_credit() -> None:
    """Equal weights, one slot, jobs of 1 s. A flow whose only job waits for a worker that is
    away, while another runs 20 jobs, then gets jobs that can run: they alternate with the
    other's from there on, so of the next 10 dispatches 5 are its own."""
    world = World(SFQ)
    world.node_up("n1", 1)
    world.submit("stuck", worker="n9-cpu0")
    for _ in range(40):
        world.submit("busy")
    world.turn()
    run(world, dispatches=20)
    for _ in range(20):
        world.submit("stuck")
    before = len(world.assigned())
    run(world, dispatches=10)
    organizations = [
        world.job(job).spec.organization for job in world.assigned()[before : before + 10]
    ]
    assert organizations.count("stuck") == 5


def test_a_revoked_job_stands_where_it_stood() -> None:
    """Its flow has no other job. Taken back before it ran, it has the start tag it had."""
    world = World(SFQ)
    world.node_up("n1", 1)
    world.node_up("n2", 1)
    for _ in range(6):
        world.submit("busy")
    job = world.submit("other")
    world.turn()
    assert world.attempt(job).lead in ("n1-cpu0", "n2-cpu0")
    first = next(d for d in world.decisions if isinstance(d, e.AttemptAssigned) and d.job == job)
    world.drain(world.attempt(job).lead.rpartition("-")[0])
    world.turn()
    world.see(e.ClaimSeen(job=job, attempt=1, owner="revoke"))
    world.turn()
    flow = world.state.flows[world.job(job).spec.flow]
    assert flow.start_tag == first.start_tag
    assert flow.running == 0


def test_a_pool_whose_only_job_is_revoked_forgives_no_debt() -> None:
    """100 s were charged to ``a``, of which it used 100 s; the revoke of ``b``'s only job
    must not lift the virtual time to that, or ``a``'s next job would stand level with ``b``'s."""
    world = World(SFQ)
    world.node_up("n1", 2)
    debtor = world.submit("a", estimate_ms=100_000)
    job = world.submit("b")
    world.turn()
    world.start(debtor)
    world.turn(after_ms=100_000)
    world.finish(debtor)
    world.drain("n1")
    world.turn()
    world.see(e.ClaimSeen(job=job, attempt=1, owner="revoke"))
    world.turn()
    assert world.state.pools["default"].virtual_time < 100_000 * SCALE


def run(world: World, *, dispatches: int) -> None:
    """Let each assigned job run for 1 s until so many more were assigned."""
    until = len(world.assigned()) + dispatches
    while len(world.assigned()) < until:
        occupied = [w.occupant.job for w in world.state.workers.values() if w.occupant]
        assert occupied, "nothing runs"
        for job in occupied:
            world.start(job)
        world.turn(after_ms=1_000)
        for job in occupied:
            world.finish(job)
        world.turn()


def test_a_newcomer_is_level_with_one_whose_estimates_were_far_too_high() -> None:
    """Nobody says how long jobs take: 10 minutes are charged for each, and given back after
    1 s. Equal weights, two slots: a flow that comes second is not made to wait until the
    first has used up what it was charged at its first dispatches. Of the next 24 dispatches
    it gets half (under wfq, which serves short jobs first, only if it says that they are)."""
    for discipline in ("wfq", "sfq"):
        pool = Pool(workers=("n*",), discipline=discipline)
        world = World(Policy(pools={"default": pool}))
        world.node_up("n1", 2)
        for number in range(60):
            world.submit("first", name=f"a{number}", estimate_ms=0)
        world.turn()
        run(world, dispatches=4)
        for number in range(60):
            estimate_ms = 1_000 if discipline == "wfq" else 0
            world.submit("second", name=f"b{number}", estimate_ms=estimate_ms)
        before = len(world.assigned())
        run(world, dispatches=24)
        owners = [world.job(job).spec.organization for job in world.assigned()[before:]]
        assert abs(owners[:24].count("second") - 12) <= 3, (discipline, owners)
