"""What each organization was owed of a pool while it was contested, and what it got.

Owns the reckoning that docs/AUDIT.md, "Fairness", defines, from pages alone. The time between
two pages that count is one interval, in which the state after the earlier one holds. There a
pool is *contested* where jobs wait that could be served, and at least two organizations have
work in it: jobs that wait so, or slots that they hold. The slots that all of them hold
together are then owed by weight, to nobody more than he holds and his jobs wait for, and what
that leaves to the others. The weight of an organization is that of its flows with work there
together: its own, but in a pool that shares by flow. Exact fractions; pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import msgspec

from ledger import events as e
from ledger.names import FlowId, JobId, WorkerName
from ledger.policy import WEIGHT_ONE
from scheduling.followed import Followed
from scheduling.waterfill import water_filling


class Part(msgspec.Struct, kw_only=True):
    """Of one organization in one pool, all in slot-milliseconds but where another unit is said."""

    weight: int = 0
    """Thousandths, when it had work last."""
    discipline: str = ""
    contested_ms: int = 0
    """In which it had work."""
    owed: Fraction = Fraction(0)
    got: int = 0
    carried: int = 0
    """Of that: by attempts assigned before the contest began. Nothing is taken back for it."""
    dispatched: int = 0
    """What it was first charged for the attempts that it was assigned in that time."""
    largest: int = 0
    """The largest of these charges."""
    sated_ms: int = 0
    """It wanted no more than it was owed by weight, so that it left something to others."""
    blocked_ms: dict[str, int] = msgspec.field(default_factory=dict)
    """By reason: its jobs waited, but none could be served, while others had work."""


class _Held(msgspec.Struct, frozen=True):
    pool: str
    organization: str
    workload_class: str
    assigned_at: int


class _Pool(msgspec.Struct, kw_only=True):
    """How a pool stands after a page."""

    held: dict[str, int]
    carried: dict[str, int]
    wanted: dict[str, int]
    """Slots that servable waiting jobs ask for, by organization."""
    blocked: dict[str, str]
    """Of organizations of which nothing can be served: why."""
    owed: dict[str, Fraction]
    """Slots, by organization that has work; empty where the pool is not contested."""
    active: dict[str, set[str]]
    """Classes that have work, by organization."""
    weights: dict[str, Fraction]
    discipline: str
    charges: dict[str, list[int]]
    """What the page charged for attempts that it assigned there."""


class Contest:
    """An observer of a whole journal. A page costs O(workers + flows that wait)."""

    def __init__(self, followed: Followed, *, begin: int, end: int) -> None:
        """Only what lies between ``begin`` and ``end`` (ms) is counted."""
        self._followed = followed
        self._begin, self._end = begin, end
        self.parts: dict[tuple[str, str], Part] = {}
        """By pool and organization, those that had work in a contest."""
        self.contested_ms: dict[str, int] = {}
        self._slots: dict[WorkerName, _Held] = {}
        self._waiting: dict[JobId, tuple[FlowId, int]] = {}
        self._since: dict[str, int] = {}
        """Since when a pool is contested."""
        self._pools: dict[str, _Pool] = {}
        self._at = followed.state.at
        followed.observers.append(self)

    def step(self, decision: e.AnyDecision | None, flows: Sequence[FlowId]) -> None:
        """Decisions are looked at page by page."""

    def page(self, page: e.Page) -> None:
        self._count(self._at, page.at)
        self._at = page.at
        self._look()
        self._pools = dict(self._standing())
        for name in [name for name in self._since if not self._is_contested(name)]:
            del self._since[name]
        for name in self._pools:
            if self._is_contested(name):
                self._since.setdefault(name, page.at)
        for decision in page.decisions:
            if isinstance(decision, e.AttemptAssigned):
                spec = self._followed.state.jobs[decision.job].placed
                charges = self._pools[spec.pool].charges
                charges.setdefault(spec.organization, []).append(decision.cost_ms)

    # -- what holds after a page

    def _look(self) -> None:
        """Take over what the page changed."""
        state, touched = self._followed.state, self._followed.projection.touched
        for name in touched.workers:
            ref = state.workers[name].occupant
            self._slots.pop(name, None)
            job = state.jobs.get(ref.job) if ref is not None else None
            attempt = job.attempt(ref.attempt) if job is not None and ref is not None else None
            if job is not None and attempt is not None:
                spec = job.placed
                self._slots[name] = _Held(
                    spec.pool, spec.organization, spec.workload_class, attempt.assigned_at
                )
        for job_id in touched.jobs:
            job = state.jobs.get(job_id)
            self._waiting.pop(job_id, None)
            if job is not None and job.in_queue:
                self._waiting[job_id] = (job.placed.flow, job.spec.slots)

    def _standing(self) -> Iterator[tuple[str, _Pool]]:
        state = self._followed.state
        pools: dict[str, _Pool] = {}
        names = {slot.pool for slot in self._slots.values()}
        names.update(state.flows[flow].pool for flow, _ in self._waiting.values())
        for name in sorted(names):
            pools[name] = _Pool(
                held={}, carried={}, wanted={}, blocked={}, owed={}, active={}, weights={},
                charges={},
                discipline=state.policy.discipline(name),
            )  # fmt: skip
        for slot in self._slots.values():
            pool = pools[slot.pool]
            _add(pool.held, slot.organization, 1)
            pool.active.setdefault(slot.organization, set()).add(slot.workload_class)
            if slot.assigned_at < self._since.get(slot.pool, state.at):
                _add(pool.carried, slot.organization, 1)
        for flow_id, slots in self._waiting.values():
            flow = state.flows[flow_id]
            pool = pools[flow.pool]
            if flow.blocked:
                pool.blocked[flow.organization] = flow.blocked
            else:
                _add(pool.wanted, flow.organization, slots)
                pool.active.setdefault(flow.organization, set()).add(flow.workload_class)
        for name, pool in pools.items():
            demand = {
                one: Fraction(pool.held.get(one, 0) + pool.wanted.get(one, 0))
                for one in (*pool.held, *pool.wanted)
            }
            if pool.wanted and len(demand) > 1:
                pool.weights = {one: self._weight(name, pool, one) for one in demand}
                pool.owed = water_filling(Fraction(sum(pool.held.values())), demand, pool.weights)
            yield name, pool

    def _weight(self, name: str, pool: _Pool, organization: str) -> Fraction:
        """Of all its flows with work together."""
        policy, active = self._followed.state.policy, pool.active[organization]
        weights = (policy.flow_weight(organization, each, name, active) for each in active)
        return sum((Fraction(*weight) for weight in weights), Fraction(0))

    def _is_contested(self, pool: str) -> bool:
        return pool in self._pools and bool(self._pools[pool].owed)

    # -- counting

    def _count(self, begin: int, end: int) -> None:
        """The interval that has just ended."""
        span_ms = min(end, self._end) - max(begin, self._begin)
        if span_ms <= 0:
            return
        for name, pool in self._pools.items():
            if pool.owed:
                self.contested_ms[name] = self.contested_ms.get(name, 0) + span_ms
            for organization, slots in pool.owed.items():
                self._count_part(name, pool, organization, slots, span_ms)
            for organization, reason in pool.blocked.items():
                others = (pool.held.keys() | pool.wanted.keys()) - {organization}
                if others and organization not in pool.wanted:
                    blocked_ms = self._part(name, organization).blocked_ms
                    blocked_ms[reason] = blocked_ms.get(reason, 0) + span_ms

    def _count_part(
        self, name: str, pool: _Pool, organization: str, slots: Fraction, span_ms: int
    ) -> None:
        part = self._part(name, organization)
        part.weight = round(WEIGHT_ONE * pool.weights[organization])
        part.discipline = pool.discipline
        part.contested_ms += span_ms
        part.owed += slots * span_ms
        part.got += pool.held.get(organization, 0) * span_ms
        part.carried += pool.carried.get(organization, 0) * span_ms
        if slots == pool.held.get(organization, 0) + pool.wanted.get(organization, 0):
            part.sated_ms += span_ms
        charges = pool.charges.get(organization, [])
        part.dispatched += sum(charges)
        part.largest = max([part.largest, *charges])

    def _part(self, pool: str, organization: str) -> Part:
        return self.parts.setdefault((pool, organization), Part())


def _add(counts: dict[str, int], name: str, count: int) -> None:
    counts[name] = counts.get(name, 0) + count
