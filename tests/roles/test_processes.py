"""Identity, signals that hit nobody else, trees, and the machine's id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from roles.processes import (
    Identity,
    find_tree,
    identity_of,
    is_alive,
    kill_tree,
    machine_id,
    oom_kills,
    signal_process,
)
from tests.roles.attempts import DEADLINE_S, ENV, a_bystander
from tests.waiting import wait_until

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with a_bystander() as process:
        yield process


def identity(pid: int) -> Identity:
    found = identity_of(pid)
    assert found is not None
    return found


def changed(original: Identity) -> list[Identity]:
    """The same number, but another process: an earlier one, or one of another boot."""
    return [
        original._replace(start_ticks=original.start_ticks - 1),
        original._replace(boot_id="another-boot"),
    ]


def test_an_identity_is_what_the_kernel_says(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    seen = identity(sleeper.pid)
    boot_time = psutil.boot_time()
    assert seen.pid == sleeper.pid
    assert seen.start_ticks / ticks + boot_time == pytest.approx(
        psutil.Process(sleeper.pid).create_time(), abs=1
    )
    assert seen.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_name_with_brackets_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "x) R 1 (y"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "300"]) as process:
        try:
            wait_until(
                lambda: psutil.Process(process.pid).name() == program.name,
                deadline_s=DEADLINE_S,
                what="the exec",
            )
            assert is_alive(identity(process.pid))
            assert identity(process.pid) in find_tree({identity(os.getpid())}, "no token")
        finally:
            process.kill()


def test_only_the_very_process_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    seen = identity(sleeper.pid)
    assert is_alive(seen)
    assert [is_alive(other) for other in changed(seen)] == [False, False]


def test_a_zombie_has_an_identity_but_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    seen = identity(process.pid)
    wait_until(lambda: not is_alive(seen), deadline_s=DEADLINE_S, what="the end")
    assert identity_of(process.pid) == seen
    process.wait()
    assert identity_of(process.pid) is None
    assert signal_process(seen, signal.SIGKILL) is False


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_signal_hits_the_very_process_or_nobody(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    seen = identity(sleeper.pid)
    for other in changed(seen):
        assert signal_process(other, signal.SIGKILL) is False
    assert sleeper.poll() is None
    assert signal_process(seen, signal.SIGTERM) is True
    assert sleeper.wait(timeout=DEADLINE_S) == -signal.SIGTERM


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's process to try it on")
def test_a_signal_that_the_kernel_forbids_is_no_error(
    sleeper: subprocess.Popen[bytes],
) -> None:
    program = (
        "import os, sys; from roles.processes import identity_of, signal_process\n"
        "target = identity_of(int(sys.argv[1])); os.setuid(65534)\n"
        "sys.exit(signal_process(target, 15))\n"
    )
    forbidden = subprocess.run(
        [sys.executable, "-c", program, str(sleeper.pid)], cwd=CHECKOUT, timeout=DEADLINE_S
    )
    assert forbidden.returncode == 0
    assert sleeper.poll() is None


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process with one child, whose pid it has printed."""
    shell = "sleep 300 & echo $!; exec sleep 300"
    with subprocess.Popen(
        ["bash", "-c", shell], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_tree_is_roots_and_descendants_and_whoever_carries_the_token(
    parent: subprocess.Popen[bytes],
) -> None:
    with (
        a_bystander({**ENV, "GPUQ_TOKEN": "abc"}) as carrier,
        a_bystander({**ENV, "GPUQ_TOKEN": "abcd"}),
        a_bystander({**ENV, "XGPUQ_TOKEN": "abc"}),
    ):
        assert parent.stdout is not None
        child = identity(int(parent.stdout.readline()))
        expected = {identity(parent.pid), child, identity(carrier.pid)}
        wait_until(
            lambda: find_tree({identity(parent.pid)}, "abc") == expected,
            deadline_s=DEADLINE_S,
            what="the tree",
        )
        wrong_root = identity(parent.pid)._replace(start_ticks=1)
        assert find_tree({wrong_root}, "abc") == {identity(carrier.pid)}
        killed = kill_tree(lambda: find_tree({identity(parent.pid)}, "abc"), 5_000)
        assert killed.left == set()
        assert killed.gone == expected


def test_the_caller_is_no_part_of_the_tree() -> None:
    assert identity(os.getpid()) not in find_tree({identity(os.getpid())}, "no token")


def test_what_cannot_be_killed_is_named() -> None:
    stubborn = Identity(1, -1, "a process that no KILL reaches")
    killed = kill_tree(lambda: {stubborn}, 50)
    assert (killed.gone, killed.left) == (set(), {stubborn})


def test_killing_goes_on_while_something_must_be_there() -> None:
    answers = iter([True, True, False])
    kill_tree(set, 5_000, has_children=lambda: next(answers))
    assert list(answers) == []


def test_what_one_look_missed_is_found_by_another() -> None:
    latecomer = Identity(1, -1, "a process that was in the midst of an exec")
    looks = iter([set(), {latecomer}])
    killed = kill_tree(lambda: next(looks, set()), 5_000, quiet_ms=50)
    assert (killed.gone, killed.left) == ({latecomer}, set())


def test_the_count_of_oom_kills_is_a_number_where_there_is_one() -> None:
    vmstat = Path("/proc/vmstat").read_text()
    count = oom_kills()
    assert (count is not None and count >= 0) or "oom_kill" not in vmstat


# --- the machine -------------------------------------------------------------------------


def test_a_machine_keeps_its_id(tmp_path: Path) -> None:
    first = machine_id(tmp_path / "state")
    assert machine_id(tmp_path / "state") == first
    assert os.uname().nodename in first
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["machine-id"]


def test_two_machines_of_one_installation_differ(tmp_path: Path) -> None:
    assert machine_id(tmp_path / "one") != machine_id(tmp_path / "two")


def test_a_copied_state_folder_under_another_host_name_is_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = machine_id(tmp_path)
    there = os.uname_result(("Linux", "elsewhere", "6", "#1", "x86_64"))
    monkeypatch.setattr(os, "uname", lambda: there)
    assert machine_id(tmp_path) != original
    assert "elsewhere" in machine_id(tmp_path)


def test_processes_that_start_at_once_agree_on_the_id(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys; from roles.processes import machine_id\n"
        "print(machine_id(pathlib.Path(sys.argv[1])))\n"
    )
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "state")],
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
        )
        for _ in range(4)
    ]
    ids = {process.communicate(timeout=DEADLINE_S)[0] for process in starts}
    assert len(ids) == 1
    assert ids != {b""}
