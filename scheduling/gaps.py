"""How far apart the service of two flows came that were owed it side by side.

Owns the measure of docs/ARCHITECTURE.md, "The bounds": while two flows of one pool both
wait and no limit holds either, their charged service per weight (the movement of their tags)
may differ over any part of that time by at most the largest charge of each. Reported is the
worst difference as a fraction of that. Estimates that are wrong, jobs that need different
slots, backfill and a flow that was just freed from its limit may lead beyond 1. Pools in a
fixed order have no such bound, nor have flows of two classes in a pool that owes classes slots.
Pure integers; memory is bounded by ``FLOWS_MAX``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from ledger import events as e
from ledger.fair_state import Flow, charge
from ledger.names import FlowId
from ledger.state import Job
from scheduling.followed import Followed

FLOWS_MAX = 64
"""Flows of one pool that are compared at once; what comes beyond is left out."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The worst that was found in a pool."""

    ratio: Fraction
    flows: tuple[FlowId, FlowId]


class _Window(msgspec.Struct, kw_only=True):
    """Two flows since both wait: by how much the first led, and its extremes."""

    lead: int = 0
    low: int = 0
    high: int = 0


class Gaps:
    """An observer. A step costs O(flows compared in the pool) for each flow that it moved."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self.worst: dict[str, Gap] = {}
        self._finish = {flow.id: flow.finish for flow in followed.state.flows.values()}
        self._largest: dict[FlowId, int] = {}
        self._compared: dict[str, dict[FlowId, None]] = {}
        self._windows: dict[tuple[FlowId, FlowId], _Window] = {}
        self._closed: list[tuple[tuple[FlowId, FlowId], _Window]] = []
        for job in followed.state.jobs.values():
            self._note_charge(job)
        for flow in followed.state.flows.values():
            self._look_at(flow)
        followed.observers.append(self)

    def step(self, decision: e.AnyDecision | None, flows: Sequence[FlowId]) -> None:
        state = self._followed.state
        for name in flows:
            finish = state.flows[name].finish
            moved = finish - self._finish.get(name, 0)
            self._finish[name] = finish
            if isinstance(decision, e.AttemptAssigned):
                is_its = state.jobs[decision.job].placed.flow == name
                moved = decision.finish_tag - decision.start_tag if is_its else 0
                self._largest[name] = max(self._largest.get(name, 0), moved)
            if moved:
                self._serve(state.flows[name], moved)
        for name in flows:
            self._look_at(state.flows[name])

    def page(self, page: e.Page) -> None:
        state, touched = self._followed.state, self._followed.projection.touched
        for job in touched.jobs:
            self._note_charge(state.jobs[job])
        for flows, window in [*self._closed, *self._windows.items()]:
            self._judge(flows, window)
        self._closed.clear()
        for name in [name for name in self._largest if not state.flows[name].waiting]:
            del self._largest[name]

    def _note_charge(self, job: Job) -> None:
        """What one that waits would be charged."""
        if not job.in_queue:
            return
        projection = self._followed.projection
        flow = projection.state.flows[job.placed.flow]
        weight = projection.fair.weight(flow, projection.state.policy)
        charged = charge(projection.estimated_cost(job.placed), weight)
        self._largest[flow.id] = max(self._largest.get(flow.id, 0), charged)

    def _serve(self, flow: Flow, moved: int) -> None:
        if flow.id not in self._compared.get(flow.pool, {}):
            return
        for other in self._compared[flow.pool]:
            window = self._windows.get(_pair(flow.id, other))
            if window is not None:
                window.lead += moved if flow.id < other else -moved
                window.low = min(window.low, window.lead)
                window.high = max(window.high, window.lead)

    def _look_at(self, flow: Flow) -> None:
        """Begin to compare the flow, or end it."""
        compared = self._compared.setdefault(flow.pool, {})
        policy = self._followed.state.policy
        is_owed = flow.waiting > 0 and not flow.blocked
        is_fair = policy.discipline(flow.pool) in ("wfq", "sfq")
        if is_owed and is_fair:
            if flow.id not in compared and len(compared) < FLOWS_MAX:
                is_divided = policy.pool(flow.pool).is_divided
                strict = policy.is_strict(flow.workload_class)
                for other in compared:
                    known = self._followed.state.flows[other]
                    is_apart = is_divided and known.workload_class != flow.workload_class
                    if policy.is_strict(known.workload_class) is strict and not is_apart:
                        self._windows[_pair(flow.id, other)] = _Window()
                compared[flow.id] = None
        elif flow.id in compared:
            del compared[flow.id]
            for other in compared:
                window = self._windows.pop(_pair(flow.id, other), None)
                if window is not None:
                    self._closed.append((_pair(flow.id, other), window))

    def _judge(self, flows: tuple[FlowId, FlowId], window: _Window) -> None:
        bound = sum(self._largest.get(name, 0) for name in flows)
        if not bound:
            return
        gap = Gap(ratio=Fraction(window.high - window.low, bound), flows=flows)
        pool = self._followed.state.flows[flows[0]].pool
        if pool not in self.worst or gap.ratio > self.worst[pool].ratio:
            self.worst[pool] = gap


def _pair(one: FlowId, other: FlowId) -> tuple[FlowId, FlowId]:
    return (one, other) if one < other else (other, one)
