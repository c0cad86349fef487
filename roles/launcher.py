"""How a worker starts, watches, stops and adopts the attempts that run on its slot.

Owns the folder of each attempt (what stands in it: ``roles/runner.py``) and knows neither
store nor ledger. A ``JobDir`` remembers who runs there in case its folder is deleted, and
holds no other state that matters: a worker that was killed makes a new one for the same
folder and goes on. The simulation puts its own ``Launcher`` in the
place of ``LocalLauncher``.

Whether a runner lives is decided by the flock on ``lock``: the launcher takes it, the
runner inherits it and holds it until its death, so there is no moment in which a runner
exists and the lock is free. It refuses to launch an attempt twice, to signal a process
that is not exactly the one noted, and to remove the folder of what still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec

from ledger.errors import ConflictError, RequestError
from ledger.names import WorkerName
from ledger.timings import LOG_CAP_BYTES, Timings
from roles.joblog import join_log
from roles.processes import (
    Identity,
    Killed,
    find_tree,
    identity_of,
    is_alive,
    kill_tree,
    signal_process,
)
from roles.runner import KILL_PATIENCE_MS, write_file
from roles.runner import __file__ as RUNNER_PROGRAM
from roles.snapshots import remove_tree

REAP_QUIET_MS = 200
"""A dead runner's job is gone when nothing of it was seen for so long."""

_DEFAULTS = Timings()
_Struct = TypeVar("_Struct", bound=msgspec.Struct)

State = Literal["absent", "prepared", "running", "ended", "dead"]
"""``absent``: nothing is here. ``prepared``: no runner lives, and the job's command was
certainly not executed. ``running``: its runner lives. ``ended``: there is a result.
``dead``: the runner is gone without one; ``reap_dead`` is due. Where the folder was deleted
the attempt is ``running`` as long as a runner lives that this handle has seen, then ``absent``;
``reap_dead`` is due if it knows a ``leader``."""

Outcome = Literal[
    "exited", "timeout", "deadline", "stopped", "exclusive", "not_started", "failed_to_start"
]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that the runner needs to know; ``plan.json``."""

    job: str
    attempt: int
    slots: tuple[WorkerName, ...] = ()
    token: str
    """Random; ``GPUQ_TOKEN`` of the job, by which what escaped from its tree is known."""
    argv: tuple[str, ...]
    """Looked up in the ``PATH`` of ``env``, and relative to ``cwd``."""
    cwd: str
    env: dict[str, str]
    """The whole environment, but for ``GPUQ_TOKEN``, ``GPUQ_CANCEL`` and the secrets."""
    secrets: tuple[str, ...] = ()
    """Variables whose values are read from files of these names in ``secrets_dir`` at the start."""
    secrets_dir: str = ""
    outputs: tuple[str, ...] = ()
    outputs_on_failure: bool = False
    umask: int | None = None
    time_limit_ms: int | None = None
    deadline_boot_ms: int | None = None
    """When its result is no longer wanted; on the clock of ``claim_boot_ms``."""
    grace_ms: int = _DEFAULTS.grace_ms
    signal: str = "TERM"
    """Sent to the job's leader ``lead_ms`` before its time limit."""
    lead_ms: int = 0
    log_cap_bytes: int = LOG_CAP_BYTES
    boot_id: str
    claim_boot_ms: int
    """``boot_id()`` and ``Clock.boot_ms()`` of when the claim was first put."""
    start_within_ms: int = _DEFAULTS.start_within_ms
    exclusive_ms: int | None = None
    """Killed after so long without ``bucket_seen``; None: never."""
    epoch_offset_ms: int
    """The store's clock minus ``Clock.boot_ms()``."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended; ``result.json``. Times are on the store's clock."""

    outcome: Outcome
    rc: int | None
    """128+n for signal n; None if not started, or if even KILL did not end the leader."""
    signal: str | None
    started_at_ms: int
    ended_at_ms: int
    """When nothing of it was left, or nothing that could be killed."""
    reason: str
    left_behind: int
    """Processes that the job's leader left and that were killed."""
    unkillable: tuple[Identity, ...]
    """The slot is not free while one of them ``is_alive``."""
    log_bytes: int
    """What the job wrote; what is kept of it is ``log_size``."""
    log_cut: bool
    log_lost_bytes: int
    """What the disk did not take; ``log_problem`` is what it said."""
    log_problem: str | None
    oom: bool


class RunnerInfo(msgspec.Struct, frozen=True):
    """``runner.json``."""

    runner: Identity
    leader: Identity


class JobHandle(Protocol):
    """One attempt on this machine."""

    @property
    def script_path(self) -> Path:
        """Where ``prepare`` writes the script; for ``Plan.argv``."""

    @property
    def report_path(self) -> Path:
        """A file that the job may write figures to; for ``GPUQ_REPORT``."""

    @property
    def tree_path(self) -> Path:
        """Where the job's private copy of its snapshot is to be; for ``Plan.cwd``."""

    def prepare(self, plan: Plan, script: bytes | None) -> None:
        """Write all that ``launch`` needs, durably; may be repeated before ``launch``.

        Raises RequestError where the disk does not take it.
        """

    def launch(self) -> Identity:
        """Start the runner; it outlives this process. Its identity.

        Raises ConflictError where this attempt was launched before.
        """

    def state(self) -> State:
        """Where the attempt stands; a few local file operations."""

    def plan(self) -> Plan | None:
        """What was prepared."""

    def runner(self) -> Identity | None:
        """The runner, once it is about to execute the job."""

    def leader(self) -> Identity | None:
        """The job's first process, likewise."""

    def result(self) -> RunResult | None:
        """How it ended; None before that, and for ever if the runner died."""

    def stop(self, reason: str, grace_ms: int) -> None:
        """Ask the runner to end the job: TERM, then KILL to its tree after ``grace_ms``.

        A repeated call can shorten the grace; 0 kills at once. Between ``prepare`` and
        ``launch`` it makes the runner not start the job. No effect where it has ended.
        """

    def reap_dead(self) -> Killed:
        """When it is due: KILL what is left of the job, and make its log whole.

        Blocks for some seconds if something cannot be killed. What both cleared its
        environment and lost its parent is not found, once there is no runner.
        """

    def note_bucket_seen(self, boot_ms: int) -> None:
        """Note when the bucket last heard of this node, for ``Plan.exclusive_ms``."""

    def log_size(self) -> int:
        """Bytes of the log that can be read now. Never falls while the job runs."""

    def read_log(self, offset: int, limit: int) -> bytes:
        """At most ``limit`` bytes of the log from ``offset``.

        While the job runs this is a growing prefix of the final log, but it stops at half
        of the cap until the end (``roles/joblog.py``).
        """

    def final_log(self) -> bytes:
        """The whole log, of an attempt in state ``ended`` or after ``reap_dead``."""

    def discard(self) -> None:
        """Remove all that is here of an attempt that is not running."""


def script_argv(path: Path, script: bytes, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command that runs a script: by its #! line, or by bash where it has none."""
    interpreter = () if script.startswith(b"#!") else ("bash",)
    return (*interpreter, str(path), *arguments)


class Launcher(Protocol):
    """The attempts of one worker on this machine."""

    def attempt(self, job: str, attempt: int) -> JobHandle:
        """The handle of that attempt, whether or not there is anything of it."""

    def known(self) -> Sequence[tuple[str, int]]:
        """(job, attempt) of all of which something is here, in order."""


class LocalLauncher:
    """The attempts below one folder, each in ``<root>/<job>.<attempt>``."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def attempt(self, job: str, attempt: int) -> JobDir:
        return JobDir(self._root / f"{job}.{attempt}")

    def known(self) -> Sequence[tuple[str, int]]:
        if not self._root.exists():
            return []
        names = (path.name.rpartition(".") for path in self._root.iterdir())
        return sorted((job, int(number)) for job, _, number in names if number.isdecimal())


class JobDir:
    """The folder of one attempt; see ``JobHandle`` for what the methods promise."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._child_pid: int | None = None
        self._seen_plan: Plan | None = None
        self._seen_info: RunnerInfo | None = None

    @property
    def script_path(self) -> Path:
        return self.path / "script"

    @property
    def report_path(self) -> Path:
        return self.path / "report"

    @property
    def tree_path(self) -> Path:
        return self.path / "tree"

    def prepare(self, plan: Plan, script: bytes | None) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if script is not None:
                write_file(self.script_path, script, mode=0o700)
            write_file(self.path / "plan.json", msgspec.json.encode(plan))
        except OSError as error:
            raise RequestError(
                f"cannot write the job's files in {self.path}: {error.strerror}; "
                "free some disk, or choose another state folder"
            ) from error

    def launch(self) -> Identity:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _try_lock(lock, fcntl.LOCK_EX) or self._launched_before():
                raise ConflictError(f"attempt {self.path.name} was launched before")
            self._child_pid = self._spawn(lock)
        finally:
            os.close(lock)
        identity = identity_of(self._child_pid)
        assert identity is not None, "a child that was not waited for has gone"
        return identity

    def _launched_before(self) -> bool:
        return any((self.path / name).exists() for name in ("runner.json", "result.json"))

    def _spawn(self, lock: int) -> int:
        # In a container the library path may be all that makes this Python start.
        env = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
        inherited_lock = 3
        errors = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", RUNNER_PROGRAM, str(self.path), str(inherited_lock)],
            env,
            file_actions=[
                # First, because the next ones would overwrite a lock that is 0, 1 or 2.
                (os.POSIX_SPAWN_DUP2, lock, inherited_lock),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.path / "runner.err"), errors, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD),
        )

    def state(self) -> State:
        # In this order, because a runner may end between any two lines: what is read after
        # the lock was free, or the runner dead, no longer changes.
        locked = self._locked()
        info = self._info()
        if locked if info is None else is_alive(info.runner):
            return "running"
        self._wait_for_child()
        if (self.path / "result.json").exists():
            return "ended"
        if info is not None and self.path.exists():
            return "dead"
        return "prepared" if (self.path / "plan.json").exists() else "absent"

    def plan(self) -> Plan | None:
        self._seen_plan = _read(self.path / "plan.json", Plan) or self._seen_plan
        return self._seen_plan

    def runner(self) -> Identity | None:
        info = self._info()
        return None if info is None else info.runner

    def leader(self) -> Identity | None:
        info = self._info()
        return None if info is None else info.leader

    def result(self) -> RunResult | None:
        return _read(self.path / "result.json", RunResult)

    def stop(self, reason: str, grace_ms: int) -> None:
        stop = msgspec.json.encode({"reason": reason, "grace_ms": grace_ms})
        signum = signal.SIGUSR1
        try:
            write_file(self.path / "stop.json", stop)
        except OSError:
            signum = signal.SIGTERM  # a full disk must not keep the job alive
        info = self._info()
        # A runner without runner.json may not catch signals yet, and looks by itself.
        if info is not None:
            signal_process(info.runner, signum)

    def reap_dead(self) -> Killed:
        plan, info = self.plan(), self._info()
        assert plan is not None and info is not None and self.state() != "running"
        killed = kill_tree(
            lambda: find_tree({info.leader}, plan.token),
            KILL_PATIENCE_MS,
            quiet_ms=REAP_QUIET_MS,
        )
        # A disk that is full now may take the end of the log at another call.
        with contextlib.suppress(OSError):
            join_log(self.path, plan.log_cap_bytes)
        return killed

    def note_bucket_seen(self, boot_ms: int) -> None:
        write_file(self.path / "bucket_seen", str(boot_ms).encode())

    def log_size(self) -> int:
        try:
            return (self.path / "log").stat().st_size
        except FileNotFoundError:
            return 0

    def read_log(self, offset: int, limit: int) -> bytes:
        try:
            with (self.path / "log").open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def final_log(self) -> bytes:
        assert self.state() in ("ended", "dead"), "the log still grows"
        return self.read_log(0, self.log_size())

    def discard(self) -> None:
        if self.state() == "running":
            raise ConflictError(f"attempt {self.path.name} is still running")
        remove_tree(self.path)
        if self.path.exists():  # files of another user, which a container may have left
            self.path.rename(self.path.with_name(f"{self.path.name}.undeletable"))
        self._seen_plan = self._seen_info = None

    def _info(self) -> RunnerInfo | None:
        self._seen_info = _read(self.path / "runner.json", RunnerInfo) or self._seen_info
        return self._seen_info

    def _locked(self) -> bool:
        try:
            lock = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def _wait_for_child(self) -> None:
        """Reap the runner, which has just ended, where this process started it."""
        if self._child_pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child_pid, 0)
            self._child_pid = None


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path, struct: type[_Struct]) -> _Struct | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=struct)
    except FileNotFoundError:
        return None
