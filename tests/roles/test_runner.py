"""What the runner promises of a job's life: real bash jobs, real signals."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roles.launcher import JobDir
from roles.processes import boot_id, boot_ms, signal_process
from roles.runner import __file__ as RUNNER_PROGRAM
from tests.roles.attempts import (
    DEADLINE_S,
    ENV,
    EPOCH_OFFSET_MS,
    Attempts,
    a_bystander,
    a_plan,
    errors_of,
    finish,
    log_of,
    named_pids,
    runs,
    wait_for_log,
)
from tests.waiting import wait_until

# --- done means exited -------------------------------------------------------------------


def test_a_job_ends_with_its_shell_and_the_stray_child_is_gone(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "sleep 300 & echo stray $!; exit 4")
    result = finish(job)
    assert (result.outcome, result.rc, result.signal) == ("exited", 4, None)
    assert result.left_behind == 1
    assert not runs(named_pids(job, "stray")["stray"])


def test_a_job_that_closes_its_output_is_not_over_yet(attempts: Attempts) -> None:
    result = attempts.run("bash", "-c", "exec >&- 2>&-; sleep 1; exit 7")
    assert (result.outcome, result.rc) == ("exited", 7)
    assert result.ended_at_ms - result.started_at_ms >= 1_000


def test_output_that_a_process_substitution_still_holds_is_not_lost(
    attempts: Attempts,
) -> None:
    job = attempts.start("bash", "-c", "exec > >(sleep 0.1; cat); echo last words")
    result = finish(job)
    assert log_of(job) == b"last words\n"
    assert result.left_behind == 0


def test_what_escaped_every_other_way_is_found_by_the_token(attempts: Attempts) -> None:
    token = os.urandom(8).hex()
    with a_bystander({**ENV, "GPUQ_TOKEN": token}) as escaped, a_bystander() as bystander:
        result = attempts.run("true", token=token)
        assert result.left_behind == 1
        assert escaped.wait(timeout=DEADLINE_S) == -signal.SIGKILL
        assert runs(bystander.pid)


def test_a_job_killed_by_a_signal_has_the_rc_that_a_shell_shows(attempts: Attempts) -> None:
    result = attempts.run("bash", "-c", "kill -KILL $$")
    assert (result.outcome, result.rc, result.signal) == ("exited", 137, "KILL")
    assert result.oom is False


def test_times_are_on_the_clock_of_the_store(attempts: Attempts) -> None:
    earliest_ms = boot_ms() + EPOCH_OFFSET_MS
    result = attempts.run("true")
    latest_ms = boot_ms() + EPOCH_OFFSET_MS
    assert earliest_ms <= result.started_at_ms <= result.ended_at_ms <= latest_ms


# --- bash as it is without gpuq -----------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        'echo "$0" "$#" "$2"',
        "set -e\nfalse\necho not reached\n",
        "trap 'echo bye' EXIT\nexit 3\n",
        "echo one\nexit 5\necho two\n",
        "echo one\nif true; then\n",
        "#!/bin/sh\necho plain sh: $0\n",
        "",
        "read -r line || echo nothing on standard input\n",
        "yes | head -n 1\n",
    ],
)
def test_a_script_behaves_as_under_plain_bash(attempts: Attempts, script: str) -> None:
    job = attempts.start_script(script, "first", "second argument")
    result = finish(job)
    interpreter = [] if script.startswith("#!") else ["bash"]
    plain = subprocess.run(
        [*interpreter, job.script_path, "first", "second argument"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENV,
        cwd="/",
        timeout=DEADLINE_S,
    )
    assert (log_of(job), result.rc) == (plain.stdout, plain.returncode)


def test_the_environment_is_the_plans_and_two_more(attempts: Attempts) -> None:
    job = attempts.start("env", env={**ENV, "X": "a b\nc"}, token="t0ken")
    finish(job)
    expected = {f"PATH={ENV['PATH']}", "X=a b", "c", "GPUQ_TOKEN=t0ken"}
    assert set(log_of(job).decode().splitlines()) == {
        *expected,
        f"GPUQ_CANCEL={job.path}/cancel",
    }


def test_a_job_inherits_neither_files_nor_ignored_signals(attempts: Attempts) -> None:
    leak, other = os.pipe()
    os.set_inheritable(leak, True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = attempts.start(
            "bash", "-c", "echo fds: $(ls /proc/$$/fd); grep -E 'Sig(Ign|Blk)' /proc/$$/status"
        )
        finish(job)
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(leak)
        os.close(other)
    fds, *masks = log_of(job).decode().splitlines()
    # bash keeps the script of -c in no file, and its own spare descriptor is 255.
    assert set(fds.split()[1:]) - {"255", "3"} == {"0", "1", "2"}
    ordinary = (1 << 31) - 1  # above are those that the C library keeps to itself
    assert [int(mask.split()[1], 16) & ordinary for mask in masks] == [0, 0]


def test_the_umask_and_directory_are_the_plans(attempts: Attempts, tmp_path: Path) -> None:
    job = attempts.start("bash", "-c", "umask; pwd", umask=0o027, cwd=str(tmp_path))
    finish(job)
    assert log_of(job).decode() == f"0027\n{tmp_path}\n"


# --- what cannot be started --------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "mode", "rc", "mend"),
    [
        (b"#!/no/such/python\n", 0o700, 127, "needs '/no/such/python', which is not on this"),
        (b"#!/bin/bash\r\necho\r\n", 0o700, 127, "end in CR LF; save it with Unix line ends"),
        (b"\x00\x01 no program", 0o700, 126, "has no #! line; name its interpreter"),
        (b"#!/bin/bash\n", 0o600, 126, "chmod +x it, or name its interpreter"),
    ],
)
def test_a_program_that_cannot_be_executed_says_the_mend(
    attempts: Attempts, tmp_path: Path, body: bytes, mode: int, rc: int, mend: str
) -> None:
    program = tmp_path / "program"
    program.write_bytes(body)
    program.chmod(mode)
    result = attempts.run(str(program))
    assert (result.outcome, result.rc) == ("failed_to_start", rc)
    assert str(program) in result.reason
    assert mend in result.reason


def test_an_unknown_command_says_so(attempts: Attempts) -> None:
    result = attempts.run("no-such-command")
    assert (result.outcome, result.rc) == ("failed_to_start", 127)
    assert result.reason.startswith("'no-such-command' was not found on this node; ")


def test_a_missing_directory_is_refused(attempts: Attempts, tmp_path: Path) -> None:
    result = attempts.run("true", cwd=str(tmp_path / "missing"))
    assert (result.outcome, result.rc) == ("failed_to_start", 126)
    assert "missing: No such file or directory; submit with --chdir" in result.reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"claim_boot_ms": boot_ms() - 31_000, "start_within_ms": 30_000}, "30000 are allowed"),
        ({"boot_id": "another boot"}, "restarted after the claim"),
    ],
)
def test_a_late_start_is_no_start(
    attempts: Attempts, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    marker = tmp_path / "marker"
    result = attempts.run("touch", str(marker), **changes)
    assert (result.outcome, result.rc) == ("not_started", None)
    assert reason in result.reason
    assert not marker.exists()


def test_a_job_stopped_before_its_start_does_not_start(attempts: Attempts) -> None:
    job = attempts.new()
    job.prepare(a_plan(), None)
    job.stop("changed my mind", 1_000)
    job.launch()
    assert finish(job).outcome == "not_started"


# --- stopping ----------------------------------------------------------------------------

ESCAPING = """
setsid sleep 300 & echo setsid $!
(setsid bash -c 'sleep 300 & echo daemon $!' &)
env -i setsid sleep 300 & echo nameless $!
bash -c 'trap "echo heard it" TERM; echo stubborn $$; while :; do sleep 0.05; done' &
wait
"""


def test_stop_kills_the_whole_tree_after_the_grace_and_nothing_else(
    attempts: Attempts,
) -> None:
    names = ("setsid", "daemon", "nameless", "stubborn")
    with a_bystander() as bystander:
        job = attempts.start_script(ESCAPING)
        sibling = attempts.start("sleep", "300")
        pids = named_pids(job, *names)
        job.stop("not needed", 1_500)
        result = finish(job)
        assert (result.outcome, result.reason) == ("stopped", "not needed")
        assert (result.rc, result.signal) == (143, "TERM")
        assert [name for name in names if runs(pids[name])] == []
        assert result.unkillable == ()
        assert runs(bystander.pid)
        assert sibling.state() == "running"
    assert b"heard it" in log_of(job)


def test_the_leader_hears_term_first_and_may_choose_its_rc(attempts: Attempts) -> None:
    job = attempts.start_script(
        "trap 'ls \"$GPUQ_CANCEL\"; echo leader; exit 5' TERM\n"
        "bash -c 'trap \"echo child; exit\" TERM; echo ready; while :; do wait; done' &\n"
        "wait\n"
    )
    wait_for_log(job, b"ready")
    job.stop("save your work", 20_000)
    result = finish(job)
    assert (result.outcome, result.rc, result.left_behind) == ("stopped", 5, 0)
    assert log_of(job).decode() == f"ready\n{job.path}/cancel\nleader\nchild\n"


def test_a_second_stop_shortens_the_grace_and_keeps_the_first_reason(
    attempts: Attempts,
) -> None:
    job = attempts.start("bash", "-c", "trap '' TERM; echo ready; sleep 300")
    wait_for_log(job, b"ready")
    job.stop("first", 600_000)
    wait_until((job.path / "cancel").exists, deadline_s=DEADLINE_S, what="the first stop")
    job.stop("second", 0)
    result = finish(job)
    assert (result.outcome, result.reason, result.signal) == ("stopped", "first", "KILL")
    assert result.oom is False


def test_a_second_stop_cannot_lengthen_the_grace(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "trap '' TERM; echo ready; sleep 300")
    wait_for_log(job, b"ready")
    job.stop("first", 1_500)
    wait_until((job.path / "cancel").exists, deadline_s=DEADLINE_S, what="the first stop")
    job.stop("second", 600_000)
    assert finish(job).signal == "KILL"


def test_a_stop_is_noticed_without_its_signal(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "echo ready; sleep 300")
    wait_for_log(job, b"ready")
    (job.path / "stop.new").write_text('{"reason": "by hand", "grace_ms": 1000}')
    (job.path / "stop.new").rename(job.path / "stop.json")
    assert finish(job).reason == "by hand"


def test_a_runner_that_is_told_to_end_stops_its_job(attempts: Attempts) -> None:
    job = attempts.start("bash", "-c", "trap 'exit 9' TERM; echo ready; sleep 300 & wait")
    wait_for_log(job, b"ready")
    runner = job.runner()
    assert runner is not None
    signal_process(runner, signal.SIGTERM)
    result = finish(job)
    assert (result.outcome, result.rc) == ("stopped", 9)


# --- limits ------------------------------------------------------------------------------


def test_the_time_limit_ends_a_job_that_ignores_term(attempts: Attempts) -> None:
    result = attempts.run(
        "bash", "-c", "trap '' TERM; sleep 300", time_limit_ms=2_000, grace_ms=300
    )
    assert (result.outcome, result.rc, result.signal) == ("timeout", 137, "KILL")
    assert result.ended_at_ms - result.started_at_ms >= 2_300


def test_the_deadline_ends_a_job_before_its_limit(attempts: Attempts) -> None:
    result = attempts.run(
        "bash",
        "-c",
        "trap 'ls \"$GPUQ_CANCEL\" && exit 3' TERM; sleep 300 & wait",
        time_limit_ms=100_000,
        deadline_boot_ms=boot_ms() + 2_000,
        grace_ms=30_000,
    )
    assert (result.outcome, result.rc, result.reason) == (
        "deadline", 3, "its deadline has passed",
    )  # fmt: skip


def test_a_job_can_save_its_work_before_the_limit(attempts: Attempts) -> None:
    job = attempts.start(
        "bash",
        "-c",
        "trap 'ls \"$GPUQ_CANCEL\"; exit 0' USR1; sleep 300 & wait",
        time_limit_ms=100_000,
        lead_ms=98_000,
        signal="USR1",
    )
    result = finish(job)
    assert (result.outcome, result.rc) == ("exited", 0)
    assert result.ended_at_ms - result.started_at_ms >= 2_000
    assert log_of(job).decode() == f"{job.path}/cancel\n"


def test_an_exclusive_job_dies_without_the_bucket(attempts: Attempts) -> None:
    result = attempts.run("sleep", "300", exclusive_ms=300)
    assert (result.outcome, result.rc) == ("exclusive", 137)
    assert "no news from the bucket" in result.reason


def test_an_exclusive_job_lives_while_the_bucket_is_seen(attempts: Attempts) -> None:
    job = attempts.new()
    job.prepare(a_plan(("sleep", "1"), exclusive_ms=300), None)
    job.note_bucket_seen(boot_ms() + 60_000)
    job.launch()
    assert finish(job).outcome == "exited"


def test_silence_before_its_start_counts_against_an_exclusive_job(attempts: Attempts) -> None:
    job = attempts.new()
    job.prepare(a_plan(("sleep", "300"), exclusive_ms=60_000), None)
    job.note_bucket_seen(boot_ms() - 59_500)
    job.launch()
    assert finish(job).outcome == "exclusive"


# --- the log -----------------------------------------------------------------------------


def test_the_log_is_the_jobs_bytes(attempts: Attempts, tmp_path: Path) -> None:
    written = bytes(range(256)) * 3 + b"x" * 1_000_000 + "\r50 %\r\N{EURO SIGN}".encode()[:-1]
    (tmp_path / "written").write_bytes(written)
    job = attempts.start("cat", str(tmp_path / "written"))
    result = finish(job)
    assert job.final_log() == written
    assert (result.log_bytes, result.log_cut, result.log_lost_bytes) == (
        len(written),
        False,
        0,
    )


def test_a_log_over_the_cap_keeps_head_and_tail(attempts: Attempts) -> None:
    written = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    job = attempts.start("seq", "100000", log_cap_bytes=10_000)
    result = finish(job)
    mark = f"\n[gpuq: {len(written) - 10_000} bytes of this log left out here]\n".encode()
    assert job.final_log() == written[:5_000] + mark + written[-5_000:]
    assert (result.log_bytes, result.log_cut) == (len(written), True)


def test_a_full_disk_costs_log_bytes_and_nothing_else(attempts: Attempts) -> None:
    job = attempts.new()
    job.prepare(a_plan(("bash", "-c", "head -c 100000 /dev/zero; echo end; exit 4")), None)
    run_with_file_limit(job, 40_000)
    result = job.result()
    assert result is not None
    assert (result.outcome, result.rc) == ("exited", 4)
    assert result.log_bytes == 100_004
    assert result.log_lost_bytes == 100_004 - 40_000
    assert result.log_problem == "File too large"
    assert job.final_log() == bytes(40_000)


def run_with_file_limit(job: JobDir, size_bytes: int) -> None:
    """The runner in the foreground, where no file can grow beyond ``size_bytes``."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    subprocess.run(
        [sys.executable, "-I", "-S", RUNNER_PROGRAM, str(job.path)],
        preexec_fn=limit,
        check=True,
        timeout=DEADLINE_S,
    )


# --- memory ------------------------------------------------------------------------------

CGROUPS = Path("/sys/fs/cgroup/memory")


HUNGRY = f"{sys.executable} -c 'print(len(bytearray(400_000_000)))'"


@pytest.mark.skipif(
    not os.access(CGROUPS / "cgroup.procs", os.W_OK), reason="needs a memory cgroup (v1)"
)
@pytest.mark.parametrize(
    ("script", "outcome", "is_oom"),
    [
        (f"exec {HUNGRY}", "exited", True),
        (HUNGRY, "exited", True),
        (f"{HUNGRY}; exit 1", "exited", False),
        (f"trap '' TERM; {HUNGRY}; sleep 300", "timeout", False),
    ],
)
def test_a_job_killed_for_memory_is_told_from_one_that_was_killed(
    attempts: Attempts, script: str, outcome: str, is_oom: bool
) -> None:
    group = CGROUPS / f"gpuq-test-{os.getpid()}"
    job = attempts.new()
    plan = a_plan(("bash", "-c", script), time_limit_ms=4_000, grace_ms=100)
    job.prepare(plan, None)
    command = [sys.executable, "-I", "-S", RUNNER_PROGRAM, str(job.path)]
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("100000000")
        subprocess.run(
            ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(group / "cgroup.procs"), *command],
            check=True,
            timeout=DEADLINE_S,
        )
        assert "oom_kill 1" in (group / "memory.oom_control").read_text()
    finally:
        group.rmdir()
    result = job.result()
    assert result is not None
    assert (result.outcome, result.oom) == (outcome, is_oom)


# --- the program itself ------------------------------------------------------------------


def test_the_runner_imports_the_standard_library_alone() -> None:
    listing = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LIST_MODULES, RUNNER_PROGRAM],
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    foreign = set(listing.stdout.split()) - sys.stdlib_module_names
    assert foreign == {"roles", "__main__"}


LIST_MODULES = """
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent.parent))
import roles.runner
print(*{name.partition('.')[0] for name in sys.modules})
"""


def test_a_second_runner_of_the_same_attempt_refuses(attempts: Attempts) -> None:
    job = attempts.start("sleep", "300")
    wait_until(job.runner, deadline_s=DEADLINE_S, what="the start")
    second = subprocess.run(
        [sys.executable, "-I", "-S", RUNNER_PROGRAM, str(job.path)],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert second.returncode != 0
    assert b"BlockingIOError" in second.stderr
    assert job.state() == "running"
    assert errors_of(job) == ""


def test_the_boot_id_is_the_kernels() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
