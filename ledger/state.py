"""What the fold knows: plain data, which a checkpoint saves as it stands.

Owns the Structs of jobs, attempts, workers, nodes and reservations. Nothing here has
behaviour beyond reading itself; ``ledger.projection`` changes it.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Any

import msgspec

from ledger.arrays import index_at, member_id
from ledger.calibration import Calibration
from ledger.daily import Draw, Hours
from ledger.events import (
    AnyMessage,
    AttemptRef,
    CancelRequested,
    JobSpec,
    JobState,
    Liveness,
    Report,
    Slot,
)
from ledger.fair_state import Flow, PoolClock
from ledger.names import Epoch, FlowId, JobId, NodeName, Seq, WorkerName, WriterName
from ledger.policy import Policy, Refusal, Standing
from ledger.rates import Window
from ledger.timings import Timings

RULES = 1
"""Version of ``scheduling.decide``; replay verifies the pages that carry it."""


GAP_MS = 3_600_000
"""A pause between two pages after which the tail of facts still begins before it, ..."""

GAP_HELD_MS = 7_200_000
"""... for so long."""


INTRUDERS_MAX = 64

GRACE_MS = Timings().grace_ms
"""Between TERM and KILL where nobody says anything: a grace is compared with that."""


UNEXPLAINED = "drained"
"""The reason of a drain for which its user gave none."""


class Phase(IntEnum):
    """Where an attempt stands. It only moves forward, except that LOST may be found."""

    ASSIGNED = 0
    REVOKING = 1
    STARTED = 2
    STOPPING = 3
    LOST = 4
    ENDED = 5


Rate = tuple[int, int]
"""What a slot-millisecond costs, numerator and denominator."""

PLAIN_RATE: Rate = (1, 1)


class Attempt(msgspec.Struct, kw_only=True):
    """One try at running a job, numbered from 1."""

    number: int
    slots: tuple[WorkerName, ...]
    """The lead worker first."""
    message: int
    assigned_at: int
    cost_ms: int
    """Charged so far: slot-milliseconds, or tokens in an API pool."""
    weight: tuple[int, int]
    phase: Phase = Phase.ASSIGNED
    started_at: int | None = None
    ended_at: int | None = None
    rc: int | None = None
    outcome: str = ""
    reason: str = ""
    stop_reason: str = ""
    stop_ordered: bool = False
    stop_grace_ms: int = 0
    """Of the newest order to stop; 0: it named none."""
    ran: bool = True
    settled: bool = False
    superseded: bool = False
    excused: bool = False
    """It failed within seconds of its start, and its node is blocked for that."""
    retried: bool = False
    """A user asked for a further attempt after this one was lost."""
    log_bytes: int = 0
    report: Report | None = None
    output_factor: int = 0
    """Of an attempt that is charged in tokens: for how many one output token counts."""
    rate: Rate = PLAIN_RATE
    """What a slot-millisecond of it costs, by the GPU memory that it asked for."""
    draw: Draw = Draw()
    """On the limits a day."""

    @property
    def lead(self) -> WorkerName:
        return self.slots[0]

    @property
    def charged_run_ms(self) -> int:
        """For how long a run it has been charged; not of one that is charged in tokens."""
        numerator, denominator = self.rate
        return self.cost_ms * denominator // (numerator * len(self.slots))


class Array(msgspec.Struct, kw_only=True):
    """How far the members of an array have come. Positions count its indices from 0."""

    first_arrival: int
    """Of the member at position 0; the others follow in order."""
    left: int
    """Members that are no jobs of their own yet."""
    next: int = 0
    """Position of the first of them."""
    taken: list[int] = []
    """Positions behind it that are jobs of their own already, in order."""
    open: dict[int, bool] = {}
    """Indices of members that are jobs and have not ended; whether it was ever assigned."""
    begun: int = 0
    """How many of those were: that is what the array's own limit counts."""
    ended: dict[JobState, int] = {}
    """Members that ended, by their state."""
    suspended: bool = False
    """It waits, but its own limit keeps it out of its flow's queue."""
    closed: JobState | None = None
    """How those ended that are left: none of them will begin."""


class Placement(msgspec.Struct, frozen=True):
    """Where a job may run: its pool, and the worker to which it is pinned (empty: any)."""

    pool: str
    worker: str = ""


class Job(msgspec.Struct, kw_only=True):
    """A submitted job and its attempts. ``arrival`` orders the jobs of a flow."""

    spec: JobSpec
    arrival: int
    submitted_at: int
    state: JobState = JobState.PENDING
    reason: str = ""
    attempts: list[Attempt] = []
    cancel: CancelRequested | None = None
    moved: Placement | None = None
    """Where it may run instead of where it was submitted to."""
    moving: Placement | None = None
    """The same from its next requeue on: it is assigned, and is being taken back."""
    size: int = 0
    """What it was expected to cost when it came to its flow: by that it is small or long."""
    standing: Standing | None = None
    """What the policy made of the organization and class that were asked for."""
    over_rate: str = ""
    """Whose rate of submissions it broke."""
    wakes_at: int = 0
    """Until when it is put off, or stands aside at least; 0 where it does not."""
    aside_since: int | None = None
    """Since when it stands aside: PENDING, but in no queue before what it waits for has come."""
    entered_at: int = 0
    """When it last left that for its queue; 0: it never stood aside."""
    requeues: int = 0
    ended_at: int | None = None
    tried_again: bool = False
    """It had run and ended, and was put back behind all that waited."""
    conflicting_submits: int = 0
    """Submits under the same key with another body; they were rejected."""
    array: Array | None = None
    """Of an array: its members."""
    counted: JobState | None = None
    """Of a member that ended: the state under which its array counts it."""

    @property
    def id(self) -> JobId:
        return self.spec.id

    @property
    def next_id(self) -> JobId:
        """Of the job that a dispatch of this one starts: itself, or an array's next member."""
        if self.array is None or self.spec.array is None:
            return self.id
        return member_id(self.id, index_at(self.spec.array, self.array.next))

    @property
    def waiting(self) -> int:
        """For how many jobs it stands in a queue."""
        return 1 if self.array is None else self.array.left

    @property
    def is_waiting(self) -> bool:
        """Whether it counts as waiting in its pool: it is PENDING and does not stand aside."""
        return self.state is JobState.PENDING and self.aside_since is None

    @property
    def in_queue(self) -> bool:
        """Whether it stands in its flow's queue: it waits, and no limit of its array's is full."""
        return self.is_waiting and not (self.array is not None and self.array.suspended)

    @property
    def priority(self) -> int:
        """Within its flow; what failed before does not pass those that ask for nothing."""
        return min(self.spec.priority, 0) if self.tried_again else self.spec.priority

    @property
    def queued_since(self) -> int:
        """From when on its wait for a slot counts."""
        return self.entered_at or self.submitted_at

    @property
    def placed(self) -> JobSpec:
        """What was asked for, but with the standing, the pool and the pin that hold now."""
        spec = self.spec
        if self.moved is not None:
            spec = msgspec.structs.replace(spec, pool=self.moved.pool, worker=self.moved.worker)
        if self.standing is not None:
            spec = msgspec.structs.replace(
                spec,
                organization=self.standing.organization,
                workload_class=self.standing.workload_class,
            )
        return spec

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def last_is_lost(self) -> bool:
        """Whether its last attempt may still be found."""
        return self.last is not None and self.last.phase is Phase.LOST

    def is_hastened_by(self, cancel: CancelRequested) -> bool:
        """Whether a further cancel leaves it less time than the one that is in force."""
        if self.cancel is None:
            return False
        return 0 < cancel.grace_ms < self.grace_ms(self.cancel.grace_ms)

    def grace_ms(self, asked_ms: int) -> int:
        """Between TERM and KILL where ``asked_ms`` was asked for: 0 means the job's own."""
        return asked_ms or self.spec.grace_ms or GRACE_MS

    def attempt(self, number: int) -> Attempt | None:
        """The attempt of that number (from 1), or None."""
        return self.attempts[number - 1] if 0 < number <= len(self.attempts) else None


class ArchivedJob(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered for ever of a job that ended long ago."""

    state: JobState
    rc: int | None
    digest: str
    seq: Seq
    """The page after which it was archived; the whole story stands in the journal."""


class Worker(msgspec.Struct, kw_only=True):
    """One slot and the mailbox of the process that serves it."""

    name: WorkerName
    node: NodeName
    declared_pool: str = ""
    pool: str = ""
    writer: WriterName = WriterName("")
    incarnation: int = 0
    """Both of its newest incarnation that was admitted."""
    slot: Slot = Slot(kind="cpu", index=0)
    price_micros: int = 0
    """What its whole node costs an hour, as the worker was told."""
    cursor: int = 0
    next_message: int = 0
    messages: dict[int, AnyMessage] = {}
    """Delivered or to be delivered; kept until the cursor has passed them."""
    ready: bool = False
    retired: str = ""
    problem: str = ""
    occupant: AttemptRef | None = None


class FastFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed within seconds of its start, for which its node may be to blame."""

    job: JobId
    command: str
    """Fingerprint of what ran; see ``ledger.health.command_of``."""
    flow: FlowId
    proven: bool
    """The command had succeeded on another node before."""


class NodeHealth(msgspec.Struct, kw_only=True):
    """What the jobs of a node say of it."""

    failures: list[FastFailure] = []
    """The newest in a row, oldest first; whatever runs well ends the row."""
    blocked: str = ""
    """Why it takes no jobs; empty where it does."""
    until: int = 0
    pause_ms: int = 0
    """A blocked node is probed after ``until``; that was ``pause_ms`` after the block."""
    probing: bool = False
    """It takes one job, by which it is judged."""
    probe: AttemptRef | None = None

    @property
    def closed(self) -> bool:
        """Whether the node takes no job now."""
        return bool(self.blocked) and not (self.probing and self.probe is None)


class CommandRecord(msgspec.Struct, kw_only=True):
    """How a command ended last, by node: each node is in one of the lists, or in none."""

    failed_on: list[NodeName] = []
    """Within seconds of its start."""
    succeeded_on: list[NodeName] = []


class Node(msgspec.Struct, kw_only=True):
    """A machine. ``drained`` is the reason, or empty."""

    name: NodeName
    machine: str = ""
    liveness: Liveness = Liveness.FRESH
    drained: str = ""
    drained_by: str = ""
    drained_now: bool = False
    """What runs there is stopped, and runs again elsewhere."""
    workers: list[WorkerName] = []
    intruder: str = ""
    """The machine id of a second machine that was refused under this name."""
    intruders: list[WriterName] = []
    """The newest writers of such machines: what their workers say counts for nothing."""
    health: NodeHealth = msgspec.field(default_factory=NodeHealth)


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of one node kept free for one job of a pool."""

    job: JobId
    node: NodeName
    start_at: int
    made_at: int


class State(msgspec.Struct, kw_only=True):
    """The whole projection after page ``seq`` (-1: nothing posted yet)."""

    ledger: str
    seq: Seq = Seq(-1)
    page_sha256: str = ""
    epoch: Epoch = Epoch(0)
    leader: WriterName = WriterName("")
    at: int = 0
    format: int = 1
    writers: dict[WriterName, int] = {}
    """The next ``n`` of every writer that ever reported; never forgotten."""
    newest_stamp_ms: int | None = None
    """The newest stamp of an admitted fact: where the tail begins."""
    held_stamp_ms: int | None = None
    """The same as it was before nobody posted for long, until ``held_until``: what came in
    meanwhile may be listed late, and lies far behind what is admitted since."""
    held_until: int = 0
    arrivals: int = 0
    policy: Policy = msgspec.field(default_factory=Policy)
    policy_version: int = 0
    policy_by: str = ""
    policy_at: int = 0
    jobs: dict[JobId, Job] = {}
    ended: list[JobId] = []
    """Ended jobs that are still in ``jobs``, oldest first."""
    archive: dict[JobId, ArchivedJob] = {}
    refused: dict[JobId, str] = {}
    """Submits that could not be admitted (a newer format, too large), with the reason."""
    pending_cancels: dict[JobId, CancelRequested] = {}
    workers: dict[WorkerName, Worker] = {}
    nodes: dict[NodeName, Node] = {}
    revoking: list[AttemptRef] = []
    """Attempts whose claim the leader still has to try."""
    reservations: dict[str, Reservation] = {}
    flows: dict[FlowId, Flow] = {}
    pools: dict[str, PoolClock] = {}
    windows: dict[str, Window] = {}
    """By pool that stands for an external service: what counts against its limits."""
    submissions_due: dict[str, int] = {}
    """By whose rate of submissions: when the next one is due at an even pace."""
    used_by_hour: Hours = {}
    """What counts against limits a day of what has ended."""
    retry_budgets: dict[FlowId, int] = {}
    """Thousandths of attempts that a flow may still have beyond first ones."""
    artifacts: dict[str, int] = {}
    """By key, objects for which jobs waited, and when they were found; they stay."""
    recent_cost_ms: dict[str, int] = {}
    """Flow and name stem to the blended run time of recent jobs (one slot)."""
    calibrations: dict[str, Calibration] = {}
    """By pool and class: what calls take of what was estimated for them."""
    commands: dict[str, CommandRecord] = {}
    """By fingerprint, those of recent ends, the newest last."""
    void_pages: int = 0
    """Pages of a leader that was no longer one; their contents count for nothing."""


def standing_of(policy: Policy, spec: JobSpec) -> Standing | Refusal:
    """Under what the policy schedules a job that asks for this."""
    return policy.standing(
        user=spec.user,
        organization=spec.organization,
        workload_class=spec.workload_class,
        pool=spec.pool,
        name=spec.name,
    )


def digest_of(spec: JobSpec) -> str:
    """Fingerprint of what was asked for, whoever's machine it came from."""
    plain: Any = msgspec.to_builtins(msgspec.structs.replace(spec, host=""))
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()[:16]
