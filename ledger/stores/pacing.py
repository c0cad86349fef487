"""How a store waits: back-off with jitter, a request budget, the server's clock.

Owns nothing of S3: all three read the injected clock only, so that a test can drive them.
"""

from __future__ import annotations

import random
import threading
from collections import deque

from ledger.clock import Clock

BACKOFF_MIN_MS = 100
BACKOFF_MAX_MS = 5_000


class Backoff:
    """Waits that double from 0.1 s to 5 s, each between half and all of its length."""

    def __init__(self, clock: Clock, rng: random.Random, patience_ms: int | None) -> None:
        self._clock = clock
        self._rng = rng
        self._next_ms = BACKOFF_MIN_MS
        self._end_ms = None if patience_ms is None else clock.boot_ms() + patience_ms

    def wait(self) -> bool:
        """Wait and return True, or return False at once when the patience is spent."""
        wait_ms = self._rng.randint(self._next_ms // 2, self._next_ms)
        self._next_ms = min(2 * self._next_ms, BACKOFF_MAX_MS)
        if self._end_ms is not None:
            left_ms = self._end_ms - self._clock.boot_ms()
            if left_ms <= 0:
                return False
            wait_ms = min(wait_ms, left_ms)
        self._clock.sleep_ms(wait_ms)
        return True


class RequestBudget:
    """A token bucket of one second's requests, shared by the threads of a process."""

    def __init__(self, clock: Clock, requests_per_second: int) -> None:
        self._clock = clock
        self._interval_us = 1_000_000 // requests_per_second
        self._lock = threading.Lock()
        self._free_us = 0
        """When the bucket would be empty of debt; up to a second in the past is credit."""

    def take(self) -> None:
        """Wait until one more request is within the budget."""
        with self._lock:
            now_us = self._clock.boot_ms() * 1000
            due_us = max(self._free_us, now_us - 1_000_000)
            self._free_us = due_us + self._interval_us
        wait_us = due_us - now_us
        if wait_us > 0:
            self._clock.sleep_ms(-(-wait_us // 1000))


class ServerClock:
    """The clock of a server, from the ``Date`` of its answers; good to about a second.

    The offset is the median of the last answers' offsets to this machine's boot clock, so
    that one slow answer moves nothing. A reading never steps back.
    """

    _ANSWERS = 15
    _HALF_SECOND_MS = 500
    """``Date`` is cut to whole seconds, so the true time is half a second later at the mean."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offsets_ms: deque[int] = deque(maxlen=self._ANSWERS)
        self._last_ms = 0
        self._lock = threading.Lock()

    def observe(self, date_ms: int) -> None:
        """An answer that says ``date_ms`` has just come in."""
        with self._lock:
            self._offsets_ms.append(date_ms + self._HALF_SECOND_MS - self._clock.boot_ms())

    def find_now_ms(self) -> int | None:
        """Milliseconds since the epoch, or None before the first answer."""
        with self._lock:
            if not self._offsets_ms:
                return None
            middle = sorted(self._offsets_ms)[len(self._offsets_ms) // 2]
            self._last_ms = max(self._last_ms, self._clock.boot_ms() + middle)
            return self._last_ms


class RequestCounts:
    """Requests so far by kind (PUT, GET, LIST), counted by several threads."""

    def __init__(self) -> None:
        self.by_kind: dict[str, int] = {"PUT": 0, "GET": 0, "LIST": 0}
        self._lock = threading.Lock()

    def add(self, kind: str) -> None:
        with self._lock:
            self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
