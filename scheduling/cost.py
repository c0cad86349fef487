"""How the charge of an attempt grows that runs past its estimate.

Owns these formulas. Integers only. Audit occupancy is not computed here: it is what
really ran and is never refunded.
"""

from __future__ import annotations

OVERRUN_STEP_MS = 1_000
"""Smallest step by which the charge of an overrunning attempt grows, per slot."""


def exhausted_at(started_at: int, slots: int, cost_ms: int) -> int:
    """When an attempt has used up what was charged for it (ms since the epoch)."""
    return started_at + cost_ms // slots


def grown_cost_ms(started_at: int, slots: int, cost_ms: int, at: int) -> int:
    """The charge of an attempt that overran: what it used, and an eighth ahead.

    Growing by a share keeps the number of charges logarithmic in the overrun.
    """
    used = slots * (at - started_at)
    return max(used, cost_ms) + max(cost_ms // 8, slots * OVERRUN_STEP_MS)
