"""The store that is a folder: one file an object, created by ``link`` and never changed.

Owns the layout (a key is a path below the root) and its durability: a file is written
under a hidden temporary name in the same folder, fsynced, linked to its own name, and the
folder fsynced. ``link`` refuses a name that exists, also over NFS, and a reader sees a
whole file or none. Refuses keys that would leave the root, and a file system without hard
links. A process that was killed can leave a hidden file behind; nothing ever reads it.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ledger.clock import Clock
from ledger.errors import GpuqError, RequestError, TransientError
from ledger.names import token
from ledger.stores.base import Entry
from ledger.stores.naming import check_prefix, is_segment
from ledger.stores.settling import NotSentError, Sender, SettlingStore

_NEEDS_A_PERSON = {
    errno.EROFS: "the file system is read-only: mount it writable, or use another folder",
    errno.EACCES: "permission denied: give this user read and write rights on the folder",
    errno.EPERM: "operation not permitted: give this user read and write rights on the folder",
    errno.ENOTDIR: "a file is in the way of a folder: use another folder as store",
    errno.EEXIST: "a file is in the way of a folder: use another folder as store",
    errno.EISDIR: "a folder is in the way of a file: use another folder as store",
    errno.ENAMETOOLONG: "the path is too long: use a folder nearer to the root",
    errno.ELOOP: "its symbolic links run in a circle: use the real path",
}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class DirectoryStore(SettlingStore):
    """A folder as store. It is created, with its parents, by the first put.

    ``root`` is absolute. A root that this process has seen and that is gone later (an
    unmounted disk) is a RequestError, never an empty ledger.
    """

    def __init__(self, root: Path, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(clock=clock, rng=rng)
        self.url = root.as_uri()
        self._root = root
        self._seen = root.exists()
        self._durable: set[Path] = set()
        """Folders below the root whose own names this process has fsynced."""
        self._last_clock_ms = 0

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        """See ``Store.list``. Reads the names of each folder that can hold an answer."""
        check_prefix(prefix)
        check_prefix(start_after)
        self._counts.add("LIST")
        with self._translated(f"list {prefix}"):
            self._check_root()
            yield from self._walk(prefix[: prefix.rfind("/") + 1], prefix, start_after)

    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        return self.list(prefix, start_after)

    def versioning(self) -> bool | None:
        return False

    def clock_ms(self) -> int:
        self._last_clock_ms = max(self._last_clock_ms, self._clock.wall_ms())
        return self._last_clock_ms

    def sync(self, prefix: str) -> None:
        """Fsync the folder that holds ``prefix``, and the names of the folders above it."""
        folder = self._root / prefix[: prefix.rfind("/") + 1]
        with self._translated(f"sync {prefix}"):
            self._make_durable(folder)
            _fsync_folder(folder)

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        self._counts.add("PUT")
        path = self._root / key
        with self._translated(f"write {key}", transient=NotSentError):
            self._check_root()
            if not self._seen:
                self._make_root()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_durable(path.parent)
            temporary = self._write_temporary(path.parent, body)
        with self._translated(f"write {key}"):
            try:
                created = self._link(temporary, path)
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
            _fsync_folder(path.parent)
        return created

    def _read(self, key: str) -> bytes | None:
        self._counts.add("GET")
        with self._translated(f"read {key}"):
            self._check_root()
            try:
                return (self._root / key).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                return None

    def _check_root(self) -> None:
        try:
            status = self._root.stat()
        except FileNotFoundError:
            if self._seen:
                raise RequestError(
                    f"{self._root} is gone: mount the disk that holds it again"
                ) from None
            return
        if not stat.S_ISDIR(status.st_mode):
            raise RequestError(f"{self._root} is a file: name a folder as store")
        self._seen = True

    def _make_root(self) -> None:
        missing = [folder for folder in (self._root, *self._root.parents) if not folder.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            _fsync_folder(folder.parent)
        self._seen = True

    def _write_temporary(self, folder: Path, body: bytes) -> Path:
        """A durable hidden file in ``folder``; it is removed again where writing fails."""
        # The thread's id keeps two stores of one machine apart that were given one seed.
        temporary = folder / f".{threading.get_native_id()}-{token(self._rng, 12)}.tmp"
        with temporary.open("xb") as file:
            try:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                temporary.unlink()
                raise
        return temporary

    def _link(self, temporary: Path, path: Path) -> bool:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise RequestError(
                    f"{self._root}: the file system has no hard links ({error.strerror}): "
                    "use a folder on another one"
                ) from error
            raise
        return True

    def _make_durable(self, folder: Path) -> None:
        """Fsync the names of ``folder`` and of those above it, once per process.

        Another process may have made the folder and died before it fsynced its name.
        """
        if folder == self._root or folder in self._durable:
            return
        self._make_durable(folder.parent)
        _fsync_folder(folder.parent)
        self._durable.add(folder)

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[Entry]:
        """Entries below ``folder`` (empty, or ending with a slash) in byte order."""
        for name, size in self._children(folder, prefix, start_after):
            if size is None:
                yield from self._walk(name, prefix, start_after)
            else:
                yield Entry(name, size)

    def _children(
        self, folder: str, prefix: str, start_after: str
    ) -> Iterator[tuple[str, int | None]]:
        """Keys of the files in ``folder`` with their size, and subfolders (size None).

        A subfolder is named with its slash, so that sorting these names sorts whole keys:
        ``a-x`` comes before ``a/x``. What cannot hold an answer is left out before it is
        sorted or looked at, so that an hour of facts costs the same after years of them.
        """
        try:
            with os.scandir(self._root / folder) as scan:
                found = {
                    folder + entry.name + ("/" if entry.is_dir() else ""): entry
                    for entry in scan
                    if is_segment(entry.name)
                }
        except FileNotFoundError:
            return
        for name in sorted(name for name in found if _may_answer(name, prefix, start_after)):
            if name.endswith("/"):
                yield name, None
                continue
            try:
                size = found[name].stat().st_size
            except FileNotFoundError:  # an owner may let old beats expire meanwhile
                continue
            yield name, size

    @contextmanager
    def _translated(
        self, doing: str, transient: type[TransientError] = TransientError
    ) -> Iterator[None]:
        """OS errors as gpuq's: who must act decides which (a full disk may be emptied)."""
        try:
            yield
        except OSError as error:
            raise self._meaning(error, doing, transient) from error

    def _meaning(self, error: OSError, doing: str, transient: type[TransientError]) -> GpuqError:
        mend = _NEEDS_A_PERSON.get(error.errno or 0)
        if mend is not None:
            return RequestError(f"cannot {doing} in {self._root}: {mend}")
        return transient(f"cannot {doing} in {self._root}: {error.strerror or error}")


def _may_answer(name: str, prefix: str, start_after: str) -> bool:
    """Whether ``name`` (a key, or a folder with its slash) is or holds an answer."""
    if name.endswith("/"):
        related = name.startswith(prefix) or prefix.startswith(name)
        return related and (name > start_after or start_after.startswith(name))
    return name.startswith(prefix) and name > start_after


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no fsync of a folder, and need none.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
