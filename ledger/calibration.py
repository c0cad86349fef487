"""How much of the tokens that calls may take they really take, by pool and class.

Owns one factor: each call that reports its tokens moves it a sixteenth of the way toward
actual over estimated, which counts for at least a quarter and at most four. So one call
moves it little, and none moves it out of these bounds. Integers: millionths, rounded down.
"""

from __future__ import annotations

import msgspec

from ledger.timings import DAY_MS

ONE = 1_000_000
LEAST, MOST = ONE // 4, 4 * ONE
SLOWNESS = 16

HISTORY_DAYS = 14


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The factor, and how it came about."""

    factor_ppm: int = ONE
    calls: int = 0
    """By how many it was moved."""
    history: tuple[tuple[int, int], ...] = ()
    """Days since the epoch, each with the factor after its last call; the newest last."""

    def moved(self, *, actual: int, estimated: int, at: int) -> Calibration:
        """After a call that took ``actual`` of ``estimated`` (> 0) and ended at ``at`` (ms)."""
        ratio = min(max(ONE * actual // estimated, LEAST), MOST)
        factor = self.factor_ppm + (ratio - self.factor_ppm) // SLOWNESS
        day = at // DAY_MS
        before = tuple(each for each in self.history if each[0] != day)
        history = (*before, (day, factor))[-HISTORY_DAYS:]
        return Calibration(factor_ppm=factor, calls=self.calls + 1, history=history)

    def applied(self, estimated: int) -> int:
        """What such an estimate is charged, rounded up."""
        return -(-estimated * self.factor_ppm // ONE)


def calibration_key(pool: str, workload_class: str) -> str:
    return f"{pool}/{workload_class}"
