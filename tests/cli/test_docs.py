"""docs/CLI.md says what the commands do: options, exit codes, variables, JSON keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuq.cli import app
from gpuq.config import ConfigFile
from gpuq.logs import INTERRUPTED, NO_RC
from ledger import errors
from ledger.events import JobState, SlotBeat
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Whatever stands between backquotes in the page, word by word."""
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / "docs" / "CLI.md").read_text())
    return {word for quoted in re.findall(r"`([^`]+)`", text) for word in quoted.split()}


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if getattr(command, "commands", None):
        for child, its in command.commands.items():
            if not its.hidden:
                yield from commands(its, child)
    else:
        yield name, command


def test_every_command_and_option_is_there(words: set[str]) -> None:
    listed = list(commands(typer.main.get_command(app)))
    assert len(listed) > 15
    for name, command in listed:
        assert name in words, name
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            for option in options:
                assert option in words, f"{name} {option}"


def test_every_exit_code_is_there() -> None:
    text = (ROOT / "docs" / "CLI.md").read_text()
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    codes = {value.exit_code for value in classes if issubclass(value, errors.GpuqError)}
    for code in (codes - {errors.GpuqError.exit_code}) | {NO_RC, INTERRUPTED}:
        assert f"\n| {code} |" in text


def test_every_setting_and_state_is_there(words: set[str]) -> None:
    text = (ROOT / "docs" / "CLI.md").read_text()
    source = (ROOT / "gpuq" / "config.py").read_text()
    variables = set(re.findall(r'"((?:GPUQ|XDG|AWS)_[A-Z0-9_]+)"', source))
    assert {"GPUQ_STORE", "GPUQ_STATE_DIR"} <= variables
    assert (variables | set(ConfigFile.__struct_fields__)) - words == set()
    assert [state for state in JobState if state not in text] == []


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            # What stands in these is named by users.
            if key not in ("variables", "disk_free_bytes", "organizations"):
                yield from keys_of(inner)
            yield key
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_every_json_key_is_there(gpuq: Gpuq, fleet: Fleet, words: set[str]) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    fleet.beat("n1", {"n1-cpu0": SlotBeat(alive=True)})
    (job,) = gpuq("submit", "-q", "--", "a").ids
    fleet.post()
    fleet.start(job)
    fleet.post()
    gpuq("submit", "-q", "--name", "waits", "--", "a")
    fleet.post()
    shown = [
        gpuq(*args).json
        for args in (
            ["status", "--json"],
            ["status", "--json", job],
            ["why", "--json", job],
            ["why", "--json", "waits"],
            ["metrics", "--json"],
            ["nodes", "--json"],
            ["submit", "--json", "--", "b"],
            ["doctor", "--json"],
            ["policy", "show", "--json"],
        )
    ]
    keys = {re.sub(r"(_at|as_of)_ms$", r"\1", key) for value in shown for key in keys_of(value)}
    assert "submitted_at" in keys
    assert keys - words == set()
