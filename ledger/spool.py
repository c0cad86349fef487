"""What a process reported, on its own disk, before any of it is sent.

Owns the spool: one append-only file per writer incarnation, ``<writer>.spool``, of JSON
lines: facts as they were reported (without ``prev``) and acknowledgements with the key
under which a fact stands in the bucket. A fact is on the disk when ``append_fact``
returns. An acknowledgement may be lost in a crash: the fact is then put a second time,
and ``(writer, n)`` makes the two one.

The living owner of a spool holds a lock on it, so that only the spools of the dead are
taken over, each by one process. A torn last line is what a crash in the middle of an
append leaves: that fact was never durable and nobody was told that it is. Any other line
that cannot be read is refused. One folder holds the spools of one ledger.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ledger.errors import GpuqError, LedgerError, RequestError
from ledger.events import AnyFact
from ledger.names import WRITER, WriterName

_SUFFIX = ".spool"


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="fact"):
    """A fact with its writer and number, without ``prev``."""

    fact: AnyFact


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="ack"):
    """Fact ``n`` stands in the bucket under ``key``."""

    n: int
    key: str


SpoolRecord = Reported | Acknowledged

_decode = msgspec.json.Decoder(SpoolRecord).decode
_encode = msgspec.json.Encoder().encode


class SpoolContent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a writer stands: what is still to be sent, and the key of what was sent last."""

    pending: tuple[AnyFact, ...]
    newest_key: str


class Spool(Protocol):
    """The spool of one writer, in the hands of its only owner."""

    writer: WriterName

    def append_fact(self, fact: AnyFact) -> None:
        """Durable on return. Raises RequestError where the disk does not take it."""

    def append_acknowledged(self, n: int, key: str) -> None:
        """May be lost in a crash. Raises RequestError where the disk does not take it."""

    def content(self) -> SpoolContent:
        """All that was appended. Raises LedgerError where it cannot be read."""

    def close(self) -> None:
        """Give up ownership; what is pending is left for whoever drains."""

    def remove(self) -> None:
        """Give up ownership and leave nothing; only when nothing is pending."""


class SpoolStorage(Protocol):
    """Where the spools of one machine and one ledger are kept."""

    def create(self, writer: WriterName) -> Spool:
        """The new, empty spool of a new incarnation."""

    def abandoned(self) -> Iterator[Spool]:
        """The spools whose owners are gone, each owned by the caller when it is given out."""


def content_of(records: Iterable[SpoolRecord], writer: WriterName) -> SpoolContent:
    """Fold the lines of the spool of ``writer``; O(lines).

    An acknowledgement covers all facts before it, since facts are put in order. Raises
    LedgerError where facts are not numbered without gaps or acknowledgements go back.
    """
    facts: list[AnyFact] = []
    acknowledged = 0
    newest_key = ""
    for record in records:
        match record:
            case Reported(fact=fact):
                if (fact.writer, fact.n) != (writer, len(facts)):
                    raise LedgerError(
                        f"the spool of {writer} has fact {fact.n} of {fact.writer} "
                        f"in place of fact {len(facts)}"
                    )
                facts.append(fact)
            case Acknowledged(n=n, key=key):
                if not acknowledged <= n < len(facts):
                    raise LedgerError(f"the spool of {writer} acknowledges fact {n} out of order")
                acknowledged, newest_key = n + 1, key
    return SpoolContent(pending=tuple(facts[acknowledged:]), newest_key=newest_key)


def read_records(data: bytes, name: str) -> tuple[list[SpoolRecord], int]:
    """The whole lines of a spool file and how many bytes they take; O(bytes).

    What follows them is a torn append. Raises LedgerError, which names the file ``name``,
    where a line that cannot be read is not the last one.
    """
    records: list[SpoolRecord] = []
    whole_bytes = 0
    while (end := data.find(b"\n", whole_bytes)) >= 0:
        try:
            records.append(_decode(data[whole_bytes:end]))
        except msgspec.DecodeError as error:
            if end + 1 == len(data):
                break
            raise LedgerError(
                f"{name}: line {len(records) + 1} cannot be read ({error}); it is damaged or "
                "was written by a newer gpuq: upgrade, or move the file away and keep it"
            ) from error
        whole_bytes = end + 1
    return records, whole_bytes


class DirectorySpools:
    """Spools as files in the folder ``path``, which is made when the first one is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, writer: WriterName) -> DirectorySpool:
        """Raises RequestError where the folder cannot be made or written."""
        file = self._path / f"{writer}{_SUFFIX}"
        try:
            _make_folder(self._path)
            fd = _create_locked(file)
            _sync_folder(self._path)
        except OSError as error:
            raise disk_refused(file, error) from error
        return DirectorySpool(writer, file, fd)

    def abandoned(self) -> Iterator[DirectorySpool]:
        """In the order of the writers' names; O(bytes of each)."""
        for file in sorted(self._path.glob(f"*{_SUFFIX}")):
            spool = self._take(file)
            if spool is not None:
                yield spool

    def _take(self, file: Path) -> DirectorySpool | None:
        """The spool in ``file``, or None where it is alive, gone, or no spool by its name."""
        name = file.name.removesuffix(_SUFFIX)
        if not WRITER.fullmatch(name):
            return None
        try:
            fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_refused(file, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        if not _is_linked(fd, file):
            os.close(fd)
            return None
        try:
            return DirectorySpool(WriterName(name), file, fd)
        except GpuqError:
            os.close(fd)
            raise


class DirectorySpool:
    """One spool file, open and locked. ``fd`` is closed by ``close`` or ``remove``."""

    def __init__(self, writer: WriterName, file: Path, fd: int) -> None:
        """Cuts off a torn append. Raises LedgerError where the file is damaged."""
        self.writer = writer
        self._file = file
        self._fd = fd
        _, self._whole_bytes = read_records(self._read(), str(file))
        self._cut()

    def append_fact(self, fact: AnyFact) -> None:
        self._append(Reported(fact=fact), durable=True)

    def append_acknowledged(self, n: int, key: str) -> None:
        self._append(Acknowledged(n=n, key=key), durable=False)

    def content(self) -> SpoolContent:
        records, _ = read_records(self._read(), str(self._file))
        return content_of(records, self.writer)

    def close(self) -> None:
        os.close(self._fd)

    def remove(self) -> None:
        try:
            # Unlinked while it is locked: who opened it meanwhile sees that it is gone.
            self._file.unlink()
        except OSError as error:
            raise disk_refused(self._file, error) from error
        finally:
            self.close()

    def _append(self, record: SpoolRecord, *, durable: bool) -> None:
        line = _encode(record) + b"\n"
        try:
            self._cut()
            _write_all(self._fd, line)
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            # Whoever drains this spool must not find what its reporter was refused.
            with contextlib.suppress(OSError):
                self._cut()
            raise disk_refused(self._file, error) from error
        self._whole_bytes += len(line)

    def _cut(self) -> None:
        """Go to the end of the whole lines and drop what a failed append left behind it."""
        if os.fstat(self._fd).st_size > self._whole_bytes:
            os.ftruncate(self._fd, self._whole_bytes)
        os.lseek(self._fd, self._whole_bytes, os.SEEK_SET)

    def _read(self) -> bytes:
        os.lseek(self._fd, 0, os.SEEK_SET)
        with open(self._fd, "rb", closefd=False) as stream:
            return stream.read()


def _write_all(fd: int, data: bytes) -> None:
    """A full disk takes a part of a write first and refuses only the next one."""
    while data:
        data = data[os.write(fd, data) :]


def _create_locked(file: Path) -> int:
    """A descriptor of the new ``file``, with its lock."""
    while True:
        fd = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if _is_linked(fd, file):
            return fd
        # Between open and flock a drainer took the empty file for an abandoned one.
        os.close(fd)


def _is_linked(fd: int, file: Path) -> bool:
    """Whether ``file`` is (still) the name of the open file."""
    try:
        return os.path.samestat(os.fstat(fd), file.stat())
    except FileNotFoundError:
        return False


def _make_folder(folder: Path) -> None:
    """Make ``folder`` and its parents so that their names survive a power cut."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def disk_refused(file: Path, error: OSError) -> RequestError:
    """The disk does not take what this machine must keep; with the mend."""
    mend = {
        errno.ENOSPC: "free some space there",
        errno.EDQUOT: "free some of your quota there",
        errno.EROFS: "mount it writable, or choose another state directory",
        errno.EACCES: "make it writable for this user",
        errno.EPERM: "make it writable for this user",
    }.get(error.errno or 0, "check the disk")
    return RequestError(f"cannot write {file}: {error.strerror}; {mend}")
