"""Running commands: in this process for tables and messages, as a process where that counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from gpuq.__main__ import run
from tests.cli.fleet import Fleet


class Result(NamedTuple):
    rc: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def ids(self) -> list[str]:
        """Of ``submit -q``."""
        return self.out.split()


Gpuq = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpuq_env: Mapping[str, str]) -> Path:
    """An empty current directory of a user who has configured nothing."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def gpuq(here: Path, capsys: pytest.CaptureFixture[str]) -> Gpuq:
    """Runs one command in this process."""

    def call(*args: str) -> Result:
        capsys.readouterr()
        rc = run(args)
        out, err = capsys.readouterr()
        return Result(rc, out, err)

    return call


@pytest.fixture
def spawn(here: Path, gpuq_env: Mapping[str, str]) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts one command as a process; it and what it started are killed at the end."""
    started: list[subprocess.Popen] = []

    def start(*args: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuq", *args],
            cwd=here,
            env=dict(gpuq_env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            # A node's own processes are children of it, in sessions of their own.
            tree = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in tree:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.communicate(timeout=10)


@pytest.fixture
def script(here: Path) -> str:
    (here / "hello.sh").write_text("#!/bin/sh\necho hello\n")
    return "hello.sh"


@pytest.fixture
def fleet(here: Path, tmp_path: Path, gpuq: Gpuq) -> Iterator[Fleet]:
    """A leader and workers on the default store of this user."""
    fleet = Fleet(
        tmp_path / "home" / ".local" / "share" / "gpuq" / "ledger", tmp_path / "elsewhere"
    )
    yield fleet
    fleet.close()
