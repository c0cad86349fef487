"""In which order a pool serves its flows: wfq, sfq, fifo, strict.

Owns the sort keys. Every key ends with (arrival, job id, flow), a fixed total order, so
that equal tags never leave a choice to chance.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.fair_state import FairState, Flow
from ledger.names import FlowId, JobId
from ledger.policy import CLASSES, Policy


class Rank(NamedTuple):
    """Where the head of a flow stands in its pool's order; the smallest goes next."""

    tier: int
    """0 of a strict class, 2 of one that has what it is owed, else 1; ``fifo`` has but one."""
    tag: int
    arrival: int
    job: JobId
    flow: FlowId


def rank(
    discipline: str,
    fair: FairState,
    policy: Policy,
    flow: Flow,
    *,
    job: JobId,
    arrival: int,
    cost_ms: int,
    borrows: bool,
) -> Rank:
    """The rank of a job of ``cost_ms`` slot-milliseconds at the head of ``flow``.

    ``wfq``: smallest finish tag; ``sfq``: smallest start tag; ``fifo``: arrival alone;
    ``strict``: system before interactive before batch before all others, arrival within.
    ``borrows``: the flow's class has what the pool owes it.
    """
    match discipline:
        case "wfq":
            tag = fair.tags(flow, cost_ms, policy).finish
        case "sfq":
            tag = flow.start_tag
        case "strict":
            # All others come behind: those of the policy, or none that is known (yet rejected).
            tag = (*CLASSES, flow.workload_class).index(flow.workload_class)
        case _:
            tag = 0
    tier = 2 if borrows else 1
    if policy.is_strict(flow.workload_class):
        tier = 0
    return Rank(1 if discipline == "fifo" else tier, tag, arrival, job, flow.id)
