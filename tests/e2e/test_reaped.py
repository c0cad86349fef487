"""A worker waits for the runners that it started: none is left as a zombie."""

from __future__ import annotations

from pathlib import Path

import psutil

from ledger.events import JobState
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

DEADLINE_S = 30


def runners_left(cluster: Cluster) -> list[tuple[int, str]]:
    """Children of workers, dead or alive, as the kernel has them."""
    workers = [p for p in cluster.processes() if "worker" in p.cmdline()]
    assert workers
    return [(child.pid, child.status()) for p in workers for child in p.children()]


def test_a_worker_has_no_child_left_when_its_jobs_are_over(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=6)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("held.sh", cluster.gate("end"))
    jobs = cluster.submit(*(cluster.script(f"quick{n}.sh") for n in range(3)))
    cluster.wait_for_end(*jobs)
    (held,) = cluster.submit("held.sh")
    cluster.wait_for_state(held, JobState.RUNNING)
    (runner,) = runners_left(cluster)  # of the job that runs, and of none before it
    assert runner[1] != psutil.STATUS_ZOMBIE
    cluster.open_gate("end")
    cluster.wait_for_end(held)
    cluster.wait_until(
        lambda: not runners_left(cluster), deadline_s=DEADLINE_S, what="the runner is reaped"
    )
