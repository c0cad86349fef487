"""An array on real machines: its members run, each with its own values, and one is cancelled."""

from __future__ import annotations

from pathlib import Path

from ledger.events import JobState
from ledger.names import JobId
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster

TIME_SCALE = 6


def test_the_members_of_a_sweep_run_with_their_values_and_the_array_ends_with_them(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster: Cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.script(
        "try.sh", 'echo "$GPUQ_ARRAY_INDEX $GPUQ_lr $GPUQ_seed"', "exit $((GPUQ_ARRAY_INDEX == 3))"
    )
    sweep = ("--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0-2", "--hold")
    (array,) = cluster.submit(*sweep, "try.sh")
    members = [JobId(f"{array}_{index}") for index in range(6)]
    cluster.gpuq("cancel", members[4])
    cluster.gpuq("release", array)
    cluster.serve("n1", 2)
    cluster.wait_for_end(array)
    states = [cluster.job(member).state for member in members]
    assert [str(state) for state in states] == [
        "COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "COMPLETED"
    ]  # fmt: skip
    assert cluster.job(array).state is JobState.FAILED
    logs = [cluster.logs(member).decode() for member in (*members[:4], members[5])]
    assert logs == ["0 1e-3 0\n", "1 1e-3 1\n", "2 1e-3 2\n", "3 1e-4 0\n", "5 1e-4 2\n"]
    cluster.verified()
