"""Disks that are full, not to be written, or lost: an error that names the mend, or a loss
that is recorded; never silence, and never the end of the node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ledger import events as e
from ledger.events import JobState
from ledger.names import WorkerName
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6
DEADLINE_S = 120
DISK_BYTES = 64 * 1024 * 1024

needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A small disk in memory at ``folder``."""
    folder.mkdir(parents=True)
    wanted = ",".join((f"size={DISK_BYTES}", *options))
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", wanted, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily, because whatever fails in between may leave processes that stand in it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte is left on the disk of ``folder``, for a while."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))  # the smallest block that such a disk gives out
    assert shutil.disk_usage(folder).free == 0
    try:
        yield
    finally:
        filler.unlink()


# --- full


@needs_mounts
def test_a_full_disk_is_shown_and_costs_no_end_of_a_job(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    state = folder / "state" / "n1"
    with mounted(state):
        cluster.serve("n1", 1)
        cluster.script("within.sh", cluster.gate("within"), "seq 100000", rc=5)
        cluster.script("next.sh")
        (within,) = cluster.submit("within.sh")
        cluster.wait_for_state(within, JobState.RUNNING)
        with filled(state):
            cluster.open_gate("within")
            problem = f"less than 16 MiB are free on the disk of {state}: make room there"
            cluster.wait_until(
                lambda: cluster.state().workers[WorkerName("n1-cpu0")].problem == problem,
                deadline_s=DEADLINE_S,
                what="the leader knows of it",
            )
            assert problem in cluster.gpuq("nodes")
            (following,) = cluster.submit("next.sh")
            cluster.wait_for_state(following, JobState.PENDING)
        cluster.wait_for_end(within, following)
        cluster.drain()

    ended = cluster.job(within).attempts[-1]
    assert ended.rc == 5
    assert re.fullmatch(r"\d+ bytes of its log are lost \(No space left on device\)", ended.reason)
    ends = [
        posted.fact
        for page in cluster.pages()
        for posted in page.facts
        if isinstance(posted.fact, e.AttemptFinished)
    ]
    assert [(end.job, end.rc) for end in ends] == [(within, 5), (following, 0)]
    assert cluster.verified()["void_pages"] == 0


# --- not to be written


@needs_mounts
@pytest.mark.parametrize(
    "words",
    ["submit -- true", "supervisor --node n1 --slots 1", "dispatcher --node n1"],
    ids=lambda words: words.partition(" ")[0],
)
def test_a_home_that_cannot_be_written_is_named_with_the_mend(
    folder_place: Place, folder: Path, start_cluster: StartCluster, words: str
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    home = folder / "read-only"
    with mounted(home, "ro"):
        refused = run_at_home(cluster, home, *words.split())
        assert (refused.returncode, refused.stdout) == (64, "")
        (line,) = refused.stderr.splitlines()
        assert f"cannot write {home}" in line
        assert "Read-only file system; mount it writable" in line
        shown = run_at_home(cluster, home, "status")
        assert (shown.returncode, shown.stderr) == (0, ""), "what only reads works"


def run_at_home(cluster: Cluster, home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command of a user whose home this is, and whose state is kept there."""
    env = {name: text for name, text in cluster.user_env.items() if name != "GPUQ_STATE_DIR"}
    return subprocess.run(
        cluster.command(*args),
        cwd=cluster.work_dir,
        env={**env, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


# --- lost


def test_what_a_lost_state_folder_knew_is_recorded_as_lost(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("once.sh", cluster.gate("never"))
    cluster.script("next.sh")
    (once,) = cluster.submit("once.sh")
    cluster.wait_for_state(once, JobState.RUNNING)
    cluster.kill_node("n1")

    # With the whole state goes the machine's id: it passes for another machine.
    state, aside = folder / "state" / "n1", folder / "aside"
    state.rename(aside)
    refused = subprocess.run(
        cluster.command("supervisor", "--node", "n1", "--slots", "1"),
        env={**cluster.user_env, "GPUQ_STATE_DIR": str(state)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert refused.returncode == 64
    assert "node n1 is alive on another machine" in refused.stderr.splitlines()[-1]
    shutil.rmtree(state)

    aside.rename(state)
    (worker_dir,) = state.glob("*/workers/n1-cpu0")
    shutil.rmtree(worker_dir)
    cluster.start_node("n1", 1)
    cluster.wait_for_end(once)
    lost = cluster.job(once)
    assert lost.state is JobState.NODE_FAIL
    assert lost.attempts[-1].reason == "its worker's machine knows nothing of it"
    (following,) = cluster.submit("next.sh")
    cluster.wait_for_end(following)
    assert cluster.job(following).state is JobState.COMPLETED
    assert cluster.verified()["void_pages"] == 0


def test_a_job_whose_folder_is_deleted_is_killed_and_recorded_as_lost(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("once.sh", f"echo $$ >{folder}/pid", cluster.gate("never"))
    cluster.script("next.sh")
    (once,) = cluster.submit("once.sh")
    cluster.wait_for_state(once, JobState.RUNNING)
    noted = folder / "pid"
    cluster.wait_until(
        lambda: noted.exists() and noted.read_text().endswith("\n"),
        deadline_s=DEADLINE_S,
        what="it runs",
    )
    pid = int(noted.read_text())
    (following,) = cluster.submit("next.sh")
    (job_dir,) = folder.glob(f"state/n1/*/workers/n1-cpu0/jobs/{once}.1")
    shutil.rmtree(job_dir)
    cluster.wait_for_end(once)
    assert not psutil.pid_exists(pid)
    lost = cluster.job(once)
    assert lost.state is JobState.NODE_FAIL
    assert lost.attempts[-1].reason == "its folder on this machine has vanished"
    cluster.wait_for_end(following)
    assert cluster.job(following).state is JobState.COMPLETED
    assert cluster.verified()["void_pages"] == 0
