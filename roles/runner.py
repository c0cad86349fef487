"""The process that runs one attempt of one job, and nothing else.

Started as ``python -I -S roles/runner.py JOBDIR [LOCK_FD]``; it outlives the worker. Only
the standard library is imported here and in the four modules beside it, so that it stays
small in memory for days. ``roles/launcher.py`` is its face to the worker.

What it reads and writes in JOBDIR:

- ``plan.json`` (``roles.launcher.Plan``): read once;
- ``lock``: an flock held for its whole life (on LOCK_FD where the launcher took it);
- ``runner.json``: its own identity and that of the job's leader, before the job's exec;
- ``log``, ``log.tail``: what the job wrote (``roles/joblog.py``);
- ``stop.json``: ``{reason, grace_ms}``, written by the launcher, noticed on SIGUSR1 or
  within a second; a later one can only shorten the grace;
- ``bucket_seen``: boot time in ms at which the bucket last had a sign of life of this node,
  which may be before the start; without it, the start;
- ``cancel``: appears when the job is to end (``GPUQ_CANCEL`` names it to the job);
- ``result.json`` (``roles.launcher.RunResult``): the last thing that it writes.

Where JOBDIR is deleted it kills its job at once: nobody could stop it any more, or learn of
its end, and the worker counts it as lost.

The order is: fork, write ``runner.json``, let the child exec, wait for the leader, kill
what it left behind, close the log, write ``result.json``. If it dies before
``runner.json`` is there, the job was never executed; if after it, the kernel kills the
leader (PDEATHSIG) and the launcher's ``reap_dead`` the rest. Times are CLOCK_BOOTTIME, so
that limits count suspended time too and steps of the wall clock change nothing.

It signals nothing that is neither its descendant nor carries the attempt's token.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # -I leaves the folder of the package out of the path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roles.jobexec import Channels, become_job
from roles.joblog import JobLog
from roles.processes import (
    Identity,
    Killed,
    boot_ms,
    find_tree,
    identity_of,
    kill_tree,
    oom_kills,
    signal_process,
)

TICK_MS = 1_000
"""Longest time between two looks at ``stop.json``, the limits and ``bucket_seen``."""
SETTLE_MS = 500
"""What the rest of the tree gets after the leader's exit: ``exec > >(tee out)`` ends a
moment after the shell that started it, and its last lines must not be lost."""
KILL_PATIENCE_MS = 5_000
"""A process that is still there so long after KILL counts as unkillable."""
UNKILLABLE_MAX = 50
"""So many are named in a result."""
RESULT_RESERVE_BYTES = 16_384
"""Written before the start, so that a disk filled meanwhile still takes the result."""
READ_BYTES = 65_536

PR_SET_CHILD_SUBREAPER = 36


class Attempt:
    """One attempt, from fork to result; ``run`` is the order in which all happens."""

    def __init__(self, job_dir: Path, plan: dict[str, Any]) -> None:
        self._job_dir = job_dir
        self._plan = plan
        self._log = JobLog(job_dir, plan["log_cap_bytes"])
        self._me = _identity(os.getpid())
        self._leader: Identity | None = None
        self._exit_status: int | None = None
        self._started_ms = boot_ms()
        self._ended_as = {"outcome": "exited", "reason": ""}
        self._ending = False
        self._kill_at_ms: float = float("inf")
        self._lead_given = False
        self._stop_body = b""
        self._told_to_end = False
        self._ooms_before = oom_kills()
        self._wake = self._catch_signals()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)

    def run(self) -> dict[str, Any]:
        """Run the job to its end; returns the result."""
        if (self._job_dir / "stop.json").exists():
            self._log.close()
            stopped = "stopped before it started"
            return self._result({"outcome": "not_started", "reason": stopped})
        output, status = self._start()
        while not self._over():
            self._consider_ending()
            self._pump(output)
        killed = kill_tree(self._find_tree, KILL_PATIENCE_MS, has_children=self._reap)
        self._drain(output)
        self._log.close()
        return self._result(self._how_it_ended(killed) | _read_report(status))

    def _start(self) -> tuple[int, int]:
        """Fork the job and let it exec; its output and status pipes, both non-blocking."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become the sub-reaper")
        (output, output_end), (go_end, go) = os.pipe(), os.pipe()
        status, status_end = os.pipe()
        ends = Channels(output_end, go_end, status_end)
        leader_pid = os.fork()
        if leader_pid == 0:
            os.close(go)
            become_job(self._job_dir, self._plan, self._me.pid, libc, ends)
        for fd in ends:
            os.close(fd)
        self._leader = _identity(leader_pid)
        info = {"runner": self._me, "leader": self._leader}
        write_file(self._job_dir / "runner.json", json.dumps(info).encode())
        self._started_ms = boot_ms()
        os.write(go, b"g")
        os.close(go)
        os.set_blocking(output, False)
        os.set_blocking(status, False)
        self._poll.register(output, select.POLLIN)
        return output, status

    def _catch_signals(self) -> int:
        """A pipe that becomes readable at SIGCHLD, SIGUSR1 and SIGTERM."""
        wake, wake_end = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)

        def note(signum: int, _frame: object) -> None:
            self._told_to_end |= signum == signal.SIGTERM

        for signum in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(signum, note)
        for signum in (signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        return wake

    # --- while it runs

    def _over(self) -> bool:
        """Whether to stop waiting: all are gone, or the time to KILL has come."""
        children = self._reap()
        if boot_ms() >= self._kill_at_ms:
            return True
        if self._exit_status is None:
            return False
        return not children and not self._find_tree()

    def _reap(self) -> bool:
        """Collect the exits of the leader and of orphans; whether any child is left.

        As sub-reaper this process has a child as long as anything of the tree lives.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._leader is not None and pid == self._leader.pid:
                self._exit_status = status
                self._leader_gone()

    def _leader_gone(self) -> None:
        if not self._ending:
            self._kill_at_ms = boot_ms() + SETTLE_MS
            return
        # A shell dies of TERM before the program that it waits for has heard of it: what
        # is left of the grace belongs to that program.
        for identity in self._find_tree():
            signal_process(identity, signal.SIGTERM)

    def _find_tree(self) -> set[Identity]:
        return find_tree({self._me}, self._plan["token"])

    def _consider_ending(self) -> None:
        plan, now_ms = self._plan, boot_ms()
        if _is_deleted(self._job_dir / "lock"):
            self._end("stopped", "its folder was deleted", 0)
        self._look_for_stop()
        if self._told_to_end:
            self._end("stopped", "the runner was told to end (SIGTERM)", plan["grace_ms"])
        if plan["deadline_boot_ms"] is not None and now_ms >= plan["deadline_boot_ms"]:
            self._end("deadline", "its deadline has passed", plan["grace_ms"])
        if plan["time_limit_ms"] is not None:
            limit_at_ms = self._started_ms + plan["time_limit_ms"]
            if now_ms >= limit_at_ms:
                self._end("timeout", "time limit reached", plan["grace_ms"])
            elif plan["lead_ms"] and now_ms >= limit_at_ms - plan["lead_ms"]:
                self._give_lead()
        if plan["exclusive_ms"] is not None:
            silent_ms = now_ms - self._bucket_seen_ms()
            if silent_ms > plan["exclusive_ms"]:
                self._end("exclusive", f"no news from the bucket for {silent_ms} ms", 0)

    def _look_for_stop(self) -> None:
        try:
            body = (self._job_dir / "stop.json").read_bytes()
        except FileNotFoundError:
            return
        if body != self._stop_body:
            self._stop_body = body
            stop = json.loads(body)
            self._end("stopped", stop["reason"], stop["grace_ms"])

    def _bucket_seen_ms(self) -> int:
        try:
            return int((self._job_dir / "bucket_seen").read_text())
        except FileNotFoundError:
            return self._started_ms

    def _give_lead(self) -> None:
        """Tell the job that its time limit is near."""
        if not self._lead_given:
            self._lead_given = True
            self._touch_cancel()
            self._signal_leader(signal.Signals[f"SIG{self._plan['signal']}"])

    def _end(self, outcome: str, reason: str, grace_ms: int) -> None:
        """Begin to end the job, or shorten the grace of an end that has begun."""
        if not self._ending:
            self._ending = True
            if self._exit_status is None:
                self._ended_as = {"outcome": outcome, "reason": reason}
            self._touch_cancel()
            if grace_ms > 0:
                self._signal_leader(signal.SIGTERM)
        self._kill_at_ms = min(self._kill_at_ms, boot_ms() + grace_ms)

    def _signal_leader(self, signum: signal.Signals) -> None:
        if self._leader is not None and self._exit_status is None:
            signal_process(self._leader, signum)

    def _touch_cancel(self) -> None:
        try:
            (self._job_dir / "cancel").touch()
        except OSError as error:
            print(f"cannot create the cancel file: {error}", file=sys.stderr)

    def _pump(self, output: int) -> None:
        """Wait for output, a signal, or the next time at which something is due."""
        due_ms = min(self._kill_at_ms - boot_ms(), self._ms_to_limit(), TICK_MS)
        for fd, _events in self._poll.poll(max(0, due_ms)):
            if fd == self._wake:
                os.read(self._wake, READ_BYTES)
            elif data := os.read(output, READ_BYTES):
                self._log.add(data)
            else:
                self._poll.unregister(output)

    def _ms_to_limit(self) -> int:
        """Until its time limit, what comes before that, or its deadline."""
        plan, ends_ms = self._plan, [boot_ms() + TICK_MS]
        if self._ending:
            return TICK_MS
        if plan["deadline_boot_ms"] is not None:
            ends_ms.append(int(plan["deadline_boot_ms"]))
        if plan["time_limit_ms"] is not None:
            lead_ms = 0 if self._lead_given else int(plan["lead_ms"])
            ends_ms.append(self._started_ms + int(plan["time_limit_ms"]) - lead_ms)
        return min(ends_ms) - boot_ms()

    # --- when it has ended

    def _drain(self, output: int) -> None:
        """What is still in the pipe; no more than it can hold, for an unkillable writer."""
        room_bytes = fcntl.fcntl(output, fcntl.F_GETPIPE_SZ)
        try:
            while room_bytes > 0 and (data := os.read(output, READ_BYTES)):
                self._log.add(data)
                room_bytes -= len(data)
        except BlockingIOError:
            return

    def _how_it_ended(self, killed: Killed) -> dict[str, Any]:
        end: dict[str, Any] = {
            **self._ended_as,
            "left_behind": len((killed.gone | killed.left) - {self._leader}),
            "unkillable": sorted(killed.left)[:UNKILLABLE_MAX],
        }
        if self._exit_status is None:
            return end
        code = os.waitstatus_to_exitcode(self._exit_status)
        if code < 0:
            end["signal"] = _signal_name(-code)
        end["rc"] = 128 - code if code < 0 else code
        ooms = oom_kills()
        end["oom"] = (
            end["rc"] == 128 + signal.SIGKILL
            and self._leader not in killed.gone
            and None not in (ooms, self._ooms_before)
            and ooms != self._ooms_before
        )
        return end

    def _result(self, end: dict[str, Any]) -> dict[str, Any]:
        offset_ms = self._plan["epoch_offset_ms"]
        return {
            "rc": None,
            "signal": None,
            "started_at_ms": self._started_ms + offset_ms,
            "ended_at_ms": boot_ms() + offset_ms,
            "left_behind": 0,
            "unkillable": [],
            "log_bytes": self._log.total_bytes,
            "log_cut": self._log.cut,
            "log_lost_bytes": self._log.lost_bytes,
            "log_problem": self._log.problem,
            "oom": False,
            **end,
        }


def _is_deleted(path: Path) -> bool:
    """Whether it is certain that nothing is there."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # a network disk that is away for a while
        return False
    return False


def _identity(pid: int) -> Identity:
    identity = identity_of(pid)
    if identity is None:
        raise ProcessLookupError(f"/proc does not show process {pid}")
    return identity


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name.removeprefix("SIG")
    except ValueError:  # real-time signals have no name
        return str(signum)


def _read_report(status: int) -> dict[str, Any]:
    """What the child said instead of exec; nothing where there was an exec."""
    try:
        report: dict[str, Any] = json.loads(os.read(status, READ_BYTES) or b"{}")
    except BlockingIOError:  # still on its way into the program, and unkillable there
        return {}
    return report


def write_file(path: Path, body: bytes, *, mode: int = 0o600) -> None:
    """Replace ``path`` atomically and durably."""
    temporary = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(temporary, flags, mode), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    _rename_durably(temporary, path)


def _rename_durably(source: Path, target: Path) -> None:
    source.rename(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _hold_lock(job_dir: Path, inherited: str | None) -> int:
    """The descriptor that holds the flock; the job does not inherit it."""
    if inherited is not None:
        os.set_inheritable(int(inherited), False)
        return int(inherited)
    lock = os.open(job_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _close_others(lock: int) -> None:
    """What the worker itself had inherited must reach neither this process nor the job."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != lock:
            with contextlib.suppress(OSError):  # that of the listing is closed already
                os.close(int(name))


def main(job_dir: Path, inherited_lock: str | None) -> None:
    """Run the attempt whose folder is ``job_dir`` (absolute)."""
    lock = _hold_lock(job_dir, inherited_lock)
    _close_others(lock)
    os.chdir("/")
    plan = json.loads((job_dir / "plan.json").read_bytes())
    temporary = job_dir / "result.json.new"
    with temporary.open("w+b") as reserve:
        reserve.write(b" " * RESULT_RESERVE_BYTES)
        reserve.flush()
        os.fsync(reserve.fileno())
        body = json.dumps(Attempt(job_dir, plan).run()).encode()
        # The spaces after it are valid JSON; to truncate could give the blocks away.
        os.pwrite(reserve.fileno(), body, 0)
        os.fsync(reserve.fileno())
    with contextlib.suppress(FileNotFoundError):  # deleted, and nobody waits for a result
        _rename_durably(temporary, job_dir / "result.json")


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    main(Path(folder).resolve(), rest[0] if rest else None)
