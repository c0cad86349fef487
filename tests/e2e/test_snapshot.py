"""What runs is what was submitted, in a copy that no other job sees; with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.events import JobState, Submitted
from ledger.keys import BLOBS, blob_key
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


def cluster_of_two_slots(folder: Path, place: Place, start_cluster: StartCluster) -> Cluster:
    cluster = start_cluster(folder, place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 2)
    return cluster


@pytest.mark.parametrize("place", ["folder", "seaweedfs"], indirect=True)
def test_jobs_run_what_was_submitted_each_in_a_copy_of_its_own(
    place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = cluster_of_two_slots(folder, place, start_cluster)
    code = cluster.work_dir / "src"
    code.mkdir()
    (code / "text").write_text("as submitted\n")
    lines = (
        cluster.gate("go"),
        'cat text; echo "$GPUQ_JOB_ID" >>text; cat text; ls; basename "$GPUQ_SNAPSHOT"',
        'pwd >"$GPUQ_SNAPSHOT/where"; chmod -R a-w .',
    )
    cluster.script("one.sh", *lines)
    cluster.script("two.sh", *lines)
    jobs = cluster.submit("--snapshot", ".", "--chdir", "src", "one.sh", "two.sh")
    (code / "text").write_text("changed afterwards\n")
    (code / "late").touch()
    for name in ("one.sh", "two.sh"):
        cluster.wait_for_begin(name)
    cluster.open_gate("go")
    cluster.wait_for_end(*jobs)
    for job in jobs:
        assert cluster.job(job).state is JobState.COMPLETED
        assert cluster.logs(job).decode() == f"as submitted\nas submitted\n{job}\ntext\ntree\n"
    assert (code / "text").read_text() == "changed afterwards\n"

    def copies() -> list[Path]:
        return list((folder / "state").rglob("jobs/*.1*"))

    cluster.wait_until(lambda: not copies(), deadline_s=60, what="the copies are gone")
    cluster.verified()


def test_a_snapshot_that_was_damaged_fails_to_start_with_the_reason(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = cluster_of_two_slots(folder, folder_place, start_cluster)
    cluster.script("job.sh", "echo ran")
    (job,) = cluster.submit("--hold", "--snapshot", ".", "job.sh")
    cluster.wait_for_state(job, JobState.HELD)
    (spec,) = (
        posted.fact.job
        for page in cluster.pages()
        for posted in page.facts
        if isinstance(posted.fact, Submitted)
    )
    assert spec.snapshot is not None
    known = {blob_key(spec.snapshot.manifest), blob_key(spec.script)}
    (piece,) = {entry.key for entry in cluster.bucket.list(BLOBS)} - known
    (folder / "ledger" / piece).write_bytes(b"rotten")
    cluster.gpuq("release", job)
    ended = cluster.wait_for_state(job, JobState.FAILED)
    assert (ended.attempts[0].outcome, ended.attempts[0].rc) == ("failed_to_start", 127)
    assert ended.reason == (
        f"its snapshot is unusable: {piece} is not what its name says; submit it again"
    )
    assert cluster.runs_of("job.sh") == []
