"""A fleet of real gpuq processes below one folder, for the demo, the bench and recordings.

Owns the processes that it starts, and all that those start: workers, dispatchers and job
runners are sessions of their own that outlive their supervisor, so they are found by the
folder's name in their environment or command line, and ended by pid. Their environment
holds nothing of the caller's but the PATH.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

POLL_S = 0.1
_COMMAND_TIMEOUT_S = 60
_DRAIN_TIMEOUT_S = 15
_KILL_TIMEOUT_S = 10


class FleetError(Exception):
    """A command or a process of the fleet did not do what it must."""


class Fleet:
    """Nodes and commands on one store; on exit nothing of it runs any more.

    ``folder`` is absolute and its name occurs nowhere else (``tempfile.mkdtemp``).
    """

    def __init__(self, folder: Path, store: str, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.store = store
        self.work_dir = folder / "project"
        """Where jobs are submitted, and thus run."""
        self._env = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            "GPUQ_USER": "demo",
            **(env or {}),
        }
        self._supervisors: dict[str, subprocess.Popen[bytes]] = {}
        for made in (self.work_dir, folder / "home"):
            made.mkdir(parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def gpuq(self, *args: str) -> str:
        """Run one command as a user does; what it printed. Raises FleetError."""
        return self._run(args, stdout=subprocess.PIPE)

    def show(self, *args: str) -> None:
        """Run one command with this process's own stdout. Raises FleetError."""
        sys.stdout.flush()
        self._run(args, stdout=None)

    def _run(self, args: Sequence[str], *, stdout: int | None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gpuq", "--store", self.store, *args],
            cwd=self.work_dir,
            env=self._environment("user"),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
        if done.returncode != 0:
            said = done.stderr.strip()
            raise FleetError(f"'gpuq {' '.join(args)}' ended with {done.returncode}: {said or '-'}")
        return done.stdout or ""

    def start_node(
        self, name: str, slots: int, store_options: Mapping[str, str] | None = None
    ) -> None:
        """Start a supervisor with ``slots`` CPU slots; its output goes to ``<name>.log``.

        ``store_options`` are further flags, such as another ``--endpoint-url``.
        """
        flags = [part for pair in (store_options or {}).items() for part in pair]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._supervisors[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gpuq", "supervisor", "--store", self.store, *flags),
                    *("--node", name, "--slots", str(slots)),
                ],
                cwd=self.folder,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Raise FleetError where a supervisor has ended, with the last it said."""
        for name, process in self._supervisors.items():
            if process.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace").strip()
                last = log.splitlines()[-1] if log else "without a word"
                raise FleetError(f"{name} ended with {process.returncode}: {last}")

    def drain(self) -> None:
        """Ask all nodes to end as Ctrl-C does, and wait until nothing of them runs.

        Raises FleetError where something stays.
        """
        for process in self._supervisors.values():
            process.send_signal(signal.SIGINT)
        for name, process in self._supervisors.items():
            try:
                process.wait(_DRAIN_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise FleetError(f"{name} did not end within {_DRAIN_TIMEOUT_S} s") from error
        self._supervisors.clear()
        left = [process.pid for process in self.processes()]
        if left:
            raise FleetError(f"after all nodes had ended, processes {left} were still there")

    def kill(self) -> None:
        """End whatever is left of the fleet, at once."""
        deadline_s = time.monotonic() + _KILL_TIMEOUT_S
        while left := list(self.processes()):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            for supervisor in self._supervisors.values():
                supervisor.poll()
            if time.monotonic() > deadline_s:
                raise FleetError(f"cannot end processes {[process.pid for process in left]}")
            time.sleep(POLL_S)
        for supervisor in self._supervisors.values():
            supervisor.wait()
        self._supervisors.clear()

    def processes(self) -> Iterator[psutil.Process]:
        """Everything that runs with this folder's name in its environment or command."""
        folder, own = str(self.folder), os.getpid()
        for process in psutil.process_iter():
            if process.pid == own:
                continue
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                texts = [*process.environ().values(), *process.cmdline()]
                if any(folder in text for text in texts):
                    yield process

    def wait_until(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        """Raise FleetError unless ``condition`` comes true; notices a node that ended."""
        end_s = time.monotonic() + deadline_s
        while not condition():
            self.check_alive()
            if time.monotonic() > end_s:
                raise FleetError(f"after {deadline_s:g} s still not: {what}")
            time.sleep(POLL_S)

    def _environment(self, name: str) -> dict[str, str]:
        return {**self._env, "GPUQ_STATE_DIR": str(self.folder / "state" / name)}
