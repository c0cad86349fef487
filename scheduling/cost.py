"""What an attempt is charged: slot-milliseconds, estimated at dispatch, grown on overrun.

Owns the cost formulas. Integers only. Audit occupancy is not computed here: it is what
really ran and is never refunded.
"""

from __future__ import annotations

OVERRUN_STEP_MS = 1_000
"""Smallest step by which the charge of an overrunning attempt grows, per slot."""


def estimated_cost_ms(slots: int, run_ms: int) -> int:
    """Slot-milliseconds of a job of ``slots`` slots that should run ``run_ms``."""
    return slots * run_ms


def exhausted_at(started_at: int, slots: int, cost_ms: int) -> int:
    """When an attempt has used up what was charged for it (ms since the epoch)."""
    return started_at + cost_ms // slots


def grown_cost_ms(started_at: int, slots: int, cost_ms: int, at: int) -> int:
    """The charge of an attempt that overran: what it used, and an eighth ahead.

    Growing by a share keeps the number of charges logarithmic in the overrun.
    """
    used = slots * (at - started_at)
    return max(used, cost_ms) + max(cost_ms // 8, slots * OVERRUN_STEP_MS)
