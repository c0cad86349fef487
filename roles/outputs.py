"""The way of an attempt's outputs into the bucket: pieces, then the manifest that names them.

Owns ``artifacts/<job>.<attempt>`` and which files it has: those that the job's ``--output``
patterns match in its working directory once its processes are gone. Links that lead out of
that directory, what is no file, cannot be read, or changes while it is read is left out with a
line in the manifest, which also ends the job's log.

``step`` makes at most two requests, so that the worker goes on hearing. After a failed one the
same step is made again; a worker that comes after a crash begins anew, and pieces that are
there are not sent again. When nothing went through for ``outputs_patience_ms``, it is given up:
a slot is not held for ever. What stands there decides what a later incarnation does: a manifest
is final, and so is a whole log without one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from ledger.artifacts import ArtifactFile, ArtifactManifest, read_artifacts
from ledger.events import AttemptRef, encode
from ledger.keys import artifact_key, attempt_name, log_key
from ledger.pieces import Pieces, put_piece
from ledger.timings import OUTPUTS_MAX_BYTES, OUTPUTS_MAX_FILES, PIECE_BYTES
from roles.context import Context

log = structlog.get_logger()

_NOTES_MAX = 20
"""Of more lines the first are kept, and the number of the others."""


class _Reading:
    """One file that is on its way. Raises OSError where it cannot be read."""

    def __init__(self, root: Path, path: str) -> None:
        self.path = path
        # What was resolved is no link any more; a pipe that took its place must not block.
        target = (root / path).resolve()
        fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._file = open(fd, "rb")  # noqa: SIM115 - it is read on in later steps
        self._before = os.fstat(self._file.fileno())
        self._digest = hashlib.sha256()
        self._size = 0
        self._pieces: list[str] = []
        self._piece = b""
        """Read, and not yet known to be in the store."""

    def next_piece(self) -> bytes:
        """The piece that is due; empty at the end."""
        if not self._piece:
            self._piece = self._file.read(PIECE_BYTES)
        return self._piece

    def is_put(self, sha256: str) -> None:
        """The piece is in the store."""
        self._digest.update(self._piece)
        self._size += len(self._piece)
        self._pieces.append(sha256)
        self._piece = b""

    def has_changed(self) -> bool:
        after = os.fstat(self._file.fileno())
        return (self._size, after.st_size, after.st_mtime_ns) != (
            self._before.st_size, self._before.st_size, self._before.st_mtime_ns,
        )  # fmt: skip

    def close(self) -> ArtifactFile:
        self._file.close()
        return ArtifactFile(
            path=self.path,
            mode=stat.S_IMODE(self._before.st_mode) & 0o777,
            content=Pieces(
                size=self._size, sha256=self._digest.hexdigest(), pieces=tuple(self._pieces)
            ),
        )


class OutputShipper:
    """Ships the outputs of one attempt that has ended."""

    def __init__(
        self, context: Context, ref: AttemptRef, directory: str, patterns: Sequence[str]
    ) -> None:
        self.is_over = not patterns
        """All is in the store, or was given up."""
        self.notes: tuple[str, ...] = ()
        """Lines for the end of the log."""
        self._context = context
        self._ref = ref
        self._root = Path(directory)
        self._patterns = patterns
        self._found: deque[str] | None = None
        self._reading: _Reading | None = None
        self._files: list[ArtifactFile] = []
        self._said: list[str] = []
        self._given_up = False
        self._moved_ms = context.clock.boot_ms()

    @property
    def reason(self) -> str:
        """What the end of the attempt should say of them; empty where all is well."""
        if not self.is_over:
            return "its outputs follow when the store can be reached"
        if self._given_up:
            return "its outputs were not uploaded: the store did not take them in time"
        return "some outputs were left out: the end of its log says why" if self.notes else ""

    def is_moving(self, patience_ms: int) -> bool:
        """Whether there is more to do, and something went through within ``patience_ms``."""
        return not self.is_over and self._context.clock.boot_ms() - self._moved_ms <= patience_ms

    def give_up_if_stalled(self) -> None:
        """Give up where nothing went through for too long. No request."""
        if not self.is_over and not self.is_moving(self._context.timings.outputs_patience_ms):
            log.warning("outputs given up", attempt=attempt_name(self._ref.job, self._ref.attempt))
            self.is_over = self._given_up = True

    def step(self) -> None:
        """Do what is next. Raises TransientError or RequestError: call again."""
        if self._found is None:
            self._begin()
        elif self._reading is not None:
            self._go_on(self._reading)
        elif self._found:
            self._open(self._found.popleft())
        else:
            self._put_manifest()
        self._moved_ms = self._context.clock.boot_ms()

    def _begin(self) -> None:
        store, (job, attempt) = self._context.store, (self._ref.job, self._ref.attempt)
        body = store.get(artifact_key(job, attempt))
        if body is not None:
            self._over(read_artifacts(body, self._context.ledger, job, attempt).notes)
        elif any(entry.key == log_key(job, attempt) for entry in store.list(log_key(job, attempt))):
            self.is_over = self._given_up = True
        else:
            self._found = deque(self._find())

    def _over(self, notes: tuple[str, ...]) -> None:
        self.is_over, self.notes = True, notes

    def _find(self) -> list[str]:
        """What is to be shipped, in order; notes why the rest is not."""
        root = self._root.resolve()
        sizes: dict[str, int] = {}
        for pattern in self._patterns:
            matched = False
            for path in _matches(root, pattern):
                matched = True
                name = str(path.relative_to(root))
                problem, size = _look_at(root, path)
                if problem:
                    self._say(f"{name!r} {problem}")
                else:
                    sizes[name] = size
            if not matched:
                self._say(f"--output {pattern!r} matched nothing")
        taken: list[str] = []
        taken_bytes = 0
        for name in sorted(sizes):
            if len(taken) < OUTPUTS_MAX_FILES and taken_bytes + sizes[name] <= OUTPUTS_MAX_BYTES:
                taken.append(name)
                taken_bytes += sizes[name]
        if len(taken) < len(sizes):
            self._say(
                f"{len(sizes) - len(taken)} files are more than one attempt may have: at most "
                f"{OUTPUTS_MAX_FILES} files and {OUTPUTS_MAX_BYTES >> 30} GiB"
            )
        return taken

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.append(line)

    def _open(self, name: str) -> None:
        try:
            self._reading = _Reading(self._root, name)
        except OSError as error:
            self._say(f"{name!r} cannot be read: {error.strerror}")

    def _go_on(self, reading: _Reading) -> None:
        try:
            piece = reading.next_piece()
            changed = not piece and reading.has_changed()
        except OSError as error:
            self._say(f"{reading.path!r} cannot be read: {error.strerror}")
            reading.close()
            self._reading = None
            return
        if piece:
            reading.is_put(put_piece(self._context.store, piece))
            return
        self._reading = None
        file = reading.close()
        if changed:
            self._say(f"{reading.path!r} changed while it was read")
        else:
            self._files.append(file)

    def _put_manifest(self) -> None:
        more = len(self._said) - _NOTES_MAX
        lines = [*self._said[:_NOTES_MAX], *([f"{more} further lines"] if more > 0 else [])]
        manifest = ArtifactManifest(
            ledger=self._context.ledger,
            job=self._ref.job,
            attempt=self._ref.attempt,
            files=tuple(self._files),
            notes=tuple(lines),
        )
        key = artifact_key(self._ref.job, self._ref.attempt)
        self._context.store.put_once(key, encode(manifest))
        self._over(manifest.notes)


def _matches(root: Path, pattern: str) -> Iterator[Path]:
    """Files that match, and all below folders that do. No link to a folder is followed."""
    try:
        found = sorted(root.glob(pattern))
    except (ValueError, NotImplementedError):  # submit lets no such pattern through
        return
    for path in found:
        if path.is_dir() and not path.is_symlink():
            yield from (below for below in sorted(path.rglob("*")) if not _is_folder(below))
        else:
            yield path


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _look_at(root: Path, path: Path) -> tuple[str, int]:
    """Why it cannot be shipped, or empty, and its size."""
    try:
        str(path).encode()
        target = path.resolve(strict=True)
        status = target.stat()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8", 0
    except RuntimeError:  # so say older Pythons of links that run in a circle
        return f"cannot be read: {os.strerror(errno.ELOOP)}", 0
    except OSError as error:
        return f"cannot be read: {error.strerror}", 0
    if not target.is_relative_to(root):
        return "leads out of the working directory", 0
    if not stat.S_ISREG(status.st_mode):
        return "is no file", 0
    return "", status.st_size
