"""The waiting jobs, indexed so that a decision costs the logarithm of flows and jobs.

Owns, per flow and shape, the queue in the flow's own order, and per pool and shape the
flows in the pool's order. Derived from the projection alone and rebuilt from it at any
time. Within a flow jobs go in order of arrival; those pinned to one worker in order of
their names.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from sortedcontainers import SortedList

from ledger.names import FlowId, JobId
from ledger.projection import Projection
from ledger.state import Job
from scheduling.disciplines import Rank, rank
from scheduling.placement import Shape


class Waiting(NamedTuple):
    """A queued job's place within its flow and shape."""

    name: str
    arrival: int
    job: JobId

    @staticmethod
    def of(job: Job) -> Waiting:
        return Waiting(job.spec.name if job.placed.worker else "", job.arrival, job.id)


class Queues:
    """``update``, ``rank_again`` and one step of ``best`` are O(shapes * log n)."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._flows: dict[FlowId, dict[Shape, SortedList[Waiting]]] = {}
        self._pools: dict[str, dict[Shape, SortedList[Rank]]] = {}
        self._ranks: dict[tuple[FlowId, Shape], Rank] = {}
        self._where: dict[JobId, tuple[FlowId, Shape, Waiting]] = {}
        for job in projection.state.jobs.values():
            self.update(job)
        for flow in list(self._flows):
            self.rank_again(flow)

    def update(self, job: Job) -> None:
        """Take over whether and where ``job`` waits.

        ``rank_again`` must follow for the flow in which it waits, and that in which it did.
        """
        before = self._where.pop(job.id, None)
        now = None
        if job.is_offered:
            spec = job.placed
            now = self._where[job.id] = (spec.flow, Shape.of(spec), Waiting.of(job))
        if now == before:
            return
        if before is not None:
            flow, shape, place = before
            self._flows[flow][shape].remove(place)
        if now is not None:
            flow, shape, place = now
            self._flows.setdefault(flow, {}).setdefault(shape, SortedList()).add(place)

    def rank_again(self, flow_id: FlowId) -> None:
        """Take over the flow's tags, weight and heads; one that a limit holds has no rank."""
        shapes = self._flows.get(flow_id)
        if shapes is None:
            return
        flow = self._projection.state.flows[flow_id]
        pool = flow.pool
        ranked = self._pools.setdefault(pool, {})
        for shape, queue in list(shapes.items()):
            old = self._ranks.pop((flow_id, shape), None)
            if old is not None:
                ranked[shape].remove(old)
                if not ranked[shape]:
                    del ranked[shape]
            if not queue:
                del shapes[shape]
                continue
            if flow.limit:
                continue
            new = self._rank(flow_id, queue[0].job)
            self._ranks[flow_id, shape] = new
            ranked.setdefault(shape, SortedList()).add(new)
        if not shapes:
            del self._flows[flow_id]

    def _rank(self, flow_id: FlowId, job_id: JobId) -> Rank:
        projection = self._projection
        state = projection.state
        job, flow = state.jobs[job_id], state.flows[flow_id]
        return rank(
            state.policy.discipline(flow.pool),
            projection.fair,
            state.policy,
            flow,
            job=job_id,
            arrival=job.arrival,
            cost_ms=projection.estimated_cost(job.placed),
        )

    def shapes(self, pool: str) -> list[Shape]:
        """The shapes that somebody in the pool waits with."""
        return list(self._pools.get(pool, ()))

    def shapes_of(self, flow: FlowId) -> list[Shape]:
        return list(self._flows.get(flow, ()))

    def heads(self, flow: FlowId) -> list[Job]:
        """The first waiting job of each shape of the flow, in order of arrival."""
        jobs = self._projection.state.jobs
        first = [jobs[queue[0].job] for queue in self._flows.get(flow, {}).values()]
        return sorted(first, key=lambda job: (job.arrival, job.id))

    def flows_with(self, pool: str, shape: Shape) -> Iterator[FlowId]:
        for ranked in self._pools.get(pool, {}).get(shape, ()):
            yield ranked.flow

    def best(
        self,
        pool: str,
        shapes: Collection[Shape],
        allowed: Callable[[Job], bool] = lambda job: True,
    ) -> Job | None:
        """The job whose turn it is among those of ``shapes``, or None.

        A flow offers the first of its jobs, in its own order, that has one of the shapes.
        A flow's rank in one shape can only be too good (another shape may hold an earlier
        job with a larger finish tag), so the walk ends at the first rank that is worse
        than the best exact one. ``allowed`` may pass over a flow's offer.
        """
        jobs = self._projection.state.jobs
        found: Rank | None = None
        asked: set[FlowId] = set()
        ranked = (self._pools.get(pool, {}).get(shape, ()) for shape in shapes)
        for candidate in heapq.merge(*ranked):
            if found is not None and candidate >= found:
                break
            if candidate.flow in asked:
                continue
            asked.add(candidate.flow)
            exact = self._offer(candidate.flow, shapes)
            if exact is None or (found is not None and found < exact):
                continue
            if allowed(jobs[exact.job]):
                found = exact
        return None if found is None else jobs[found.job]

    def _offer(self, flow: FlowId, shapes: Collection[Shape]) -> Rank | None:
        """The rank of the flow's first job that has one of the shapes, or None.

        Of the jobs pinned to one worker only the first by name counts, whatever its shape.
        """
        first: dict[str, tuple[Waiting, Shape]] = {}
        for shape, queue in self._flows[flow].items():
            if shape.worker or shape in shapes:
                offer = (queue[0], shape)
                first[shape.worker] = min(first.get(shape.worker, offer), offer)
        offers = [self._ranks[flow, shape] for _, shape in first.values() if shape in shapes]
        return min(offers, key=lambda offer: (offer.arrival, offer.job), default=None)
