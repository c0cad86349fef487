"""The processes of one node, as its supervisor handles them.

Owns starting, finding and signalling workers and the dispatcher on this machine. Each is
a session of its own, so that none ends with another; whether one runs is told by its lock,
whoever started it. The simulation puts its own ``Host`` in the place of ``LocalHost``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import structlog

from ledger.events import Slot
from ledger.names import WorkerName
from roles.context import Context
from roles.lastbeat import write_last_beat
from roles.locks import FileLock, is_locked
from roles.processes import Identity, is_alive, signal_process
from roles.status import WorkerStatus, read_status
from roles.tmux import TmuxError, Windows

DISPATCHER = "dispatcher"
"""The name of a node's dispatcher among its processes; the others are workers."""

_EXIT_CODE_TRIES = 5
_EXIT_CODE_PAUSE_MS = 50
"""tmux notices an end a moment after the kernel."""

UNKNOWN = "unknown"
"""How a process ended whose window is gone, or of which tmux (3.3a at least) lost the status."""

log = structlog.get_logger()

_DISKS = ("/", "/dev/shm")


class Host(Protocol):
    """A node's processes by name: its workers', and ``DISPATCHER``."""

    def take(self) -> bool:
        """Become this node's only supervisor; False where there is one."""

    def release(self) -> None:
        """Let another supervisor begin."""

    def start(self, name: str, leaving: Slot | None = None) -> None:
        """Start a process that does not run.

        ``leaving``: a worker's slot that is no longer offered; it ends what is underway there.
        """

    def runs(self, name: str) -> bool:
        """Whether it runs, whoever started it."""

    def ended(self, name: str) -> int | str | None:
        """The exit code of a process that this supervisor started, or ``UNKNOWN``.

        Told once; None where it did not end.
        """

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Signal it, if it is certain which process that is."""

    def status(self, name: str) -> WorkerStatus | None:
        """What a worker said last of itself; of the dispatcher, which process it is."""

    def note_beat(self, boot_ms: int) -> None:
        """The bucket has a beat of this node whose put began at that time."""

    def free_bytes(self) -> dict[str, int]:
        """Free space by mount point; what cannot be read is absent."""


class LocalHost:
    """This machine. ``argv`` holds the whole command of each process that is to be kept alive,
    and ``leaving_argv`` gives that of a worker which only ends what is underway.

    With ``tmux_session`` workers run in its windows. Where tmux cannot be reached they run
    detached, as all else does: without a terminal, their output in the node's ``log`` folder.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        argv: Mapping[str, Sequence[str]],
        leaving_argv: Callable[[WorkerName, Slot], Sequence[str]],
        tmux_session: str = "",
    ) -> None:
        self._context = context
        self._folder = context.node_dir(node)
        self._argv = dict(argv)
        self._leaving_argv = leaving_argv
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._windows = Windows(tmux_session, self._folder / "windows") if tmux_session else None
        self._in_windows: dict[str, Identity | None] = {}
        """What was started in a window; None if it ended before it could be identified."""
        self._lock: FileLock | None = None

    def take(self) -> bool:
        lock = self._folder / "supervisor.lock"
        self._lock = FileLock.take_soon(lock, self._context.clock)  # the workers look at it
        return self._lock is not None

    def release(self) -> None:
        if self._windows is not None:
            for name in self._argv:
                self._windows.close(name)
        if self._lock is not None:
            self._lock.release()

    def start(self, name: str, leaving: Slot | None = None) -> None:
        if leaving is not None:
            self._argv[name] = self._leaving_argv(WorkerName(name), leaving)
        if name == DISPATCHER or not self._start_in_window(name):
            self._start_detached(name)

    def _start_in_window(self, name: str) -> bool:
        if self._windows is None:
            return False
        try:
            self._in_windows[name] = self._windows.start(name, self._argv[name])
        except TmuxError as error:
            log.warning("runs detached", process=name, reason=str(error))
            return False
        return True

    def _start_detached(self, name: str) -> None:
        with self._open_log(name) as output:
            self._children[name] = subprocess.Popen(
                self._argv[name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _open_log(self, name: str) -> BinaryIO:
        """Where its output goes: nowhere if the disk does not take the file."""
        log_file = self._folder / "log" / f"{name}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            return log_file.open("ab")
        except OSError as error:
            log.warning("no log", process=name, reason=str(error))
            return open(os.devnull, "ab")

    def runs(self, name: str) -> bool:
        child, in_window = self._children.get(name), self._in_windows.get(name)
        return (
            (child is not None and child.poll() is None)
            or (in_window is not None and is_alive(in_window))
            or is_locked(self._lock_of(name))
        )

    def ended(self, name: str) -> int | str | None:
        if name in self._in_windows:
            return self._ended_in_window(name)
        child = self._children.get(name)
        if child is None or child.poll() is None:
            return None
        del self._children[name]
        return child.returncode

    def _ended_in_window(self, name: str) -> int | str | None:
        identity = self._in_windows[name]
        if self._windows is None or (identity is not None and is_alive(identity)):
            return None
        del self._in_windows[name]
        for _ in range(_EXIT_CODE_TRIES):
            code = self._windows.exit_code(name)
            if code is not None:
                return code
            self._context.clock.sleep_ms(_EXIT_CODE_PAUSE_MS)
        return UNKNOWN

    def signal(self, name: str, signum: signal.Signals) -> None:
        child = self._children.get(name)
        if child is not None and child.poll() is None:
            child.send_signal(signum)
            return
        in_window = self._in_windows.get(name)
        if in_window is not None and signal_process(in_window, signum):
            return
        status = self.status(name)
        if status is not None and status.process is not None:
            signal_process(status.process, signum)

    def status(self, name: str) -> WorkerStatus | None:
        return read_status(self._place_of(name))

    def note_beat(self, boot_ms: int) -> None:
        write_last_beat(self._folder, boot_ms)

    def free_bytes(self) -> dict[str, int]:
        free = {}
        for path in (*_DISKS, str(self._context.state_dir)):
            try:
                free[path] = shutil.disk_usage(path).free
            except OSError:
                continue
        return free

    def _place_of(self, name: str) -> Path:
        """Where a process keeps its lock and its status."""
        return self._folder if name == DISPATCHER else self._context.worker_dir(name)

    def _lock_of(self, name: str) -> Path:
        return self._place_of(name) / ("dispatcher.lock" if name == DISPATCHER else "slot.lock")
