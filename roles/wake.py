"""Waking a worker of this machine: a FIFO that a follower writes to and a worker waits on.

Owns ``wake`` files and the ``following`` mark. A lost wake-up costs a worker one polling
period, never a message: the mailbox in the bucket is the truth.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ledger.clock import Clock
from ledger.names import NodeName, WorkerName
from roles.context import Context

FOLLOWED_FOR_MS = 5_000
"""A mark older than this says that nobody follows any more."""


class WakeFifo:
    """The receiving end. A FIFO has no limit on its path's length, unlike a socket."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait_ms(self, timeout_ms: int) -> bool:
        """Wait until woken (True) or for ``timeout_ms`` (False)."""
        ready, _, _ = select.select([self._fd], [], [], timeout_ms / 1000)
        if ready:
            with suppress(BlockingIOError):
                os.read(self._fd, 4096)
        return bool(ready)

    def close(self) -> None:
        os.close(self._fd)


class Neighbours(Protocol):
    """The workers of this machine, as whoever follows the journal sees them."""

    def mark_following(self) -> None:
        """Say that they will be woken when a page concerns them."""

    def wake(self, worker: WorkerName) -> None:
        """There is a message for this worker; no effect where it is not of this machine."""


class LocalNeighbours:
    """``Neighbours`` by the FIFOs and the mark of this machine's state folder."""

    def __init__(self, context: Context, node: NodeName) -> None:
        self._context = context
        self._mark = context.node_dir(node) / "following"

    def mark_following(self) -> None:
        mark_following(self._mark, self._context.clock)

    def wake(self, worker: WorkerName) -> None:
        wake(self._context.worker_dir(worker) / "wake")


def wake(path: Path) -> None:
    """Wake whoever waits on this FIFO; nobody there is fine."""
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"\0")
        finally:
            os.close(fd)


def mark_following(path: Path, clock: Clock) -> None:
    """Say that this machine's workers will be woken when a page concerns them.

    Where the disk does not take it, they look into their mailboxes more often.
    """
    fresh = path.with_suffix(".new")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(str(clock.boot_ms()))
        fresh.replace(path)


def is_followed(path: Path, clock: Clock) -> bool:
    """Whether somebody marked ``path`` within the last seconds (since this boot)."""
    try:
        age_ms = clock.boot_ms() - int(path.read_text())
    except (OSError, ValueError):
        return False
    return 0 <= age_ms <= FOLLOWED_FOR_MS
