"""How much of each limit is used: what runs and waits, by whose limit it counts.

Owns the counters behind the limits of ``ledger.policy`` and the answer whether one more job
may start. Derived from the projection alone and rebuilt from it at any time. Which limits
there are is the policy's; what follows from a full one is the dispatch's.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ledger.events import JobState
from ledger.names import FlowId, JobId, flow_parts
from ledger.policy import Limits, Scope
from ledger.projection import Projection
from ledger.rates import Window
from ledger.state import Job, Phase
from ledger.transitions import tokens_of
from scheduling.placement import Fleet


class Hold(NamedTuple):
    """A full limit: whose it is, and the numbers."""

    limit: str
    reason: str
    of_pool: bool
    """It holds everybody in the pool alike."""


class _Counted(NamedTuple):
    """What one job counts for now."""

    flow: FlowId
    slots: int
    attempts: int
    waiting: int


class Headroom:
    """``update`` and ``hold`` are O(limits of one flow)."""

    def __init__(self, projection: Projection, fleet: Fleet) -> None:
        self._projection = projection
        self._state = projection.state
        self._fleet = fleet
        self._counted: dict[JobId, _Counted] = {}
        self._slots: Counter[Scope] = Counter()
        self._waiting: Counter[Scope] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._scopes: dict[FlowId, tuple[Scope, ...]] = {}
        self._policy = projection.state.policy
        self._limits: dict[FlowId, list[tuple[Scope, Limits]]] = {}
        """By flow, those of this policy that count what runs."""
        for job in projection.state.jobs.values():
            self.update(job)

    def update(self, job: Job) -> list[str]:
        """Take over what the job counts for; the limits that have more room now."""
        before = self._counted.pop(job.id, None)
        now = _count(job)
        if before is not None:
            self._add(before, -1)
        if now is not None:
            self._counted[job.id] = now
            self._add(now, 1)
        if before is None:
            return []
        if now is not None and now.flow == before.flow and now.slots >= before.slots:
            return []
        return [str(scope) for scope in self._scopes_of(before.flow)]

    def _add(self, counted: _Counted, sign: int) -> None:
        for scope in self._scopes_of(counted.flow):
            if counted.slots:
                self._slots[scope] += sign * counted.slots
            if counted.waiting:
                self._waiting[scope] += sign * counted.waiting
        self._in_flight[flow_parts(counted.flow)[2]] += sign * counted.attempts

    def _scopes_of(self, flow: FlowId) -> tuple[Scope, ...]:
        scopes = self._scopes.get(flow)
        if scopes is None:
            scopes = self._scopes[flow] = _scopes(flow)
        return scopes

    def _limits_of(self, flow: FlowId) -> list[tuple[Scope, Limits]]:
        policy = self._state.policy
        if policy is not self._policy:
            self._policy, self._limits = policy, {}
        limits = self._limits.get(flow)
        if limits is None:
            limits = self._limits[flow] = [
                (scope, each)
                for scope, each in policy.limits_of(flow)
                if each.slots or each.slots_percent
            ]
        return limits

    def waiting(self, scope: Scope) -> int:
        """Jobs that wait and count for ``scope``."""
        return self._waiting[scope]

    def hold(self, job: Job) -> Hold | None:
        """The first full limit that keeps the job from starting; its own before its pool's."""
        spec = job.placed
        for scope, limits in self._limits_of(spec.flow):
            held = self._held_by(scope, limits, spec.pool, spec.slots)
            if held is not None:
                return held
        return self._held_by_service(job)

    def _held_by(self, scope: Scope, limits: Limits, pool: str, slots: int) -> Hold | None:
        of_pool = scope.kind == "pool"
        used = self._slots[scope]
        if limits.slots and used + slots > limits.slots:
            reason = f"{scope} runs {used} of at most {limits.slots} slots"
            return Hold(str(scope), reason, of_pool)
        if limits.slots_percent:
            within = scope_in(scope, pool)
            used, most = self._slots[within], self._share(pool, limits.slots_percent)
            if used + slots > most:
                part = f"{limits.slots_percent} % of {self._fleet.serving(pool)}"
                reason = f"{within} runs {used} of at most {most} slots ({part})"
                return Hold(str(within), reason, of_pool)
        return None

    def _share(self, pool: str, percent: int) -> int:
        return max(1, self._fleet.serving(pool) * percent // 100)

    def _held_by_service(self, job: Job) -> Hold | None:
        """What its external service cannot take now; all at once, so that none is wasted."""
        spec = job.placed
        api = self._state.policy.pool(spec.pool).api
        if api is None:
            return None
        window = self._state.windows.get(spec.pool, _EMPTY)
        wanted = (
            (self._in_flight[spec.pool], 1, api.in_flight, "calls in flight"),
            (window.requests, max(1, spec.requests), api.requests_per_minute, "requests a minute"),
            (window.tokens, tokens_of(spec), api.tokens_per_minute, "tokens a minute"),
        )
        for used, more, most, what in wanted:
            if most and used + more > most:
                reason = f"pool {spec.pool} has {used} of at most {most} {what}; it needs {more}"
                return Hold(f"pool {spec.pool}", reason, of_pool=True)
        return None


_EMPTY = Window()


def scope_in(scope: Scope, pool: str) -> Scope:
    """The same within one pool; a flow or a pool is already."""
    return Scope(scope.kind, scope.name, pool) if scope.kind in ("organization", "class") else scope


def _scopes(flow: FlowId) -> tuple[Scope, ...]:
    organization, workload_class, pool = flow_parts(flow)
    return (
        Scope("flow", flow),
        Scope("organization", organization),
        Scope("organization", organization, pool),
        Scope("class", workload_class),
        Scope("class", workload_class, pool),
        Scope("pool", pool),
    )


def _count(job: Job) -> _Counted | None:
    """What runs may hold slots; what was lost holds none that anybody could have."""
    running = [a for a in job.attempts if a.phase not in (Phase.ENDED, Phase.LOST)]
    waiting = job.state is JobState.PENDING
    if not running and not waiting:
        return None
    slots = sum(len(attempt.slots) for attempt in running)
    return _Counted(job.placed.flow, slots, len(running), job.waiting if waiting else 0)
