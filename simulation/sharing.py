"""Who was served, and what each was owed: a sweep over an outcome, pool by pool.

Owns the reckoning of shares. Between two instants at which a job arrives, starts or ends, and
slots come or go, nothing changes; such an interval is *contested* where a job waits and at
least two organizations have work. What a flow is owed there is water-filling: the slots are
divided by weight among the flows that have work, none gets more than its jobs ask for, and
what it leaves is divided among the others. No flow is owed more than the work that it brought
(a job of five seconds that waits for a minute is owed five seconds), nor more slots than the
policy's limits let it run. Weights are the policy's, by its own rule (``Policy.flow_weight``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ledger.names import flow_id
from ledger.policy import Limits, Policy, Scope
from scheduling.waterfill import capped_filling, water_filling
from simulation.engine import Outcome

Flow = tuple[str, str]
"""Organization and class."""


class Interval(NamedTuple):
    """A time in which nothing changes. The maps change with the next one: copy what you keep."""

    begin_ms: int
    end_ms: int
    capacity: int
    waiting: Mapping[Flow, int]
    """Slots that the waiting jobs of each flow ask for."""
    running: Mapping[Flow, int]
    waiting_jobs: int
    brought: Mapping[Flow, int]
    """Slot-milliseconds of the jobs that arrived at its beginning."""

    @property
    def span_ms(self) -> int:
        return self.end_ms - self.begin_ms

    @property
    def is_contested(self) -> bool:
        organizations = {flow[0] for flow in (*self.waiting, *self.running)}
        return self.waiting_jobs > 0 and self.capacity > 0 and len(organizations) > 1


def intervals(outcome: Outcome, pool: str) -> Iterator[Interval]:
    """All intervals of one pool, in order. O(jobs * log jobs)."""
    changes = sorted(_changes(outcome, pool), key=lambda change: change.at)
    waiting: dict[Flow, int] = {}
    running: dict[Flow, int] = {}
    brought: dict[Flow, int] = {}
    capacity = waiting_jobs = 0
    at = changes[0].at if changes else 0
    for change in changes:
        if change.at > at:
            yield Interval(at, change.at, capacity, waiting, running, waiting_jobs, brought)
            at = change.at
            brought = {}
        _add(brought, change.flow, change.work_ms)
        capacity += change.capacity
        waiting_jobs += (change.waiting > 0) - (change.waiting < 0)
        _add(waiting, change.flow, change.waiting)
        _add(running, change.flow, change.running)


class Entitlement:
    """What each flow of one pool is owed, interval after interval."""

    def __init__(self, policy: Policy, pool: str) -> None:
        self._policy = policy
        self._pool = pool
        self._open: dict[Flow, float] = {}
        """Slot-milliseconds that were brought and are not owed yet."""
        self._limits: dict[Flow, list[tuple[Scope, Limits]]] = {}
        """Of each flow those that count what runs."""

    def of(self, interval: Interval) -> dict[Flow, float]:
        """Slot-milliseconds owed in the interval. O(flows^2 * log flows) at worst.

        Where it is not contested that is what each flow has, but for what it was owed before.
        """
        for flow, work_ms in interval.brought.items():
            self._open[flow] = self._open.get(flow, 0.0) + work_ms
        demand: dict[Flow, int] = dict(interval.running)
        for flow, slots in interval.waiting.items():
            demand[flow] = demand.get(flow, 0) + slots
        # Who has no work left got all that he brought, sooner than he was owed it.
        self._open = {flow: self._open.get(flow, 0.0) for flow in demand}
        if interval.is_contested:
            return self._contested(interval.capacity, interval.span_ms, demand)
        owed = {
            flow: min(self._open[flow], slots * interval.span_ms)
            for flow, slots in interval.running.items()
        }
        for flow, slot_ms in owed.items():
            self._open[flow] -= slot_ms
        return owed

    def _contested(
        self, capacity: int, left_ms: float, demand: Mapping[Flow, int]
    ) -> dict[Flow, float]:
        """In steps, each of which ends where a flow has been owed all that it brought."""
        owed: dict[Flow, float] = {}
        while left_ms > 0:
            asking = {flow: demand[flow] for flow, work in self._open.items() if work > 0}
            if not asking:
                break
            rates = self._rates(capacity, asking)
            step_ms = min(left_ms, *(self._open[flow] / rate for flow, rate in rates.items()))
            for flow, rate in rates.items():
                is_last = self._open[flow] / rate <= step_ms
                owed[flow] = owed.get(flow, 0.0) + rate * step_ms
                self._open[flow] = 0.0 if is_last else self._open[flow] - rate * step_ms
            left_ms -= step_ms
        return owed

    def _rates(self, capacity: int, asking: Mapping[Flow, int]) -> dict[Flow, float]:
        """How many slots each of those who ask is owed while that is so."""
        wanted = {flow: float(slots) for flow, slots in asking.items()}
        weights = flow_weights(list(asking), self._policy, self._pool)
        caps: dict[Scope, tuple[list[Flow], float]] = {}
        for flow in asking:
            for scope, limits in self._limits_of(flow):
                caps.setdefault(scope, ([], _most(limits, capacity)))[0].append(flow)
        if caps:
            return capped_filling(float(capacity), wanted, weights, list(caps.values()))
        return water_filling(float(capacity), wanted, weights)

    def _limits_of(self, flow: Flow) -> list[tuple[Scope, Limits]]:
        if flow not in self._limits:
            found = self._policy.limits_of(flow_id(*flow, self._pool))
            self._limits[flow] = [each for each in found if each[1].slots or each[1].slots_percent]
        return self._limits[flow]


def _most(limits: Limits, capacity: int) -> float:
    """Slots of a pool of ``capacity`` that the limits let run; those over all pools count whole."""
    of_pool = max(1, capacity * limits.slots_percent // 100) if limits.slots_percent else capacity
    return float(min(of_pool, limits.slots or capacity))


def flow_weights(flows: list[Flow], policy: Policy, pool: str) -> dict[Flow, float]:
    """The weight of each flow of a pool while exactly these have work."""
    active: dict[str, list[str]] = {}
    for organization, workload_class in flows:
        active.setdefault(organization, []).append(workload_class)
    weights: dict[Flow, float] = {}
    for flow in flows:
        numerator, denominator = policy.flow_weight(*flow, pool, active[flow[0]])
        weights[flow] = numerator / denominator
    return weights


class _Change(NamedTuple):
    at: int
    flow: Flow
    waiting: int = 0
    running: int = 0
    capacity: int = 0
    work_ms: int = 0


def _changes(outcome: Outcome, pool: str) -> Iterator[_Change]:
    end = outcome.ended_at_ms
    for run in outcome.runs:
        job = run.job
        if job.pool != pool or run.refused or job.arrival_ms > end:
            continue
        flow, slots = (job.organization, job.workload_class), job.slots
        yield _Change(job.arrival_ms, flow, waiting=slots, work_ms=slots * job.duration_ms)
        begun = end if run.start_ms is None else run.start_ms
        yield _Change(begun, flow, waiting=-slots)
        if run.start_ms is not None:
            yield _Change(run.start_ms, flow, running=slots)
            yield _Change(end if run.end_ms is None else run.end_ms, flow, running=-slots)
    for slot in outcome.slots.get(pool, ()):
        if slot.from_ms < end:
            until = end if slot.until_ms is None else min(end, slot.until_ms)
            yield _Change(slot.from_ms, _NOBODY, capacity=1)
            yield _Change(until, _NOBODY, capacity=-1)


_NOBODY = ("", "")


def _add(slots_of: dict[Flow, int], flow: Flow, slots: int) -> None:
    if slots:
        slots_of[flow] = slots_of.get(flow, 0) + slots
        if not slots_of[flow]:
            del slots_of[flow]
