"""Real supervisors: tmux windows, the idle end, a second machine, drains."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from ledger.clock import SystemClock
from ledger.events import JobState
from ledger.names import NodeName, WorkerName
from ledger.stores import open_store
from roles.worker import NOT_OFFERED
from tests.e2e.cluster import PREFIX, Cluster, Place
from tests.faults.proxy import FaultProxy, refuses
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import _moto, s3_credentials  # noqa: F401 - used by their names
from tests.waiting import wait_until

SCALE = 10
END_S = 90
IDLE = "10s"
"""Longer than a node takes to take up the job that waits for it."""

SESSION = "gpuq"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because the path of a tmux socket must be; by its name processes are found."""
    made = Path(tempfile.mkdtemp(prefix="gpuq-sup-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def cluster(folder: Path) -> Iterator[Cluster]:
    """On a folder; what runs of it at the end, also a tmux server, is killed."""
    url = (folder / "ledger").as_uri()
    place = Place(
        url,
        lambda: open_store(url, clock=SystemClock(), rng=random.Random()),
        env={"TMUX_TMPDIR": str(folder / "tmux")},
    )
    with Cluster(folder, place, time_scale=SCALE) as cluster:
        (folder / "tmux").mkdir()
        cluster.init()
        yield cluster


def start(cluster: Cluster, node: str, options: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A supervisor of one CPU slot that is not the cluster's to watch."""
    cluster.start_node(node, 1, options)
    return cluster._supervisors.pop(node)


def said_by(cluster: Cluster, node: str) -> str:
    return (cluster.folder / f"{node}.log").read_text()


# --- tmux


@pytest.fixture
def tmux(folder: Path) -> Tmux:
    if shutil.which("tmux") is None:
        if os.environ.get("CI"):
            pytest.fail("tmux is not installed")
        pytest.skip("tmux is not installed")
    return Tmux(folder)


class Tmux:
    """The operator's look at his tmux server, of which nobody else knows the socket."""

    def __init__(self, folder: Path) -> None:
        self._env = {**os.environ, "TMUX_TMPDIR": str(folder / "tmux"), "HOME": str(folder)}

    def __call__(self, *words: str) -> str:
        done = subprocess.run(["tmux", *words], env=self._env, capture_output=True, text=True)
        return done.stdout

    def panes(self) -> dict[str, int]:
        """The process of each window."""
        lines = self("list-panes", "-s", "-t", SESSION, "-F", "#{window_name} #{pane_pid}")
        return {name: int(pid) for name, pid in (line.split() for line in lines.splitlines())}


def test_each_worker_runs_in_a_window_of_its_name(cluster: Cluster, tmux: Tmux) -> None:
    cluster.start_node("n1", 2, {"--tmux": SESSION})
    workers = [WorkerName("n1-cpu0"), WorkerName("n1-cpu1")]
    cluster.wait_until(
        lambda: set(workers) <= {w.name for w in cluster.state().workers.values() if w.ready},
        deadline_s=END_S,
        what="both workers are ready",
    )
    former = tmux.panes()
    assert list(former) == workers
    for name, pid in former.items():
        assert psutil.Process(pid).cmdline()[-4:-2] == ["--worker", name]
    assert "ready" in tmux("capture-pane", "-p", "-t", f"{SESSION}:n1-cpu0")
    assert not list((cluster.folder / "state").rglob("*.env"))  # it holds the environment
    (job,) = cluster.submit(cluster.script("a.sh", "sleep 0.1"))
    cluster.wait_for_end(job)
    assert cluster.job(job).state is JobState.COMPLETED

    psutil.Process(former["n1-cpu0"]).kill()
    wait_until(
        lambda: tmux.panes()["n1-cpu0"] != former["n1-cpu0"],
        deadline_s=END_S,
        what="another worker is there",
    )
    assert list(tmux.panes()) == workers
    # tmux 3.3a loses about a third of the exit statuses for good; then none is invented.
    (said,) = re.findall(r"event='ended' process='n1-cpu0' rc=(\S+)", said_by(cluster, "n1"))
    assert said in ("-9", "'unknown'")
    cluster.drain()
    assert tmux("list-sessions") == ""


def test_a_worker_whose_window_is_closed_comes_back_in_a_new_one(
    cluster: Cluster, tmux: Tmux
) -> None:
    cluster.start_node("n1", 1, {"--tmux": SESSION})
    wait_until(lambda: "n1-cpu0" in tmux.panes(), deadline_s=END_S, what="the window is there")
    former = tmux.panes()["n1-cpu0"]
    tmux("kill-server")
    wait_until(
        lambda: tmux.panes().get("n1-cpu0", former) != former,
        deadline_s=END_S,
        what="a new window is there",
    )
    assert psutil.Process(tmux.panes()["n1-cpu0"]).is_running()


def test_without_tmux_workers_run_detached_and_it_is_said(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = folder / "bin" / "tmux"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no server >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setitem(cluster._env, "PATH", f"{broken.parent}:{os.environ['PATH']}")
    cluster.start_node("n1", 1, {"--tmux": SESSION})
    (job,) = cluster.submit(cluster.script("a.sh"))
    cluster.wait_for_end(job)
    detached = "event='runs detached' process='n1-cpu0' reason='no server'"
    assert detached in said_by(cluster, "n1")


# --- the idle end


@pytest.fixture
def notes(folder: Path) -> Path:
    """What ``--on-idle`` writes."""
    return folder / "notes"


def test_an_idle_node_ends_once_its_work_is_done(cluster: Cluster, notes: Path) -> None:
    (job,) = cluster.submit(cluster.script("a.sh", cluster.gate("open"), rc=3))
    on_idle = f"echo over >>{notes}; exit 5"
    supervisor = start(cluster, "n1", {"--idle-exit": IDLE, "--on-idle": on_idle})
    cluster.wait_for_begin("a.sh")
    assert supervisor.poll() is None
    cluster.open_gate("open")
    assert supervisor.wait(END_S) == 5
    assert notes.read_text() == "over\n"
    assert (cluster.job(job).state, cluster.job(job).attempts[0].rc) == (JobState.FAILED, 3)
    assert cluster.state().workers[WorkerName("n1-cpu0")].retired
    assert list(cluster.processes()) == []


def test_a_drain_is_no_idle_end(cluster: Cluster, notes: Path) -> None:
    supervisor = start(cluster, "n1", {"--idle-exit": "1h", "--on-idle": f"touch {notes}"})
    wait_until(
        lambda: "n1-cpu0" in cluster.state().workers, deadline_s=END_S, what="its worker reported"
    )
    supervisor.terminate()
    assert supervisor.wait(END_S) == 0
    assert not notes.exists()


def test_an_idle_node_ends_also_while_the_bucket_is_away(
    folder: Path, notes: Path, moto: Server, request: pytest.FixtureRequest
) -> None:
    """And what it could not report is reported when it comes back."""
    request.getfixturevalue("s3_credentials")
    bucket = moto.new_bucket()
    with FaultProxy(moto.endpoint_url) as proxy:
        place = Place(
            f"s3://{bucket}/{PREFIX}",
            lambda: moto.open(bucket, PREFIX),
            ("--endpoint-url", proxy.url),
            CREDENTIALS_ENV,
        )
        with Cluster(folder, place, time_scale=SCALE) as cluster:
            cluster.init()
            (job,) = cluster.submit(cluster.script("a.sh", cluster.gate("open"), rc=3))
            options = {"--idle-exit": IDLE, "--on-idle": f"echo over >>{notes}"}
            supervisor = start(cluster, "n1", options)
            cluster.wait_for_begin("a.sh")
            outage = [
                proxy.inject(refuses(503, "SlowDown"), method=method, count=None)
                for method in ("GET", "PUT", "HEAD")
            ]
            cluster.open_gate("open")
            assert supervisor.wait(END_S) == 0
            assert notes.read_text() == "over\n"
            for injection in outage:
                injection.stop()
            start(cluster, "n1", {})
            cluster.wait_for_end(job)
            (attempt,) = cluster.job(job).attempts
            assert (cluster.job(job).state, attempt.rc) == (JobState.FAILED, 3)


def test_a_node_that_cannot_begin_ends_at_its_idle_limit(folder: Path, notes: Path) -> None:
    with Cluster(folder, nowhere(), time_scale=SCALE) as cluster:
        options = {"--idle-exit": "1s", "--on-idle": f"echo over >>{notes}"}
        options["--endpoint-url"] = "http://127.0.0.1:1"
        assert start(cluster, "n1", options).wait(END_S) == 0
        assert notes.read_text() == "over\n"


def nowhere() -> Place:
    """A bucket that nobody serves."""
    url = f"s3://bucket/{PREFIX}"
    return Place(
        url,
        lambda: open_store(url, clock=SystemClock(), rng=random.Random()),
        env=CREDENTIALS_ENV,
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["--on-idle", "true"],
            "--on-idle needs to know when: give --idle-exit, such as 30m",
        ),
        (
            ["--tmux", "a:b"],
            "--tmux 'a:b' is no session's name: use a-z, A-Z, 0-9, '-' and '_'",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(
    gpuq_env: Mapping[str, str], args: list[str], said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuq", "supervisor", *args],
        env=dict(gpuq_env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (64, f"gpuq: {said}\n")


# --- a second machine under the same name


def test_a_second_machine_under_a_living_nodes_name_is_refused(cluster: Cluster) -> None:
    cluster.serve("n1", 1)
    state_dir = str(cluster.folder / "state" / "elsewhere")
    done = subprocess.run(
        [*cluster.command("supervisor"), "--node", "n1", "--slots", "1"],
        env={**cluster.user_env, "GPUQ_STATE_DIR": state_dir},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 64
    assert " serves pool " not in done.stderr
    (refusal,) = (line for line in done.stderr.splitlines() if "is alive" in line)
    (machine,) = {w.node for w in cluster.state().workers.values()}
    assert machine == "n1"
    host = cluster.gpuq("nodes", "--json").split('"host": "')[1].split('"')[0]
    assert refusal.startswith(f"gpuq: node n1 is alive on another machine ({host}, last beat ")
    assert refusal.endswith("or wait until it has been silent for 60 s")
    known = cluster.state().nodes[NodeName("n1")]
    assert (known.intruder, len(known.workers)) == ("", 1)


# --- a signal before the time limit


def test_a_job_can_save_before_its_time_limit(cluster: Cluster) -> None:
    cluster.serve("n1", 1)
    trap = f"trap 'echo \"a.sh $GPUQ_ATTEMPT saved\" >>{cluster.witness}; exit 4' USR1"
    script = cluster.script("a.sh", trap, "while :; do sleep 0.05; done")
    (job,) = cluster.submit("--time", "1h", "--signal", "USR1@3598", script)
    cluster.wait_for_end(job)
    (attempt,) = cluster.job(job).attempts
    assert cluster.runs_of("a.sh") == [(1, "begin"), (1, "saved")]
    assert (attempt.outcome, attempt.rc) == ("exited", 4)
    assert attempt.ended_at is not None
    assert attempt.started_at is not None
    assert attempt.ended_at - attempt.started_at >= 2_000  # and not before 2 s of the hour


# --- drain


def test_drain_now_runs_the_job_elsewhere_and_outlives_the_supervisor(cluster: Cluster) -> None:
    cluster.serve("n1", 1)
    trap = f"trap 'echo \"a.sh $GPUQ_ATTEMPT saved\" >>{cluster.witness}; exit 1' TERM"
    lines = [trap, "if [ $GPUQ_ATTEMPT = 1 ]; then while :; do sleep 0.05; done; fi"]
    (job,) = cluster.submit(cluster.script("a.sh", *lines))
    cluster.wait_for_begin("a.sh", attempt=1)
    cluster.serve("n2", 1)
    cluster.gpuq("drain", "n1", "--now", "--reason", "new disk")
    cluster.wait_for_end(job)
    first, second = cluster.job(job).attempts
    assert (cluster.job(job).state, cluster.job(job).requeues) == (JobState.COMPLETED, 1)
    assert (first.outcome, first.rc, second.slots) == ("stopped", 1, ("n2-cpu0",))
    assert cluster.runs_of("a.sh") == [(1, "begin"), (1, "saved"), (2, "begin"), (2, "end")]

    cluster.kill_node("n1")
    former = cluster.state().workers[WorkerName("n1-cpu0")].writer
    cluster.start_node("n1", 1)
    cluster.wait_until(
        lambda: cluster.state().workers[WorkerName("n1-cpu0")].writer != former,
        deadline_s=END_S,
        what="n1 is back",
    )
    assert "drained, empty (new disk)" in cluster.gpuq("nodes")
    (again,) = cluster.submit(cluster.script("b.sh"))
    cluster.wait_for_end(again)
    assert cluster.job(again).attempts[0].slots == ("n2-cpu0",)
    cluster.verified()


# --- fewer slots than before


@pytest.mark.parametrize("dies", ["the worker too", "the supervisor alone"])
def test_the_worker_of_a_slot_that_is_no_longer_offered_ends_its_job_and_leaves(
    cluster: Cluster, dies: str
) -> None:
    cluster.serve("n1", 2)
    withdrawn, kept = WorkerName("n1-cpu1"), WorkerName("n1-cpu0")
    cluster.script("wide.sh", cluster.gate("end"), rc=5)
    (wide,) = cluster.submit("--gpus", "2", "--worker", withdrawn, "wide.sh")
    cluster.wait_for_state(wide, JobState.RUNNING)
    assert cluster.job(wide).attempts[0].slots == (withdrawn, kept)
    supervisor = cluster._supervisors.pop("n1")
    supervisor.kill()
    supervisor.wait()
    if dies == "the worker too":
        cluster.worker(withdrawn).kill()
    cluster.start_node("n1", 1)
    cluster.wait_until(
        lambda: cluster.state().workers[withdrawn].retired == NOT_OFFERED,
        deadline_s=END_S,
        what="it has retired",
    )
    assert cluster.job(wide).state is JobState.RUNNING
    assert cluster.state().workers[kept].occupant is not None
    (following,) = cluster.submit(cluster.script("next.sh"))
    cluster.open_gate("end")
    cluster.wait_for_end(wide, following)
    assert cluster.job(wide).attempts[0].rc == 5
    assert cluster.job(following).attempts[0].slots == (kept,)
    assert cluster.runs_of("wide.sh") == [(1, "begin"), (1, "end")]
    cluster.drain()
    cluster.verified()
