"""A cancel, and one that is in more of a hurry, of a job that does not listen."""

from __future__ import annotations

from pathlib import Path

from ledger.events import JobState
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


def is_running_in(cluster: Cluster, job: str) -> bool:
    """Whether any process of the job runs, as the machine says it."""
    return any(p.environ().get("GPUQ_JOB_ID") == job for p in cluster.processes())


def test_a_second_cancel_with_a_shorter_grace_does_not_wait_for_the_first(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("deaf.sh", "trap '' TERM", "while :; do sleep 0.1; done")
    (job,) = cluster.submit("deaf.sh")
    cluster.wait_for_begin("deaf.sh")
    cluster.wait_for_state(job, JobState.RUNNING)
    # Ten minutes are longer than anything here waits, so the first cancel alone ends nothing.
    said = cluster.gpuq("cancel", job, "--grace", "10m")
    assert said == f"{job} deaf.sh: stop requested: TERM on n1-cpu0, KILL after 10 min\n"
    cluster.wait_for_state(job, JobState.STOPPING)
    said = cluster.gpuq("cancel", job, "--grace", "1s")
    assert said == f"{job} deaf.sh: stopping sooner: KILL after 1 s\n"
    attempt = cluster.wait_for_state(job, JobState.CANCELLED).attempts[0]
    assert (attempt.rc, attempt.outcome) == (137, "stopped")
    assert not is_running_in(cluster, job)
    cluster.verified()
