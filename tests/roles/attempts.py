"""Real attempts for tests: started, waited for, and cleaned up even if the test fails."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from roles.launcher import JobDir, Plan, RunResult, script_argv
from roles.processes import boot_id, boot_ms, signal_process
from tests.waiting import wait_until

DEADLINE_S = 30
ENV = {"PATH": os.environ["PATH"]}
EPOCH_OFFSET_MS = 1_700_000_000_000
"""Store time at boot; far from any real clock, so that a mix-up shows."""


def a_plan(argv: tuple[str, ...] = ("true",), **changes: Any) -> Plan:
    """A plan that runs ``argv`` at once, in ``/``."""
    values: dict[str, Any] = {
        "job": "abcd2345",
        "attempt": 1,
        "token": os.urandom(8).hex(),
        "argv": argv,
        "cwd": "/",
        "env": ENV,
        "boot_id": boot_id(),
        "claim_boot_ms": boot_ms(),
        "epoch_offset_ms": EPOCH_OFFSET_MS,
    }
    return Plan(**values | changes)


class Attempts:
    """Makes attempts below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: list[JobDir] = []

    def new(self) -> JobDir:
        job_dir = JobDir(self.root / f"job.{len(self._made) + 1}")
        self._made.append(job_dir)
        return job_dir

    def start(self, *argv: str, **changes: Any) -> JobDir:
        job_dir = self.new()
        job_dir.prepare(a_plan(argv, **changes), None)
        job_dir.launch()
        return job_dir

    def start_script(self, script: str, *arguments: str, **changes: Any) -> JobDir:
        """The script as a user's file, run the way a worker runs it."""
        job_dir = self.new()
        body = script.encode()
        argv = script_argv(job_dir.script_path, body, arguments)
        job_dir.prepare(a_plan(argv, **changes), body)
        job_dir.launch()
        return job_dir

    def run(self, *argv: str, **changes: Any) -> RunResult:
        return finish(self.start(*argv, **changes))

    def run_script(self, script: str, **changes: Any) -> RunResult:
        return finish(self.start_script(script, **changes))

    def clean_up(self) -> None:
        for job_dir in self._made:
            if job_dir.state() == "running":
                wait_until(job_dir.runner, deadline_s=DEADLINE_S, what="a runner to end")
                kill_runner(job_dir)
            if job_dir.state() == "dead":
                job_dir.reap_dead()


def finish(job_dir: JobDir) -> RunResult:
    """Wait for the result."""
    wait_until(lambda: job_dir.state() != "running", deadline_s=DEADLINE_S, what="an end")
    result = job_dir.result()
    assert result is not None, f"{job_dir.state()}: {errors_of(job_dir)}"
    return result


def errors_of(job_dir: JobDir) -> str:
    """What the runner itself complained of."""
    return (job_dir.path / "runner.err").read_text()


def log_of(job_dir: JobDir) -> bytes:
    return job_dir.read_log(0, job_dir.log_size())


def wait_for_log(job_dir: JobDir, text: bytes) -> None:
    wait_until(lambda: text in log_of(job_dir), deadline_s=DEADLINE_S, what=f"{text!r} in the log")


def named_pids(job_dir: JobDir, *names: str) -> dict[str, int]:
    """The pids that the job printed as lines ``<name> <pid>``, once all are there."""

    def read() -> dict[str, int] | None:
        words = [line.split() for line in log_of(job_dir).decode().splitlines()]
        pids = {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[0] in names}
        return pids if len(pids) == len(names) else None

    pids = wait_until(read, deadline_s=DEADLINE_S, what=f"pids of {names}")
    assert pids is not None
    return pids


def kill_runner(job_dir: JobDir) -> None:
    """kill -9, and wait until it is gone."""
    runner = job_dir.runner()
    assert runner is not None
    signal_process(runner, signal.SIGKILL)
    wait_until(lambda: job_dir.state() != "running", deadline_s=DEADLINE_S, what="its death")


def runs(pid: int) -> bool:
    """By another library than the code under test; a zombie does not run."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def a_bystander(env: Mapping[str, str] = ENV) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the same user that has nothing to do with any job."""
    with subprocess.Popen(["sleep", "300"], env=env, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
