"""How the charge of an attempt grows that runs past its estimate.

Owns these formulas. Integers only. Audit occupancy is not computed here: it is what
really ran and is never refunded.
"""

from __future__ import annotations

from ledger.estimates import cost_of
from ledger.state import Rate

OVERRUN_STEP_MS = 1_000
"""Smallest step by which the charge of an overrunning attempt grows, per slot."""


def grown_cost_ms(started_at: int, slots: int, cost_ms: int, rate: Rate, at: int) -> int:
    """The charge of an attempt that overran: what it used, and an eighth ahead.

    Growing by a share keeps the number of charges logarithmic in the overrun.
    """
    used = cost_of(slots * (at - started_at), rate)
    return max(used, cost_ms) + max(cost_ms // 8, cost_of(slots * OVERRUN_STEP_MS, rate))
