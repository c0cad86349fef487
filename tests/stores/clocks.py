"""A clock that a test moves: waiting on it takes no time."""

from __future__ import annotations

import threading

_ENDLESS_MS = 3_600_000


class SteppedClock:
    """``ledger.clock.Clock`` whose boot and wall time move only by waiting, or by hand."""

    def __init__(self, *, wall_ms: int = 1_800_000_000_000, boot_ms: int = 5_000_000) -> None:
        self.wall = wall_ms
        self.boot = boot_ms
        self.slept_ms: list[int] = []
        self._lock = threading.Lock()

    def wall_ms(self) -> int:
        return self.wall

    def boot_ms(self) -> int:
        return self.boot

    def sleep_ms(self, duration_ms: int) -> None:
        assert duration_ms >= 0
        with self._lock:
            self.slept_ms.append(duration_ms)
            assert sum(self.slept_ms) < _ENDLESS_MS, "it waits without end"
            self.wall += duration_ms
            self.boot += duration_ms
