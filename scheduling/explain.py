"""Why a queued job waits, in one phrase, from the projection alone.

Owns the words; the reasons are the scheduler's own (``scheduling.placement``,
``scheduling.headroom``): what no slot offers, which limit is full, what is taken, and whose
turn it is. Pure, and never a promise of when.
"""

from __future__ import annotations

from ledger.events import JobState
from ledger.names import FlowId, JobId, WorkerName
from ledger.projection import Projection
from ledger.state import Job, State, Worker
from ledger.timings import SECOND_MS
from scheduling.aside import state_word, waited_for
from scheduling.duration import format_units
from scheduling.headroom import Headroom
from scheduling.long_runs import LONG
from scheduling.placement import Fleet, Shape, trouble
from scheduling.queues import bucket_in_flow, in_order

DEPENDENCIES_SHOWN = 3


class Explainer:
    """Reads one projection, which must not change meanwhile.

    ``now_ms``: from when on time is counted that is still to pass; else from the newest page.
    Making one is O(workers + waiting jobs * log n); ``why`` is O(workers of the pool).
    """

    def __init__(self, projection: Projection, now_ms: int | None = None) -> None:
        self._state = projection.state
        self._now_ms = projection.state.at if now_ms is None else now_ms
        self._fleet = Fleet(projection.state)
        self._headroom = Headroom(projection, self._fleet)
        self._places = _places(projection)

    def why(self, job: Job) -> str:
        """Why a PENDING or HELD job waits; empty for any other."""
        if job.state is JobState.HELD:
            return self._held(job)
        if job.state is not JobState.PENDING:
            return ""
        if job.aside_since is not None:
            return self._aside(job)
        if job.array is not None and job.array.suspended:
            return f"{job.array.begun} of its members are underway, as many as it allows"
        reason = self._waits_for(job)
        return f"{reason} (again: {job.reason})" if job.reason else reason

    def is_overdue(self, job: Job) -> bool:
        """Whether it waits for its first start for longer than the policy finds right."""
        target_ms = self._state.policy.wait_target_ms(job.placed.flow)
        waited_ms = self._now_ms - job.queued_since
        waits = job.is_waiting or job.state is JobState.HELD
        return waits and not job.attempts and 0 < target_ms < waited_ms

    def _held(self, job: Job) -> str:
        if not job.wakes_at:
            return job.reason or "held"
        return f"{job.reason} {self._in(job.wakes_at)}"

    def _in(self, at_ms: int) -> str:
        left_ms = at_ms - self._now_ms
        if left_ms <= 0:
            return "now due"
        left_s = -(-left_ms // SECOND_MS)
        return f"in {left_s} s" if left_s < 120 else f"in {format_units(left_s * SECOND_MS)}"

    def _aside(self, job: Job) -> str:
        """For whose end it stands aside, and how these stand now, and until when at least."""
        waited = [
            f"{each} ({state_word(self._state, each.job)})" for each in waited_for(self._state, job)
        ]
        waited += [path for path in job.spec.after_artifacts if path not in self._state.artifacts]
        named = waited[:DEPENDENCIES_SHOWN]
        more = len(waited) - len(named)
        begin = f"begins {self._in(job.wakes_at)}" if job.wakes_at > self._now_ms else ""
        if not named:
            return begin or "is about to enter its queue"
        others = f"waits for {', '.join(named)}{f' and {more} more' if more else ''}"
        return f"{others}; {begin}" if begin else others

    def _waits_for(self, job: Job) -> str:
        spec, shape = job.placed, Shape.of(job.placed)
        if not self._fleet.serves(spec.pool, shape):
            return self._unserved(job)
        reservation = self._state.reservations.get(spec.pool)
        if reservation is not None and reservation.job == job.id:
            return f"slots of {reservation.node} are kept for it until {spec.slots} are free"
        ahead = self._places.get(job.id, 0)
        flow = self._state.flows[spec.flow]
        before = f"{ahead} before it in {spec.organization}/{spec.workload_class}" if ahead else ""
        if before and self._state.policy.size_buckets(spec.workload_class, spec.pool) is not None:
            before += f" (by size: it is of bucket {1 + bucket_in_flow(self._state.policy, job)})"
        hold = self._headroom.hold(job)
        if flow.limit:
            # Several limits may hold it; that of which the flow was told may have room by now.
            held = flow.blocked if hold is None else hold.reason
            return "; ".join(part for part in (before, held) if part)
        if before:
            is_long = hold is not None and hold.limit.startswith(LONG)
            return f"{before}; {hold.reason}" if hold is not None and is_long else before
        if hold is not None:
            return f"next of its flow; {hold.reason}"
        if self._fleet.find(spec.pool, shape, lambda bank: True) is not None:
            lent = self._headroom.shares.lent(job)
            turn = "next of its flow; starts when its flow's turn comes"
            return f"{turn}: {lent}" if lent else turn
        if spec.worker:
            return self._pinned(self._state.workers[WorkerName(spec.worker)])
        slots = "a slot" if spec.slots == 1 else f"{spec.slots} slots of one node"
        needs = f"next of its flow; {slots} must become free"
        lent = self._headroom.shares.lent(job)
        return f"{needs}; {lent}" if lent else needs

    def _unserved(self, job: Job) -> str:
        """What no serving slot offers now."""
        spec = job.placed
        if spec.worker:
            worker = self._state.workers.get(WorkerName(spec.worker))
            if worker is None:
                return f"{spec.worker} never reported"
            problem = trouble(self._state, worker)
            if not problem and worker.pool != spec.pool:
                problem = f"{spec.worker} serves pool {worker.pool or 'none'}, not {spec.pool}"
            if not problem and worker.node in spec.exclude:
                problem = f"it excludes {worker.node}, the node of {spec.worker}"
            return problem or f"{spec.worker} and its node lack the slots that it needs"
        workers = [w for w in self._state.workers.values() if w.pool == spec.pool]
        serving = [w for w in workers if not trouble(self._state, w)]
        if serving:
            return f"no serving slots of pool {spec.pool} are what it needs"
        if workers:
            return f"nothing serves pool {spec.pool}: {trouble(self._state, workers[0])}"
        return f"no worker serves pool {spec.pool}"

    def _pinned(self, worker: Worker) -> str:
        if worker.occupant is None:
            return f"{worker.name} is about to be free"
        return f"{worker.name} runs {worker.occupant.job}"


def _places(projection: Projection) -> dict[JobId, int]:
    """How many jobs of its flow go before each waiting job.

    By priority; among equals those pinned to one worker go in order of their names, all others in
    order of arrival, or as their size buckets take turns.
    """
    queues: dict[tuple[FlowId, str], list[Job]] = {}
    for job in projection.state.jobs.values():
        if job.in_queue:
            spec = job.placed
            queues.setdefault((spec.flow, spec.worker), []).append(job)
    places: dict[JobId, int] = {}
    for (flow, _), queue in queues.items():
        before = 0
        for job in in_order(projection.state, flow, queue):
            places[job.id] = before
            before += job.waiting
    return places


def jobs_ahead(state: State, job: Job) -> list[JobId]:
    """Which jobs of its flow go before one waiting job, as ``Explainer`` counts, in their order.

    O(jobs).
    """
    spec = job.placed
    waiting = [
        other
        for other in state.jobs.values()
        if other.in_queue and (other.placed.flow, other.placed.worker) == (spec.flow, spec.worker)
    ]
    ids = [other.id for other in in_order(state, spec.flow, waiting)]
    return ids[: ids.index(job.id)]
