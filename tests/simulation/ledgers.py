"""Whole ledgers for the tests of verification, built by ``World`` and the real decisions."""

from __future__ import annotations

from collections.abc import Sequence

from ledger import events as e
from ledger.events import ClaimSeen, LedgerInfo, Liveness, PutId, encode
from ledger.keys import LEDGER, claim_key, message_key, page_key
from ledger.names import JobId, WriterName
from ledger.policy import Organization, Policy, Pool
from ledger.projection import Projection
from ledger.state import State
from ledger.stores.base import Store
from tests.world import START_MS, World, sha256_of

WEIGHTS = {"astro": 4_000, "bio": 2_000, "chem": 1_000}


def policy(discipline: str = "wfq") -> Policy:
    return Policy(
        organizations={name: Organization(weight=weight) for name, weight in WEIGHTS.items()},
        pools={"default": Pool(discipline=discipline)},
    )


def eventful_world() -> World:
    """A page for each thing that commonly happens: two epochs, a failure, a cancel, a node lost."""
    world = World(policy())
    world.node_up("n1", 2)
    world.node_up("n2", 1)
    jobs = [world.submit(name, name=f"{name}-{n}") for n in range(2) for name in WEIGHTS]
    world.turn(after_ms=1_000)
    running = world.assigned()
    for job in running:
        world.start(job)
    world.turn(after_ms=500)
    world.finish(running[0], rc=3)
    world.turn(after_ms=2_000)  # what runs on is past its estimate: overruns are charged
    world.cancel(running[1])
    world.cancel(jobs[-1])
    world.turn(after_ms=500)
    world.finish(running[1], rc=143, outcome="stopped")
    world.turn(elected=True, after_ms=31_000)
    world.node_is("n2", Liveness.STALE)
    world.turn(after_ms=180_000)
    for ref in world.state.revoking:
        world.see(ClaimSeen(job=ref.job, attempt=ref.attempt, owner="revoke"))
    world.turn(after_ms=1_000)
    drain_queue(world)
    return world


def drain_queue(world: World, run_ms: int = 1_000) -> None:
    """Let everything that can run start, run ``run_ms`` and end with rc 0."""
    while assigned := _in_hand(world):
        for job in assigned:
            if world.attempt(job).started_at is None:
                world.start(job)
        world.turn()
        for job in assigned:
            world.finish(job)
        world.turn(after_ms=run_ms)


def _in_hand(world: World) -> list[JobId]:
    occupants = (worker.occupant for worker in world.state.workers.values())
    return list(dict.fromkeys(ref.job for ref in occupants if ref is not None))


def write_ledger(store: Store, bodies: Sequence[bytes]) -> None:
    """A ledger named as ``World`` names it, whose journal is ``bodies``."""
    info = LedgerInfo(ledger="test", created_at=START_MS, put_id=PutId("put-ledger"))
    store.put_once(LEDGER, encode(info))
    for seq, body in enumerate(bodies):
        store.put_once(page_key(seq), body)


def write_objects(store: Store, pages: Sequence[e.Page]) -> None:
    """What stands beside the journal of a ``World``: facts, messages, and claims of what ran."""
    projection = Projection(State(ledger="test"))
    leads: dict[tuple[JobId, int], str] = {}
    for page in pages:
        projection.apply(page, sha256_of(page))
        for worker in projection.state.workers.values():
            for number, message in worker.messages.items():
                store.put_once(message_key(worker.name, number), encode(message))
        for posted in page.facts:
            store.put_once(posted.key, encode(posted.fact))
        for decision in page.decisions:
            if isinstance(decision, e.AttemptAssigned):
                leads[decision.job, decision.attempt] = decision.slots[0]
        for event in (*(posted.fact for posted in page.facts), *page.seen):
            match event:
                case e.AttemptStarted():
                    owner = "start"
                case e.ClaimSeen():
                    owner = event.owner
                case _:
                    continue
            lead = f"{leads[event.job, event.attempt]}~aaaaaaaa"
            writer = lead if owner == "start" else page.leader
            claim = e.Claim(
                ledger="test", put_id=PutId("put-claim"), job=event.job, attempt=event.attempt,
                owner=owner, writer=WriterName(writer), at=page.at,
            )  # fmt: skip
            store.put_once(claim_key(event.job, event.attempt), encode(claim))


def bodies_of(world: World) -> list[bytes]:
    return [encode(page) for page in world.pages]
