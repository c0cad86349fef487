"""``gpuq logs`` and ``gpuq wait``: the job's own bytes, and its own exit code."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpuq.logs import last_lines
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.waiting import wait_until

Spawn = Callable[..., subprocess.Popen]

EVERY_BYTE = bytes(range(256)) + b"\r50%\r100%" + b"\xe2\x82"


@pytest.fixture
def running(gpuq: Gpuq, fleet: Fleet) -> str:
    """A job that runs on a fleet of one worker."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--name", "train", "--", "a").ids
    fleet.post()
    fleet.start(job)
    fleet.post()
    return job


def raw(args: list[str], here: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gpuq", *args],
        cwd=here,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


@pytest.mark.parametrize("log", [EVERY_BYTE, b"", b"a\n", b"rc=7\n", b"a\n\n", b"rc=0"])
def test_a_log_in_a_pipe_equals_what_the_job_wrote(
    running: str, fleet: Fleet, here: Path, gpuq_env: Mapping[str, str], log: bytes
) -> None:
    fleet.finish(running, 0, log=log)
    fleet.post()
    assert raw(["logs", "train"], here, gpuq_env).stdout == log


def test_a_growing_log_is_read_from_its_pieces(
    running: str, fleet: Fleet, here: Path, gpuq_env: Mapping[str, str]
) -> None:
    fleet.ship_piece(running, 0, EVERY_BYTE)
    fleet.ship_piece(running, 1, b"more")
    assert raw(["logs", "last"], here, gpuq_env).stdout == EVERY_BYTE + b"more"


def test_a_job_that_wrote_nothing_yet_says_so_on_stderr(gpuq: Gpuq, running: str) -> None:
    result = gpuq("log", running)
    assert (result.rc, result.out) == (0, "")
    assert f"{running} has written nothing yet (RUNNING)" in result.err


def test_following_shows_each_byte_once_and_ends_with_the_jobs_code(
    running: str, fleet: Fleet, spawn: Spawn
) -> None:
    follower = spawn("logs", "-f", running)
    assert follower.stdout is not None
    fleet.ship_piece(running, 0, b"one\n")
    assert follower.stdout.readline() == b"one\n"
    fleet.ship_piece(running, 1, b"two\n")
    assert follower.stdout.readline() == b"two\n"
    fleet.finish(running, 137, log=b"one\ntwo\nthree\n")
    fleet.post()
    out, _ = follower.communicate(timeout=30)
    assert (out, follower.returncode) == (b"three\n", 137)


def test_following_a_job_that_waits_says_why_and_goes_on(
    gpuq: Gpuq, fleet: Fleet, spawn: Spawn
) -> None:
    (job,) = gpuq("submit", "-q", "--", "a").ids
    follower = spawn("logs", "-f", job)
    assert follower.stderr is not None
    assert b"has written nothing yet (PENDING: not yet posted)" in follower.stderr.readline()
    fleet.ready("n1-cpu0")
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 0, log=b"done\n")
    fleet.post()
    out, _ = follower.communicate(timeout=30)
    assert (out, follower.returncode) == (b"done\n", 0)


def test_interrupting_a_follower_only_detaches(
    running: str, fleet: Fleet, spawn: Spawn, gpuq: Gpuq
) -> None:
    follower = spawn("logs", "-f", running)
    assert follower.stdout is not None
    fleet.ship_piece(running, 0, b"one\n")
    assert follower.stdout.readline() == b"one\n"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert b"detached; " in err
    assert gpuq("status", "--json", running).json["state"] == "RUNNING"


def test_a_job_cancelled_while_it_waited_has_no_code_of_its_own(gpuq: Gpuq, fleet: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "--", "a").ids
    gpuq("cancel", job)
    fleet.post()
    assert gpuq("logs", "-f", job).rc == 77
    assert gpuq("wait", job).rc == 77


def test_wait_returns_the_first_code_that_is_not_0(gpuq: Gpuq, fleet: Fleet) -> None:
    for n in range(3):
        fleet.ready(f"n1-cpu{n}")
    fleet.post()
    jobs = [gpuq("submit", "-q", "--", "a").ids[0] for _ in range(3)]
    fleet.post()
    for job, rc in zip(jobs, (0, 3, 4), strict=True):
        fleet.start(job)
        fleet.finish(job, rc)
    fleet.post()
    assert gpuq("wait", jobs[0]).rc == 0
    assert gpuq("wait", *jobs).rc == 3
    assert gpuq("wait", *reversed(jobs)).rc == 4


def test_submit_can_wait_and_ends_with_the_jobs_code(fleet: Fleet, spawn: Spawn) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    waiter = spawn("submit", "-q", "--wait", "--", "a")
    assert waiter.stdout is not None
    job = waiter.stdout.readline().decode().strip()
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 143)
    fleet.post()
    _, err = waiter.communicate(timeout=30)
    assert (waiter.returncode, f"{job} FAILED, rc=143" in err.decode()) == (143, True)


def test_interrupting_who_waits_only_detaches(running: str, spawn: Spawn, gpuq: Gpuq) -> None:
    """It is interrupted once it has written that it waits: there is nothing else to see of it."""
    waiter = spawn("wait", running)
    assert waiter.stderr is not None
    assert b"waits" in waiter.stderr.readline()
    waiter.send_signal(signal.SIGINT)
    _, err = waiter.communicate(timeout=30)
    assert waiter.returncode == 130
    assert f"detached; what was waited for goes on: gpuq wait {running}" in err.decode()
    assert gpuq("status", "--json", running).json["state"] == "RUNNING"


def test_wait_waits(running: str, fleet: Fleet, spawn: Spawn) -> None:
    waiter = spawn("wait", running)
    (other,) = [spawn("wait", running)]
    fleet.finish(running, 5)
    assert waiter.poll() is None
    fleet.post()
    assert wait_until(lambda: waiter.poll() == other.poll() == 5, deadline_s=30, what="rc 5")


@pytest.mark.parametrize(
    ("data", "count", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\n\n", 1, b"\n"),
        (b"a\n", 0, b""),
        (b"", 3, b""),
    ],
)
def test_last_lines(data: bytes, count: int, expected: bytes) -> None:
    assert last_lines(data, count) == expected


def test_n_shows_the_last_lines(gpuq: Gpuq, running: str, fleet: Fleet) -> None:
    fleet.finish(running, 0, log=b"1\n2\n3\n")
    fleet.post()
    assert gpuq("logs", "-n", "2", running).out == "2\n3\n"
