"""What a job wrote, on the node's disk: bytes exactly as they were, under a cap.

Owns two files of a job's folder. ``log`` is the head, the first half of the cap: it only
grows, so it can be shipped in pieces while the job runs. What comes after it goes round in
``log.tail``: a header and a ring of the other half. At the end the ring is appended to
``log``, after a line that says how many bytes were left out, if any; then ``log`` is
whole, and what was shipped before is a prefix of it. The disk holds at most one and a half
caps. Standard library only, because the runner imports it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct(">QQ")
"""Of the tail: bytes in the head, and bytes ever given to the ring."""
_COPY_BYTES = 65_536


class JobLog:
    """The writing side. A write that fails (disk full) is counted, and never raises."""

    def __init__(self, job_dir: Path, cap_bytes: int) -> None:
        self.total_bytes = 0
        """What the job wrote."""
        self.lost_bytes = 0
        """What the disk did not take."""
        self.problem: str | None = None
        """What the disk said first."""
        self._job_dir = job_dir
        self._cap_bytes = cap_bytes
        self._head_bytes = 0
        self._tail_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._head = os.open(job_dir / "log", flags, 0o600)
        self._tail = os.open(job_dir / "log.tail", flags, 0o600)

    @property
    def cut(self) -> bool:
        """Whether bytes were left out to stay under the cap."""
        return self._tail_bytes > tail_cap_bytes(self._cap_bytes)

    def add(self, data: bytes) -> None:
        """Take what was read from the job."""
        self.total_bytes += len(data)
        head = data[: self._cap_bytes // 2 - self._head_bytes]
        self._head_bytes += self._write(self._head, head, self._head_bytes)
        rest = memoryview(data)[len(head) :]
        if not rest:
            return
        ring_bytes = tail_cap_bytes(self._cap_bytes)
        while rest:
            at = self._tail_bytes % ring_bytes
            piece = rest[: ring_bytes - at]
            self._tail_bytes += self._write(self._tail, piece, _HEADER.size + at)
            rest = rest[len(piece) :]
        try:
            os.pwrite(self._tail, _HEADER.pack(self._head_bytes, self._tail_bytes), 0)
        except OSError as error:
            self.problem = self.problem or error.strerror

    def _write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """How many of the bytes were written; the others are lost."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(fd, data[written:], offset + written)
        except OSError as error:
            self.problem = self.problem or error.strerror
            self.lost_bytes += len(data) - written
        return written

    def close(self) -> None:
        """Make ``log`` whole and durable."""
        try:
            join_log(self._job_dir, self._cap_bytes)
        except OSError as error:
            self.problem = self.problem or error.strerror
            kept_bytes = min(self._tail_bytes, tail_cap_bytes(self._cap_bytes))
            size_bytes = os.fstat(self._head).st_size
            self.lost_bytes += max(0, self._head_bytes + kept_bytes - size_bytes)
        os.close(self._head)
        os.close(self._tail)


def tail_cap_bytes(cap_bytes: int) -> int:
    """The part of the cap that the ring has."""
    return cap_bytes - cap_bytes // 2


def join_log(job_dir: Path, cap_bytes: int) -> None:
    """Append the ring ``log.tail`` to ``log`` and remove it; no-op where that was done.

    May be repeated after a crash half-way: it begins again at the head's end. Raises
    OSError when the disk does not take it.
    """
    tail_path = job_dir / "log.tail"
    if not tail_path.exists():
        return
    with tail_path.open("rb") as tail, (job_dir / "log").open("r+b") as log:
        header = tail.read(_HEADER.size)
        if len(header) == _HEADER.size:
            head_bytes, tail_bytes = _HEADER.unpack(header)
            log.truncate(head_bytes)
            log.seek(head_bytes)
            kept_bytes = min(tail_bytes, tail_cap_bytes(cap_bytes))
            oldest = 0
            if tail_bytes > kept_bytes:
                log.write(
                    b"\n[gpuq: %d bytes of this log left out here]\n" % (tail_bytes - kept_bytes)
                )
                oldest = tail_bytes % kept_bytes
            tail.seek(_HEADER.size + oldest)
            _copy(tail, log, kept_bytes - oldest)
            tail.seek(_HEADER.size)
            _copy(tail, log, oldest)
        log.flush()
        os.fsync(log.fileno())
    tail_path.unlink()


def _copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    while length and (data := source.read(min(length, _COPY_BYTES))):
        target.write(data)
        length -= len(data)
