"""Whether a slot's GPUs are free for a job: nothing of the last one is left, nobody else works.

Owns the wait between two jobs of a slot, for all GPUs of the job that is next. After a job the
memory of each of its GPUs must be what it was before, give or take ``MEMORY_TOLERANCE_BYTES``;
before a job nobody else may be using them. For ``gpu_release_ms`` that is waited for; then it
is the slot's problem, which the node's beat tells the leader, until it has passed. What cannot
be read (a CPU slot, a GPU that reports no memory, an adopted job whose beginning nobody saw) is
not waited for.

A job of several GPUs is run by one worker, and the next job on its GPUs perhaps by others. So
what must be given back stands on the machine's disk, by slot, where all its workers see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ledger.names import WorkerName
from roles.context import Context
from roles.devices import Reading, busy_problem, is_busy

MEMORY_TOLERANCE_BYTES = 512 << 20
"""Contexts of the driver and of a desktop come and go with less."""

SAMPLE_MS = 1_000
"""NVML's utilisation is an average over as much as that."""


class MemoryNotes(Protocol):
    """What this machine's workers tell each other of their GPUs' memory."""

    def gpu_memory_before(self, worker: WorkerName) -> int | None:
        """Bytes in use of that slot's GPU before a job that has ended; None: nothing awaited."""

    def note_gpu_memory_before(self, worker: WorkerName, used_bytes: int | None) -> None:
        """Have that memory given back, or (None) await nothing; as far as the disk takes it."""


class SlotGpu:
    """``read`` gives the GPUs of this node by slot as they are now, as far as they can be read.

    ``own`` is the slot of this worker.
    """

    def __init__(
        self,
        context: Context,
        own: WorkerName,
        read: Callable[[], Mapping[WorkerName, Reading]],
        notes: MemoryNotes,
    ) -> None:
        self._context = context
        self._own = own
        self._read = read
        self._notes = notes
        self._before: dict[WorkerName, int] = {}
        """Memory in use when the slots of the job that runs, or is next, were found free."""
        self._a_job_ended = False
        self._waits_since_ms: int | None = None
        self._next_look_ms = 0
        self.problem = ""
        """Why the slot must take no work; empty where it may, or may soon."""

    def job_ended(self, slots: Sequence[WorkerName]) -> None:
        """From now on the memory that a job of these slots took must be given back."""
        self._a_job_ended = True
        for slot in slots:
            if slot in self._before:
                self._notes.note_gpu_memory_before(slot, self._before[slot])

    def is_settling(self, ended_at: int) -> bool:
        """Whether a reading would still show the use of the job that ended at ``ended_at``.

        True for ``SAMPLE_MS`` at most (``ended_at`` on the store's clock), and only while the
        GPU looks busy.
        """
        age_ms = self._context.store.clock_ms() - ended_at
        return 0 <= age_ms < SAMPLE_MS and is_busy(self.utilisation_percent())

    def utilisation_percent(self) -> int | None:
        reading = self._read().get(self._own)
        return None if reading is None else reading.utilisation_percent

    def look(self, slots: Sequence[WorkerName], *, is_used: bool) -> None:
        """Look at the GPUs of ``slots`` if something is awaited of them.

        ``is_used``: a job of this worker runs, so nothing is.
        """
        awaits = self._a_job_ended or self._waits_since_ms is not None
        if awaits or (not is_used and self._notes.gpu_memory_before(self._own) is not None):
            self.is_free(slots)

    def look_again_ms(self) -> int | None:
        """How long until the next look (ms), or None where nothing is awaited."""
        if self._waits_since_ms is None:
            return None
        return max(1, self._next_look_ms - self._context.clock.boot_ms())

    def is_free(self, slots: Sequence[WorkerName]) -> bool:
        """Whether a job of these slots may be started; reads the GPUs, where it is time to."""
        now_ms = self._context.clock.boot_ms()
        if self._waits_since_ms is not None and now_ms < self._next_look_ms:
            return False
        readings = self._read()
        known = {slot: readings[slot] for slot in slots if slot in readings}
        reasons = (self._why_not(slot, reading) for slot, reading in known.items())
        if reason := next(filter(None, reasons), ""):
            self._wait(reason, now_ms)
            return False
        for slot in slots:
            self._notes.note_gpu_memory_before(slot, None)
        self._before = {
            slot: reading.memory_used_bytes
            for slot, reading in known.items()
            if reading.memory_used_bytes is not None
        }
        self._a_job_ended, self._waits_since_ms, self.problem = False, None, ""
        return True

    def _wait(self, reason: str, now_ms: int) -> None:
        timings = self._context.timings
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        is_patient = now_ms - self._waits_since_ms < timings.gpu_release_ms
        self._next_look_ms = now_ms + (timings.worker_tick_ms if is_patient else timings.respawn_ms)
        self.problem = "" if is_patient else reason

    def _why_not(self, slot: WorkerName, reading: Reading) -> str:
        reason = (
            reading.problem
            or self._left_in_memory(slot, reading.memory_used_bytes)
            or busy_problem(reading.utilisation_percent)
        )
        return f"{slot}: {reason}" if reason and slot != self._own else reason

    def _left_in_memory(self, slot: WorkerName, used: int | None) -> str:
        before = self._notes.gpu_memory_before(slot)
        if used is None or before is None or used <= before + MEMORY_TOLERANCE_BYTES:
            return ""
        return (
            f"{used >> 20} MiB of its GPU's memory are in use after a job, "
            f"and were {before >> 20} MiB before it"
        )
