"""What one job is to run, as files and words of the command line give it.

Owns the reading of scripts and the refusal of those that no shell would run, each with the
mend. A script is named after its file, a command after its program.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuq.render import printable
from ledger.errors import RequestError

SCRIPT_MAX_BYTES = 4 * 1024 * 1024


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What one job is to run: a script with arguments, or a command."""

    name: str
    path: str = ""
    """Of the script, as it was typed."""
    script: bytes = b""
    argv: tuple[str, ...] = ()


def bodies_of(scripts: Sequence[str], command: Sequence[str]) -> list[Body]:
    """One body a job: each script, or the command, or the one script with arguments."""
    if command and len(scripts) > 1:
        raise RequestError(
            f"{len(scripts)} scripts before -- and arguments behind it: submit them one by one"
        )
    if not scripts:
        if not command:
            raise RequestError(
                "nothing to submit: name a script, or put -- before a command: "
                "gpuq submit -- python3 train.py"
            )
        if not command[0]:
            raise RequestError("the command behind -- is empty: name a program")
        return [Body(name=os.path.basename(command[0]) or command[0], argv=tuple(command))]
    return [
        Body(name=Path(script).name, path=script, script=read_script(script), argv=tuple(command))
        for script in scripts
    ]


def read_script(path: str) -> bytes:
    """The script's bytes. Raises RequestError for what no shell would run, with the mend."""
    shown = printable(path)
    try:
        if Path(path).is_dir():
            raise RequestError(f"{shown} is a folder: name a script in it")
        with open(path, "rb") as file:
            script = file.read(SCRIPT_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise RequestError(
            f"no script {shown}: correct the name, or put -- before a command: "
            f"gpuq submit -- {shown} ..."
        ) from error
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {shown}: {getattr(error, 'strerror', error)}") from error
    return check_script(script, shown)


def check_script(script: bytes, shown: str) -> bytes:
    """``script`` itself. Raises RequestError, which calls it ``shown``, as ``read_script``."""
    if len(script) > SCRIPT_MAX_BYTES:
        raise RequestError(
            f"{shown} is larger than 4 MiB: put the data into a file of its own and read it there"
        )
    if not script.strip():
        raise RequestError(f"{shown} is empty: write the commands into it first")
    if script.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise RequestError(f"{shown} begins with a byte order mark: save it as UTF-8 without BOM")
    if b"\0" in script:
        raise RequestError(f"{shown} is a binary: put -- before it to run it as a command")
    if b"\r\n" in script:
        raise RequestError(f"the lines of {shown} end in CR LF: save it with Unix line ends (LF)")
    return script
