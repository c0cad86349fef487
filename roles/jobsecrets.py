"""Values that a job gets from files of its node: they stand in no ledger and in no plan.

Owns where they are looked for and which files are taken: such as nobody but the node's user,
or root, can read or write. Standard library only, because the runner imports it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

VALUE_MAX_BYTES = 64 * 1024

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretError(Exception):
    """A secret that cannot be had; the argument says why, with the mend."""


def read_secrets(folder: str, names: Iterable[str]) -> dict[str, str]:
    """By name, what stands in the files of ``folder``, without one line end behind it.

    Raises SecretError for a file that is not there, or that others can read.
    """
    return {name: _read(os.path.join(folder, name), name) for name in names}


def _read(path: str, name: str) -> str:
    if not _NAME.fullmatch(name):  # it comes from the bucket, and must not leave the folder
        raise SecretError(f"{name!r} is no name of a secret")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SecretError(
            f"this node has no secret {name}: its operator puts it into {path}, mode 0600"
        ) from error
    except OSError as error:
        raise SecretError(
            f"cannot read the secret {path}: {error.strerror}; it must be a file, mode 0600, of "
            "the user that runs the node"
        ) from error
    try:
        _check(path, os.fstat(fd))
        value = os.read(fd, VALUE_MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(value) > VALUE_MAX_BYTES:
        raise SecretError(f"the secret {path} is larger than 64 KiB")
    if b"\0" in value:
        raise SecretError(f"the secret {path} has a NUL byte, which no variable can hold")
    return os.fsdecode(value.removesuffix(b"\n"))


def _check(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SecretError(f"the secret {path} is no file")
    if status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"the secret {path} belongs to another user: chown it")
    if status.st_mode & 0o077:
        raise SecretError(f"the secret {path} can be read by others: chmod 600 it")
