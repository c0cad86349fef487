"""A call of a Python function as a job: what goes there as its script, what comes back.

Owns the client's side of ``gpuq/remotecall.py``. The function, its arguments and its result
travel as cloudpickle makes them; who unpickles runs what the pickle says, so whoever can
write into the store can run code in a process that asks for a result, as on every node.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuq import remotecall
from gpuq.remotecall import CALL_LINE, RESULT_LINE
from ledger.errors import GpuqError, RequestError

CALL_MAX_BYTES = 11 * 1024 * 1024
"""Pickled; as base64 it fits with the program into one object."""

_INTERPRETER = re.compile(r"[^\s/]+|/\S+")
_INTERPRETER_MAX_BYTES = 120
"""Linux reads 127 or more of a #! line."""


class RemoteTraceback(Exception):
    """The traceback of the node, as the cause of the exception that a call raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class RemoteError(GpuqError):
    """A call raised an exception that cannot be had here; the message is its last line."""

    exit_code = 1


def pack_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    python: str,
) -> bytes:
    """The script of a job that calls ``function``.

    Raises RequestError for what is too large, and whatever the pickling raises.
    """
    pickled = _cloudpickle().dumps((function, tuple(args), dict(kwargs)))
    if len(pickled) > CALL_MAX_BYTES:
        raise RequestError(
            f"the call of {name_of(function)} has {len(pickled)} bytes pickled, at most "
            f"{CALL_MAX_BYTES} can travel: put the data into a file or a bucket and pass its name"
        )
    call = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "pickle": base64.b64encode(pickled).decode(),
    }
    program = Path(remotecall.__file__).read_text(encoding="utf-8")
    return f"{_first_line(python)}\n{program}\n{CALL_LINE}{json.dumps(call)}\n".encode()


def name_of(function: Callable[..., Any]) -> str:
    """What a job that calls ``function`` is named, unless it is said."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def find_outcome(log: bytes, job: str) -> Mapping[str, Any] | None:
    """What the log of ``job`` says of its call; None where it was none, or said nothing."""
    begin = log.rfind(f"\n{RESULT_LINE}{job}.".encode())
    if begin < 0:
        return None
    line = log[begin:].split(b"\n")[1]
    try:
        outcome: Mapping[str, Any] = json.loads(line.split(b" ", 2)[2])
    except (ValueError, IndexError):  # cut off by a full disk, or not written by gpuq
        return None
    return outcome


def value_of(outcome: Mapping[str, Any]) -> Any:
    """What the function returned. Raises what it raised, with the node's traceback as cause.

    Raises RequestError where the node could not make the call.
    """
    if outcome["kind"] == "refused":
        raise RequestError(outcome["text"])
    if outcome["kind"] == "value":
        return _cloudpickle().loads(base64.b64decode(outcome["pickle"]))
    raise _exception(outcome) from RemoteTraceback(outcome["traceback"])


def _exception(outcome: Mapping[str, Any]) -> BaseException:
    try:
        error = _cloudpickle().loads(base64.b64decode(outcome["pickle"]))
    except Exception:  # noqa: BLE001 - a class's own code runs, or it is not installed here
        return RemoteError(outcome["text"])
    return error if isinstance(error, BaseException) else RemoteError(outcome["text"])


def _first_line(python: str) -> str:
    if not _INTERPRETER.fullmatch(python) or len(python.encode()) > _INTERPRETER_MAX_BYTES:
        raise RequestError(
            f"python={python!r}: name a program, or an absolute path of at most "
            f"{_INTERPRETER_MAX_BYTES} bytes without spaces"
        )
    return f"#!{python}" if python.startswith("/") else f"#!/usr/bin/env {python}"


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError as error:
        raise RequestError(
            "calls of functions need cloudpickle: pip install 'gpuq-ledger[python]'"
        ) from error
    return cloudpickle
