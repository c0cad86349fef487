"""``import gpuq``: what it costs, how options are said, what travels to a node and back."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import gpuq
from gpuq import calls, remotecall
from gpuq.api import said_by
from ledger.errors import RequestError
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

COSTLY = ("boto3", "cloudpickle", "msgspec", "rich", "typer")


def test_importing_gpuq_imports_nothing_that_is_costly() -> None:
    program = f"import sys, gpuq; print(sorted(set(sys.modules) & set({COSTLY})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_name_that_gpuq_offers_is_there() -> None:
    assert {name for name in gpuq.__all__ if getattr(gpuq, name, None) is None} == set()
    with pytest.raises(AttributeError, match="has no attribute 'srun'"):
        _ = gpuq.srun


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 2, "time": "8h"}, {"gpus": "2", "time": "8h"}),
        ({"time": timedelta(hours=1.5)}, {"time": "5400s"}),
        ({"hold": True, "idempotent": False}, {"hold": True, "idempotent": False}),
        ({"env": {"A": "1,2", "B": ""}}, {"env": ["A=1,2", "B="]}),
        ({"env": "A=1"}, {"env": ["A=1"]}),
        ({"class_": "batch", "pool": None}, {"class_": "batch"}),
    ],
)
def test_options_are_said_as_flags(options: Mapping[str, Any], said: dict[str, Any]) -> None:
    assert said_by(options) == said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_men": "40G"}, "'gpu_men' is no option of a job: did you mean 'gpu_mem'?"),
        ({"hold": "yes"}, "hold='yes': say it as 'gpuq submit --hold'"),
        ({"gpus": True}, "gpus=True: say it as 'gpuq submit --gpus'"),
        ({"time": 1.5}, "time=1.5: say it as 'gpuq submit --time'"),
    ],
)
def test_what_is_no_option_is_refused_with_the_mend(
    options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(RequestError) as raised:
        said_by(options)
    assert str(raised.value) == message


def test_the_command_line_and_python_refuse_alike(fleet: Fleet, gpuq: Gpuq, script: str) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    refused = gpuq("submit", "--class", "huge", script)
    from gpuq import RequestError, submit

    with pytest.raises(RequestError) as raised:
        submit(script, class_="huge")
    assert refused.err == f"gpuq: {raised.value}\n"
    assert refused.rc == raised.value.exit_code


# --- what travels


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., tuple[int, bytes]]:
    """Runs a call's script as a node does: its exit code, and what it wrote to its log."""

    def run(function: Callable[..., Any], *args: Any) -> tuple[int, bytes]:
        program = tmp_path / "script"
        program.write_bytes(calls.pack_call(function, args, {}, python=sys.executable))
        program.chmod(0o700)
        env = {**os.environ, "GPUQ_JOB_ID": "b6hywggo", "GPUQ_ATTEMPT": "2"}
        done = subprocess.run(
            [program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
        return done.returncode, done.stdout

    return run


def outcome_in(log: bytes) -> Mapping[str, Any]:
    found = calls.find_outcome(log, "b6hywggo")
    assert found is not None
    return found


def test_a_value_comes_back_behind_what_the_function_wrote(call: Any) -> None:
    def speak(word: str) -> dict[str, bytes]:
        print(word, end="")
        return {word: b"\0\xff"}

    rc, log = call(speak, "häßlich")
    assert rc == 0
    assert log.startswith("häßlich\n".encode())
    assert calls.value_of(outcome_in(log)) == {"häßlich": b"\0\xff"}


def test_an_exception_comes_back_with_the_traceback_of_the_node(call: Any) -> None:
    def divide() -> float:
        return 1 / 0

    rc, log = call(divide)
    assert rc == 1
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        calls.value_of(outcome_in(log))
    assert "in divide" in str(raised.value.__cause__)
    assert b"ZeroDivisionError" in log.partition(b"gpuq-result")[0]


def test_an_exception_that_cannot_be_pickled_comes_back_as_its_text(call: Any) -> None:
    def fail() -> None:
        error = ValueError("bad input")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    _, log = call(fail)
    with pytest.raises(calls.RemoteError, match="ValueError: bad input"):
        calls.value_of(outcome_in(log))


def test_a_value_that_cannot_be_pickled_is_an_exception(call: Any) -> None:
    rc, log = call(lambda: (n for n in range(3)))
    assert rc == 1
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        calls.value_of(outcome_in(log))


def test_leaving_by_exit_is_an_exception_as_in_a_pool_of_processes(call: Any) -> None:
    rc, log = call(sys.exit, 0)
    assert rc == 1
    with pytest.raises(SystemExit):
        calls.value_of(outcome_in(log))


def test_a_result_that_is_too_large_says_what_to_do(call: Any) -> None:
    rc, log = call(bytes, remotecall.RESULT_MAX_BYTES)
    assert rc == 1
    with pytest.raises(ValueError, match=r"125829\d\d bytes pickled, at most 12582912"):
        calls.value_of(outcome_in(log))


def test_a_call_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(RequestError, match=r"at most 11534336 can travel: put the data"):
        calls.pack_call(len, [bytes(calls.CALL_MAX_BYTES)], {}, python="python3")


def test_a_call_of_another_python_is_refused_by_the_node() -> None:
    said = remotecall.refusal({"python": "3.2"})
    assert said is not None
    with pytest.raises(RequestError, match=r"the call comes from 3\.2; or name another Python"):
        calls.value_of(said)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (b"", None),
        (b"gpuq-result b6hywggo.1 {}", None),
        (b"\ngpuq-result b6hywggo.1 {\"kind\"", None),
        (b"\ngpuq-result b6hywggo.1", None),
        (b"\ngpuq-result c7777777.1 {\"kind\": \"value\"}\n", None),
        (b"x\ngpuq-result b6hywggo.1 {\"kind\": \"value\"}\n", {"kind": "value"}),
        (b"\ngpuq-result b6hywggo.1 {\"n\": 1}\n\ngpuq-result b6hywggo.2 {\"n\": 2}\n", {"n": 2}),
    ],
)  # fmt: skip
def test_only_the_last_line_of_the_job_itself_is_its_result(
    log: bytes, found: dict[str, Any] | None
) -> None:
    assert calls.find_outcome(log, "b6hywggo") == found


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("python3", b"#!/usr/bin/env python3\n"),
        ("/opt/venv/bin/python", b"#!/opt/venv/bin/python\n"),
    ],
)
def test_the_program_of_a_call_is_found_by_its_name_or_path(python: str, line: bytes) -> None:
    assert calls.pack_call(len, ["a"], {}, python=python).startswith(line)


@pytest.mark.parametrize("python", ["", "my python", "bin/python", "/" + "x" * 130, "a\nb"])
def test_a_program_that_no_first_line_can_name_is_refused(python: str) -> None:
    with pytest.raises(RequestError, match="name a program, or an absolute path"):
        calls.pack_call(len, ["a"], {}, python=python)


def test_the_error_of_a_job_can_be_pickled() -> None:
    error = gpuq.JobFailedError("b6hywggo (x) ended as FAILED, rc=3")
    error.job, error.state, error.rc = JobId("b6hywggo"), gpuq.JobState.FAILED, 3
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.job, again.state, again.rc) == (
        str(error), "b6hywggo", gpuq.JobState.FAILED, 3,
    )  # fmt: skip
    assert json.dumps(again.state) == '"FAILED"'
