"""Jobs that wait for others or their time, and that go by priority: who runs, in which order."""

from __future__ import annotations

from pathlib import Path

from ledger.events import JobState
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


def began_after(cluster: Cluster, later: str, earlier: str) -> bool:
    """Whether one job's begin stands behind the other's end in what the jobs themselves noted."""
    lines = cluster.witness.read_text().splitlines()
    return lines.index(f"{later} 1 begin") > lines.index(f"{earlier} 1 end")


def test_a_pipeline_runs_in_its_order_and_what_cannot_run_ends_by_itself(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    """Four slots, so that nothing but the dependencies keeps anything waiting."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 2)
    cluster.serve("n2", 2)
    cluster.script("prepare.sh", cluster.gate("go"))
    for name, rc in (("broken.sh", 3), ("train.sh", 0), ("tidy.sh", 0), ("publish.sh", 0)):
        cluster.script(name, rc=rc)
    (prepare,) = cluster.submit("prepare.sh")
    (broken,) = cluster.submit("-d", prepare, "--exclude", "n1", "broken.sh")
    (train,) = cluster.submit("--after", "prepare.sh", "--worker", "n1-cpu1", "train.sh")
    (publish,) = cluster.submit("--after", f"afterok:{train}:{broken}", "publish.sh")
    (tidy,) = cluster.submit("--after", f"afterok:{train},afternotok:{publish}", "tidy.sh")
    cluster.wait_for_begin("prepare.sh")
    cluster.wait_for_state(tidy, JobState.PENDING)
    waits = f"waits for afterok:{train} (PENDING), afternotok:{publish} (PENDING)"
    assert waits in cluster.gpuq("why", tidy)
    cluster.open_gate("go")
    cluster.wait_for_end(tidy)
    ends = {job: cluster.job(job).state for job in (prepare, broken, train, publish, tidy)}
    assert ends == {
        prepare: JobState.COMPLETED,
        broken: JobState.FAILED,
        train: JobState.COMPLETED,
        publish: JobState.DEPENDENCY_NEVER,
        tidy: JobState.COMPLETED,
    }
    assert cluster.job(publish).reason == (
        f"it waits for afterok:{broken}, which ended FAILED (rc 3)"
    )
    assert cluster.job(broken).attempts[0].lead.startswith("n2-")
    for later, earlier in (
        ("train.sh", "prepare.sh"),
        ("broken.sh", "prepare.sh"),
        ("tidy.sh", "train.sh"),
    ):
        assert began_after(cluster, later, earlier)
    assert cluster.runs_of("publish.sh") == []
    cluster.verified()


def test_a_job_does_not_begin_before_its_time(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    """Two slots are free all the while; another job that was submitted later starts before."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 2)
    for name in ("late.sh", "now.sh"):
        cluster.script(name)
    (late,) = cluster.submit("--begin", "5s", "late.sh")
    (now,) = cluster.submit("now.sh")
    cluster.wait_for_end(late, now)
    assert began_after(cluster, "late.sh", "now.sh")
    first = cluster.job(late).attempts[0]
    assert first.started_at is not None
    assert first.started_at >= cluster.job(late).spec.begin_at > 0
    cluster.verified()


def test_jobs_of_one_flow_run_by_their_priority(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    """One slot, which another job has until all three wait."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("busy.sh", cluster.gate("go"))
    (busy,) = cluster.submit("busy.sh")
    cluster.wait_for_begin("busy.sh")
    jobs = []
    for priority in ("-5", "0", "50"):
        cluster.script(f"p{priority}.sh")
        jobs += cluster.submit("--priority", priority, f"p{priority}.sh")
    cluster.wait_for_state(jobs[2], JobState.PENDING)
    assert "2 before it in" in cluster.gpuq("why", jobs[0])
    cluster.open_gate("go")
    cluster.wait_for_end(busy, *jobs)
    assert began_after(cluster, "p-5.sh", "p0.sh")
    assert began_after(cluster, "p0.sh", "p50.sh")
    cluster.verified()


def test_a_job_waits_for_an_object_that_another_process_puts(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    """The leader looks every 12.5 s, here every 2."""
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("use.sh")
    (job,) = cluster.submit("--after-artifact", "artifacts/weights.bin", "use.sh")
    cluster.wait_for_state(job, JobState.PENDING)
    assert "waits for artifacts/weights.bin" in cluster.gpuq("why", job)
    cluster.bucket.put_once("artifacts/weights.bin", b"x")
    cluster.wait_for_end(job)
    assert cluster.job(job).state is JobState.COMPLETED
    assert list(cluster.state().artifacts) == ["artifacts/weights.bin"]
    cluster.verified()
