"""Which files below a folder belong to a snapshot, by the ignore files that stand there.

Owns the reading of ``.gitignore`` and ``.gpuqignore`` (patterns as git has them, in every
folder) and the walk. ``.gpuqignore`` is asked first, so that it can also take in again what
``.gitignore`` leaves out; what git tracks is in, whatever ``.gitignore`` says. As in git, nothing
can be taken in again from a folder that is left out. ``.git`` itself never belongs to it. No
link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from gpuq.checkout import Checkout
from gpuq.render import printable, say
from ledger.archive import Entry, leads_out
from ledger.errors import RequestError

GIT_RULES = ".gitignore"
OWN_RULES = ".gpuqignore"


class _Level(NamedTuple):
    """The patterns of one folder; its path is relative to the top, empty or with a slash."""

    folder: str
    git: GitIgnoreSpec | None
    own: GitIgnoreSpec | None


class Walk:
    """The walk of one folder."""

    def __init__(self, root: Path, checkout: Checkout | None) -> None:
        self._root = root
        top = root if checkout is None else checkout.top
        base = os.path.relpath(root, top)
        self._base = "" if base == "." else f"{base}/"
        """Of the root, relative to the top: rules of the folders above hold too."""
        self._tracked = frozenset() if checkout is None else checkout.tracked
        self._tracked_folders = {
            name[:at] for name in self._tracked for at, c in enumerate(name) if c == "/"
        }
        parts = self._base.split("/")[:-1]
        above = ["".join(f"{part}/" for part in parts[:depth]) for depth in range(len(parts))]
        self._above = tuple(_level(top, folder) for folder in above)

    def entries(self) -> list[Entry]:
        """What belongs to it, in byte order of the names. Raises RequestError."""
        found = list(self._below("", self._above, is_left_out=False))
        return sorted(found, key=lambda entry: os.fsencode(entry.name))

    def _below(
        self, folder: str, above: tuple[_Level, ...], *, is_left_out: bool
    ) -> Iterator[Entry]:
        """``is_left_out``: by git's rules; only what is tracked is taken from it."""
        levels = (*above, _level(self._root, folder, self._base))
        try:
            children = list(os.scandir(self._root / folder))
        except OSError as error:
            raise _unreadable(folder or ".", error) from error
        for child in children:
            name = folder + child.name
            is_folder = child.is_dir(follow_symlinks=False)
            path = f"{self._base}{name}{'/' if is_folder else ''}"
            left_out = is_left_out or _verdict([(lv.folder, lv.git) for lv in levels], path) is True
            own = _verdict([(lv.folder, lv.own) for lv in levels], path)
            is_tracked = name in (self._tracked_folders if is_folder else self._tracked)
            if child.name == ".git" or own is True or (left_out and own is None and not is_tracked):
                continue
            entry = _entry(child, name)
            if entry is not None:
                yield entry
            if is_folder:
                yield from self._below(
                    f"{name}/", levels, is_left_out=left_out and own is not False
                )


def _level(root: Path, folder: str, base: str = "") -> _Level:
    path = root / folder
    return _Level(f"{base}{folder}", _rules(path / GIT_RULES), _rules(path / OWN_RULES))


def _rules(path: Path) -> GitIgnoreSpec | None:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(str(path), error) from error
    try:
        return GitIgnoreSpec.from_lines(text.splitlines())
    except ValueError as error:
        raise RequestError(f"{printable(str(path))}: {error}: mend that pattern") from error


def _verdict(levels: list[tuple[str, GitIgnoreSpec | None]], path: str) -> bool | None:
    """Whether the rules leave ``path`` out, the deepest that speak of it; None: none does."""
    for folder, rules in reversed(levels):
        if rules is not None:
            left_out = rules.check_file(path[len(folder) :]).include
            if left_out is not None:
                return left_out
    return None


def _entry(child: os.DirEntry[str], name: str) -> Entry | None:
    """None for a socket and the like, which nobody can keep. Raises RequestError."""
    status = child.stat(follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        return Entry(name=name, kind="folder", mode=mode)
    if stat.S_ISREG(status.st_mode):
        return Entry(name=name, kind="file", mode=mode, size=status.st_size)
    if not stat.S_ISLNK(status.st_mode):
        say(f"gpuq: left out of the snapshot: {name}, which is no file")
        return None
    target = os.readlink(child.path)
    if leads_out(name, target):
        raise RequestError(
            f"{printable(name)} is a link to {printable(target)}, out of the snapshot: leave it "
            f"out with the line /{printable(name)} in {OWN_RULES}, and have the job use that "
            "path itself"
        )
    return Entry(name=name, kind="link", mode=0o777, target=target)


def _unreadable(name: str, error: OSError) -> RequestError:
    return RequestError(
        f"cannot read {printable(name)}: {error.strerror}; mend that, or leave it out with a "
        f"line in {OWN_RULES}"
    )
