"""The waiting jobs, indexed so that a decision costs the logarithm of flows and jobs.

Owns, per flow and shape, the queue in the flow's own order, and per pool and shape the
flows in the pool's order. Derived from the projection alone and rebuilt from it at any
time. Within a flow jobs go by priority, then in order of arrival; those pinned to one worker
in order of their names instead. Where the flow's class has size buckets those of one bucket do
so, and the buckets take turns (``ledger.size_buckets``). A priority moves nothing between flows:
a flow's turn is that of the arrival of its head, so a job that goes before an earlier one brings
no turn forward. A long job that may not start now lets the others of its flow pass.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from sortedcontainers import SortedList

from ledger.fair_state import Flow
from ledger.names import FlowId, JobId
from ledger.policy import Policy
from ledger.projection import Projection
from ledger.size_buckets import bucket_of, preference, turns_after
from ledger.state import Job, State
from scheduling.disciplines import Rank, rank
from scheduling.headroom import Headroom
from scheduling.placement import Shape


class Waiting(NamedTuple):
    """A queued job's place within its flow and shape; the smallest goes first."""

    lowered: int
    """Its priority, negated."""
    name: str
    arrival: int
    job: JobId

    @staticmethod
    def of(job: Job) -> Waiting:
        name = job.spec.name if job.placed.worker else ""
        return Waiting(-job.priority, name, job.arrival, job.id)


class Lane(NamedTuple):
    """Jobs of a flow that fit in the same places and of which the first goes before the rest."""

    shape: Shape
    bucket: int
    is_long: bool


class Queues:
    """``update``, ``rank_again`` and one step of ``best`` are O(lanes * log n)."""

    def __init__(self, projection: Projection, headroom: Headroom) -> None:
        self._projection = projection
        self._headroom = headroom
        self._flows: dict[FlowId, dict[Lane, SortedList[Waiting]]] = {}
        self._pools: dict[str, dict[Lane, SortedList[Rank]]] = {}
        self._ranks: dict[tuple[FlowId, Lane], Rank] = {}
        self._where: dict[JobId, tuple[FlowId, Lane, Waiting]] = {}
        for job in projection.state.jobs.values():
            self.update(job)
        for flow in list(self._flows):
            self.rank_again(flow)

    def update(self, job: Job) -> None:
        """Take over whether and where ``job`` waits.

        ``rank_again`` must follow for the flow in which it waits, and that in which it did.
        """
        before, now = self._where.get(job.id), None
        if job.in_queue:
            now = (job.placed.flow, self._lane(job), Waiting.of(job))
        if now == before:
            return
        if before is not None:
            del self._where[job.id]
            flow, lane, place = before
            self._flows[flow][lane].remove(place)
        if now is not None:
            self._where[job.id] = now
            flow, lane, place = now
            self._flows.setdefault(flow, {}).setdefault(lane, SortedList()).add(place)

    def _lane(self, job: Job) -> Lane:
        bucket = bucket_in_flow(self._projection.state.policy, job)
        return Lane(Shape.of(job.placed), bucket, self._headroom.long_runs.is_long(job))

    def rank_again(self, flow_id: FlowId) -> None:
        """Take over the flow's tags, weight and heads; one that a limit holds has no rank."""
        lanes = self._flows.get(flow_id)
        if lanes is None:
            return
        flow = self._projection.state.flows[flow_id]
        ranked = self._pools.setdefault(flow.pool, {})
        for lane, queue in list(lanes.items()):
            old = self._ranks.get((flow_id, lane))
            new = self._rank(flow, queue[0].job) if queue and not flow.limit else None
            if not queue:
                del lanes[lane]
            if new == old:
                continue
            if old is not None:
                ranked[lane].remove(old)
                if not ranked[lane]:
                    del ranked[lane]
                del self._ranks[flow_id, lane]
            if new is not None:
                self._ranks[flow_id, lane] = new
                ranked.setdefault(lane, SortedList()).add(new)
        if not lanes:
            del self._flows[flow_id]

    def _rank(self, flow: Flow, job_id: JobId) -> Rank:
        projection = self._projection
        state = projection.state
        job = state.jobs[job_id]
        discipline = state.policy.discipline(flow.pool)
        return rank(
            discipline,
            projection.fair,
            state.policy,
            flow,
            job=job_id,
            arrival=job.arrival,
            # No other discipline looks at it.
            cost_ms=projection.estimated_cost(job.placed) if discipline == "wfq" else 0,
            borrows=self._headroom.shares.borrows(flow.pool, flow.workload_class),
        )

    def shapes(self, pool: str) -> list[Shape]:
        """The shapes that somebody in the pool waits with."""
        return list(dict.fromkeys(lane.shape for lane in self._pools.get(pool, ())))

    def shapes_of(self, flow: FlowId) -> list[Shape]:
        return list(dict.fromkeys(lane.shape for lane in self._flows.get(flow, ())))

    def heads(self, flow: FlowId) -> list[Job]:
        """The first waiting job of each lane of the flow, by priority and arrival."""
        jobs = self._projection.state.jobs
        first = [jobs[queue[0].job] for queue in self._flows.get(flow, {}).values()]
        return sorted(first, key=lambda job: (-job.priority, job.arrival, job.id))

    def flows_of(self, pool: str, workload_class: str) -> dict[FlowId, None]:
        """The flows of the class that have a place in the pool's order."""
        flows = self._projection.state.flows
        ranked = (rank for ranks in self._pools.get(pool, {}).values() for rank in ranks)
        return {
            rank.flow: None for rank in ranked if flows[rank.flow].workload_class == workload_class
        }

    def flows_with(self, pool: str, shape: Shape) -> Iterator[FlowId]:
        for lane, ranked in self._pools.get(pool, {}).items():
            if lane.shape == shape:
                yield from (rank.flow for rank in ranked)

    def best(
        self,
        pool: str,
        shapes: Collection[Shape],
        allowed: Callable[[Job], bool] = lambda job: True,
    ) -> Job | None:
        """The job whose turn it is among those of ``shapes``, or None.

        A flow offers the first of its jobs, in its own order, that has one of the shapes.
        A flow's rank in one lane can only be too good (another lane may hold an earlier
        job with a larger finish tag), so the walk ends at the first rank that is worse
        than the best exact one. ``allowed`` may pass over a flow's offer.
        """
        jobs = self._projection.state.jobs
        found: Rank | None = None
        asked: set[FlowId] = set()
        lanes = self._pools.get(pool, {}).items()
        ranked = (ranks for lane, ranks in lanes if lane.shape in shapes)
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
        pinned: dict[str, tuple[Waiting, Lane]] = {}
        lanes: list[Lane] = []
        for lane, queue in self._flows[flow].items():
            worker = lane.shape.worker
            if worker:
                offer = (queue[0], lane)
                pinned[worker] = min(pinned.get(worker, offer), offer)
            elif lane.shape in shapes:
                lanes.append(lane)
        lanes += [lane for _, lane in pinned.values() if lane.shape in shapes]
        jobs, long_runs = self._projection.state.jobs, self._headroom.long_runs
        passes = [
            lane
            for lane in lanes
            if not lane.is_long or long_runs.hold(jobs[self._flows[flow][lane][0].job]) is None
        ]
        places = self._places(flow)
        heads = self._flows[flow]
        first = min(
            passes or lanes,
            key=lambda lane: (places.get(lane.bucket, 0), heads[lane][0]._replace(name="")),
            default=None,
        )
        return None if first is None else self._ranks[flow, first]

    def _places(self, flow: FlowId) -> dict[int, int]:
        """By bucket its place in the flow's order now; empty where it has none."""
        known = self._projection.state.flows[flow]
        rule = self._projection.state.policy.size_buckets(known.workload_class, known.pool)
        if rule is None:
            return {}
        return {bucket: place for place, bucket in enumerate(preference(rule, known.turns))}


def bucket_in_flow(policy: Policy, job: Job) -> int:
    """The size bucket in which the job waits; those that are pinned keep their own order."""
    spec = job.placed
    rule = policy.size_buckets(spec.workload_class, spec.pool)
    return 0 if rule is None or spec.worker else bucket_of(rule, job.size)


def in_order(state: State, flow: FlowId, jobs: Iterable[Job]) -> list[Job]:
    """Waiting jobs of a flow, none pinned or all to one worker, in the order in which they go.

    As if all had one shape and no limit held any. O(n * (buckets + log n)).
    """
    known = state.flows[flow]
    rule = state.policy.size_buckets(known.workload_class, known.pool)
    ordered = sorted(jobs, key=Waiting.of)
    if rule is None:
        return ordered
    queues: dict[int, deque[Job]] = {}
    for job in ordered:
        queues.setdefault(bucket_in_flow(state.policy, job), deque()).append(job)
    turns, taken = known.turns, list[Job]()
    while len(taken) < len(ordered):
        bucket = next(each for each in preference(rule, turns) if queues.get(each))
        taken.append(queues[bucket].popleft())
        turns = turns_after(rule, turns, bucket)
    return taken
