"""A supervisor that is there and does nothing: stopped, as by a debugger or a dead disk."""

from __future__ import annotations

import signal
from pathlib import Path

from ledger import events as e
from ledger.events import JobState, Liveness
from ledger.keys import BEATS
from ledger.names import NodeName
from tests.e2e.cluster import ENDED_S, Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 30
INTERVALS = 12
"""So many beat intervals are longer than what costs a silent node its jobs (10), and than what
an exclusive job lives without the bucket (8)."""


def beats_of(cluster: Cluster, writer: str) -> int:
    return sum(f".{writer}~" in entry.key for entry in cluster.bucket.list(BEATS))


def test_the_workers_of_a_supervisor_that_hangs_beat_in_its_place(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("long.sh", cluster.gate("end"), rc=4)
    (job,) = cluster.submit("--exclusive", "long.sh")
    cluster.wait_for_state(job, JobState.RUNNING)
    assert list(folder.glob("state/n1/*/nodes/n1/last-beat")), "it tells that it was heard"
    supervisor = cluster._supervisors["n1"]
    supervisor.send_signal(signal.SIGSTOP)
    before = beats_of(cluster, "n1-cpu0")
    cluster.wait_until(
        lambda: beats_of(cluster, "n1-cpu0") >= before + INTERVALS,
        deadline_s=ENDED_S,
        what="its worker beats",
    )
    assert cluster.job(job).state is JobState.RUNNING
    cluster.open_gate("end")
    assert cluster.wait_for_state(job, JobState.FAILED).attempts[0].rc == 4
    seen = [seen for page in cluster.pages() for seen in page.seen]
    assert e.NodeSeen(node=NodeName("n1"), liveness=Liveness.GONE) not in seen
    supervisor.send_signal(signal.SIGCONT)
    cluster.drain()
    assert cluster.verified()["void_pages"] == 0
