"""Everything that is written into the bucket, as frozen Structs.

Owns the schema (docs/LEDGER_FORMAT.md describes each for other readers). Four families:
facts (what a process reports), beats, what a page says beside facts (``Seen`` and
``Decision``), and what goes to workers (messages, claims). A tag never changes its
meaning; new fields get defaults. All times are integer milliseconds since the epoch on
the store's clock, all sizes bytes, all costs integer slot-milliseconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NewType

import msgspec

from ledger.decisions import *  # noqa: F403 - a page holds them: ``e.JobRequeued``
from ledger.decisions import AnyDecision
from ledger.jobspec import *  # noqa: F403 - a submit holds them: ``e.Snapshot``
from ledger.jobspec import JobSpec
from ledger.names import Epoch, JobId, NodeName, Seq, WorkerName, WriterName
from ledger.policy import Policy

SCHEMA = 1
"""The newest body version (``v``) that this program reads and writes."""

PutId = NewType("PutId", str)


class JobState(StrEnum):
    """Where a job stands; the words are Slurm's where Slurm has one."""

    PENDING = "PENDING"
    HELD = "HELD"
    ASSIGNED = "ASSIGNED"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"
    DEPENDENCY_NEVER = "DEPENDENCY_NEVER"

    @property
    def ended(self) -> bool:
        return self not in _OPEN_STATES

    @property
    def queued(self) -> bool:
        return self in (JobState.PENDING, JobState.HELD)

    @property
    def retryable(self) -> bool:
        """Ended, but neither done nor known to be impossible."""
        return self.ended and self not in (JobState.COMPLETED, JobState.REJECTED)


_OPEN_STATES = frozenset(
    {
        JobState.PENDING,
        JobState.HELD,
        JobState.ASSIGNED,
        JobState.RUNNING,
        JobState.STOPPING,
    }
)


# --- facts -------------------------------------------------------------------------


def _schema() -> int:
    """A factory, because ``omit_defaults`` must not omit ``v``."""
    return SCHEMA


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """What any process reports. ``(writer, n)`` is its identity, ``at`` when it happened.

    ``prev`` is the key under which the writer's previous fact was acknowledged.
    """

    v: int = msgspec.field(default_factory=_schema)
    writer: WriterName = WriterName("")
    n: int = -1
    at: int
    prev: str = ""


class Submitted(Fact, frozen=True, tag="submit"):
    job: JobSpec


class ArraySubmitted(Submitted, frozen=True, tag="submit_array"):
    """A submit whose job has an ``array``; a reader that knows no arrays must not take it."""


class CancelRequested(Fact, frozen=True, tag="cancel"):
    job: JobId
    by: str = ""
    reason: str = ""
    grace_ms: int = 0
    """Between TERM and KILL; 0 means the job's own or the default."""


class HoldRequested(Fact, frozen=True, tag="hold"):
    job: JobId
    by: str = ""
    reason: str = ""


class ReleaseRequested(Fact, frozen=True, tag="release"):
    job: JobId
    by: str = ""


class MoveRequested(Fact, frozen=True, tag="move"):
    """The job waits in this pool and under this pin from now on, whatever was submitted."""

    job: JobId
    pool: str
    worker: str = ""
    """The worker to which it is pinned; empty: any."""
    by: str = ""


class RetryRequested(Fact, frozen=True, tag="retry"):
    """An ended job shall get a further attempt."""

    job: JobId
    by: str = ""


class PolicyApplied(Fact, frozen=True, tag="policy"):
    policy: Policy
    by: str = ""
    source: str = ""
    """sha256 of the blob with the text as it was written."""


class DrainRequested(Fact, frozen=True, tag="drain"):
    node: NodeName
    by: str = ""
    reason: str = ""
    now: bool = False
    """What runs there is stopped and goes back to its flow."""


class UndrainRequested(Fact, frozen=True, tag="undrain"):
    node: NodeName
    by: str = ""


class AttemptRef(msgspec.Struct, frozen=True, array_like=True):
    """One attempt of one job."""

    job: JobId
    attempt: int


class Slot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker has to offer. Readings that NVML cannot give are absent, never invented."""

    kind: str
    """``gpu`` or ``cpu``."""
    index: int
    gpu_name: str = ""
    gpu_uuid: str = ""
    gpu_memory_bytes: int = 0


class WorkerFact(Fact, frozen=True):
    """Reported by a worker. ``cursor`` is the number after its last handled message."""

    worker: WorkerName
    cursor: int


class WorkerReady(WorkerFact, frozen=True, tag="ready"):
    """The first fact of each incarnation of a worker."""

    node: NodeName
    machine: str
    pool: str
    slot: Slot
    running: tuple[AttemptRef, ...] = ()
    """What it adopted; whatever else it occupied is over."""
    incarnation: int = 0
    """Grows with each start of the worker, wherever it is started; 0: not told."""
    price_micros: int = 0
    """What its whole node costs an hour, in millionths of the unit of money; 0: not told."""


class AttemptStarted(WorkerFact, frozen=True, tag="start"):
    job: JobId
    attempt: int
    pid: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job said of its calls of an external service."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    throttled: int = 0
    """Answers 429."""
    timeouts: int = 0


class AttemptFinished(WorkerFact, frozen=True, tag="finish"):
    """The job's process has exited, and nothing of its tree is left (or ``problem`` says)."""

    job: JobId
    attempt: int
    outcome: str
    """``exited``, ``timeout``, ``deadline``, ``stopped``, ``exclusive``, ``oom``,
    ``failed_to_start``."""
    rc: int
    """As a shell shows it: 128+n for signal n."""
    started_at: int
    ended_at: int
    reason: str = ""
    log_bytes: int = 0
    utilisation_percent: int | None = None
    """A reading of the slot's GPU taken after the job had gone."""
    report: Report | None = None


class AttemptLost(WorkerFact, frozen=True, tag="lost"):
    """The worker knows nothing more of an attempt that it (or its former self) claimed."""

    job: JobId
    attempt: int
    reason: str
    ran: bool = True
    """False where it is certain that the job's command was never executed."""


class MessageSkipped(WorkerFact, frozen=True, tag="skip"):
    """A message was handled and needed nothing else to be said."""


class WorkerRetired(WorkerFact, frozen=True, tag="retire"):
    """This incarnation starts nothing more (drain, or the end of ``gpuq up``)."""

    reason: str = ""


AnyFact = (
    Submitted
    | ArraySubmitted
    | CancelRequested
    | HoldRequested
    | ReleaseRequested
    | MoveRequested
    | RetryRequested
    | PolicyApplied
    | DrainRequested
    | UndrainRequested
    | WorkerReady
    | AttemptStarted
    | AttemptFinished
    | AttemptLost
    | MessageSkipped
    | WorkerRetired
)


def kind_of(struct: msgspec.Struct) -> str:
    """The tag of a fact, seen event, decision or message: ``submit``, ``assign``, ..."""
    return str(struct.__struct_config__.tag)


# --- beats -------------------------------------------------------------------------


class SlotBeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one worker and its slot are, as the supervisor sees them."""

    alive: bool
    problem: str = ""
    """Why the slot must take no work; empty where it may."""
    running: str = ""
    utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: int | None = None
    ecc_errors: int | None = None
    """Uncorrected, since the driver was loaded."""
    xid: int | None = None
    """The newest critical error that the driver told of."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's heartbeat, or the leader's (its writer begins with ``dispatcher``)."""

    v: int = msgspec.field(default_factory=_schema)
    writer: WriterName
    n: int
    at: int
    node: NodeName = NodeName("")
    host: str = ""
    machine: str = ""
    pool: str = ""
    format: int = SCHEMA
    """The newest ``v`` that this node reads."""
    epoch: int = 0
    """Of a leader's beat."""
    slots: dict[str, SlotBeat] = {}
    disk_free_bytes: dict[str, int] = {}
    uptime_ms: int = 0
    clock_offset_ms: int = 0
    """The store's clock minus this machine's."""
    pending_facts: int = 0
    """Reported locally, not yet in the bucket."""
    newest: dict[str, str] = {}
    """Writer to the key of its newest acknowledged fact."""


# --- what a page says beside facts ---------------------------------------------------


class Liveness(StrEnum):
    """How long a node has been silent, by the leader's own clock."""

    FRESH = "fresh"
    STALE = "stale"
    GONE = "gone"


class SlotSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="slot"):
    """A slot became usable (``problem`` empty) or unusable."""

    worker: WorkerName
    problem: str = ""


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="node"):
    node: NodeName
    liveness: Liveness


class ClaimSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="claim"):
    """Who owns an attempt that was being revoked."""

    job: JobId
    attempt: int
    owner: str
    """``start`` or ``revoke``."""


class FactRefused(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refused"):
    """A fact that is not admitted; its place in its writer's order is used up."""

    key: str
    writer: WriterName
    n: int
    reason: str
    job: str = ""
    """Of a submit that could still be read that far: the job is rejected."""


class ArtifactSeen(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="artifact"):
    """An object for which jobs wait is there."""

    path: str


AnySeen = SlotSeen | NodeSeen | ClaimSeen | FactRefused | ArtifactSeen


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    """A fact as it stands in a page: its key and its whole body."""

    key: str
    fact: AnyFact


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the journal. Order within: facts, seen, decisions."""

    v: int = SCHEMA
    ledger: str
    seq: Seq
    epoch: Epoch
    leader: WriterName
    at: int
    prev_sha256: str
    rules: int
    facts: tuple[Posted, ...] = ()
    seen: tuple[AnySeen, ...] = ()
    decisions: tuple[AnyDecision, ...] = ()
    fair: str
    """Digest of the fair state after this page."""
    put_id: PutId


# --- messages, claims, the ledger itself ---------------------------------------------


class RunMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """Start this attempt. Name and body follow from the page, so anyone can deliver it."""

    v: int = SCHEMA
    ledger: str
    worker: WorkerName
    n: int
    seq: Seq
    job: JobSpec
    attempt: int
    slots: tuple[WorkerName, ...]
    machine: str = ""
    """Of the worker's node when this was decided: on another one it is not for that worker."""


class StopMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="stop"):
    """Stop this attempt, wherever it stands."""

    v: int = SCHEMA
    ledger: str
    worker: WorkerName
    n: int
    seq: Seq
    job: JobId
    attempt: int
    reason: str
    grace_ms: int = 0
    machine: str = ""


AnyMessage = RunMessage | StopMessage


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns an attempt: the kind in the body decides."""

    v: int = SCHEMA
    ledger: str
    put_id: PutId
    job: JobId
    attempt: int
    owner: str
    """``start`` (a worker runs it) or ``revoke`` (the leader took it back)."""
    writer: WriterName
    at: int
    machine: str = ""


class LedgerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``gpuq.json``: who this ledger is."""

    v: int = SCHEMA
    ledger: str
    format: int = SCHEMA
    created_at: int
    put_id: PutId


_encoder = msgspec.json.Encoder(order="deterministic")


def encode(struct: msgspec.Struct) -> bytes:
    """The one JSON form of a body: the same Struct always gives the same bytes."""
    return _encoder.encode(struct)


decode_fact = msgspec.json.Decoder(AnyFact).decode
decode_beat = msgspec.json.Decoder(Beat).decode
decode_page = msgspec.json.Decoder(Page).decode
decode_message = msgspec.json.Decoder(AnyMessage).decode
decode_claim = msgspec.json.Decoder(Claim).decode
decode_ledger_info = msgspec.json.Decoder(LedgerInfo).decode


class Header(msgspec.Struct, frozen=True):
    """What every reader can read of any body, also of one from the future."""

    v: int = 1
    kind: str = ""
    format: int = 1
    job: Any = None


decode_header = msgspec.json.Decoder(Header).decode
