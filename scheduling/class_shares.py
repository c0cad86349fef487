"""The slots of a pool that its classes are owed, keep and may have at most.

Owns what follows from ``Pool.class_slots`` and from what runs: whether a class may start one
more job, which slots are kept for others, and which classes go first. What runs is counted by
``scheduling.headroom``. Slots count, whatever their kind. ``fifo`` asks for arrival alone: there
only the most that a class may have holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ledger.names import FlowId, flow_parts
from ledger.policy import ClassSlots, Scope
from ledger.state import Job, State
from scheduling.hold import Hold
from scheduling.placement import Fleet

KEPT = "slots kept"
"""How the limit begins that holds a flow because of what other classes keep."""

PoolClass = tuple[str, str]
"""A pool and a class."""


class ClassShares:
    """Reads one state; ``running`` says how many slots count for a scope. O(classes)."""

    def __init__(self, state: State, fleet: Fleet, running: Callable[[Scope], int]) -> None:
        self._state = state
        self._fleet = fleet
        self._running = running
        self._policy = state.policy
        self._changed: dict[PoolClass, None] = {}
        self._known: dict[PoolClass, bool] = {}
        """What ``turned`` said last, under this policy."""

    # -- whether one more job may start

    def hold(self, job: Job) -> Hold | None:
        """Why its class may not start it, so that others go on; None where it may.

        One of several slots that has to wait for slots which are kept is not held by that: it
        gets a reservation when its turn comes, or smaller ones would always go before it.
        """
        spec = job.placed
        own = self._own(spec.pool, spec.workload_class)
        scope = Scope("class", spec.workload_class, spec.pool)
        used = self._running(scope)
        if own.max and used + spec.slots > own.max:
            reason = f"{scope} runs {used} of at most {own.max} slots"
            return Hold(str(scope), reason, of_pool=False)
        could_be_free = self._fleet.serving(spec.pool)
        if spec.slots == 1 or self._leaves_too_few(job, could_be_free, used=False):
            return self.kept(job)
        return None

    def kept(self, job: Job) -> Hold | None:
        """The slots that are kept for other classes, where it would need one of them."""
        pool = job.placed.pool
        free = self._fleet.free(pool)
        if not self._leaves_too_few(job, free, used=True):
            return None
        others = ", ".join(
            f"{slots} for class {name}" for name, slots in self._unfilled(job, used=True) if slots
        )
        reason = f"pool {pool} keeps {others}, and has {free} free"
        return Hold(f"{KEPT} in pool {pool}", reason, of_pool=False)

    def is_within_min(self, job: Job) -> bool:
        """Whether it takes only slots that are kept for its own class."""
        spec = job.placed
        least = self._mins(spec.pool).get(spec.workload_class, 0)
        used = self._running(Scope("class", spec.workload_class, spec.pool))
        return used + spec.slots <= least

    def keeps_any(self, pool: str) -> bool:
        """Whether slots of the pool are kept for a class."""
        return bool(self._mins(pool))

    def _leaves_too_few(self, job: Job, free: int, *, used: bool) -> bool:
        if self.is_within_min(job) or not self._mins(job.placed.pool):
            return False
        return free - job.spec.slots < sum(slots for _, slots in self._unfilled(job, used=used))

    def _unfilled(self, job: Job, *, used: bool) -> Iterator[tuple[str, int]]:
        """By other class what is kept for it beyond what it has (``used``), or in all."""
        spec = job.placed
        for name, least in sorted(self._mins(spec.pool).items()):
            if name != spec.workload_class:
                has = self._running(Scope("class", name, spec.pool)) if used else 0
                yield name, max(0, least - has)

    def _mins(self, pool: str) -> dict[str, int]:
        known = self._state.policy.pool(pool)
        if known.discipline == "fifo":
            return {}
        return {name: slots.min for name, slots in known.class_slots.items() if slots.min}

    def _own(self, pool: str, workload_class: str) -> ClassSlots:
        return self._state.policy.pool(pool).class_slots.get(workload_class, _NONE)

    # -- which classes go first

    def borrows(self, pool: str, workload_class: str) -> bool:
        """Whether a further job of the class would take what no class is owed, or another is.

        Only in a pool that owes classes something. One job may take it beyond what it is owed.
        """
        if not self._state.policy.pool(pool).is_divided:
            return False
        owed = self._own(pool, workload_class).nominal
        return self._running(Scope("class", workload_class, pool)) >= owed

    def lent(self, job: Job) -> str:
        """Why its class goes after others; empty where it does not."""
        spec = job.placed
        if not self.borrows(spec.pool, spec.workload_class):
            return ""
        owed = self._own(spec.pool, spec.workload_class).nominal
        has = f"has what it is owed there ({owed})" if owed else "is owed nothing there"
        return f"class {spec.workload_class} {has}, and classes that have less go first"

    def note(self, flow: FlowId) -> None:
        """More or fewer slots of the flow run."""
        _, workload_class, pool = flow_parts(flow)
        if self._state.policy.pool(pool).class_slots:
            self._changed[pool, workload_class] = None

    def take_changes(self) -> list[PoolClass]:
        """Where what runs has changed since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def turned(self, pool: str, workload_class: str) -> bool:
        """Whether ``borrows`` may say another thing than when this was asked last."""
        if self._policy is not self._state.policy:
            self._policy = self._state.policy
            self._known.clear()
        now = self.borrows(pool, workload_class)
        before = self._known.get((pool, workload_class))
        self._known[pool, workload_class] = now
        return now != before


_NONE = ClassSlots()
