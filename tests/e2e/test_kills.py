"""kill -9 of the store's server, of a supervisor and of a runner while jobs run.

Killed workers, leaders, commands and whole nodes are in the other files of this folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ledger.events import JobState
from ledger.names import WorkerName
from tests import servers
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster, place_on
from tests.servers import Server
from tests.waiting import wait_until
from tools.fleet import FleetError

TIME_SCALE = 6
DEADLINE_S = 120
SCRIPTS = Path(servers.__file__).parent


@dataclass(frozen=True)
class Victim:
    """A server that is killed. Others use it too, so it always runs when ``dead`` is over."""

    server: Server
    script: str
    """Behind ``start-`` and ``stop-``."""

    @contextmanager
    def dead(self) -> Iterator[None]:
        """kill -9 it, and start it again on its data and at its port."""
        folder = str(self.server.folder)
        port = (self.server.folder / "run" / "port").read_text().strip()
        env = {**os.environ, "VIRTUAL_ENV": sys.prefix, **self._tls_port()}
        self._run(f"stop-{self.script}.sh", folder, "--kill", env=env)
        try:
            yield
        finally:
            self._run(f"start-{self.script}.sh", folder, port, env=env)

    def _tls_port(self) -> dict[str, str]:
        said = self.server.folder / "run" / "tls_port"
        return {"S3_TLS_PORT": said.read_text().strip()} if said.exists() else {}

    def _run(self, script: str, *args: str, env: dict[str, str]) -> None:
        done = subprocess.run(
            ["bash", str(SCRIPTS / script), *args],
            env=env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(params=[("seaweedfs", "seaweedfs"), ("ceph", "ceph-rgw")], ids=lambda p: p[0])
def victim(request: pytest.FixtureRequest, s3_credentials: None) -> Victim:
    fixture, script = request.param
    server: Server = request.getfixturevalue(fixture)
    return Victim(server, script)


@pytest.fixture
def victims_place(victim: Victim) -> Place:
    return place_on(victim.server, endpoint_url=victim.server.endpoint_url)


def test_a_server_that_is_killed_and_comes_back_has_cost_nothing(
    victim: Victim, victims_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, victims_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 2)
    names = ("through.sh", "within.sh", "queued.sh", "fresh.sh")
    cluster.script("through.sh", "echo before", cluster.gate("after"), "echo after")
    cluster.script("within.sh", "echo before", cluster.gate("within"), rc=5)
    cluster.script("queued.sh", "echo queued", rc=6)
    cluster.script("fresh.sh", "echo fresh")
    through, within, queued = cluster.submit("through.sh", "within.sh", "queued.sh")
    for job in (through, within):
        cluster.wait_for_state(job, JobState.RUNNING)
    for name in ("through.sh", "within.sh"):
        cluster.wait_for_begin(name)

    with victim.dead():
        cluster.open_gate("within")
        wait_until(
            lambda: len(cluster.runs_of("within.sh")) == 2,
            deadline_s=DEADLINE_S,
            what="a job ends meanwhile",
        )
        with pytest.raises(FleetError, match=r"ended with 69: gpuq: .*check the address"):
            cluster.gpuq("submit", "fresh.sh")
    (fresh,) = cluster.submit("fresh.sh")
    cluster.open_gate("after")
    jobs = (through, within, queued, fresh)
    cluster.wait_for_end(*jobs)

    for name in names:
        assert [what for _, what in cluster.runs_of(name)] == ["begin", "end"], name
    shown = cluster.ended()
    assert [shown[job]["rc"] for job in jobs] == [0, 5, 6, 0]
    assert cluster.logs(through) == b"before\nafter\n"
    assert cluster.verified()["ended_jobs"] == len(jobs)


# --- processes of a node


def find_process(cluster: Cluster, *words: str) -> psutil.Process:
    """The one process of the cluster whose command line holds these words, or paths so named."""
    found = []
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            parts = process.cmdline()
            if set(words) <= {*parts, *(Path(part).name for part in parts)}:
                found.append(process)
    (process,) = found
    return process


def test_a_supervisor_that_was_killed_keeps_alive_what_its_former_self_started(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    worker = WorkerName("n1-cpu0")
    cluster.script("long.sh", "echo on", cluster.gate("end"), rc=7)
    (job,) = cluster.submit("long.sh")
    number = cluster.wait_for_begin("long.sh")
    former = cluster.worker(worker)

    supervisor = find_process(cluster, "supervisor", "n1")
    supervisor.kill()
    supervisor.wait(DEADLINE_S)
    cluster.start_node("n1", 1)
    cluster.wait_until(
        lambda: "node n1 serves" in (folder / "n1.log").read_text(),
        deadline_s=DEADLINE_S,
        what="it is back",
    )
    assert cluster.worker(worker) == former
    cluster.kill_worker(worker)
    cluster.open_gate("end")
    cluster.wait_for_end(job)

    assert cluster.runs_of("long.sh") == [(number, "begin"), (number, "end")]
    assert cluster.job(job).attempts[-1].rc == 7
    cluster.verified()


def test_a_job_whose_runner_was_killed_is_lost_with_the_reason_and_leaves_a_free_slot(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.script("orphan.sh", "(trap '' TERM; setsid sleep 300) &", cluster.gate("never"))
    cluster.script("next.sh")
    (orphan,) = cluster.submit("orphan.sh")
    cluster.wait_for_state(orphan, JobState.RUNNING)
    cluster.wait_for_begin("orphan.sh")
    find_process(cluster, "runner.py").kill()
    (following,) = cluster.submit("next.sh")
    cluster.wait_for_end(orphan, following)

    lost = cluster.job(orphan)
    assert (lost.state, lost.attempts[-1].rc) == (JobState.NODE_FAIL, None)
    assert lost.attempts[-1].reason == "its runner died"
    assert cluster.job(following).state is JobState.COMPLETED
    assert not [p for p in cluster.processes() if p.name() == "sleep"]
