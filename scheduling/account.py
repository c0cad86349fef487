"""Where a waiting job stands, in numbers: shares, tags, who is ahead, and when it may start.

Owns the counting and the estimate of a start. All is read from one state, which must not
change meanwhile. An estimate plays the pool forward: whatever runs ends as its limit (else
its estimate) says, nothing else is submitted, and the pool's discipline chooses. It promises
nothing. Pure.
"""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import NamedTuple

import msgspec

from ledger.fair_state import Flow, Tags
from ledger.names import FlowId, JobId, WorkerName, flow_parts
from ledger.projection import Projection
from ledger.state import Job, Phase
from scheduling.disciplines import Rank, rank
from scheduling.explain import jobs_ahead
from scheduling.headroom import Headroom
from scheduling.placement import Fleet, Shape
from scheduling.queues import in_order

DISPATCHES_MAX = 20_000
"""An estimate that would look further ahead is none."""


class Ahead(NamedTuple):
    """A flow whose turn comes before; ``tag`` is what the discipline orders by."""

    flow: FlowId
    tag: int
    waiting: int


class Runs(NamedTuple):
    """A running job of the pool and when it should end; ``enforced`` by its time limit."""

    ends_at: int
    job: JobId
    flow: FlowId
    slots: int
    enforced: bool


class Estimate(NamedTuple):
    """When it may start (ms), or why nobody can say."""

    start_at: int | None
    unknown: str = ""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the pool's serving slots, in thousandths of a slot."""

    discipline: str
    tags: Tags
    """What its dispatch would bind now."""
    virtual_time: int
    cost: int
    is_tokens: bool
    owed_slots: int
    """By its flow's weight among those of the flows that wait and can be served now."""
    served_slots: int
    """What its flow has now."""
    pool_slots: int
    earlier_jobs: tuple[JobId, ...]
    """Of its own flow, that go before it, in their order."""
    flows_ahead: tuple[Ahead, ...]
    fitting_slots: int
    """Serving slots of a kind that would do, each on a node that has enough of them."""
    free_slots: int
    """Of those."""
    running: tuple[Runs, ...]
    """In its pool, the most slots first, then the last to end."""
    estimate: Estimate


class Accounts:
    """Reads one projection. Making one is O(jobs + workers)."""

    def __init__(self, projection: Projection, fleet: Fleet, headroom: Headroom) -> None:
        self._projection = projection
        self._state = projection.state
        self._fleet = fleet
        self._headroom = headroom
        self._running = _running(projection)

    def of(self, job: Job) -> Account:
        """Of a PENDING job. O(jobs + dispatches of the estimate * flows)."""
        projection, state, spec = self._projection, self._state, job.placed
        flow = state.flows[spec.flow]
        cost = projection.estimated_cost(spec)
        pool_slots = self._fleet.serving(spec.pool)
        running = [runs for runs in self._running if flow_parts(runs.flow)[2] == spec.pool]
        banks = list(self._fleet.candidates(spec.pool, Shape.of(spec)))
        return Account(
            discipline=state.policy.discipline(spec.pool),
            tags=projection.fair.tags(flow, cost, state.policy),
            virtual_time=projection.fair.pool(spec.pool).virtual_time,
            cost=cost,
            is_tokens=state.policy.pool(spec.pool).api is not None,
            owed_slots=int(1_000 * pool_slots * self._share(flow)),
            served_slots=1_000 * sum(runs.slots for runs in running if runs.flow == flow.id),
            pool_slots=pool_slots,
            earlier_jobs=tuple(jobs_ahead(state, job)),
            flows_ahead=self._ahead(flow),
            fitting_slots=sum(len(bank.serving) for bank in banks),
            free_slots=sum(len(bank.free) for bank in banks),
            running=tuple(sorted(running, key=lambda runs: (-runs.slots, -runs.ends_at, runs.job))),
            estimate=self._estimate(job),
        )

    def _share(self, flow: Flow) -> Fraction:
        """The part of its pool that its weight gives it beside the flows that wait now."""
        fair, policy = self._projection.fair, self._state.policy
        weights = {
            other.id: Fraction(*fair.weight(other, policy))
            for other in self._state.flows.values()
            if other.pool == flow.pool
            and (other.id == flow.id or (other.waiting and not other.blocked))
        }
        return weights[flow.id] / sum(weights.values())

    def _ahead(self, flow: Flow) -> tuple[Ahead, ...]:
        queues = self._queues(flow.pool)
        if flow.id not in queues:
            return ()
        own = self._rank(flow, queues[flow.id][0])
        ahead = []
        for name, queue in queues.items():
            other = self._rank(self._state.flows[name], queue[0])
            if other < own:
                ahead.append((other, Ahead(name, other.tag, sum(job.waiting for job in queue))))
        return tuple(each for _, each in sorted(ahead))

    def _queues(self, pool: str) -> dict[FlowId, list[Job]]:
        """The waiting jobs of the pool that something serves, by flow in their order."""
        queues: dict[FlowId, list[Job]] = {}
        for job in self._state.jobs.values():
            if job.in_queue and job.placed.pool == pool:
                spec = job.placed
                is_held = self._state.flows[spec.flow].limit
                if not is_held and self._fleet.serves(pool, Shape.of(spec)):
                    queues.setdefault(spec.flow, []).append(job)
        return {flow: in_order(self._state, flow, queue) for flow, queue in queues.items()}

    def _rank(self, flow: Flow, head: Job) -> Rank:
        return rank(
            self._state.policy.discipline(flow.pool),
            self._projection.fair,
            self._state.policy,
            flow,
            job=head.id,
            arrival=head.arrival,
            cost_ms=self._projection.estimated_cost(head.placed),
            borrows=self._headroom.shares.borrows(flow.pool, flow.workload_class),
        )

    # -- when it may start

    def _estimate(self, job: Job) -> Estimate:
        spec, state = job.placed, self._state
        if state.policy.pool(spec.pool).api is not None:
            return Estimate(None, "calls of an external service end when it answers")
        if not self._fleet.serves(spec.pool, Shape.of(spec)):
            return Estimate(None, "no serving slot fits")
        hold = self._headroom.hold(job)
        if hold is not None or state.flows[spec.flow].limit:
            return Estimate(None, "it waits for a limit, not for a slot alone")
        return self._played(job)

    def _played(self, wanted: Job) -> Estimate:
        """The pool, dispatch by dispatch, until the job's turn comes."""
        pool, state = wanted.placed.pool, self._state
        free_at = self._free_at(pool)
        flows = {name: msgspec.structs.replace(flow) for name, flow in state.flows.items()}
        queues = {
            flow: (job for job in queue for _ in range(job.waiting))
            for flow, queue in self._queues(pool).items()
        }
        turns: list[tuple[Rank, Job]] = []
        for name, queue in queues.items():
            head = next(queue)
            heapq.heappush(turns, (self._rank(flows[name], head), head))
        for _ in range(DISPATCHES_MAX):
            if not turns:
                break
            _, job = heapq.heappop(turns)
            start_at = self._place(job, free_at)
            if job.id == wanted.id:
                return Estimate(start_at)
            flow = flows[job.placed.flow]
            cost = self._projection.estimated_cost(job.placed)
            flow.finish = self._projection.fair.tags(flow, cost, state.policy).finish
            following = next(queues[flow.id], None)
            if following is not None:
                heapq.heappush(turns, (self._rank(flow, following), following))
        return Estimate(None, f"more than {DISPATCHES_MAX} jobs go before it")

    def _place(self, job: Job, free_at: dict[WorkerName, int]) -> int:
        """Take the slots that are free soonest; from when on it has them all."""
        spec = job.placed
        choices = []
        for bank in self._fleet.candidates(spec.pool, Shape.of(spec)):
            names = sorted(bank.serving, key=lambda name: (name != spec.worker, free_at[name]))
            taken = names[: spec.slots]
            choices.append((max(free_at[name] for name in taken), bank.key, taken))
        start_at, _, taken = min(choices)
        for name in taken:
            free_at[name] = start_at + self._projection.expected_ms(spec)
        return start_at

    def _free_at(self, pool: str) -> dict[WorkerName, int]:
        ends = {runs.job: runs.ends_at for runs in self._running}
        at = self._state.at
        return {
            name: max(at, ends.get(worker.occupant.job, at)) if worker.occupant else at
            for name, worker in self._state.workers.items()
            if worker.pool == pool
        }


def _running(projection: Projection) -> list[Runs]:
    """What holds slots, with its expected end, which may have passed."""
    found = []
    for job in projection.state.jobs.values():
        last = job.last
        if last is None or job.state.queued or last.phase in (Phase.LOST, Phase.ENDED):
            continue
        spec = job.placed
        begun = last.assigned_at if last.started_at is None else last.started_at
        ends_at = begun + (spec.time_limit_ms or projection.expected_ms(spec))
        found.append(Runs(ends_at, job.id, spec.flow, len(last.slots), bool(spec.time_limit_ms)))
    return found
