"""Launching, adopting, stopping and cleaning up, with real runners and real kill -9."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger.errors import ConflictError, RequestError
from roles.launcher import JobDir, JobHandle, Launcher, LocalLauncher, Plan, RunnerInfo
from roles.processes import Identity, boot_id, identity_of, is_alive, signal_process
from tests.roles.attempts import (
    DEADLINE_S,
    Attempts,
    a_bystander,
    a_plan,
    finish,
    kill_runner,
    log_of,
    named_pids,
    runs,
    wait_for_log,
)
from tests.waiting import wait_until


def test_an_attempt_goes_from_absent_to_ended(attempts: Attempts) -> None:
    job = attempts.new()
    assert (job.state(), job.plan(), job.result(), job.leader()) == ("absent", None, None, None)
    assert (job.log_size(), job.read_log(0, 10)) == (0, b"")
    plan = a_plan(("bash", "-c", "echo begun; read -r < " + str(attempts.root / "gate")))
    os.makedirs(attempts.root)
    os.mkfifo(attempts.root / "gate")
    job.prepare(plan, b"a script")
    assert (job.state(), job.plan(), job.script_path.read_bytes()) == (
        "prepared",
        plan,
        b"a script",
    )
    runner = job.launch()
    wait_for_log(job, b"begun\n")
    leader = job.leader()
    assert job.state() == "running"
    assert job.runner() == runner
    assert leader is not None
    assert is_alive(leader)
    assert os.getsid(runner.pid) == runner.pid, "the worker's terminal could end it"
    assert os.getsid(leader.pid) == leader.pid
    (attempts.root / "gate").write_text("go\n")
    assert finish(job).rc == 0
    assert job.state() == "ended"
    assert job.final_log() == b"begun\n"
    assert job.read_log(2, 3) == b"gun"
    assert identity_of(runner.pid) is None, "the runner is left as a zombie"


def test_a_launcher_knows_what_is_here(attempts: Attempts) -> None:
    launcher: Launcher = LocalLauncher(attempts.root)
    assert launcher.known() == []
    for number in (2, 10):
        launcher.attempt("aaaa2222", number).prepare(a_plan(), None)
    (attempts.root / "lost+found").mkdir()
    handle: JobHandle = launcher.attempt("aaaa2222", 2)
    assert launcher.known() == [("aaaa2222", 2), ("aaaa2222", 10)]
    handle.discard()
    assert launcher.known() == [("aaaa2222", 10)]
    handle.discard()


def test_an_attempt_is_launched_once(attempts: Attempts) -> None:
    job = attempts.start("sleep", "300")
    with pytest.raises(ConflictError):
        JobDir(job.path).launch()
    wait_until(job.runner, deadline_s=DEADLINE_S, what="the start")
    job.stop("enough", 0)
    finish(job)
    with pytest.raises(ConflictError):
        JobDir(job.path).launch()


def test_a_running_attempt_is_not_discarded(attempts: Attempts) -> None:
    job = attempts.start("sleep", "300")
    with pytest.raises(ConflictError):
        job.discard()
    assert job.state() == "running"


def test_a_folder_that_cannot_be_written_says_the_mend(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("a file where the folder should be")
    with pytest.raises(RequestError, match="another state folder"):
        JobDir(tmp_path / "jobs" / "job.1").prepare(a_plan(), None)


def test_a_runner_that_has_written_nothing_yet_counts_as_running(attempts: Attempts) -> None:
    job = attempts.new()
    job.prepare(a_plan(), None)
    with (job.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert job.state() == "running"
    assert job.state() == "prepared"


# --- adoption ----------------------------------------------------------------------------

LAUNCH_AND_DIE = """
import os, signal, sys
from pathlib import Path
from roles.launcher import JobDir
JobDir(Path(sys.argv[1])).launch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_outlives_its_worker_and_is_adopted(attempts: Attempts) -> None:
    gate = attempts.root / "gate"
    job = attempts.new()
    job.prepare(a_plan(("bash", "-c", f"echo one; read -r < {gate}; echo two; exit 6")), None)
    os.mkfifo(gate)
    worker = subprocess.run(
        [sys.executable, "-c", LAUNCH_AND_DIE, str(job.path)],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        timeout=DEADLINE_S,
    )
    assert worker.returncode == -signal.SIGKILL
    adopted = JobDir(job.path)
    wait_for_log(adopted, b"one\n")
    assert adopted.state() == "running"
    gate.write_text("go\n")
    assert finish(adopted).rc == 6
    assert adopted.final_log() == b"one\ntwo\n"


def test_an_adopted_job_can_be_stopped(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "trap 'exit 3' TERM; echo ready; sleep 300 & wait")
    wait_for_log(job, b"ready")
    adopted = JobDir(job.path)
    adopted.stop("cancelled", 20_000)
    assert (finish(adopted).outcome, finish(adopted).rc) == ("stopped", 3)


# --- a runner killed with -9 -------------------------------------------------------------


def test_a_dead_runner_leaves_nothing_behind(attempts: Attempts) -> None:
    with a_bystander() as bystander:
        job = attempts.start(
            "bash",
            "-c",
            "setsid sleep 300 & echo escaped $!; echo leader $$; wait",
        )
        pids = named_pids(job, "escaped", "leader")
        kill_runner(job)
        assert job.state() == "dead"
        wait_until(lambda: not runs(pids["leader"]), deadline_s=DEADLINE_S, what="PDEATHSIG")
        assert runs(pids["escaped"]), "else this test shows nothing"
        killed = JobDir(job.path).reap_dead()
        assert {identity.pid for identity in killed.gone} == {pids["escaped"]}
        assert killed.left == set()
        assert not runs(pids["escaped"])
        assert runs(bystander.pid)
    assert (job.state(), job.result()) == ("dead", None)


def test_the_log_of_a_dead_runner_is_made_whole(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "seq 1000; sleep 300", log_cap_bytes=1_000)
    written = "".join(f"{n}\n" for n in range(1, 1_001)).encode()
    tail = job.path / "log.tail"
    wait_until(
        lambda: tail.exists() and b"\n1000\n" in tail.read_bytes(),
        deadline_s=DEADLINE_S,
        what="the end of the output",
    )
    assert log_of(job) == written[:500]
    kill_runner(job)
    job.reap_dead()
    mark = f"\n[gpuq: {len(written) - 1_000} bytes of this log left out here]\n".encode()
    assert job.final_log() == written[:500] + mark + written[-500:]


# --- a folder that was deleted -------------------------------------------------------------


def test_a_runner_whose_folder_was_deleted_ends_its_job(attempts: Attempts) -> None:
    with a_bystander() as bystander:
        job = attempts.start(
            "bash", "-c", "trap '' TERM; setsid sleep 300 & echo escaped $!; echo leader $$; wait"
        )
        pids = named_pids(job, "escaped", "leader")
        runner = job.runner()
        assert job.plan() is not None
        assert runner is not None
        shutil.rmtree(job.path)
        # Whoever saw the runner does not take its slot for free before it has gone.
        wait_until(lambda: job.state() != "running", deadline_s=DEADLINE_S, what="its end")
        assert not is_alive(runner)
        assert [name for name, pid in pids.items() if runs(pid)] == []
        assert job.state() == "absent"
        assert job.reap_dead() == (set(), set())
        assert runs(bystander.pid)


def test_what_a_runner_leaves_that_dies_after_its_folder_was_deleted_is_killed(
    attempts: Attempts,
) -> None:
    job = attempts.start("bash", "-c", "setsid sleep 300 & echo escaped $!; wait")
    pids = named_pids(job, "escaped")
    runner = job.runner()
    assert job.plan() is not None
    assert runner is not None
    signal_process(runner, signal.SIGSTOP)
    shutil.rmtree(job.path)
    assert job.state() == "running"
    kill_runner(job)
    assert (job.state(), runs(pids["escaped"])) == ("absent", True)
    assert {identity.pid for identity in job.reap_dead().gone} == {pids["escaped"]}
    assert not runs(pids["escaped"])


@pytest.mark.parametrize("another", ["start_ticks", "boot_id"])
def test_a_state_file_that_names_a_foreign_process_leads_to_no_signal(
    attempts: Attempts, another: str
) -> None:
    with a_bystander() as bystander:
        seen = identity_of(bystander.pid)
        assert seen is not None
        wrong: dict[str, Any] = {"start_ticks": seen.start_ticks - 1, "boot_id": "another boot"}
        foreign = seen._replace(**{another: wrong[another]})
        job = attempts.new()
        job.prepare(a_plan(), None)
        info = msgspec.json.encode(RunnerInfo(runner=foreign, leader=foreign))
        (job.path / "runner.json").write_bytes(info)
        assert job.state() == "dead"
        job.stop("now", 0)
        assert job.reap_dead() == (set(), set())
        with pytest.raises(subprocess.TimeoutExpired):
            bystander.wait(timeout=0.2)


# --- what stands in the files -------------------------------------------------------------


def test_the_runner_notes_itself_and_the_leader(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "echo leader $$; sleep 300")
    leader = named_pids(job, "leader")["leader"]
    noted = json.loads((job.path / "runner.json").read_bytes())
    assert Identity(*noted["leader"]) == identity_of(leader)
    assert Identity(*noted["runner"]) == job.runner()
    assert noted["runner"][2] == boot_id()


def test_a_plan_survives_its_file(attempts: Attempts) -> None:
    plan = a_plan(("echo", "[/x] \N{EURO SIGN} \n"), time_limit_ms=5, umask=0o77)
    job = attempts.new()
    job.prepare(plan, None)
    assert JobDir(job.path).plan() == plan
    assert isinstance(plan, Plan)
