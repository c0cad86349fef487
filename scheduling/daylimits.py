"""How much of each limit a day counts now, and whether one more job may draw on it.

Owns the comparison of what has ended (``ledger.daily``) and what runs with the limits a day of
the policy, and its words. Before its slots are known, a job counts as if they were GPUs where
its pool has GPUs.
"""

from __future__ import annotations

from typing import NamedTuple

from ledger.daily import NOTHING, Use
from ledger.events import JobSpec
from ledger.policy import Limits, Scope
from ledger.projection import Projection
from scheduling.placement import Fleet
from scheduling.quantities import gpu_seconds, money


class DayHold(NamedTuple):
    """A full limit a day: whose it is, and the numbers."""

    limit: str
    reason: str
    eases_at: int | None
    """When there is room by time alone (ms); None: only once something that runs has ended."""


class DayLimits:
    """``reserve`` and ``reason`` are O(1)."""

    def __init__(self, projection: Projection, fleet: Fleet) -> None:
        self._projection = projection
        self._fleet = fleet
        self._reserved: dict[Scope, Use] = {}

    def reserve(self, scope: Scope, more: Use) -> None:
        """What runs counts for so much more (or less, where it is negative)."""
        self._reserved[scope] = self._reserved.get(scope, NOTHING).plus(more)

    def reason(self, scope: Scope, limits: Limits, spec: JobSpec) -> str:
        """Why the job would go beyond a limit a day; empty where it would not."""
        most = day_limits(limits)
        if most == NOTHING:
            return ""
        counted, needs = self._counted(scope), self._needs(spec)
        over = broken_by(most, counted.plus(needs), needs)
        return f"{scope} counts {_parts(counted, most, needs)[over]}" if over else ""

    def hold(self, scope: Scope, limits: Limits, spec: JobSpec) -> DayHold | None:
        """The same, and when there will be room. O(hours * flows)."""
        reason = self.reason(scope, limits, spec)
        if not reason:
            return None
        most, wanted = day_limits(limits), self._counted(scope).plus(self._needs(spec))
        excess = Use(
            max(0, wanted.gpu_ms - most.gpu_ms) if most.gpu_ms else 0,
            max(0, wanted.money_micros - most.money_micros) if most.money_micros else 0,
        )
        return DayHold(str(scope), reason, self._projection.daily.eases_at(scope, excess))

    def _counted(self, scope: Scope) -> Use:
        return self._projection.daily.total(scope).plus(self._reserved.get(scope, NOTHING))

    def _needs(self, spec: JobSpec) -> Use:
        gpus = spec.slots if self._fleet.has_gpus(spec.pool) else 0
        return self._projection.may_use(spec, gpus)


def day_limits(limits: Limits) -> Use:
    """What may count at once; 0: no limit."""
    return Use(1_000 * limits.gpu_seconds_per_day, limits.money_per_day_micros)


def broken_by(most: Use, wanted: Use, needs: Use) -> str:
    """Which limit of ``most`` a job would break that needs something of it; empty: none."""
    if needs.gpu_ms and 0 < most.gpu_ms < wanted.gpu_ms:
        return "GPU-seconds"
    if needs.money_micros and 0 < most.money_micros < wanted.money_micros:
        return "money"
    return ""


def _parts(counted: Use, most: Use, needs: Use) -> dict[str, str]:
    texts = {
        "GPU-seconds": [gpu_seconds(use.gpu_ms) for use in (counted, most, needs)],
        "money": [money(use.money_micros) for use in (counted, most, needs)],
    }
    return {
        what: f"{used} of at most {limit} {what} a day, used or reserved; it needs {more}"
        for what, (used, limit, more) in texts.items()
    }
