"""What follows from jobs that fail within seconds: nodes are blocked and probed, copies held.

Owns the conclusions from the evidence of ``ledger.health``:

- A suspect node is blocked. After ``PAUSE_MS`` it takes one job, its probe: if that succeeds,
  or outlasts the time within which the others failed, the node is free; if it fails fast as
  well, the node is blocked again, for twice as long each time (``PAUSE_MAX_MS`` at most). A
  probe that shows nothing (it was cancelled or lost, or its command fails elsewhere too) is
  followed by another. ``gpuq undrain`` frees the node at once.
- Waiting copies of a broken command are held until a user releases them. A release, or a
  retry, also means that the command is trusted again.
- A job whose fast failure blocks a node, or comes from a node that is blocked, is given back,
  and that does not count towards its requeues. Only where a rerun is sound: its command was
  never executed (``failed_to_start``), or its user said that it may run again
  (``--idempotent``). Any other job has run, with whatever effects that had, so its failure
  stands, unless it has retries (``--retries``): of these it uses up none, nor did the row of
  failures that led to the block. So do the failures that earlier pages hold: an end that was
  reported is final, and somebody may have acted on it. A job is given back ``EXCUSES_MAX``
  times at most, because it may be to blame after all. Nor does it count when what a blocked
  node had not yet started goes back.

Pure. All of it derives from the state, so whoever folds the same pages concludes the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledger import events as e
from ledger.events import JobState
from ledger.health import (
    FAST_MS,
    command_of,
    failed_fast,
    fails_elsewhere,
    has_lasted,
    is_broken,
    is_suspect,
    succeeded,
)
from ledger.names import JobId, NodeName
from ledger.projection import Projection
from ledger.state import Attempt, Job, Node, Phase
from scheduling.dispatch import Emit

PAUSE_MS = 600_000
"""How long a node stays blocked before a job may probe it."""

PAUSE_MAX_MS = 16 * PAUSE_MS

EXCUSES_MAX = 3
"""Fast failures of one job for which nodes are taken to blame."""


class Health:
    """Indexes of blocked nodes and of waiting copies. Updates are O(1)."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._state = projection.state
        self._blocked: set[NodeName] = set()
        self._commands: dict[JobId, str] = {}
        self._copies: dict[str, set[JobId]] = {}
        for name in self._state.nodes:
            self.update_node(name)
        for job in self._state.jobs.values():
            self.update_job(job)

    def update_node(self, name: NodeName) -> None:
        """Take over whether the node is blocked."""
        if self._state.nodes[name].health.blocked:
            self._blocked.add(name)
        else:
            self._blocked.discard(name)

    def update_job(self, job: Job) -> None:
        """Take over whether ``job`` waits."""
        if job.in_queue == (job.id in self._commands):
            return
        if job.in_queue:
            command = self._commands[job.id] = command_of(job.spec)
            self._copies.setdefault(command, set()).add(job.id)
            return
        command = self._commands.pop(job.id)
        copies = self._copies[command]
        copies.discard(job.id)
        if not copies:
            del self._copies[command]

    def next_due_ms(self) -> int | None:
        """When time alone will change what a node may do, or None. O(blocked nodes)."""
        dues = (self._due_ms(self._state.nodes[name]) for name in self._blocked)
        return min((due for due in dues if due is not None), default=None)

    def copies_of(self, job: Job) -> list[JobId]:
        """What waits with the same command, where that is broken; in order of arrival."""
        command = command_of(job.spec)
        if not is_broken(self._state.commands.get(command)):
            return []
        jobs = self._state.jobs
        return sorted(self._copies.get(command, ()), key=lambda name: jobs[name].arrival)

    def why_held(self, job: Job) -> str:
        """Why a waiting job is to be held; empty where it is not."""
        record = self._state.commands.get(self._commands[job.id])
        if record is None or not is_broken(record):
            return ""
        return (
            f"its command failed within {FAST_MS // 1000} s of its start on "
            f"{' and '.join(record.failed_on[-2:])}: 'gpuq release {job.id}' tries it again"
        )

    # -- nodes

    def blame(self, failed: Iterable[JobId], at: int, emit: Emit) -> None:
        """Block the nodes that the fast failures of this page make suspect; give jobs back."""
        jobs = [self._state.jobs[name] for name in failed]
        for job in jobs:
            node = self._node_of(job)
            if not node.health.blocked and is_suspect(node.health):
                names = ", ".join(failure.job for failure in node.health.failures)
                what = f"{len(node.health.failures)} jobs in a row ({names})"
                emit(_blocked(node, what, PAUSE_MS, at))
        for job in jobs:
            self._give_back(job, emit)

    def follow_probes(self, at: int, emit: Emit) -> bool:
        """Let time and probes change what blocked nodes may do; False where nothing did."""
        changed = False
        for name in sorted(self._blocked):
            decision = self._of_blocked(self._state.nodes[name], at)
            if decision is not None:
                emit(decision)
                changed = True
        return changed

    def _of_blocked(self, node: Node, at: int) -> e.AnyDecision | None:
        health = node.health
        if not health.probing:
            return e.NodeProbed(node=node.name) if at >= health.until else None
        if health.probe is None:
            return None
        job = self._state.jobs.get(health.probe.job)
        attempt = job.attempt(health.probe.attempt) if job is not None else None
        if job is None or attempt is None or attempt.phase is Phase.LOST:
            return e.NodeProbed(node=node.name)
        return self._of_probe(node, job, attempt, at)

    def _of_probe(self, node: Node, job: Job, attempt: Attempt, at: int) -> e.AnyDecision | None:
        if has_lasted(attempt, attempt.ended_at or at) or succeeded(attempt):
            return e.NodeFreed(node=node.name, reason=f"{job.id} ran well there")
        if attempt.phase is not Phase.ENDED:
            return None
        if failed_fast(attempt) and not fails_elsewhere(
            self._state, command_of(job.spec), node.name
        ):
            pause_ms = min(2 * node.health.pause_ms, PAUSE_MAX_MS)
            return _blocked(node, f"{job.id}, which tried it,", pause_ms, at)
        return e.NodeProbed(node=node.name)

    def _due_ms(self, node: Node) -> int | None:
        health = node.health
        if not health.probing:
            return health.until
        job = self._state.jobs.get(health.probe.job) if health.probe is not None else None
        if job is None or health.probe is None:
            return None
        attempt = job.attempt(health.probe.attempt)
        if attempt is None or attempt.started_at is None:
            return None
        return attempt.started_at + FAST_MS

    def _give_back(self, job: Job, emit: Emit) -> None:
        """Take a fast failure back for which the node is to blame, where a rerun is sound."""
        attempt, node = job.last, self._node_of(job)
        if (
            attempt is not None
            and job.state is JobState.FAILED
            and job.cancel is None
            and node.health.blocked
            and not fails_elsewhere(self._state, command_of(job.spec), node.name)
            and (job.spec.idempotent or attempt.outcome == "failed_to_start")
            and sum(map(failed_fast, job.attempts)) <= EXCUSES_MAX
        ):
            reason = f"it failed on {node.name}, which is blocked"
            emit(e.JobRequeued(job=job.id, reason=reason, counted=False))

    def _node_of(self, job: Job) -> Node:
        """Where its last attempt ran."""
        assert job.last is not None
        return self._state.nodes[self._state.workers[job.last.lead].node]


def _blocked(node: Node, what: str, pause_ms: int, at: int) -> e.NodeBlocked:
    return e.NodeBlocked(
        node=node.name,
        reason=(
            f"{what} failed within {FAST_MS // 1000} s of the start: one job tries it after "
            f"{pause_ms // 60_000} min, or 'gpuq undrain {node.name}'"
        ),
        until=at + pause_ms,
        pause_ms=pause_ms,
    )
