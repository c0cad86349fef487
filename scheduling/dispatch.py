"""Serving one pool: whose turn it is, where it goes, and what is kept free for whom.

Owns assignment, reservations and backfill, and the reasons for which a flow is passed
over. A flow that its own limit holds is skipped; a limit of the pool, or of the service
that it stands for, holds everybody until the job whose turn it is may start. Under
``fifo`` nothing else passes the head. Otherwise a job that needs more slots than
are free and whose turn it is gets a reservation on one node; others pass only where they
end, by their time limit, before it should start, or fit beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ledger import events as e
from ledger.fair_state import Flow, charge
from ledger.names import FlowId, WorkerName
from ledger.projection import Projection
from ledger.size_buckets import turns_after
from ledger.state import Attempt, Job, Reservation
from scheduling.headroom import Headroom
from scheduling.hold import Hold
from scheduling.placement import Bank, Fleet, Shape
from scheduling.queues import Queues, bucket_in_flow

Emit = Callable[[e.AnyDecision], None]


class Dispatch:
    """Serves the pools of one projection, over the indexes that it is given."""

    def __init__(
        self, projection: Projection, queues: Queues, fleet: Fleet, headroom: Headroom
    ) -> None:
        self._projection = projection
        self._state = projection.state
        self._queues = queues
        self._fleet = fleet
        self._headroom = headroom
        self._changed_flows: dict[FlowId, None] = {}
        self._served: dict[tuple[str, Shape], bool] = {}
        self._limited: dict[str, set[FlowId]] = {}
        """Flows that a limit holds, by each scope whose limit may be the one."""
        self._held: set[FlowId] = set()
        self._sizes: dict[str, tuple[int, int, bool]] = {}
        for flow in projection.state.flows:
            self.flow_changed(flow)

    def flow_changed(self, flow_id: FlowId) -> None:
        """The flow's queue, tags or limit changed: why it waits is looked at again."""
        self._changed_flows[flow_id] = None
        is_held = bool(self._state.flows[flow_id].limit)
        if is_held == (flow_id in self._held):
            return
        (self._held.add if is_held else self._held.discard)(flow_id)
        for scope in self._headroom.scopes_of(flow_id):
            flows = self._limited.setdefault(str(scope), set())
            (flows.add if is_held else flows.discard)(flow_id)

    def limit_eased(self, limit: str) -> set[str]:
        """There may be room again: the flows that it may hold are looked at; their pools.

        Several limits can hold a flow, each another of its jobs; it is told of one.
        """
        if limit not in self._limited:
            return set()
        flows = sorted(self._limited[limit])
        self._changed_flows.update(dict.fromkeys(flows))
        return {self._state.flows[flow].pool for flow in flows}

    def pool_changed(self, pool: str) -> None:
        """Other slots may serve it, or be free, or be no GPUs: shares of them, what is kept."""
        free = self._fleet.free(pool) if self._headroom.shares.keeps_any(pool) else 0
        sizes = (self._fleet.serving(pool), free, self._fleet.has_gpus(pool))
        if self._sizes.get(pool) != sizes:
            self._sizes[pool] = sizes
            self.look_at_held(pool)

    def look_at_held(self, pool: str) -> None:
        """There may be room again for the flows of the pool that a limit holds."""
        for flow in self._held:
            if self._state.flows[flow].pool == pool:
                self._changed_flows[flow] = None

    def serve(self, pool: str, at: int, emit: Emit) -> None:
        """Dispatch until nothing more can go. O(dispatches * (shapes + log n))."""
        self._end_stale_reservation(pool, emit)
        self._explain_flows(pool, emit)  # a flow that is freed now has earned no credit
        if self._state.policy.discipline(pool) == "fifo":
            while self._dispatch_head(pool, emit):
                pass
        else:
            while self._dispatch_best(pool, at, emit):
                pass
        self._explain_flows(pool, emit)

    # -- assignment

    def _dispatch_head(self, pool: str, emit: Emit) -> bool:
        """fifo: the first job that the pool could run at all, or nothing."""
        if not self._fleet.any_free(pool):
            return False
        shapes = [s for s in self._queues.shapes(pool) if self._fleet.serves(pool, s)]
        job = self._next(pool, shapes, emit)
        if job is None or self._headroom.hold(job) is not None:
            return False
        slots = self._fleet.find(pool, Shape.of(job.placed), lambda bank: True)
        if slots is None:
            return False
        self._assign(job, slots, emit, backfill=False)
        return True

    def _dispatch_best(self, pool: str, at: int, emit: Emit) -> bool:
        self._end_stale_reservation(pool, emit)
        if not self._fleet.any_free(pool):
            return False
        reservation = self._state.reservations.get(pool)
        if reservation is None:
            return self._dispatch_unreserved(pool, at, emit)
        job = self._state.jobs[reservation.job]
        node, shape = reservation.node, Shape.of(job.placed)
        slots = self._fleet.find(pool, shape, lambda bank: bank.key.node == node)
        if slots is None:
            slots = self._fleet.find(pool, shape, lambda bank: True)
        if slots is not None and self._may_take(job):
            emit(e.ReservationEnded(job=job.id, pool=pool))
            self._assign(job, slots, emit, backfill=False)
            return True
        return self._backfill(pool, reservation, at, emit)

    def _dispatch_unreserved(self, pool: str, at: int, emit: Emit) -> bool:
        """The flow whose turn it is gets its slots, or a reservation for them."""
        placed: dict[Shape, tuple[WorkerName, ...] | None] = {}
        for shape in self._queues.shapes(pool):
            slots = self._fleet.find(pool, shape, lambda bank: True)
            if slots is not None or (shape.slots > 1 and self._fleet.serves(pool, shape)):
                placed[shape] = slots
        job = self._next(pool, placed, emit)
        if job is None or self._headroom.hold(job) is not None:
            return False
        slots = placed[Shape.of(job.placed)]
        if slots is not None and self._may_take(job):
            self._assign(job, slots, emit, backfill=False)
        else:
            emit(self._reserve(pool, job, at))
        return True

    def _may_take(self, job: Job) -> bool:
        """Whether neither a limit nor what is kept for other classes stands in its way."""
        return self._headroom.hold(job) is None and self._headroom.shares.kept(job) is None

    def _next(
        self,
        pool: str,
        shapes: Collection[Shape],
        emit: Emit,
        allowed: Callable[[Job], bool] = lambda job: True,
    ) -> Job | None:
        """The job whose turn it is of those whom no limit of their own holds."""
        while True:
            skipped: dict[FlowId, Hold] = {}

            def may_go(job: Job, skipped: dict[FlowId, Hold] = skipped) -> bool:
                held = self._headroom.hold(job)
                if held is not None and not held.of_pool:
                    skipped[job.placed.flow] = held
                    return False
                return allowed(job)

            job = self._queues.best(pool, shapes, may_go)
            held = {flow: hold for flow, hold in skipped.items() if not self._may_start(flow)}
            if not held:
                return job
            for flow, hold in sorted(held.items()):
                emit(e.FlowBlocked(flow=flow, reason=hold.reason, limit=hold.limit))
            if job is not None:
                return job

    def _may_start(self, flow: FlowId) -> bool:
        """Whether any job that the flow offers is held by no limit of its own."""
        holds = (self._headroom.hold(job) for job in self._queues.heads(flow))
        return any(hold is None or hold.of_pool for hold in holds)

    def _backfill(self, pool: str, reservation: Reservation, at: int, emit: Emit) -> bool:
        """A job that does not delay the reserved one. O(flows) in the worst case."""
        reserved = self._state.jobs[reservation.job]
        kept = [
            bank
            for bank in self._fleet.candidates(pool, Shape.of(reserved.placed))
            if bank.key.node == reservation.node
        ]
        beside = self._beside(reserved, reservation, kept, at)

        def elsewhere(bank: Bank) -> bool:
            return bank not in kept

        def harmless(job: Job) -> bool:
            if self._headroom.shares.kept(job) is not None:
                return False
            limit_ms = job.spec.time_limit_ms
            ends_before = 0 < limit_ms <= reservation.start_at - at
            return (
                ends_before
                or job.spec.slots <= beside
                # The reserved job cannot have these slots, wherever they are.
                or self._headroom.shares.is_within_min(job)
                or self._fleet.find(pool, Shape.of(job.placed), elsewhere) is not None
            )

        shapes = [
            shape
            for shape in self._queues.shapes(pool)
            if self._fleet.find(pool, shape, lambda bank: True) is not None
        ]
        job = self._next(pool, shapes, emit, harmless)
        if job is None or self._headroom.hold(job) is not None:
            return False
        shape = Shape.of(job.placed)
        slots = self._fleet.find(pool, shape, elsewhere)
        if slots is None:
            slots = self._fleet.find(pool, shape, lambda bank: True)
        assert slots is not None
        self._assign(job, slots, emit, backfill=True)
        return True

    def _assign(
        self, job: Job, slots: tuple[WorkerName, ...], emit: Emit, *, backfill: bool
    ) -> None:
        projection = self._projection
        cost_ms = projection.estimated_cost(job.placed)
        flow = projection.flow_of(job)
        tags = projection.fair.tags(flow, cost_ms, self._state.policy)
        rule = self._state.policy.size_buckets(flow.workload_class, flow.pool)
        bucket = bucket_in_flow(self._state.policy, job)
        gpus = sum(self._state.workers[name].slot.kind == "gpu" for name in slots)
        may_use = projection.may_use(job.placed, gpus)
        emit(
            e.AttemptAssigned(
                job=job.next_id,
                attempt=len(job.attempts) + 1,
                slots=slots,
                message=self._state.workers[slots[0]].next_message,
                start_tag=tags.start,
                finish_tag=tags.finish,
                cost_ms=cost_ms,
                weight=tags.weight,
                backfill=backfill,
                turns=() if rule is None else turns_after(rule, flow.turns, bucket),
                gpu_ms=may_use.gpu_ms,
                money_micros=may_use.money_micros,
            )
        )

    # -- reservations

    def _end_stale_reservation(self, pool: str, emit: Emit) -> None:
        reservation = self._state.reservations.get(pool)
        if reservation is None:
            return
        job = self._state.jobs.get(reservation.job)
        keeps = (
            job is not None
            and job.in_queue
            and job.placed.pool == pool
            and self._state.policy.discipline(pool) != "fifo"
            and not self._is_held(job)
            and any(
                bank.key.node == reservation.node
                for bank in self._fleet.candidates(pool, Shape.of(job.placed))
            )
        )
        if not keeps:
            emit(e.ReservationEnded(job=reservation.job, pool=pool))

    def _is_held(self, job: Job) -> bool:
        """Whether a limit of its own keeps it from starting."""
        hold = self._headroom.hold(job)
        return hold is not None and not hold.of_pool

    def _reserve(self, pool: str, job: Job, at: int) -> e.SlotsReserved:
        """The node on which enough slots should be free soonest."""
        shape = Shape.of(job.placed)
        start_at, node = min(
            (self._free_at(bank, shape.slots, at), bank.key.node)
            for bank in self._fleet.candidates(pool, shape)
        )
        return e.SlotsReserved(job=job.id, pool=pool, node=node, start_at=start_at)

    def _free_at(self, bank: Bank, slots: int, at: int) -> int:
        """When ``slots`` slots of the bank should be free. O(slots log slots)."""
        return sorted(self._ends_at(name, at) for name in bank.serving)[slots - 1]

    def _beside(self, job: Job, reservation: Reservation, kept: list[Bank], at: int) -> int:
        """Slots of the reserved node that the reserved job will not need when it starts.

        Where it has several banks that would do, one that can spare them is enough.
        """
        free = (
            sum(self._is_sure_to_end(name, reservation, at) for name in bank.serving)
            for bank in kept
        )
        return max(free) - job.spec.slots

    def _is_sure_to_end(self, name: WorkerName, reservation: Reservation, at: int) -> bool:
        """Whether the slot counts as free when the reservation starts.

        What runs there since the reservation was made must have a time limit: an estimate
        that nothing enforces would let any number of jobs pass.
        """
        found = self._running(name)
        if found is not None:
            job, attempt = found
            if attempt.assigned_at >= reservation.made_at and not job.spec.time_limit_ms:
                return False
        return self._ends_at(name, at) <= reservation.start_at

    def _running(self, name: WorkerName) -> tuple[Job, Attempt] | None:
        """What occupies the slot."""
        occupant = self._state.workers[name].occupant
        job = self._state.jobs.get(occupant.job) if occupant is not None else None
        if job is None or occupant is None:
            return None
        attempt = job.attempt(occupant.attempt)
        return None if attempt is None else (job, attempt)

    def _ends_at(self, name: WorkerName, at: int) -> int:
        """When the slot should be free, by the limit (else the estimate) of what is there."""
        found = self._running(name)
        if found is None:
            return at
        job, attempt = found
        run_ms = job.spec.time_limit_ms or self._projection.expected_ms(job.placed)
        begun = attempt.assigned_at if attempt.started_at is None else attempt.started_at
        return max(at, begun + run_ms)

    # -- why a flow is passed over

    def _explain_flows(self, pool: str, emit: Emit) -> None:
        """Say when a flow waits for what no serving slot offers, and when no longer."""
        flows = {f for f in self._changed_flows if self._state.flows[f].pool == pool}
        for flow_id in flows:
            del self._changed_flows[flow_id]
        for shape in self._queues.shapes(pool):
            served = self._fleet.serves(pool, shape)
            if self._served.get((pool, shape), not served) != served:
                flows.update(self._queues.flows_with(pool, shape))
            self._served[pool, shape] = served
        for flow_id in sorted(flows):
            flow = self._state.flows[flow_id]
            if flow.limit:
                self._ease(flow, emit)
                continue
            reason = self._unserved(pool, flow_id)
            if reason and reason != flow.blocked:
                emit(e.FlowBlocked(flow=flow_id, reason=reason))
            elif not reason and flow.blocked:
                emit(e.FlowFreed(flow=flow_id))

    def _ease(self, flow: Flow, emit: Emit) -> None:
        """Free a flow that its own limit held, once there is room for a job that it offers."""
        heads = self._queues.heads(flow.id)
        if heads and not self._may_start(flow.id):
            return
        cost = self._projection.estimated_cost(heads[0].placed) if heads else 0
        weight = self._projection.fair.weight(flow, self._state.policy)
        emit(e.FlowFreed(flow=flow.id, credit=charge(cost, weight)))

    def _unserved(self, pool: str, flow: FlowId) -> str:
        shapes = self._queues.shapes_of(flow)
        if not shapes or any(self._fleet.serves(pool, shape) for shape in shapes):
            return ""
        if len(shapes) == 1 and shapes[0].worker:
            return f"{shapes[0].worker} does not serve pool {pool} now"
        return f"no serving slots of pool {pool} are what its jobs need"
