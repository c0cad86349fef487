"""The arithmetic of fair sharing: virtual time, tags, charges, settlements.

Owns every number that decides whose turn it is. Pure integers: no clock, no random, no
I/O. A flow is organization + workload class + pool; per pool there is a virtual time
``V``, per flow a finish tag ``F`` of its last dispatch and ``since``, the value of ``V``
when its waiting queue last became non-empty (or the smallest start tag of those who wait,
where refunds have left ``V`` ahead of them all)::

    head start tag   S = max(F, since)
    head finish tag  S + charge(estimate)         charge(c) = ceil(c * SCALE / weight)

Charging happens at dispatch and is settled once, so a cancelled queue costs nothing, debt
survives idleness and credit does not. Between two flows that both stay backlogged the
charged service differs by at most ``cmax_f/w_f + cmax_g/w_g`` under start order (Goyal,
Vin, Cheng, "Start-time Fair Queueing", 1996, doi 10.1145/248156.248171).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec
from sortedcontainers import SortedList

from ledger.names import FlowId, flow_id
from ledger.policy import Policy

SCALE = 1_000_000
"""Virtual time units per slot-millisecond at weight 1."""

Weight = tuple[int, int]
"""Numerator and denominator of a flow's weight at one moment."""


def charge(cost_ms: int, weight: Weight) -> int:
    """Virtual time that ``cost_ms`` slot-milliseconds are worth; rounded up, never free."""
    numerator, denominator = weight
    return -(-cost_ms * SCALE * denominator // numerator)


class Tags(NamedTuple):
    """What a dispatch of a given cost would bind."""

    start: int
    finish: int
    weight: Weight


class Flow(msgspec.Struct, kw_only=True):
    """``finish`` and ``since`` in virtual time; ``running`` counts unsettled attempts."""

    id: FlowId
    organization: str
    workload_class: str
    pool: str
    finish: int = 0
    since: int = 0
    waiting: int = 0
    running: int = 0
    blocked: str = ""
    limit: str = ""
    """Whose limit holds it, where that is why it is blocked."""
    turns: tuple[int, ...] = ()
    """By size bucket how many went since one of a larger bucket did: ``ledger.size_buckets``."""

    @property
    def active(self) -> bool:
        return self.waiting > 0 or self.running > 0

    @property
    def start_tag(self) -> int:
        return max(self.finish, self.since)


class PoolClock(msgspec.Struct, kw_only=True):
    """Virtual time of a pool, and how many of its jobs wait and run."""

    virtual_time: int = 0
    waiting: int = 0
    running: int = 0


class FairState:
    """Flows and pool clocks, with the operations of docs/ARCHITECTURE.md,
    "Fair sharing".

    All operations are O(1) except where stated. ``touched`` collects the flows whose
    place in an order may have changed since its reader last cleared it.
    """

    def __init__(self, flows: dict[FlowId, Flow], pools: dict[str, PoolClock]) -> None:
        self.flows = flows
        self.pools = pools
        self.touched: dict[FlowId, None] = {}
        self._siblings: dict[tuple[str, str], dict[str, Flow]] = {}
        self._ahead: dict[str, dict[FlowId, None]] = {}
        self._backlog: dict[tuple[str, str], SortedList[tuple[int, FlowId]]] = {}
        """By pool, and by pool and class: start tags of the flows that wait and can be served."""
        self._backlogged: dict[FlowId, int] = {}
        self._digest = 0
        self._digests: dict[str, int] = {}
        self._stale: dict[str, None] = {}
        for flow in flows.values():
            self._link(flow)
            if flow.finish > self.pool(flow.pool).virtual_time:
                self._ahead.setdefault(flow.pool, {})[flow.id] = None
            self._rank(flow)
        self._stale.update(dict.fromkeys([*flows, *pools]))

    def pool(self, name: str) -> PoolClock:
        """The clock of a pool; it begins at 0."""
        if name not in self.pools:
            self.pools[name] = PoolClock()
        return self.pools[name]

    def flow(self, organization: str, workload_class: str, pool: str) -> Flow:
        """The flow of that name; it begins with nothing charged."""
        key = flow_id(organization, workload_class, pool)
        flow = self.flows.get(key)
        if flow is None:
            flow = Flow(id=key, organization=organization, workload_class=workload_class, pool=pool)
            self.flows[key] = flow
            self._link(flow)
            self._touch(flow)
        return flow

    def weight(self, flow: Flow, policy: Policy) -> Weight:
        """As ``Policy.flow_weight`` says; the flow itself counts as active."""
        siblings = self._siblings[flow.organization, flow.pool].items()
        active = (name for name, sibling in siblings if sibling.active)
        return policy.flow_weight(flow.organization, flow.workload_class, flow.pool, active)

    def tags(self, flow: Flow, cost_ms: int, policy: Policy) -> Tags:
        """What a dispatch of ``cost_ms`` slot-milliseconds would bind now."""
        weight = self.weight(flow, policy)
        start = flow.start_tag
        return Tags(start, start + charge(cost_ms, weight), weight)

    def join(
        self, flow: Flow, jobs: int = 1, *, divided: bool = False, resumed: bool = False
    ) -> None:
        """A job (or an array of so many) enters the flow's queue; ``divided``: see ``_level``.

        ``resumed``: its attempt was taken back before it ran, so it counts as having waited
        all along, and a queue that was empty meanwhile was none.
        """
        self.pool(flow.pool).waiting += jobs
        self.resume(flow, jobs, divided=divided, resumed=resumed)

    def leave(self, flow: Flow, jobs: int = 1, *, suspended: bool = False) -> None:
        """It leaves the waiting queue without being dispatched: it costs nothing."""
        self.pool(flow.pool).waiting -= jobs
        was_active = flow.active
        if not suspended:
            flow.waiting -= jobs
        assert flow.waiting >= 0, flow.id
        self._changed(flow, was_active=was_active)

    def suspend(self, flow: Flow, jobs: int) -> None:
        """They leave the flow's queue for a while: the flow offers none of them.

        They go on counting in their pool, which is not wholly idle while they wait.
        """
        flow.waiting -= jobs
        assert flow.waiting >= 0, flow.id
        self._changed(flow, was_active=True)

    def resume(
        self, flow: Flow, jobs: int, *, divided: bool = False, resumed: bool = False
    ) -> None:
        """They enter it again, as newcomers; they have counted in the pool all along."""
        was_active = flow.active
        if flow.waiting == 0 and not resumed:
            flow.since = self._level(flow, divided=divided)
        flow.waiting += jobs
        self._changed(flow, was_active=was_active)

    def dispatch(
        self,
        flow: Flow,
        *,
        start_tag: int,
        finish_tag: int,
        discipline: str,
        backfill: bool,
        turns: tuple[int, ...] = (),
    ) -> None:
        """A waiting job of the flow starts, bound to these tags."""
        flow.waiting -= 1
        flow.running += 1
        flow.finish, flow.turns = finish_tag, turns
        clock = self.pool(flow.pool)
        clock.waiting -= 1
        clock.running += 1
        assert flow.waiting >= 0, flow.id
        if not backfill:
            reached = finish_tag if discipline == "wfq" else start_tag
            clock.virtual_time = max(clock.virtual_time, reached)
        self._changed(flow, was_active=True)

    def adjust(self, flow: Flow, difference: int) -> None:
        """Charge more, or give back, before the end (overrun)."""
        flow.finish += difference
        self._changed(flow, was_active=flow.active)

    def settle(self, flow: Flow, difference: int) -> None:
        """An attempt is over: book ``charge(actual) - charge(charged so far)``."""
        flow.finish += difference
        flow.running -= 1
        self.pool(flow.pool).running -= 1
        assert flow.running >= 0, flow.id
        self._changed(flow, was_active=True)

    def block(self, flow: Flow, reason: str, limit: str) -> None:
        """Nothing can serve the flow for now; while that is so it is level with nobody."""
        flow.blocked, flow.limit = reason, limit
        self._rank(flow)
        self._touch(flow)

    def free(self, flow: Flow, credit: int, *, divided: bool = False) -> None:
        """The flow can be served again: the time in which it could not earned nothing.

        One that its own limit held may be ``credit`` behind (the charge of its next job): a
        flow that always runs at its limit would else get less than the limit allows.
        """
        level = self._level(flow, divided=divided) - (credit if flow.limit else 0)
        flow.blocked = flow.limit = ""
        flow.since = max(flow.since, level)
        self._rank(flow)
        self._touch(flow)

    def _level(self, flow: Flow, *, divided: bool) -> int:
        """The tag of one that comes now: V, or the smallest start tag of those who wait.

        In a pool that is ``divided`` among classes only those of its class count: what a class
        is owed lets the tags of another run ahead, or stay behind, for as long as it lasts.

        Without refunds V is never ahead of all who wait. A refund of what was estimated far
        too high leaves V ahead of them, and a newcomer at V would wait until they had used
        up the whole estimate. O(log flows).
        """
        waiting = self._backlog.get((flow.pool, flow.workload_class if divided else ""))
        level = self.pool(flow.pool).virtual_time
        return min(level, waiting[0][0]) if waiting else level

    def _rank(self, flow: Flow) -> None:
        before = self._backlogged.get(flow.id)
        now = flow.start_tag if flow.waiting and not flow.blocked else None
        if now == before:
            return
        if before is not None:
            del self._backlogged[flow.id]
        if now is not None:
            self._backlogged[flow.id] = now
        for of_class in ("", flow.workload_class):
            waiting = self._backlog.setdefault((flow.pool, of_class), SortedList())
            if before is not None:
                waiting.remove((before, flow.id))
            if now is not None:
                waiting.add((now, flow.id))

    def touch_all(self) -> None:
        """Every order may have changed (a new policy). O(flows)."""
        self.touched.update(dict.fromkeys(self.flows))

    def digest(self) -> str:
        """A fingerprint of all flows and pools. O(changed since the last call)."""
        for name in self._stale:
            value = _fingerprint(name, self.flows.get(FlowId(name)), self.pools.get(name))
            self._digest += value - self._digests.get(name, 0)
            self._digests[name] = value
        self._stale.clear()
        return f"{self._digest % (1 << 128):032x}"

    def _link(self, flow: Flow) -> None:
        family = self._siblings.setdefault((flow.organization, flow.pool), {})
        family[flow.workload_class] = flow

    def _changed(self, flow: Flow, *, was_active: bool) -> None:
        clock = self.pool(flow.pool)
        self._rank(flow)
        if flow.finish > clock.virtual_time:
            self._ahead.setdefault(flow.pool, {})[flow.id] = None
        if clock.waiting == 0 and clock.running == 0:
            self._go_idle(flow.pool, clock)
        if was_active != flow.active:
            for sibling in self._siblings[flow.organization, flow.pool].values():
                self.touched[sibling.id] = None
        self._touch(flow)
        self._stale[flow.pool] = None

    def _go_idle(self, pool: str, clock: PoolClock) -> None:
        """The only amnesty: a wholly idle pool forgets all debt. Amortised O(1)."""
        for name in self._ahead.pop(pool, ()):
            clock.virtual_time = max(clock.virtual_time, self.flows[name].finish)

    def _touch(self, flow: Flow) -> None:
        self.touched[flow.id] = None
        self._stale[flow.id] = None


def _fingerprint(name: str, flow: Flow | None, pool: PoolClock | None) -> int:
    if flow is not None:
        text = f"{name} {flow.finish} {flow.since} {flow.waiting} {flow.running}"
        text += "".join(f" {count}" for count in flow.turns)
    else:
        assert pool is not None
        text = f"{name} {pool.virtual_time} {pool.waiting} {pool.running}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())
