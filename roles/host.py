"""The processes of one node, as its supervisor handles them.

Owns starting, finding and signalling workers and the dispatcher on this machine. Each process
is a session of its own, so that none ends with another; whether one runs is told by its lock,
whoever started it. A worker of a GPU has a process of its own. Those of CPU slots, of which a
node that calls an external service may have many, share one. The simulation puts its own
``Host`` in the place of ``LocalHost``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
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
"""The name of a node's dispatcher among its processes; the others are of workers."""

CPU_WORKERS = "cpu-workers"
"""The name of the process that its CPU slots share; other workers' have the worker's name."""

_EXIT_CODE_TRIES = 5
_EXIT_CODE_PAUSE_MS = 50
"""tmux notices an end a moment after the kernel."""

UNKNOWN = "unknown"
"""How a process ended whose window is gone, or of which tmux (3.3a at least) lost the status."""

log = structlog.get_logger()

_DISKS = ("/", "/dev/shm")


class Host(Protocol):
    """A node's processes by name: its workers', and ``DISPATCHER``."""

    def process_of(self, worker: WorkerName) -> str:
        """The name of its process, which may serve other slots as well."""

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

    def dismiss(self, worker: WorkerName) -> None:
        """Have a worker that runs end what is underway, because its slot is not offered."""

    def status(self, name: str) -> WorkerStatus | None:
        """What a worker said last of itself; of the dispatcher, which process it is."""

    def note_beat(self, boot_ms: int) -> None:
        """The bucket has a beat of this node whose put began at that time."""

    def free_bytes(self) -> dict[str, int]:
        """Free space by mount point; what cannot be read is absent."""


class Commands(Protocol):
    """The whole commands of a node's processes."""

    def workers(self, slots: Mapping[WorkerName, Slot]) -> Sequence[str]:
        """Of the process that serves these slots."""

    def leaving(self, worker: WorkerName, slot: Slot) -> Sequence[str]:
        """Of a worker that only ends what is underway on a slot."""

    def dispatcher(self) -> Sequence[str]:
        """Of the node's dispatcher."""


class LocalHost:
    """This machine, and the processes that serve ``slots`` of it.

    With ``tmux_session`` workers run in its windows, each in a process of its own. Where tmux
    cannot be reached they run detached, as all else does: without a terminal, their output in
    the node's ``log`` folder.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        slots: Mapping[WorkerName, Slot],
        commands: Commands,
        tmux_session: str = "",
    ) -> None:
        self._context = context
        self._folder = context.node_dir(node)
        self._commands = commands
        self._slots = slots
        self._workers: dict[str, list[WorkerName]] = {}
        """By process, whom it serves."""
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._windows = Windows(tmux_session, self._folder / "windows") if tmux_session else None
        self._in_windows: dict[str, Identity | None] = {}
        """What was started in a window; None if it ended before it could be identified."""
        self._lock: FileLock | None = None
        for worker in slots:
            self._workers.setdefault(self.process_of(worker), []).append(worker)

    def process_of(self, worker: WorkerName) -> str:
        slot = self._slots.get(worker)
        shares = slot is not None and slot.kind == "cpu" and self._windows is None
        return CPU_WORKERS if shares else worker

    def take(self) -> bool:
        lock = self._folder / "supervisor.lock"
        self._lock = FileLock.take_soon(lock, self._context.clock)  # the workers look at it
        if self._lock is not None:
            self._end_what_serves_others()
        return self._lock is not None

    def _end_what_serves_others(self) -> None:
        """Processes of a former supervisor may serve these slots otherwise than one for all.

        They are killed, because a process that is killed costs nothing. A slot that is added
        or offered again would else wait for the jobs of the others, and one whose own process
        has left would not be served.
        """
        owners = set()
        for worker in self._workers.get(CPU_WORKERS, []):
            status = self.status(worker)
            process = status.process if status is not None else None
            owners.add(process if process is not None and is_alive(process) else None)
        if len(owners) > 1:
            self.signal(CPU_WORKERS, signal.SIGKILL)

    def release(self) -> None:
        if self._windows is not None:
            for name in self._workers:
                self._windows.close(name)
        if self._lock is not None:
            self._lock.release()

    def start(self, name: str, leaving: Slot | None = None) -> None:
        if name == DISPATCHER:
            self._start_detached(name, self._commands.dispatcher())
            return
        if leaving is None:
            argv = self._commands.workers({w: self._slots[w] for w in self._workers[name]})
        else:
            argv = self._commands.leaving(WorkerName(name), leaving)
            self._workers[name] = [WorkerName(name)]
        if not self._start_in_window(name, argv):
            self._start_detached(name, argv)

    def _start_in_window(self, name: str, argv: Sequence[str]) -> bool:
        if self._windows is None:
            return False
        try:
            self._in_windows[name] = self._windows.start(name, argv)
        except TmuxError as error:
            log.warning("runs detached", process=name, reason=str(error))
            return False
        return True

    def _start_detached(self, name: str, argv: Sequence[str]) -> None:
        with self._open_log(name) as output:
            self._children[name] = subprocess.Popen(
                argv,
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
        served = self._served_by(name)
        return (
            (child is not None and child.poll() is None)
            or (in_window is not None and is_alive(in_window))
            or any(map(is_alive, self._processes_of(name)))
            # One that has just been started has not yet said which process it is.
            or (len(served) == 1 and is_locked(self._lock_of(served[0])))
        )

    def _served_by(self, name: str) -> Sequence[str]:
        """Of a process, who holds a lock: its workers, or the dispatcher itself."""
        return self._workers.get(name, [name])

    def _processes_of(self, name: str) -> list[Identity]:
        """Those that said last that they serve these workers, whoever started them; each once."""
        statuses = [self.status(worker) for worker in self._served_by(name)]
        processes = [status.process for status in statuses if status and status.process]
        return list(dict.fromkeys(processes))

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
        in_window = self._in_windows.get(name)
        if in_window is not None:
            signal_process(in_window, signum)
        known = {child.pid if child is not None else 0, in_window.pid if in_window else 0}
        for process in self._processes_of(name):
            if process.pid not in known:  # a former supervisor started it
                signal_process(process, signum)

    def dismiss(self, worker: WorkerName) -> None:
        status = self.status(worker)
        if status is None or status.process is None or not is_locked(self._lock_of(worker)):
            return
        others = (self.status(other) for other in self._slots)
        if any(other is not None and other.process == status.process for other in others):
            signal_process(status.process, signal.SIGKILL)  # it serves slots that stay as well
        else:
            signal_process(status.process, signal.SIGUSR1)

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
