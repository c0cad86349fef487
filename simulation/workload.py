"""What the engine runs: jobs with their arrivals and durations, and the slots that serve them.

Owns the Structs that every reader (a trace, a scenario file, a ledger) makes, and the ways to
change them: the rows that ``where`` selects, one counting pool instead of the real nodes, one
organization less, one node more. Times are integer milliseconds on the source's own clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from ledger.errors import RequestError
from ledger.events import Slot
from ledger.names import NAME, NodeName, WorkerName, as_name, worker_name
from ledger.policy import Policy, Pool

POOL = "default"

COUNTING_NODE = "pool"
"""The one synthetic node of a counting pool."""

NODE_SLOTS_MAX = 100_000
"""The number of a worker has five digits."""

_NODE = re.compile(r"([1-9][0-9]{0,4})x([A-Za-z0-9][A-Za-z0-9._-]*)(?:@([a-z0-9-]{1,63}))?")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger says of how a job was given its slots."""

    order: int
    """Among all assignments of the ledger."""
    workers: tuple[WorkerName, ...]
    cost_ms: int
    """Charged then, slot-milliseconds."""
    weight: tuple[int, int]
    backfill: bool


class SimJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job. ``duration_ms`` is what it takes once it runs, whatever was expected of it."""

    name: str
    """As the source calls it."""
    organization: str
    arrival_ms: int
    duration_ms: int
    slots: int = 1
    workload_class: str = "batch"
    pool: str = POOL
    gpu_type: str = ""
    gpu_memory_bytes: int = 0
    worker: str = ""
    """The worker to which it is pinned; empty: any."""
    exclude: tuple[NodeName, ...] = ()
    priority: int = 0
    estimate_ms: int = 0
    """What it is charged at dispatch; 0: what gpuq expects of a job that says nothing."""
    time_limit_ms: int = 0
    recorded_start_ms: int | None = None
    """When it began in reality, where the source says."""
    assignment: Assignment | None = None
    """Of that run, where the source is a ledger."""
    columns: dict[str, str] = {}
    """What else its row says, for ``where``."""

    @property
    def flow(self) -> str:
        return f"{self.organization}/{self.workload_class}/{self.pool}"


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """One slot that takes jobs in ``[from_ms, until_ms)``; what it runs then ends there."""

    worker: WorkerName
    node: NodeName
    pool: str = POOL
    slot: Slot = Slot(kind="cpu", index=0)
    from_ms: int = 0
    until_ms: int | None = None


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a report answers in words, of one organization."""

    ask: str
    figure: Literal["wait", "share", "done"]
    organization: str


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order in which they queue where they arrive at the same instant."""

    title: str
    jobs: tuple[SimJob, ...]
    slots: tuple[Presence, ...] = ()
    policy: Policy = msgspec.field(default_factory=Policy)
    until_ms: int | None = None
    """Nothing that happens later is looked at; None: until all is done."""
    left_out: int = 0
    """Rows of the source that say no duration."""
    where: dict[str, str] = {}
    """What selected the jobs; empty: all that the source has."""
    questions: tuple[Question, ...] = ()

    @property
    def pools(self) -> list[str]:
        """Pools that somebody waits for or serves."""
        return sorted({job.pool for job in self.jobs} | {slot.pool for slot in self.slots})


def node(
    name: str,
    slots: int,
    *,
    pool: str = POOL,
    kind: str = "cpu",
    gpu_name: str = "",
    gpu_memory_bytes: int = 0,
    from_ms: int = 0,
    until_ms: int | None = None,
) -> tuple[Presence, ...]:
    """All slots of one node: one bank, of which a job may take any number."""
    if not 1 <= slots <= NODE_SLOTS_MAX:
        raise RequestError(f"a node has 1 to {NODE_SLOTS_MAX} slots, not {slots}")
    return tuple(
        Presence(
            worker=worker_name(NodeName(name), kind, index),
            node=NodeName(name),
            pool=pool,
            slot=Slot(kind=kind, index=index, gpu_name=gpu_name, gpu_memory_bytes=gpu_memory_bytes),
            from_ms=from_ms,
            until_ms=until_ms,
        )
        for index in range(slots)
    )


def on_counting_pool(workload: Workload, slots: int) -> Workload:
    """The same jobs on one synthetic node of ``slots`` slots: no placement, only counting.

    What a job asked of GPUs and workers, and the pools, count for nothing; nor does where it ran.
    """
    jobs = tuple(
        msgspec.structs.replace(
            job,
            pool=POOL,
            worker="",
            exclude=(),
            gpu_type="",
            gpu_memory_bytes=0,
            assignment=None,
        )
        for job in workload.jobs
    )
    pool = workload.policy.pools.get(POOL, Pool())
    pools = {POOL: msgspec.structs.replace(pool, workers=())}
    policy = msgspec.structs.replace(workload.policy, pools=pools)
    made = msgspec.structs.replace(
        workload, jobs=jobs, slots=node(COUNTING_NODE, slots), policy=policy
    )
    return _checked(made)


def selected(workload: Workload, where: Mapping[str, str]) -> Workload:
    """Only the jobs that have all of these values; ``org``, ``class`` and ``pool`` count too."""
    if not where:
        return workload
    jobs = tuple(
        job
        for job in workload.jobs
        if all(_columns(job).get(name) == value for name, value in where.items())
    )
    if not jobs:
        known = sorted({name for job in workload.jobs[:1] for name in _columns(job)})
        text = ",".join(f"{name}={value}" for name, value in where.items())
        raise RequestError(f"no job has {text}; columns are {', '.join(known)}")
    return msgspec.structs.replace(workload, jobs=jobs, where=dict(where))


def _columns(job: SimJob) -> dict[str, str]:
    plain = {"org": job.organization, "class": job.workload_class, "pool": job.pool}
    return {**plain, **job.columns}


def under(workload: Workload, discipline: str) -> Policy:
    """The workload's own policy, but every pool served by ``discipline``."""
    policy = workload.policy
    pools = {
        name: msgspec.structs.replace(policy.pools.get(name, Pool()), discipline=discipline)
        for name in sorted({*workload.pools, *policy.pools})
    }
    return msgspec.structs.replace(policy, pools=pools)


def with_node(workload: Workload, text: str) -> Workload:
    """One more node from the beginning: ``8xh100`` or ``8xh100@pool``."""
    match = _NODE.fullmatch(text)
    if match is None:
        raise RequestError(f"{text!r} is no node: say SLOTSxGPU or SLOTSxGPU@POOL, as 8xh100@train")
    pools = workload.pools
    pool = match[3] or (pools[0] if len(pools) == 1 else "")
    if pool not in pools:
        raise RequestError(f"--add-node {text}: say @POOL, one of {', '.join(pools)}")
    taken = {slot.node for slot in workload.slots}
    number = next(n for n in range(1, len(taken) + 2) if f"added{n}" not in taken)
    memory = max((slot.slot.gpu_memory_bytes for slot in workload.slots), default=0)
    begin = min((slot.from_ms for slot in workload.slots), default=0)
    added = node(
        f"added{number}",
        int(match[1]),
        pool=pool,
        kind="gpu",
        gpu_name=match[2],
        gpu_memory_bytes=memory,
        from_ms=begin,
    )
    return msgspec.structs.replace(workload, slots=workload.slots + added)


def without_organization(workload: Workload, organization: str) -> Workload:
    """The same without whatever that organization submitted."""
    jobs = tuple(job for job in workload.jobs if job.organization != organization)
    if len(jobs) == len(workload.jobs):
        known = ", ".join(sorted({job.organization for job in jobs}))
        raise RequestError(f"no organization {organization!r}; organizations are {known}")
    return msgspec.structs.replace(workload, jobs=jobs)


def organization_name(text: str) -> str:
    """A valid name for whatever a trace calls its tenants."""
    return text if NAME.fullmatch(text) else as_name(text)


def _checked(workload: Workload) -> Workload:
    """Raises RequestError where a job is wider than the whole pool."""
    widest: SimJob | None = max(workload.jobs, key=lambda job: job.slots, default=None)
    if widest is not None and widest.slots > len(workload.slots):
        raise RequestError(
            f"job {widest.name} needs {widest.slots} slots, the pool has {len(workload.slots)}: "
            f"say --slots {widest.slots} or more"
        )
    return workload
