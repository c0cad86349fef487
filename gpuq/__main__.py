"""The command's edge: ``gpuq`` and ``python -m gpuq``.

Owns what a user meets when something is wrong: one line on stderr and the exit code of the
error's class (docs/CLI.md), never a traceback for what he can mend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from gpuq.cli import app, with_global_options_first
from gpuq.render import printable
from gpuq.usage import UsageError, usage_text
from ledger.errors import GpuqError, RequestError

INTERRUPTED = 130


def main() -> None:
    """Run the command that this process was given, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A locale without the characters of a name must not keep it from being shown.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    command = typer.main.get_command(app)
    try:
        code = _invoke(command, with_global_options_first(args))
        sys.stdout.flush()
    except UsageError as error:
        return _fail(_usage(command, args, error), RequestError.exit_code)
    except GpuqError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; Python's own flush at exit must find somewhere to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _invoke(command: Any, args: list[str]) -> int:
    """The command's exit code; what it raises comes out as it is.

    typer's own ``main`` would turn a closed pipe into an exit code before it can be told
    from a failure.
    """
    try:
        with command.make_context("gpuq", args) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _usage(command: Any, args: Sequence[str], error: Any) -> str:
    """What was wrong with the call, and where its right use is told."""
    path = error.ctx.command_path if error.ctx is not None else "gpuq"
    if error.ctx is None:
        path += next((f" {word}" for word in args if word in command.commands), "")
    message = usage_text(error)
    if message == "missing command":
        known = ", ".join(error.ctx.command.list_commands(error.ctx))
        return f"{path.removeprefix('gpuq ')} needs a command: {known}; see '{path} --help'"
    return f"{message}{'' if message.endswith('?') else ';'} see '{path} --help'"


def _fail(message: str, code: int) -> int:
    print(f"gpuq: {printable(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
