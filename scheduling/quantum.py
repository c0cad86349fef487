"""Resumable jobs give way after a while, so that no long job keeps a slot from all others.

Owns the choice who yields: a job whose user said that it can save and go on, which has run
for longer than the quantum of its class, while a job of another flow waits that would fit in
its slots. One at a time in a pool: who yields is shown by the ledger before the next is asked.
Pure.
"""

from __future__ import annotations

from ledger.decisions import YIELDED
from ledger.names import JobId
from ledger.projection import Projection
from ledger.state import Attempt, Job, Phase
from scheduling.headroom import Headroom
from scheduling.queues import Queues


class Quanta:
    """Index of running jobs that may be asked to yield. ``update`` is O(1)."""

    def __init__(self, projection: Projection, queues: Queues, headroom: Headroom) -> None:
        self._state = projection.state
        self._queues = queues
        self._headroom = headroom
        self._running: dict[str, set[JobId]] = {}
        self._pools: dict[JobId, str] = {}
        for job in projection.state.jobs.values():
            self.update(job)

    def update(self, job: Job) -> None:
        """Take over whether the job runs and can yield."""
        before = self._pools.pop(job.id, "")
        if before:
            self._running[before].discard(job.id)
        last = job.last
        if last is None or last.phase not in (Phase.STARTED, Phase.STOPPING):
            return
        if job.spec.resumable and self._ends_at(job, last) is not None:
            self._pools[job.id] = job.placed.pool
            self._running.setdefault(job.placed.pool, set()).add(job.id)

    def due_at(self, job: Job) -> int | None:
        """When its quantum will be over, if that lies ahead."""
        last = job.last
        if last is None or job.id not in self._pools:
            return None
        ends_at = self._ends_at(job, last)
        return ends_at if ends_at is not None and ends_at > self._state.at else None

    def who_yields(self, pool: str, at: int) -> Job | None:
        """Of those whose quantum is over the one that has run longest, if it is of use."""
        jobs = [self._state.jobs[name] for name in self._running.get(pool, ())]
        over: list[tuple[int, JobId]] = []
        for job in jobs:
            last = job.last
            assert last is not None
            if last.stop_reason == YIELDED and last.phase is Phase.STOPPING:
                return None
            ends_at = self._ends_at(job, last)
            if last.phase is Phase.STARTED and ends_at is not None and ends_at <= at:
                over.append((last.started_at or 0, job.id))
        for _, name in sorted(over):
            if self._makes_room(self._state.jobs[name]):
                return self._state.jobs[name]
        return None

    def _ends_at(self, job: Job, attempt: Attempt) -> int | None:
        known = self._state.policy.classes.get(job.placed.workload_class)
        if known is None or not known.quantum_ms or attempt.started_at is None:
            return None
        return attempt.started_at + known.quantum_ms

    def _makes_room(self, job: Job) -> bool:
        """Whether somebody else's job waits that would fit in its slots, and may start."""
        assert job.last is not None
        slots, pool = job.last.slots, job.placed.pool
        worker = self._state.workers[slots[0]]
        shapes = [
            shape
            for shape in self._queues.shapes(pool)
            if shape.slots <= len(slots)
            and shape.accepts(worker.node, worker.slot.gpu_name, worker.slot.gpu_memory_bytes)
            and shape.worker in ("", *slots)
        ]

        def is_of_another(waiting: Job) -> bool:
            return waiting.placed.flow != job.placed.flow and self._headroom.hold(waiting) is None

        return self._queues.best(pool, shapes, is_of_another) is not None
