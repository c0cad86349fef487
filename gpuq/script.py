"""What one job is to run, as files and words of the command line give it.

Owns which words are scripts, which are a command and which are arguments, the reading of
scripts, and the refusal of those that no shell would run, each with the mend. A script is
named after its file, a command after its program. No word is changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from gpuq.render import printable, say
from ledger.errors import RequestError

SCRIPT_MAX_BYTES = 4 * 1024 * 1024

DASHES = "--"
"""Behind it stands a command, or behind scripts the arguments."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What one job is to run: a script with arguments, or a command."""

    name: str
    path: str = ""
    """Of the script, as it was typed."""
    script: bytes = b""
    argv: tuple[str, ...] = ()


def bodies_of(words: Sequence[str], *, is_command: bool) -> list[Body]:
    """One body a job, from all words behind gpuq's own options.

    A first word that names a file is a script: with arguments, or with further scripts, each
    a job. Any other, and a compiled program, is a command, as all words are where
    ``is_command``: they stood behind ``--``.
    """
    if not words:
        raise RequestError(
            "nothing to submit: name a script or a command: gpuq submit python3 train.py"
        )
    first, *rest = words
    if is_command:
        return [_command(words)]
    if not _names_script(first):
        _tell_of_a_missing_program(first)
        return [_command(words)]
    further = len(list(takewhile(_is_script, rest)))
    scripts, behind = words[: further + 1], rest[further:]
    if behind[:1] == [DASHES]:
        return _scripts(scripts, behind[1:])
    if behind and further:
        raise RequestError(
            f"{printable(scripts[1])} is a script, {printable(behind[0])} is none: put -- before "
            f"the arguments of {printable(first)}, or submit several scripts without arguments"
        )
    return _scripts(scripts, behind)


def _names_script(word: str) -> bool:
    """Whether it is a file that is no program, or can only be a mistyped one."""
    if _begins_with(word, b"\x7fELF") and os.access(word, os.X_OK):
        return False
    return os.path.isfile(word) or "/" in word or word in (".", "..") or word.endswith(".sh")


def _tell_of_a_missing_program(word: str) -> None:
    if word and shutil.which(word) is None:
        say(f"{word!r} is no file here and no program here: it must be one on the node")


def _is_script(word: str) -> bool:
    """Whether a further word is a job of its own: a file named ``.sh``, or with a #! line."""
    return _begins_with(word, b"" if word.endswith(".sh") else b"#!")


def _begins_with(path: str, start: bytes) -> bool:
    """Whether a file is there that does; a pipe is none, and keeps what it holds."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def _command(words: Sequence[str]) -> Body:
    if not words[0]:
        raise RequestError("the command is empty: name a program")
    return Body(name=os.path.basename(words[0]) or words[0], argv=tuple(words))


def _scripts(paths: Sequence[str], arguments: Sequence[str]) -> list[Body]:
    if arguments and len(paths) > 1:
        raise RequestError(
            f"{len(paths)} scripts before -- and arguments behind it: submit them one by one"
        )
    return [
        Body(name=Path(path).name, path=path, script=read_script(path), argv=tuple(arguments))
        for path in paths
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
