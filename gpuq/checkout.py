"""What git says of a folder: its commit, its branch, whether it differs, and what is tracked.

Owns the calls of git, which only reads. A folder that is no checkout has nothing of these, and
neither has a machine without git; where git refuses to say, that is told.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from gpuq.render import say

_HEAD = "# branch."
_NO_COMMIT = "(initial)"
_NO_BRANCH = "(detached)"
_OF_A_HOOK = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"})


class Checkout(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of a git checkout."""

    top: Path
    """Of the whole checkout."""
    commit: str
    """Empty where there is none yet."""
    branch: str
    """Empty where none is checked out."""
    dirty: bool
    """The folder differs from the commit, files that git does not know included."""
    tracked: frozenset[str]
    """Names of files in the folder that git tracks, relative to the folder."""


def find_checkout(folder: Path) -> Checkout | None:
    """The checkout that ``folder`` stands in; None where git knows of none."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    words = ("--porcelain=v2", "--branch", "--untracked-files=normal", "-z", "--", ".")
    status = _git(folder, "status", *words) or b""
    lines = [os.fsdecode(line) for line in status.split(b"\0") if line]
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith(_HEAD))
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    tracked = _git(folder, "ls-files", "--cached", "-z") or b""
    return Checkout(
        top=Path(os.fsdecode(top.removesuffix(b"\n"))),
        commit="" if commit == _NO_COMMIT else commit,
        branch="" if branch == _NO_BRANCH else branch,
        dirty=any(not line.startswith(_HEAD) for line in lines),
        tracked=frozenset(os.fsdecode(name) for name in tracked.split(b"\0") if name),
    )


def _git(folder: Path, *words: str) -> bytes | None:
    """What git printed; None where there is no git, or nothing that it can say."""
    # A git hook sets these, and they would name another checkout than the folder's.
    environ = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            env={**environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    if done.returncode == 0:
        return done.stdout
    complaint = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    if "not a git repository" not in complaint:
        say(f"gpuq: git says nothing of {folder}: {complaint}; no commit is recorded")
    return None
