"""A real worker, runner and job on a folder store; kill -9 and signals."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.events import AttemptStarted, JobState, WorkerReady
from ledger.keys import blob_key, log_key, log_piece_key
from ledger.names import JobId
from ledger.timings import Timings
from roles.launcher import LocalLauncher
from roles.status import read_status
from roles.wake import wake
from tests.roles.attempts import DEADLINE_S, kill_runner
from tests.roles.worker_main import context_of
from tests.roles.worker_rig import WORKER, PlayedLeader
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
QUICK = Timings(
    mailbox_alone_ms=100,
    worker_tick_ms=50,
    log_flush_min_ms=100,
    log_flush_max_ms=200,
    grace_ms=2_000,
)


class Site:
    """One slot of this machine, its bucket (a folder) and its leader (this process)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.timings = QUICK
        self.processes: list[subprocess.Popen[bytes]] = []
        self.context = context_of(folder / "store", folder / "state", QUICK)
        self.store = self.context.store
        self.leader = PlayedLeader(self.store, "m1", self.store.clock_ms)
        self.worker_dir = self.context.worker_dir(WORKER)

    def start(self) -> subprocess.Popen[bytes]:
        """A worker, once it has reported that it is ready."""
        before = len(self.leader.said(WorkerReady))
        process = self.spawn()
        self.wait(lambda: len(self.leader.said(WorkerReady)) > before, "ready")
        return process

    def spawn(self) -> subprocess.Popen[bytes]:
        timings = msgspec.json.encode(self.timings).decode()
        store, state = str(self.folder / "store"), str(self.folder / "state")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.roles.worker_main", store, state, timings],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def submit_script(self, script: str, **spec: Any) -> JobId:
        body = script.encode()
        sha256 = hashlib.sha256(body).hexdigest()
        self.store.put_once(blob_key(sha256), body)
        return self.submit(script=sha256, **spec)

    def submit(self, **spec: Any) -> JobId:
        self.leader.turn()
        job = self.leader.world.submit(**{"cwd": str(self.folder), **spec})
        self.leader.turn()
        return job

    def wait(self, condition: Any, what: str) -> None:
        def turn_and_look() -> bool:
            self.leader.turn()
            return bool(condition())

        wait_until(turn_and_look, deadline_s=DEADLINE_S, what=what)

    def wait_for(self, job: JobId, state: JobState) -> None:
        self.wait(lambda: self.leader.job(job).state is state, f"{job} {state}")

    def wait_for_log(self, job: JobId, text: bytes) -> None:
        self.wait(lambda: text in (self.store.get(log_piece_key(job, 1, 0)) or b""), f"{text!r}")

    def clean_up(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        launcher = LocalLauncher(self.worker_dir / "jobs")
        for name in launcher.known():
            attempt = launcher.attempt(*name)
            if attempt.state() == "running":
                wait_until(attempt.runner, deadline_s=DEADLINE_S, what="a runner to begin")
                kill_runner(attempt)
            if attempt.state() == "dead":
                attempt.reap_dead()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.clean_up()


def test_a_job_whose_worker_was_killed_ends_with_its_true_rc_and_whole_log(
    site: Site, tmp_path: Path
) -> None:
    worker = site.start()
    job = site.submit_script(
        "echo begun >> runs\necho first; printf '\\377\\r'\n"
        "until test -e go; do sleep 0.05; done\necho last; exit 7\n"
    )
    site.wait_for_log(job, b"first")
    worker.kill()
    worker.wait()
    site.start()
    (tmp_path / "go").touch()
    site.wait_for(job, JobState.FAILED)
    assert site.leader.attempt(job).rc == 7
    assert site.store.get(log_key(job, 1)) == b"first\n\xff\rlast\nrc=7\n"
    assert (tmp_path / "runs").read_text() == "begun\n"
    assert len(site.leader.said(AttemptStarted)) == 1
    site.wait(lambda: not list((site.worker_dir / "jobs").iterdir()), "its folder to go")


def test_a_job_that_ends_while_no_worker_lives_is_reported_with_its_true_end(
    site: Site, tmp_path: Path
) -> None:
    worker = site.start()
    job = site.submit_script("until test -e go; do sleep 0.05; done; exit 9\n")
    site.wait_for(job, JobState.RUNNING)
    worker.kill()
    worker.wait()
    (tmp_path / "go").touch()
    attempt = LocalLauncher(site.worker_dir / "jobs").attempt(job, 1)
    wait_until(attempt.result, deadline_s=DEADLINE_S, what="its end")
    result = attempt.result()
    assert result is not None
    site.start()
    site.wait_for(job, JobState.FAILED)
    assert site.leader.attempt(job).rc == 9
    assert site.leader.attempt(job).ended_at == result.ended_at_ms


def test_told_to_end_it_lets_its_job_end_first(site: Site, tmp_path: Path) -> None:
    worker = site.start()
    job = site.submit_script("until test -e go; do sleep 0.05; done\n")
    site.wait_for(job, JobState.RUNNING)
    worker.terminate()
    site.wait(lambda: site.leader.world.state.workers[WORKER].retired, "its retirement")
    assert worker.poll() is None
    (tmp_path / "go").touch()
    site.wait_for(job, JobState.COMPLETED)
    assert worker.wait(DEADLINE_S) == 0


def test_told_by_usr2_it_stops_its_job_and_ends(site: Site) -> None:
    worker = site.start()
    job = site.submit(argv=("bash", "-c", "echo on; exec sleep 300"))
    site.wait_for_log(job, b"on")
    worker.send_signal(signal.SIGUSR2)
    assert worker.wait(DEADLINE_S) == 0
    site.leader.turn()
    attempt = site.leader.attempt(job)
    assert (attempt.outcome, attempt.rc) == ("stopped", 128 + signal.SIGTERM)


def test_a_cancelled_job_is_stopped(site: Site) -> None:
    site.start()
    job = site.submit(argv=("bash", "-c", "echo on; exec sleep 300"))
    site.wait_for_log(job, b"on")
    site.leader.world.cancel(job)
    site.wait_for(job, JobState.CANCELLED)
    assert site.leader.attempt(job).outcome == "stopped"


def test_a_directory_that_is_not_here_fails_the_start_with_the_mend(site: Site) -> None:
    site.start()
    job = site.submit(argv=("true",), cwd="/no/such/place")
    site.wait_for(job, JobState.FAILED)
    attempt = site.leader.attempt(job)
    assert attempt.outcome == "failed_to_start"
    assert "--chdir" in attempt.reason


def test_a_second_worker_of_the_slot_is_refused_in_one_line(site: Site) -> None:
    site.start()
    second = site.spawn()
    _, errors = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 64
    assert errors.decode().count("\n") == 1
    assert f"worker {WORKER} already runs on this machine" in errors.decode()


def test_a_worker_that_is_woken_does_not_wait_for_its_next_look(site: Site) -> None:
    site.timings = msgspec.structs.replace(QUICK, mailbox_alone_ms=1_000 * DEADLINE_S * 10)
    site.start()
    wait_until(
        lambda: (status := read_status(site.worker_dir)) is not None and not status.pending_facts,
        deadline_s=DEADLINE_S,
        what="it to be idle",
    )
    job = site.submit(argv=("true",))
    wake(site.worker_dir / "wake")
    site.wait_for(job, JobState.COMPLETED)


def test_its_status_tells_who_it_is_and_what_it_runs(site: Site) -> None:
    worker = site.start()
    job = site.submit(argv=("sleep", "300"))
    site.wait_for(job, JobState.RUNNING)
    wait_until(
        lambda: (
            (status := read_status(site.worker_dir)) is not None and status.running == (f"{job}.1",)
        ),
        deadline_s=DEADLINE_S,
        what="its status",
    )
    status = read_status(site.worker_dir)
    assert status is not None
    assert status.process is not None
    assert status.process.pid == worker.pid
    assert status.writer == site.leader.said(WorkerReady)[0].writer
