"""docs/FROM_SLURM.md: what it says to type is what the commands take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuq.cli import app, with_global_options_first

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "FROM_SLURM.md").read_text()
TYPED = sorted(set(re.findall(r"`(gpuq [^`]+)`", PAGE)))


def parse(line: str) -> None:
    """Read one call as the command line does, and run nothing. Raises its usage errors."""
    command: Any = typer.main.get_command(app)
    words = with_global_options_first(shlex.split(line)[1:])
    while hasattr(command, "commands") and words:
        command, words = command.commands[words[0]], words[1:]
    command.make_context("gpuq", words)


@pytest.mark.parametrize("line", TYPED)
def test_each_line_is_one_that_the_commands_take(line: str) -> None:
    parse(line)


def test_most_of_the_commands_are_there() -> None:
    assert len(TYPED) > 35


def test_every_row_of_a_table_has_all_its_columns() -> None:
    for table in re.findall(r"(?m)(?:^\|.*\|\n)+", PAGE):
        rows = [line.count("|") for line in table.splitlines()]
        assert len(set(rows)) == 1, table
