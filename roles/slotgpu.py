"""Whether a slot's GPU is free for a job: nothing of the last one is left, nobody else works.

Owns the wait between two jobs of a slot. After a job its GPU's memory must be what it was
before, give or take ``MEMORY_TOLERANCE_BYTES``; before a job nobody else may be using the
GPU. For ``gpu_release_ms`` that is waited for; then it is the slot's problem, which the node's
beat tells the leader, until it has passed. What cannot be read (a CPU slot, a GPU that reports
no memory, an adopted job whose beginning nobody saw) is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from roles.context import Context
from roles.devices import Reading, busy_problem, is_busy

MEMORY_TOLERANCE_BYTES = 512 << 20
"""Contexts of the driver and of a desktop come and go with less."""

SAMPLE_MS = 1_000
"""NVML's utilisation is an average over as much as that."""


class SlotGpu:
    """``read`` gives the slot's GPU as it is now, or None where nothing can be read."""

    def __init__(self, context: Context, read: Callable[[], Reading | None]) -> None:
        self._context = context
        self._read = read
        self._before_bytes: int | None = None
        """Memory in use when the slot was last found free."""
        self._a_job_ended = False
        self._waits_since_ms: int | None = None
        self._next_look_ms = 0
        self.problem = ""
        """Why the slot must take no work; empty where it may, or may soon."""

    def job_ended(self) -> None:
        """From now on its memory must be given back."""
        self._a_job_ended = True

    def is_settling(self, ended_at: int) -> bool:
        """Whether a reading would still show the use of the job that ended at ``ended_at``.

        True for ``SAMPLE_MS`` at most (``ended_at`` on the store's clock), and only while the
        GPU looks busy.
        """
        age_ms = self._context.store.clock_ms() - ended_at
        return 0 <= age_ms < SAMPLE_MS and is_busy(self.utilisation_percent())

    def utilisation_percent(self) -> int | None:
        reading = self._read()
        return None if reading is None else reading.utilisation_percent

    def look(self) -> None:
        """Look at the GPU if something is awaited of it."""
        if self._a_job_ended or self._waits_since_ms is not None:
            self.is_free()

    def look_again_ms(self) -> int | None:
        """How long until the next look (ms), or None where nothing is awaited."""
        if self._waits_since_ms is None:
            return None
        return max(1, self._next_look_ms - self._context.clock.boot_ms())

    def is_free(self) -> bool:
        """Whether a job may be started; reads the GPU, where it is time to."""
        now_ms = self._context.clock.boot_ms()
        if self._waits_since_ms is not None and now_ms < self._next_look_ms:
            return False
        reading = self._read()
        reason = "" if reading is None else self._why_not(reading)
        if reason:
            self._wait(reason, now_ms)
            return False
        self._before_bytes = None if reading is None else reading.memory_used_bytes
        self._a_job_ended, self._waits_since_ms, self.problem = False, None, ""
        return True

    def _wait(self, reason: str, now_ms: int) -> None:
        timings = self._context.timings
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        is_patient = now_ms - self._waits_since_ms < timings.gpu_release_ms
        self._next_look_ms = now_ms + (timings.worker_tick_ms if is_patient else timings.respawn_ms)
        self.problem = "" if is_patient else reason

    def _why_not(self, reading: Reading) -> str:
        if reading.problem is not None:
            return reading.problem
        left = self._left_in_memory(reading.memory_used_bytes) if self._a_job_ended else ""
        return left or busy_problem(reading.utilisation_percent)

    def _left_in_memory(self, used: int | None) -> str:
        before = self._before_bytes
        if used is None or before is None or used <= before + MEMORY_TOLERANCE_BYTES:
            return ""
        return (
            f"{used >> 20} MiB of its GPU's memory are in use after a job, "
            f"and were {before >> 20} MiB before it"
        )
