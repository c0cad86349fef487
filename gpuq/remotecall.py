"""The program that a node runs for a call of a Python function.

Owns the node's side of ``gpuq/calls.py``: the text of this module is the job's script, and
its last line carries the call. It needs the standard library and cloudpickle alone, because
gpuq need not be installed for the Python that runs it. What the function returned or raised
becomes the last line of the job's log; the job's exit code is 1 where it raised.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
import traceback
from typing import Any

CALL_LINE = "# gpuq-call "
RESULT_LINE = "gpuq-result "
RESULT_MAX_BYTES = 12 * 1024 * 1024
"""Pickled; as base64 it fits well into what a log keeps of its end (``roles/joblog.py``)."""


def main(program: str) -> int:
    """Make the call at the end of ``program``, and tell its outcome; the exit code."""
    with open(program, encoding="utf-8") as file:
        call = json.loads(file.read().rpartition(CALL_LINE)[2])
    outcome = refusal(call) or outcome_of(base64.b64decode(call["pickle"]))
    if "traceback" in outcome:
        sys.stderr.write(outcome["traceback"])
    sys.stdout.flush()
    sys.stderr.flush()
    attempt = f"{os.environ['GPUQ_JOB_ID']}.{os.environ['GPUQ_ATTEMPT']}"
    line = f"\n{RESULT_LINE}{attempt} {json.dumps(outcome)}\n".encode()
    while line:
        line = line[os.write(1, line) :]
    return 0 if outcome["kind"] == "value" else 1


def refusal(call: dict[str, Any]) -> dict[str, Any] | None:
    """Why this Python cannot make the call, with the mend; None where it can."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    where = f"{sys.executable} on {os.uname().nodename}"
    if call["python"] != own:
        reason = f"{where} is Python {own}, the call comes from {call['python']}"
    elif importlib.util.find_spec("cloudpickle") is None:
        reason = f"{where} has no cloudpickle: install it there"
    else:
        return None
    return {"kind": "refused", "text": f"{reason}; or name another Python with python="}


def outcome_of(pickled: bytes) -> dict[str, Any]:
    """What comes of the call: a value, or whatever it raised."""
    import cloudpickle

    try:
        function, args, kwargs = cloudpickle.loads(pickled)
        value = cloudpickle.dumps(function(*args, **kwargs))
        if len(value) > RESULT_MAX_BYTES:
            raise ValueError(
                f"the result has {len(value)} bytes pickled, at most {RESULT_MAX_BYTES} come "
                "back: write it to a file or a bucket and return its name"
            )
    except BaseException as error:  # noqa: BLE001 - whatever it is, the caller shall get it
        return _raised(error)
    return {"kind": "value", "pickle": base64.b64encode(value).decode()}


def _raised(error: BaseException) -> dict[str, Any]:
    """An exception as text, and pickled where that is possible."""
    import cloudpickle

    outcome = {
        "kind": "error",
        "text": "".join(traceback.format_exception_only(error)).strip(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    try:
        pickled = cloudpickle.dumps(error)
    except Exception:  # noqa: BLE001 - a class may refuse in any way; the text is there
        return outcome
    if len(pickled) <= RESULT_MAX_BYTES:
        outcome["pickle"] = base64.b64encode(pickled).decode()
    return outcome


if __name__ == "__main__":
    sys.exit(main(__file__))
