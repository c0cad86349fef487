"""The forked child that becomes the job: what stands between fork and exec.

Owns the job's session, signals, standard streams, directory and environment, the last look
at the clock before exec (docs/ARCHITECTURE.md, "Rules the model forced", 10), and the words
for what could not be executed. Standard library only, because the runner imports it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from roles.jobsecrets import SecretError, read_secrets
from roles.processes import boot_id, boot_ms

PR_SET_PDEATHSIG = 1

NOT_FOUND_RC = 127
NOT_EXECUTABLE_RC = 126
"""As shells have it."""
_REASON_MAX_CHARS = 1_000


class Channels(NamedTuple):
    """Pipe ends of the job's process before its exec."""

    output: int
    """Its standard output and error."""
    go: int
    """Becomes readable when the runner has noted who the child is."""
    status: int
    """Takes JSON that says why there was no exec; closed by exec."""


class NoExecError(Exception):
    """The job was not executed; the arguments are outcome, rc and reason."""


def become_job(
    job_dir: Path, plan: Mapping[str, Any], runner_pid: int, libc: Any, channels: Channels
) -> NoReturn:
    """In the forked child: wait for ``go``, then exec. Never returns and never raises."""
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # For a runner that died before the line above there is no such signal.
        if os.getppid() == runner_pid and os.read(channels.go, 1):
            _prepare(plan, channels.output)
            _execute(job_dir, plan)
    except NoExecError as error:
        outcome, rc, reason = error.args
        report = {"outcome": outcome, "rc": rc, "reason": reason[:_REASON_MAX_CHARS]}
        os.write(channels.status, json.dumps(report).encode())
    finally:
        os._exit(NOT_EXECUTABLE_RC)


def _prepare(plan: Mapping[str, Any], output: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Neither the worker's nohup nor Python's own ignored signals reach the job.
    for signum in signal.valid_signals():
        try:
            signal.signal(signum, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # KILL, STOP and those of the C library
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if plan["umask"] is not None:
        os.umask(plan["umask"])
    try:
        os.chdir(plan["cwd"])
    except OSError as error:
        raise NoExecError(
            "failed_to_start",
            NOT_EXECUTABLE_RC,
            f"cannot use the working directory {plan['cwd']}: {error.strerror}; "
            "submit with --chdir or --snapshot",
        ) from error


def _too_late(plan: Mapping[str, Any]) -> str | None:
    """Why the claim no longer allows a start, or None."""
    if plan["boot_id"] != boot_id():
        return "the machine was restarted after the claim"
    late_ms = boot_ms() - plan["claim_boot_ms"]
    if late_ms > plan["start_within_ms"]:
        return f"{late_ms} ms passed since the claim, {plan['start_within_ms']} are allowed"
    return None


def _execute(job_dir: Path, plan: Mapping[str, Any]) -> NoReturn:
    program, *_ = plan["argv"]
    try:
        secrets = read_secrets(plan["secrets_dir"], plan["secrets"])
    except SecretError as error:
        raise NoExecError("failed_to_start", NOT_EXECUTABLE_RC, str(error)) from error
    env = {
        **plan["env"],
        **secrets,
        "GPUQ_TOKEN": plan["token"],
        "GPUQ_CANCEL": str(job_dir / "cancel"),
    }
    late = _too_late(plan)
    if late is not None:
        raise NoExecError("not_started", None, late)
    try:
        os.execvpe(program, plan["argv"], env)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        rc = NOT_FOUND_RC if missing else NOT_EXECUTABLE_RC
        raise NoExecError("failed_to_start", rc, _explain(program, error)) from error
    except ValueError as error:  # a NUL byte in an argument or a variable
        reason = f"cannot execute {program!r}: {error}"
        raise NoExecError("failed_to_start", NOT_EXECUTABLE_RC, reason) from error


def _explain(program: str, error: OSError) -> str:
    """One line: what could not be executed, why, and the mend."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _explain_missing(program)
    if error.errno == errno.EACCES:
        return f"{program} may not be executed; chmod +x it, or name its interpreter"
    if error.errno == errno.ENOEXEC:
        return f"{program} is no program and has no #! line; name its interpreter"
    if error.errno == errno.E2BIG:
        return f"{program}: arguments and environment are too long; pass them in a file"
    return f"cannot execute {program}: {error.strerror}"


def _explain_missing(program: str) -> str:
    if "/" not in program or not os.path.exists(program):
        return f"{program!r} was not found on this node; install it or give its path"
    with open(program, "rb") as file:
        first_line = file.readline(256).rstrip(b"\n")
    if first_line.endswith(b"\r"):
        return f"the lines of {program} end in CR LF; save it with Unix line ends"
    interpreter = first_line.removeprefix(b"#!").strip().decode(errors="replace")
    return f"{program} needs {interpreter!r}, which is not on this node; mend its #! line"
