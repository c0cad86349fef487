"""Logs from a job to a reader elsewhere: every byte, while it runs and after its node died."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ledger.events import JobState
from ledger.keys import log_piece_key
from ledger.names import JobId
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tests.waiting import wait_until

TIME_SCALE = 6
DEADLINE_S = 120

EMOJI = "\N{SNOWMAN}\N{ROCKET}".encode()
BARS = b"".join(b"\r%3d %%|%s|" % (n, b"#" * (n // 2)) for n in range(101))
FIRST = bytes(range(256)) + BARS + EMOJI[:5]
REST = EMOJI[5:] + b"x" * 1_000_000
"""The rocket takes four bytes, of which two are in each half; the last line has no end."""


class Follower:
    """A running ``gpuq logs -f``, its output in files."""

    def __init__(self, cluster: Cluster, job: JobId) -> None:
        self._shown = cluster.folder / "shown"
        self._said = cluster.folder / "said"
        with self._shown.open("wb") as shown, self._said.open("wb") as said:
            self.process = subprocess.Popen(
                cluster.command("logs", "-f", job),
                cwd=cluster.work_dir,
                env=cluster.user_env,
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=said,
            )

    def shown(self) -> bytes:
        return self._shown.read_bytes()

    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, log: bytes) -> None:
        wait_until(lambda: self.shown() == log, deadline_s=DEADLINE_S, what="it shows what is")

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def follow() -> Iterator[Callable[[Cluster, JobId], Follower]]:
    with ExitStack() as at_the_end:

        def start(cluster: Cluster, job: JobId) -> Follower:
            follower = Follower(cluster, job)
            at_the_end.callback(follower.process.wait)
            at_the_end.callback(follower.process.kill)
            return follower

        yield start


def test_every_byte_arrives_while_it_runs_and_afterwards(
    seaweedfs_place: Place,
    folder: Path,
    start_cluster: StartCluster,
    follow: Callable[[Cluster, JobId], Follower],
) -> None:
    cluster = start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    for name, half in (("first", FIRST), ("rest", REST)):
        (cluster.work_dir / name).write_bytes(half)
    cluster.script("bytes.sh", "cat first", cluster.gate("rest"), "cat rest", rc=9)
    (job,) = cluster.submit("bytes.sh")
    follower = follow(cluster, job)

    follower.wait_for(FIRST)
    number = cluster.wait_for_begin("bytes.sh")
    assert cluster.log_pieces(job, number) == FIRST, "a piece ends within a character"
    cluster.open_gate("rest")
    assert follower.wait() == 9
    assert follower.shown() == FIRST + REST
    assert cluster.logs(job) == FIRST + REST
    assert cluster.whole_log(job, number) == FIRST + REST + b"\nrc=9\n"
    assert (FIRST + REST).startswith(cluster.log_pieces(job, number))


def test_ctrl_c_detaches_the_reader_and_leaves_the_job_alone(
    folder_place: Place,
    folder: Path,
    start_cluster: StartCluster,
    follow: Callable[[Cluster, JobId], Follower],
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("long.sh", "echo on", cluster.gate("end"), "echo off", rc=3)
    (job,) = cluster.submit("long.sh")
    follower = follow(cluster, job)
    follower.wait_for(b"on\n")

    follower.process.send_signal(signal.SIGINT)
    assert follower.wait() == 130
    assert follower.said().endswith(f"gpuq: detached; {job} goes on: gpuq logs -f {job}\n")
    assert cluster.wait_for_state(job, JobState.RUNNING).cancel is None
    cluster.open_gate("end")
    again = follow(cluster, job)
    assert (again.wait(), again.shown()) == (3, b"on\noff\n")


def test_what_a_node_had_shipped_is_read_when_it_is_dead(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script(
        "doomed.sh", "printf first", cluster.gate("more"), "echo second", cluster.gate("never")
    )
    (job,) = cluster.submit("doomed.sh")
    number = cluster.wait_for_begin("doomed.sh")

    def shipped(log: bytes) -> None:
        cluster.wait_until(
            lambda: cluster.log_pieces(job, number) == log,
            deadline_s=DEADLINE_S,
            what=f"{log!r} is in the bucket",
        )

    shipped(b"first")
    cluster.open_gate("more")
    shipped(b"firstsecond\n")
    cluster.kill_node("n1")
    assert cluster.bucket.get(log_piece_key(job, number, 1)) == b"second\n"
    assert cluster.logs(job) == b"firstsecond\n"
