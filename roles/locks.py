"""Local locks: who is the only one of its kind on this machine.

Owns the use of ``flock``. A lock is held by an open file description, so it ends with its
process however that ends, and says nothing about other machines.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ledger.clock import Clock
from ledger.spool import disk_refused

_TRIES = 5
_PAUSE_MS = 50


class FileLock:
    """Holds ``path`` from construction to ``release`` (or the end of the process)."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @staticmethod
    def try_take(path: Path) -> FileLock | None:
        """The lock, or None where somebody else holds it.

        Raises RequestError where the disk does not take the file.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_refused(path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return FileLock(path, fd)

    @staticmethod
    def take_soon(path: Path, clock: Clock) -> FileLock | None:
        """As ``try_take``, a few times: whoever asks ``is_locked`` holds it for a moment."""
        for _ in range(_TRIES):
            lock = FileLock.try_take(path)
            if lock is not None:
                return lock
            clock.sleep_ms(_PAUSE_MS)
        return None

    def release(self) -> None:
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether some process holds ``path`` now."""
    if not path.exists():
        return False
    lock = FileLock.try_take(path)
    if lock is None:
        return True
    lock.release()
    return False
