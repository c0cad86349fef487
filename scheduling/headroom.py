"""How much of each limit is used: what runs and waits, by whose limit it counts.

Owns the counters behind the limits of ``ledger.policy`` and the answer whether one more job
may start. Derived from the projection alone and rebuilt from it at any time. Which limits
there are is the policy's; what follows from a full one is the dispatch's.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ledger.daily import NOTHING, Use
from ledger.events import JobSpec, JobState
from ledger.names import FlowId, JobId, flow_parts
from ledger.policy import Limits, Scope, scopes_of
from ledger.projection import Projection
from ledger.rates import Window
from ledger.state import Job, Phase
from ledger.transitions import tokens_of
from scheduling.class_shares import ClassShares
from scheduling.daylimits import DayHold, DayLimits, day_limits
from scheduling.hold import Hold
from scheduling.long_runs import LongRuns
from scheduling.placement import Fleet
from scheduling.quantities import gib


class _Counted(NamedTuple):
    """What one job counts for now."""

    flow: FlowId
    slots: int
    attempts: int
    waiting: int
    memory_bytes: int
    """GPU memory that it asked for and has."""
    reserved: Use
    """Of limits a day, beside what is booked as used."""


class _Used:
    """What counts for one scope: slots that run, jobs that wait, GPU memory."""

    __slots__ = ("memory_bytes", "slots", "waiting")

    def __init__(self) -> None:
        self.slots = self.waiting = self.memory_bytes = 0


class Headroom:
    """``update`` and ``hold`` are O(limits of one flow)."""

    def __init__(self, projection: Projection, fleet: Fleet) -> None:
        self._projection = projection
        self._state = projection.state
        self._fleet = fleet
        self._counted: dict[JobId, _Counted] = {}
        self._used: dict[Scope, _Used] = {}
        self._day = DayLimits(projection, fleet)
        self._in_flight: Counter[str] = Counter()
        self._of_flow: dict[FlowId, tuple[_Used, ...]] = {}
        self._scopes: dict[FlowId, tuple[Scope, ...]] = {}
        self._policy = projection.state.policy
        self._limits: dict[FlowId, list[tuple[Scope, Limits]]] = {}
        """By flow, those of this policy that count what runs."""
        self.shares = ClassShares(projection.state, fleet, self._running)
        self.long_runs = LongRuns(projection.state)
        for job in projection.state.jobs.values():
            self.update(job)

    def update(self, job: Job) -> tuple[str, ...]:
        """Take over what the job counts for; the limits that have more room now."""
        self.long_runs.update(job)
        before = self._counted.pop(job.id, None)
        now = _count(job)
        if now == before:
            if now is not None:
                self._counted[job.id] = now
            return ()
        if before is not None:
            self._add(before, -1)
        if now is not None:
            self._counted[job.id] = now
            self._add(now, 1)
        if before is None:
            return ()
        if now is not None and now.flow == before.flow and now.slots >= before.slots:
            return ()
        return tuple(map(str, self.scopes_of(before.flow)))

    def _add(self, counted: _Counted, sign: int) -> None:
        flow = counted.flow
        for used in self._of_flow.get(flow) or self._meet(flow):
            used.slots += sign * counted.slots
            used.waiting += sign * counted.waiting
            used.memory_bytes += sign * counted.memory_bytes
        if counted.reserved != NOTHING:
            for scope in self.scopes_of(flow):
                self._day.reserve(scope, counted.reserved.times(sign))
        if counted.attempts:
            self._in_flight[flow_parts(flow)[2]] += sign * counted.attempts
        if counted.slots:
            self.shares.note(flow)

    def _meet(self, flow: FlowId) -> tuple[_Used, ...]:
        counters = tuple(self._used.setdefault(s, _Used()) for s in self.scopes_of(flow))
        self._of_flow[flow] = counters
        return counters

    def scopes_of(self, flow: FlowId) -> tuple[Scope, ...]:
        """All that counts the jobs of the flow, whether or not it has a limit."""
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
                (scope, each) for scope, each in policy.limits_of(flow) if _holds_runs(each)
            ]
        return limits

    def waiting(self, scope: Scope) -> int:
        """Jobs that wait and count for ``scope``."""
        used = self._used.get(scope)
        return used.waiting if used is not None else 0

    def _running(self, scope: Scope) -> int:
        used = self._used.get(scope)
        return used.slots if used is not None else 0

    def hold(self, job: Job) -> Hold | None:
        """The first full limit that keeps the job from starting; its own before its pool's."""
        held = self.shares.hold(job) or self.long_runs.hold(job)
        if held is not None:
            return held
        spec = job.placed
        for scope, limits in self._limits_of(spec.flow):
            held = self._held_by(scope, limits, spec.pool, spec.slots)
            if held is None:
                held = self._held_by_amounts(scope, limits, spec)
            if held is not None:
                return held
        return self._held_by_service(job)

    def day_hold(self, job: Job) -> DayHold | None:
        """The first full limit a day, and when there will be room. O(hours * flows)."""
        spec = job.placed
        holds = (self._day.hold(*each, spec) for each in self._limits_of(spec.flow))
        return next((hold for hold in holds if hold is not None), None)

    def _held_by_amounts(self, scope: Scope, limits: Limits, spec: JobSpec) -> Hold | None:
        """By how much GPU memory it asks for, and by what a day allows."""
        used = self._used.get(scope)
        most_bytes, used_bytes = limits.gpu_memory_bytes, used.memory_bytes if used else 0
        reason = self._day.reason(scope, limits, spec)
        if 0 < most_bytes < used_bytes + memory_of(spec) and spec.gpu_memory_bytes:
            has = f"{gib(used_bytes)} of at most {gib(most_bytes)} GPU memory"
            reason = f"{scope} has {has}; it needs {gib(memory_of(spec))}"
        return Hold(str(scope), reason, of_pool=scope.kind == "pool") if reason else None

    def _held_by(self, scope: Scope, limits: Limits, pool: str, slots: int) -> Hold | None:
        of_pool = scope.kind == "pool"
        used = self._running(scope)
        if limits.slots and used + slots > limits.slots:
            reason = f"{scope} runs {used} of at most {limits.slots} slots"
            return Hold(str(scope), reason, of_pool)
        if limits.slots_percent:
            within = scope_in(scope, pool)
            used, most = self._running(within), self._share(pool, limits.slots_percent)
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


def memory_of(spec: JobSpec) -> int:
    """GPU memory that the job asks for, on all its GPUs together."""
    return spec.slots * spec.gpu_memory_bytes


def _scopes(flow: FlowId) -> tuple[Scope, ...]:
    """Each in all pools together and in this one."""
    pool = flow_parts(flow)[2]
    both = ((scope, scope_in(scope, pool)) for scope in scopes_of(flow))
    return tuple(dict.fromkeys(scope for pair in both for scope in pair))


def _holds_runs(limits: Limits) -> bool:
    """Whether there is one that may keep a job from starting."""
    at_once = limits.slots or limits.slots_percent or limits.gpu_memory_bytes
    return bool(at_once) or day_limits(limits) != NOTHING


def _count(job: Job) -> _Counted | None:
    """What runs may hold slots; what was lost holds none that anybody could have."""
    running = [a for a in job.attempts if a.phase not in (Phase.ENDED, Phase.LOST)]
    waiting = job.state is JobState.PENDING
    if not running and not waiting:
        return None
    slots = sum(len(attempt.slots) for attempt in running)
    reserved = NOTHING
    for attempt in running:
        reserved = reserved.plus(attempt.draw.open)
    return _Counted(
        flow=job.placed.flow,
        slots=slots,
        attempts=len(running),
        waiting=job.waiting if waiting else 0,
        memory_bytes=slots * job.spec.gpu_memory_bytes,
        reserved=reserved,
    )
