"""A worker's own folder: its lock, its notes, its status, and what it asks of its machine.

Owns the files of ``workers/<worker>/`` that are not an attempt's; only a note of a GPU's memory
may be written by another worker of the node, which has used that GPU. The notes are a cache
with one duty: what a log piece holds is noted before the piece is put, so that after a
crash the same bytes go out under the same number. All else in them can be lost: the
ledger says it again, later. The simulation puts its own ``Workspace`` in the place of
``LocalWorkspace``.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Protocol

import msgspec

from ledger.errors import LedgerError, RequestError
from ledger.names import NodeName, WorkerName
from roles import processes
from roles.context import Context
from roles.lastbeat import read_last_beat
from roles.locks import FileLock, is_locked
from roles.processes import Identity
from roles.runner import write_file
from roles.status import WorkerStatus, write_status
from roles.wake import is_followed

REPORTED_MAX = 64
"""Ends remembered here; the ledger has posted them long before so many more follow."""


class LogNote(msgspec.Struct, frozen=True, array_like=True):
    """Where the pieces of one log stand: piece ``n`` holds its bytes ``[start, end)``.

    ``end`` > ``start`` says that this piece is being put, or was.
    """

    n: int = 0
    start: int = 0
    end: int = 0


class Notes(msgspec.Struct, kw_only=True):
    """What a worker leaves for its next incarnation on this machine."""

    cursor: int = 0
    """The number of the first message that it has not handled."""
    incarnation: int = 0
    """Of the newest one; each knows of what the ledger knows, and counts on from the larger."""
    reported: list[str] = []
    """``<job>.<attempt>`` of the newest reported ends, oldest first."""
    logs: dict[str, LogNote] = {}
    """By ``<job>.<attempt>``: of logs that are being shipped."""


class Workspace(Protocol):
    """What one worker has on its machine beside the attempts."""

    def lock(self) -> None:
        """Become the only worker of this name here; until ``unlock`` or the process's end.

        Raises RequestError where another one is alive.
        """

    def unlock(self) -> None:
        """Let another incarnation begin."""

    def read_notes(self) -> Notes:
        """The notes, empty where there are none. Raises LedgerError if they are damaged."""

    def write_notes(self, notes: Notes) -> None:
        """Durable on return. Raises RequestError where the disk does not take it."""

    def write_status(self, status: WorkerStatus) -> None:
        """Tell the supervisor, as far as the disk takes it."""

    def gpu_memory_before(self, worker: WorkerName) -> int | None:
        """As ``roles.slotgpu.MemoryNotes``."""

    def note_gpu_memory_before(self, worker: WorkerName, used_bytes: int | None) -> None:
        """As ``roles.slotgpu.MemoryNotes``."""

    def is_followed(self) -> bool:
        """Whether somebody on this machine will wake this worker when a page concerns it."""

    def is_supervised(self) -> bool:
        """Whether the node's supervisor lives; one that hangs does."""

    def last_beat_ms(self) -> int | None:
        """Boot time at which the bucket last heard the supervisor, as far as that is known."""

    def free_port(self) -> int:
        """A TCP port that nobody listens on now."""

    def is_alive(self, identity: Identity) -> bool:
        """Whether exactly that process still executes."""


class LocalWorkspace:
    """The folder that ``Context.worker_dir`` names."""

    def __init__(self, context: Context, node: NodeName, worker: WorkerName) -> None:
        self._context = context
        self._worker = worker
        self._node = node
        self._folder = context.worker_dir(worker)
        self._following = context.node_dir(node) / "following"
        self._lock: FileLock | None = None

    def lock(self) -> None:
        self._lock = FileLock.take_soon(self._folder / "slot.lock", self._context.clock)
        if self._lock is None:
            raise RequestError(
                f"worker {self._worker} already runs on this machine: end it first, "
                "or give this node another name with --node"
            )

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_notes(self) -> Notes:
        path = self._notes_path
        try:
            return msgspec.json.decode(path.read_bytes(), type=Notes)
        except FileNotFoundError:
            return Notes()
        except msgspec.DecodeError as error:
            raise LedgerError(
                f"{path} cannot be read ({error}): upgrade gpuq, or move the file away"
            ) from error

    def write_notes(self, notes: Notes) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_file(self._notes_path, msgspec.json.encode(notes))
        except OSError as error:
            raise RequestError(
                f"cannot write {self._notes_path}: {error.strerror}; free some disk there"
            ) from error

    def write_status(self, status: WorkerStatus) -> None:
        write_status(self._folder, status)

    def gpu_memory_before(self, worker: WorkerName) -> int | None:
        try:
            return int(self._memory_note(worker).read_text())
        except (OSError, ValueError):
            return None

    def note_gpu_memory_before(self, worker: WorkerName, used_bytes: int | None) -> None:
        path = self._memory_note(worker)
        with contextlib.suppress(OSError):
            if used_bytes is None:
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, str(used_bytes).encode())

    def _memory_note(self, worker: WorkerName) -> Path:
        return self._context.worker_dir(worker) / "gpu_memory_before"

    def is_followed(self) -> bool:
        return is_followed(self._following, self._context.clock)

    def is_supervised(self) -> bool:
        return is_locked(self._context.node_dir(self._node) / "supervisor.lock")

    def last_beat_ms(self) -> int | None:
        return read_last_beat(self._context.node_dir(self._node))

    def free_port(self) -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def is_alive(self, identity: Identity) -> bool:
        return processes.is_alive(identity)

    @property
    def _notes_path(self) -> Path:
        return self._folder / "notes.json"
