"""``gpuq completion``: what is offered where, and that a shell takes it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuq.cli import app
from gpuq.completion import Shell
from gpuq.viewcache import KEPT_AFTER_PAGES
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


@pytest.fixture
def jobs(fleet: Fleet, gpuq: Gpuq) -> dict[str, str]:
    """By name: one that runs, one that waits, one that is held, one that failed."""
    fleet.ready("n1-cpu0", pool="small")
    fleet.ready("n2-cpu0", pool="small")
    fleet.post()
    found = {}
    for name, *options in (["failed"], ["runs"], ["waits"], ["held", "--hold"]):
        args = ["--pool", "small", "--worker", "n1-cpu0", "--name", name, *options]
        (found[name],) = gpuq("submit", "-q", *args, "--", "true").ids
        fleet.post()
        if name in ("failed", "runs"):
            fleet.start(found[name])
            fleet.post()
        if name == "failed":
            fleet.finish(found[name], rc=1)
            fleet.post()
    return found


def offered(gpuq: Gpuq, *words: str) -> list[str]:
    done = gpuq("complete", "--", *words)
    assert (done.rc, done.err) == (0, "")
    return [line.partition("\t")[0] for line in done.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ca"], ["cancel", "cancelled"]),
        (["policy", ""], ["apply", "check", "diff", "show"]),
        (["submit", "--gp"], ["--gpus", "--gpu-mem"]),
        (["submit", "--ti"], ["--time"]),
        (["status", "--sto"], ["--store"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["submit", ""], []),
        (["submit", "--time", ""], []),
        (["submit", "--", "ca"], []),
        (["nonsense", ""], []),
    ],
)
def test_commands_and_options_are_offered_where_they_may_stand(
    gpuq: Gpuq, words: list[str], expected: list[str]
) -> None:
    assert offered(gpuq, *words) == expected


def test_hidden_commands_are_not_offered(gpuq: Gpuq) -> None:
    assert not {"complete", "worker", "kill"} & set(offered(gpuq, ""))


def test_a_command_is_offered_the_jobs_that_it_can_do_anything_to(
    gpuq: Gpuq, jobs: dict[str, str]
) -> None:
    everything = ["held", "waits", "runs", "failed"]
    expected = {
        "status": everything,
        "audit job": everything,
        "logs -f": everything,
        "submit --after": ["held", "waits", "runs"],
        "cancel": ["held", "waits", "runs"],
        "cancel --reason x other": ["held", "waits", "runs"],
        "hold": ["held", "waits"],
        "release": ["held"],
        "retry": ["failed"],
    }
    found = {command: offered(gpuq, *command.split(), "") for command in expected}
    assert found == {
        command: [*(jobs[name] for name in names), *names, "last"]
        for command, names in expected.items()
    }


def test_a_job_is_offered_by_the_beginning_of_its_id_or_name(
    gpuq: Gpuq, jobs: dict[str, str]
) -> None:
    assert jobs["runs"] in offered(gpuq, "status", jobs["runs"][:3])
    done = gpuq("complete", "--", "status", jobs["runs"])
    assert done.out == f"{jobs['runs']}\truns RUNNING\n"
    assert "waits" in offered(gpuq, "status", "wai")


def test_nodes_workers_and_pools_are_offered(gpuq: Gpuq, jobs: dict[str, str]) -> None:
    expected = {
        ("drain", ""): ["n1", "n2"],
        ("move", "--from", "n2"): ["n2"],
        ("submit", "--worker", ""): ["n1-cpu0", "n2-cpu0"],
        ("submit", "--exclude", ""): ["n1", "n2"],
        ("submit", "--pool", "s"): ["small"],
        ("submit", "--pool", "=", "s"): ["small"],
        ("drain", "n1", ""): [],
    }
    assert {words: offered(gpuq, *words) for words in expected} == expected


def test_a_name_that_a_shell_would_run_is_not_offered(fleet: Fleet, gpuq: Gpuq) -> None:
    gpuq("submit", "-q", "--name", "$(reboot)", "--", "true")
    gpuq("submit", "-q", "--name", "a b", "--", "true")
    fleet.post()
    done = gpuq("complete", "--", "cancel", "")
    assert len(done.out.splitlines()) == 3  # two ids and 'last'
    assert "reboot" not in done.out
    assert "a b" not in done.out


def test_where_there_is_no_ledger_nothing_is_offered_or_made(gpuq: Gpuq, tmp_path: Path) -> None:
    assert offered(gpuq, "cancel", "") == []
    assert not (tmp_path / "home" / ".local" / "share").exists()


def test_a_store_that_does_not_answer_keeps_nobody_waiting(
    gpuq: Gpuq, fleet: Fleet, jobs: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    """What was cached of that very store is offered, and of no other."""
    for _ in range(KEPT_AFTER_PAGES):
        gpuq("submit", "-q", "--", "true")
        fleet.post()
    gpuq("status")
    (note,) = tmp_path.rglob("store")
    assert note.read_text() == fleet.store.url
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("GPUQ_STORE", "s3://bucket/other")
        assert offered(gpuq, "drain", "") == []
        note.write_text("s3://bucket/other")
        assert offered(gpuq, "drain", "") == ["n1", "n2"]


def test_bash_completes_the_word_that_is_being_typed(
    gpuq: Gpuq, jobs: dict[str, str], gpuq_env: Mapping[str, str]
) -> None:
    script = gpuq("completion", "bash").out
    program = f"""
    {script}
    complete -p gpuq
    for words in "gpuq dra" "gpuq drain n" "gpuq cancel {jobs["runs"]}"; do
        COMP_WORDS=($words)
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _gpuq
        echo "${{COMPREPLY[*]}}"
    done
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-eu", "-c", program], env={**gpuq_env, "PATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _gpuq gpuq",
        "drain",
        "n1 n2",
        jobs["runs"],
    ]


@pytest.mark.parametrize("shell", Shell)
def test_each_shell_calls_the_same_command(gpuq: Gpuq, shell: Shell) -> None:
    done = gpuq("completion", shell.value)
    assert done.rc == 0
    assert "gpuq complete -- " in done.out


# --- help


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command that is listed anywhere, with the words that call it."""
    found = [(path, command)]
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            found += commands(child, (*path, name))
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(p) for p, _ in COMMANDS])
def test_the_help_of_every_command_has_an_example_of_it(
    gpuq: Gpuq, path: tuple[str, ...], command: Any
) -> None:
    done = gpuq(*path, "--help")
    assert done.rc == 0
    _, *examples = re.split(r"(?m)^ *(?:Examples?|To begin):", done.out)
    assert " ".join(("gpuq", *path)) in "".join(examples)
