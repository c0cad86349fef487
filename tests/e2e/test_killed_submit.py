"""``gpuq submit``, killed after it kept the submit on disk and before the store has it."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from pathlib import Path

from ledger.keys import FACTS
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tests.faults.proxy import FaultProxy, held_until
from tests.waiting import wait_until

TIME_SCALE = 6


def test_the_next_command_submits_what_a_killed_one_kept_and_it_runs_once(
    seaweedfs_place: Place, proxy: FaultProxy, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    kept, later = cluster.script("kept.sh"), cluster.script("later.sh")
    released = threading.Event()
    held = proxy.inject(held_until(released), path=".submit")
    submit = begin(cluster, "submit", kept)
    try:
        held.wait_for_hits(deadline_s=30)
    finally:
        submit.kill()
    assert submit.communicate(timeout=30) == (b"", b"")

    out, err = begin(cluster, "status").communicate(timeout=60)
    assert b"kept.sh" in out
    assert b"gpuq: sent 1 fact that an earlier gpuq (cli-" in err
    wait_until(lambda: cluster.runs_of("kept.sh"), deadline_s=60, what="kept.sh runs")

    # The killed one's own request arrives after all: the same fact under another stamp.
    released.set()
    wait_until(lambda: len(submits(cluster)) == 2, deadline_s=30, what="two copies")
    cluster.wait_for_end(*cluster.submit(later))
    assert [what for _, what in cluster.runs_of("kept.sh")] == ["begin", "end"]
    facts = Counter((p.fact.writer, p.fact.n) for page in cluster.pages() for p in page.facts)
    assert set(facts.values()) == {1}
    assert cluster.verified()["jobs"] == 2


def begin(cluster: Cluster, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        cluster.command(*args),
        cwd=cluster.work_dir,
        env=cluster.user_env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def submits(cluster: Cluster) -> list[str]:
    return [entry.key for entry in cluster.bucket.list(FACTS) if entry.key.endswith(".submit")]
