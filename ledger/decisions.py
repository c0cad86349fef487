"""What the leader decides, as frozen Structs: the part of a page that is derived again.

Owns the schema of decisions. ``ledger.events`` gives them on beside the rest of a page; the
rules of tags and defaults are the ones that it states.
"""

from __future__ import annotations

import msgspec

from ledger.names import FlowId, JobId, NodeName, WorkerName

__all__ = [
    "SUPERSEDED",
    "YIELDED",
    "YIELD_RC",
    "AnyDecision",
    "AttemptAssigned",
    "AttemptFound",
    "Decision",
    "DependencyMissed",
    "Elected",
    "FlowBlocked",
    "FlowFreed",
    "JobAdmitted",
    "JobExpired",
    "JobHeld",
    "JobRejected",
    "JobRequeued",
    "JobResumed",
    "JobRetried",
    "LossDeclared",
    "NodeBlocked",
    "NodeFreed",
    "NodeProbed",
    "OverrunCharged",
    "ReservationEnded",
    "RetryDenied",
    "RevokeBegun",
    "SlotsReserved",
    "StopOrdered",
]


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What the leader decided; derived again by anybody from the pages before it."""


class Elected(Decision, frozen=True, tag="elect"):
    """A new leader; the epoch is the page's own."""

    format: int


class JobRejected(Decision, frozen=True, tag="reject"):
    job: JobId
    reason: str


class JobAdmitted(Decision, frozen=True, tag="admit"):
    """The policy gives the job another standing than it asked for."""

    job: JobId
    organization: str
    workload_class: str
    reason: str


class AttemptAssigned(Decision, frozen=True, tag="assign"):
    """``slots[0]`` is the lead worker, whose mailbox gets message number ``message``."""

    job: JobId
    attempt: int
    slots: tuple[WorkerName, ...]
    message: int
    start_tag: int
    finish_tag: int
    cost_ms: int
    """The estimate that is charged: slot-milliseconds, or tokens in an API pool."""
    weight: tuple[int, int]
    """Numerator and denominator, as of this dispatch."""
    backfill: bool = False
    turns: tuple[int, ...] = ()
    """Of its flow after it, where that has size buckets: ``ledger.size_buckets``."""
    gpu_ms: int = 0
    """What it may use of GPU time, and ..."""
    money_micros: int = 0
    """... of money: this counts against limits a day until it ends."""


SUPERSEDED = "superseded"
"""Reason of a stop of an attempt that no longer counts: it must write nothing more."""


YIELDED = "its quantum is over"
"""Reason of a stop of an attempt that is to save and give way; it goes on as a new one."""

YIELD_RC = 75
"""``EX_TEMPFAIL`` of sysexits.h: how a job says that it has saved and can go on."""


class StopOrdered(Decision, frozen=True, tag="stop"):
    job: JobId
    attempt: int
    worker: WorkerName
    message: int
    reason: str
    grace_ms: int = 0


class RevokeBegun(Decision, frozen=True, tag="revoke"):
    """The leader will try the claim; the job goes back only if that is won."""

    job: JobId
    attempt: int
    reason: str


class JobRequeued(Decision, frozen=True, tag="requeue"):
    job: JobId
    reason: str
    counted: bool = True
    """False where the node is to blame: the job is no nearer to being held for it."""


class JobHeld(Decision, frozen=True, tag="hold"):
    """It would only fail as its like did; a user may release it."""

    job: JobId
    reason: str


class JobExpired(Decision, frozen=True, tag="expire"):
    """It waited longer than it may."""

    job: JobId
    reason: str


class DependencyMissed(Decision, frozen=True, tag="never"):
    """What the job waits for has not come, and will not."""

    job: JobId
    reason: str


class RetryDenied(Decision, frozen=True, tag="deny"):
    """It failed and asked for a further attempt, which its flow may not have now."""

    job: JobId
    reason: str


class JobRetried(Decision, frozen=True, tag="again"):
    """It failed and goes back to its flow, behind all that wait there, at ``until``."""

    job: JobId
    reason: str
    until: int


class JobResumed(Decision, frozen=True, tag="resume"):
    """What it waits for has come: the time for which it was put off, the ends of others."""

    job: JobId


class LossDeclared(Decision, frozen=True, tag="lost"):
    """Provisional while there is no newer attempt."""

    job: JobId
    attempt: int


class AttemptFound(Decision, frozen=True, tag="found"):
    job: JobId
    attempt: int


class SlotsReserved(Decision, frozen=True, tag="reserve"):
    """Slots kept free for a job that needs more than are free."""

    job: JobId
    pool: str
    node: NodeName
    start_at: int
    """When enough slots should be free, by limits and estimates of what runs there."""


class ReservationEnded(Decision, frozen=True, tag="unreserve"):
    job: JobId
    pool: str


class FlowBlocked(Decision, frozen=True, tag="block"):
    flow: FlowId
    reason: str
    limit: str = ""
    """Of a flow that its own limit holds: whose limit it is, as ``str(Scope)``."""


class FlowFreed(Decision, frozen=True, tag="free"):
    flow: FlowId
    credit: int = 0
    """Of a flow that its own limit held: how far behind the pool's virtual time it may be."""


class NodeBlocked(Decision, frozen=True, tag="block_node"):
    """The node makes jobs fail; it takes none until ``until``, and then one to try it."""

    node: NodeName
    reason: str
    until: int
    pause_ms: int
    """How long that is; the next one is longer."""


class NodeProbed(Decision, frozen=True, tag="probe_node"):
    """The next job that is placed on the blocked node shows whether it is sound again."""

    node: NodeName


class NodeFreed(Decision, frozen=True, tag="free_node"):
    node: NodeName
    reason: str


class OverrunCharged(Decision, frozen=True, tag="overrun"):
    """The attempt runs past what was charged for it; the charge grows to ``cost_ms``."""

    job: JobId
    attempt: int
    cost_ms: int


AnyDecision = (
    Elected
    | JobRejected
    | AttemptAssigned
    | StopOrdered
    | RevokeBegun
    | JobRequeued
    | LossDeclared
    | AttemptFound
    | SlotsReserved
    | ReservationEnded
    | JobAdmitted
    | JobExpired
    | DependencyMissed
    | JobRetried
    | RetryDenied
    | JobResumed
    | FlowBlocked
    | FlowFreed
    | OverrunCharged
    | JobHeld
    | NodeBlocked
    | NodeProbed
    | NodeFreed
)
