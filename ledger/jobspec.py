"""What a submit asks for, as frozen Structs: a job, its array, its files, what it waits for.

Owns the schema of a job as a user describes it. ``ledger.events`` gives it on beside the facts;
the rules of defaults are the ones that it states.
"""

from __future__ import annotations

import msgspec

from ledger.names import FlowId, JobId, NodeName, flow_id

__all__ = ["ENDS", "LEAD_SIGNALS", "ArraySpec", "Dependency", "JobSpec", "Snapshot"]

LEAD_SIGNALS = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "USR1": 10,
    "USR2": 12,
    "ALRM": 14,
    "TERM": 15,
    "CONT": 18,
    "URG": 23,
}
"""What may be sent to a job before its time limit, with the numbers of Linux."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tree of files in a private copy of which a job runs."""

    manifest: str
    """sha256 of the blob with its ``ledger.archive.Manifest``."""
    directory: str = ""
    """Where in the tree the job begins; empty: at its root."""
    commit: str = ""
    """Of the git checkout that it was taken of; empty where it was none."""
    branch: str = ""
    dirty: bool = False
    """It differs from ``commit``."""


class ArraySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Many runs of one job, told apart by an index."""

    ranges: tuple[tuple[int, int, int], ...]
    """First index, last index and step of each; all indices grow."""
    at_once: int = 0
    """How many may be underway at the same time; 0: any number."""
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names and their values; index 0, 1, ... are the combinations, in order."""


ENDS = ("ok", "notok", "any")
"""How a job may be waited for to end: COMPLETED, otherwise, in whatever way."""


class Dependency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another job, of which the end is waited for."""

    job: JobId
    end: str = "ok"
    """One of ``ENDS``."""

    def __str__(self) -> str:
        return f"after{self.end}:{self.job}"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user asked for. Empty strings and zeros mean "not asked for"."""

    id: JobId
    name: str
    organization: str
    workload_class: str
    pool: str
    user: str
    host: str = ""
    """Where it was submitted."""
    script: str = ""
    """sha256 of the script's blob; empty where ``argv`` is the whole command."""
    argv: tuple[str, ...] = ()
    """The command, or the arguments of the script."""
    cwd: str = ""
    env: dict[str, str] = {}
    slots: int = 1
    """How many slots of one node it takes (GPUs, or CPU slots on a node without)."""
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    time_limit_ms: int = 0
    estimate_ms: int = 0
    worker: str = ""
    """The worker it is pinned to."""
    key: str = ""
    idempotent: bool = False
    """It may run again after an attempt was lost."""
    exclusive: bool = False
    """Its runner ends it when the bucket was away for too long (no overlap with a rerun)."""
    held: bool = False
    grace_ms: int = 0
    signal: str = ""
    """One of ``LEAD_SIGNALS``, sent to the job ``lead_ms`` before its time limit."""
    lead_ms: int = 0
    deadline_at: int = 0
    """When its result is no longer wanted: it waits, runs and is retried no longer."""
    retries: int = 0
    """Further attempts after one that ended as ``retry_on`` says."""
    retry_on: tuple[str, ...] = ()
    """``rc=N``, ``failed``, ``oom``, ``timeout``; empty: ``failed``."""
    requests: int = 0
    """Requests to the external service that its pool stands for; 0 means one."""
    input_tokens: int = 0
    max_output_tokens: int = 0
    resumable: bool = False
    """It saves at TERM, exits with 75 and goes on where it was in its next attempt."""
    notify: str = ""
    """A URL that is told of its end."""
    words: str = ""
    """sha256 of the blob that holds ``argv`` and ``env``, where these are too long for a fact
    (``ledger.words``); both are empty then."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the node holds; no value stands in a ledger."""
    snapshot: Snapshot | None = None
    """None: it runs in ``cwd`` as that is on the node."""
    array: ArraySpec | None = None
    """It stands for so many members, each a job of its own once it begins."""
    after: tuple[Dependency, ...] = ()
    """It enters no queue before all of these have ended so."""
    after_artifacts: tuple[str, ...] = ()
    """Keys of the store: it enters no queue before these objects are there."""
    begin_at: int = 0
    """It enters no queue before."""
    exclude: tuple[NodeName, ...] = ()
    """Nodes on which it never runs."""
    priority: int = 0
    """Within its flow alone: those with more go before it."""
    outputs: tuple[str, ...] = ()
    """Patterns, relative to its working directory, of files that are kept in the store."""
    outputs_on_failure: bool = False
    """Also where it did not end with rc 0."""

    @property
    def flow(self) -> FlowId:
        return flow_id(self.organization, self.workload_class, self.pool)
