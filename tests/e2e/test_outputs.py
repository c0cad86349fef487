"""A job's files in the store and back, with real processes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ledger.events import JobState
from ledger.keys import artifact_key
from tests.e2e.cluster import Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6
LARGE_BYTES = 20 << 20
"""Three pieces."""


@pytest.mark.parametrize("place", ["folder", "seaweedfs"], indirect=True)
def test_what_a_job_leaves_is_fetched_as_it_was(
    place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    make = (
        "mkdir -p out/deep",
        f"head -c {LARGE_BYTES} /dev/urandom >out/large.bin; sha256sum out/large.bin",
        "echo small >out/deep/small.txt; ln -s /etc/passwd out/leak",
    )
    cluster.script("good.sh", *make)
    cluster.script("bad.sh", "echo partial >partial.txt", rc=3)
    (good,) = cluster.submit("--snapshot", ".", "--output", "out", "good.sh")
    (bad,) = cluster.submit("--output", "partial.*", "bad.sh")
    (kept,) = cluster.submit("--output", "partial.*", "--output-on-failure", "bad.sh")
    cluster.wait_for_end(good, bad, kept)
    assert cluster.job(good).state is JobState.COMPLETED
    cluster.gpuq("fetch", good, "back")
    back = cluster.work_dir / "back"
    names = sorted(str(path.relative_to(back)) for path in back.rglob("*") if path.is_file())
    assert names == ["out/deep/small.txt", "out/large.bin"]
    log = cluster.logs(good).decode()
    assert "[gpuq: left out: 'out/leak' leads out of the working directory]" in log
    digest = hashlib.sha256((back / "out" / "large.bin").read_bytes()).hexdigest()
    assert log.split()[0] == digest, "as the job itself reckoned it"
    assert cluster.job(bad).state is JobState.FAILED
    assert cluster.bucket.get(artifact_key(bad, 1)) is None
    cluster.gpuq("fetch", kept, "kept")
    assert (cluster.work_dir / "kept" / "partial.txt").read_text() == "partial\n"
    report = cluster.verified()
    assert report["objects"]["artifacts"] == 2
