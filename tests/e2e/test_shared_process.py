"""The CPU slots of a node share one process, and none waits for another."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from ledger.events import JobState
from ledger.journal import read_ledger
from ledger.names import WorkerName
from roles.locks import FileLock
from roles.status import read_status
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tests.waiting import wait_until

TIME_SCALE = 10
END_S = 90
WORKERS = [WorkerName(f"n1-cpu{index}") for index in range(3)]


@pytest.fixture
def cluster(folder_place: Place, folder: Path, start_cluster: StartCluster) -> Cluster:
    made = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    made.init()
    return made


def pids(cluster: Cluster) -> set[int]:
    """Of the processes of the workers of n1, as these say themselves."""
    found = set()
    for folder in (cluster.folder / "state" / "n1").glob("*/workers/*"):
        status = read_status(folder)
        assert status is not None
        assert status.process is not None
        found.add(status.process.pid)
    return found


def wait_for_workers(cluster: Cluster, expected: set[WorkerName]) -> None:
    cluster.wait_until(
        lambda: {w.name for w in cluster.state().workers.values() if w.ready} == expected,
        deadline_s=END_S,
        what=f"{expected} are ready",
    )


def test_many_slots_are_one_process_and_its_death_costs_no_job(cluster: Cluster) -> None:
    cluster.serve("n1", 3)
    (pid,) = pids(cluster)
    scripts = [cluster.script(f"{n}.sh", cluster.gate("end"), rc=n) for n in range(3)]
    jobs = cluster.submit(*scripts)
    for job in jobs:
        cluster.wait_for_state(job, JobState.RUNNING)
    cluster.kill_worker(WORKERS[1])
    (after,) = pids(cluster)
    assert after != pid
    cluster.open_gate("end")
    cluster.wait_for_end(*jobs)
    assert [[a.rc for a in cluster.job(job).attempts] for job in jobs] == [[0], [1], [2]]
    assert [cluster.runs_of(script) for script in scripts] == [[(1, "begin"), (1, "end")]] * 3
    cluster.drain()
    cluster.verified()


def test_a_slot_that_cannot_be_served_keeps_no_other_from_it(cluster: Cluster) -> None:
    """Somebody holds the lock of one of three; it is served once that is over."""
    ledger = read_ledger(cluster.bucket).ledger
    slot = cluster.folder / "state" / "n1" / ledger / "workers" / WORKERS[1] / "slot.lock"
    lock = FileLock.take_soon(slot, SystemClock())
    assert lock is not None
    cluster.start_node("n1", 3)
    wait_for_workers(cluster, {WORKERS[0], WORKERS[2]})
    lock.release()
    wait_for_workers(cluster, set(WORKERS))
    cluster.drain()


def test_slots_that_are_added_do_not_wait_for_the_jobs_of_the_others(cluster: Cluster) -> None:
    cluster.serve("n1", 2)
    first = cluster.script("first.sh", cluster.gate("end"), rc=5)
    (running,) = cluster.submit(first)
    cluster.wait_for_state(running, JobState.RUNNING)
    supervisor = cluster._supervisors.pop("n1")
    supervisor.kill()
    supervisor.wait()
    cluster.serve("n1", 3)
    (pinned,) = cluster.submit("--worker", WORKERS[2], cluster.script("second.sh"))
    cluster.wait_for_end(pinned)
    assert cluster.job(running).state is JobState.RUNNING
    cluster.open_gate("end")
    cluster.wait_for_end(running)
    assert [attempt.rc for attempt in cluster.job(running).attempts] == [5]
    assert cluster.runs_of(first) == [(1, "begin"), (1, "end")]
    cluster.drain()
    cluster.verified()


def restart_supervisor(cluster: Cluster, slots: int) -> None:
    """kill -9 it alone, and have another one take the node over, with so many slots."""
    supervisor = cluster._supervisors.pop("n1")
    supervisor.kill()
    supervisor.wait()
    log = cluster.folder / "n1.log"
    said = log.read_text().count("serves pool")
    cluster.start_node("n1", slots)
    cluster.wait_until(
        lambda: log.read_text().count("serves pool") > said,
        deadline_s=END_S,
        what="another supervisor is there",
    )


def test_a_slot_that_is_offered_again_while_it_is_left_is_served_again(cluster: Cluster) -> None:
    cluster.serve("n1", 2)
    left = cluster.script("left.sh", cluster.gate("end"), rc=5)
    (job,) = cluster.submit("--worker", WORKERS[1], left)
    cluster.wait_for_state(job, JobState.RUNNING)
    restart_supervisor(cluster, 1)
    cluster.wait_until(
        lambda: bool(cluster.state().workers[WORKERS[1]].retired),
        deadline_s=END_S,
        what="the slot is being left",
    )
    restart_supervisor(cluster, 2)
    cluster.open_gate("end")
    (pinned,) = cluster.submit("--worker", WORKERS[1], cluster.script("second.sh"))
    cluster.wait_for_end(job, pinned)
    assert [attempt.rc for attempt in cluster.job(job).attempts] == [5]
    assert cluster.job(pinned).state is JobState.COMPLETED
    cluster.drain()
    cluster.verified()


def test_a_drain_waits_for_all_slots_of_a_process_that_it_did_not_start(cluster: Cluster) -> None:
    """One slot retires at once and gives up its lock, while the job of the other goes on."""
    cluster.serve("n1", 2)
    long = cluster.script("long.sh", cluster.gate("end"), rc=5)
    (job,) = cluster.submit("--worker", WORKERS[0], long)
    cluster.wait_for_state(job, JobState.RUNNING)
    (pid,) = pids(cluster)
    restart_supervisor(cluster, 2)
    supervisor = cluster._supervisors.pop("n1")
    supervisor.send_signal(signal.SIGINT)
    wait_until(
        lambda: bool(cluster.state().workers[WORKERS[1]].retired),
        deadline_s=END_S,
        what="the slot without a job has retired",
    )
    assert pids(cluster) == {pid}
    assert supervisor.poll() is None
    cluster.open_gate("end")
    assert supervisor.wait(END_S) == 0
    assert [attempt.rc for attempt in cluster.job(job).attempts] == [5]
    assert not list(cluster.processes())
