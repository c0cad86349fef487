"""Time as an argument: the clock that is handed to everything that waits or stamps.

Owns the ``Clock`` protocol and its system implementation. Nothing else in gpuq reads a
clock; the simulation hands in a virtual one.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks and a way to wait; all readings are integer milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch by this machine's own (maybe wrong) clock."""

    def boot_ms(self) -> int:
        """Milliseconds on a clock that never steps and also runs in suspend."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait ``duration_ms`` (>= 0)."""


class SystemClock:
    """The machine's clocks (CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC elsewhere)."""

    _BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(self._BOOT) // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)
