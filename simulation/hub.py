"""Virtual time: many processes as greenlets, one at a time, in an order a seed fixes.

Owns the event queue. A process runs until it waits (``Hub.sleep_ms``, which every store
request and clock sleep of the simulation calls), so a run is the same bytes each time. A
process can be frozen (it wakes late, as after SIGSTOP or suspend) and killed: a killed one
has no further effect, whatever its ``finally`` blocks try.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """Thrown into a process that was killed; not an Exception, so nothing handles it."""


class Process:
    """One simulated process. ``failure`` is what it ended with, if it was an error."""

    def __init__(self, hub: Hub, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.dead = False
        self.ended = False
        self.frozen_until_ms = 0
        self.failure: BaseException | None = None
        self._hub = hub
        self._body = body
        self.greenlet = greenlet(self._run, parent=hub.main)

    def _run(self) -> None:
        try:
            self._body()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - the checkers judge it
            self.failure = error
        self.ended = True

    def freeze(self, duration_ms: int) -> None:
        """It does nothing until ``duration_ms`` from now."""
        self.frozen_until_ms = max(self.frozen_until_ms, self._hub.now_ms + duration_ms)

    def kill(self) -> None:
        """End it where it stands. Not to be called by itself."""
        if self.ended or self.dead:
            return
        self.dead = True
        if self.greenlet:
            self._hub.throw_into(self)
        self.ended = True


class Hub:
    """The event queue. ``now_ms`` begins at ``start_ms`` and only moves in ``run``."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.main = getcurrent()
        self.processes: list[Process] = []
        self._queue: list[tuple[int, int, Process]] = []
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._running: Process | None = None

    def spawn(self, name: str, body: Callable[[], None]) -> Process:
        """Start a process; it first runs when the hub next does."""
        process = Process(self, name, body)
        self.processes.append(process)
        self._push(self.now_ms, process)
        return process

    def call_at(self, at_ms: int, effect: Callable[[], None]) -> None:
        """Something of the world (a late landing, a job's end), not of a process."""
        heapq.heappush(self._calls, (max(at_ms, self.now_ms), self._next_order(), effect))

    def sleep_ms(self, duration_ms: int) -> None:
        """Let others run for ``duration_ms``. Called by the running process."""
        process = self.running
        if process is None:
            return
        if process.dead:
            raise Killed
        self._push(self.now_ms + max(0, duration_ms), process)
        self.main.switch()

    @property
    def running(self) -> Process | None:
        """The process whose code runs now; None in calls and checkers."""
        return self._running

    def throw_into(self, process: Process) -> None:
        """Unwind a killed process; whatever it still tries to wait for raises Killed."""
        before, self._running = self._running, process
        try:
            process.greenlet.throw(Killed)
        finally:
            self._running = before

    def run(self, until_ms: int) -> None:
        """Run everything that is due up to ``until_ms``."""
        while True:
            at_ms = self._next_ms()
            if at_ms is None or at_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, at_ms)
            if self._calls and self._calls[0][0] <= at_ms:
                _, _, effect = heapq.heappop(self._calls)
                effect()
                continue
            _, _, process = heapq.heappop(self._queue)
            self._resume(process)
        self.now_ms = max(self.now_ms, until_ms)

    def _next_ms(self) -> int | None:
        times = [queue[0][0] for queue in (self._queue, self._calls) if queue]
        return min(times) if times else None

    def _resume(self, process: Process) -> None:
        if process.dead or process.ended:
            return
        if process.frozen_until_ms > self.now_ms:
            self._push(process.frozen_until_ms, process)
            return
        self._running = process
        try:
            process.greenlet.switch()
        finally:
            self._running = None

    def _push(self, at_ms: int, process: Process) -> None:
        heapq.heappush(self._queue, (at_ms, self._next_order(), process))

    def _next_order(self) -> int:
        self._order += 1
        return self._order
