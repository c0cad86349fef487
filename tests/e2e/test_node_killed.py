"""A machine that dies whole, the leader on it: noticed, and its work goes on elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path

from ledger import events as e
from ledger.events import JobState
from ledger.names import NodeName
from tests.e2e.cluster import Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 15
"""A silent node is stale after 12 s and gone after 40 s; a lease is 2 s."""


def test_the_jobs_of_a_dead_node_run_elsewhere_as_far_as_they_may(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 3)
    for name in ("once.sh", "again.sh"):
        cluster.script(name, cluster.gate("end"))
    cluster.script("unstarted.sh")
    (once,) = cluster.submit("--worker", "n1-cpu0", "once.sh")
    (again,) = cluster.submit("--idempotent", "again.sh")
    first_tries = {name: cluster.wait_for_begin(name) for name in ("once.sh", "again.sh")}

    # A worker that is frozen is given work, and never claims it.
    (idle,) = (w for w in cluster.state().workers.values() if w.occupant is None)
    cluster.worker(idle.name).send_signal(signal.SIGSTOP)
    (unstarted,) = cluster.submit("unstarted.sh")
    cluster.wait_for_state(unstarted, JobState.ASSIGNED)
    refused = cluster.job(unstarted).attempts[-1]
    assert refused.lead == idle.name
    cluster.serve("n2", 1)
    cluster.kill_node("n1")

    cluster.wait_for_end(unstarted)
    assert cluster.leading_node() == "n2"
    assert cluster.runs_of("unstarted.sh") == [
        (refused.number + 1, "begin"),
        (refused.number + 1, "end"),
    ]
    assert cluster.job(unstarted).attempts[-1].lead == "n2-cpu0"

    second_try = first_tries["again.sh"] + 1
    cluster.wait_for_begin("again.sh", second_try)
    cluster.open_gate("end")
    cluster.wait_for_end(again, once)
    assert cluster.runs_of("again.sh") == [
        (first_tries["again.sh"], "begin"),
        (second_try, "begin"),
        (second_try, "end"),
    ]
    assert cluster.runs_of("once.sh") == [(first_tries["once.sh"], "begin")]

    shown = cluster.ended()
    assert {job: (shown[job]["state"], shown[job]["rc"]) for job in (unstarted, again, once)} == {
        unstarted: ("COMPLETED", 0),
        again: ("COMPLETED", 0),
        once: ("NODE_FAIL", None),
    }
    assert cluster.state().nodes[NodeName("n1")].liveness is e.Liveness.GONE
    assert cluster.verified()["void_pages"] == 0
