"""One turn of the wheel: from facts and seen events to a page's decisions.

Owns the order within a page (facts, seen, decisions) for the leader that writes it and
for the replay that derives it again, so that both run the same lines. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger import events as e
from ledger.names import Epoch, WriterName
from ledger.projection import Projection
from scheduling.decide import Scheduler


def take_turn(
    projection: Projection,
    scheduler: Scheduler,
    *,
    at: int,
    epoch: Epoch,
    leader: WriterName,
    facts: Sequence[e.Posted],
    seen: Sequence[e.AnySeen],
    elected: bool,
) -> tuple[tuple[e.AnyDecision, ...], str]:
    """Decisions of the page and the digest of the fair state after them.

    The projection has then folded all of the page but its place in the chain
    (``Projection.finish``).
    """
    projection.begin(at, epoch, leader, facts, seen)
    decisions: list[e.AnyDecision] = []
    if elected:
        election = e.Elected(format=e.SCHEMA)
        projection.apply_decision(election)
        decisions.append(election)
    decisions.extend(scheduler.decide(projection.state.at))
    return tuple(decisions), projection.fair.digest()
