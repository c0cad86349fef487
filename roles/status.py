"""What a worker says of itself to its supervisor: ``status.json`` in the worker's folder.

Owns that file. It is a hint for beats and for finding the process, never the truth of
anything: a reader of a missing or damaged one goes on without.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from ledger.names import WorkerName, WriterName
from roles.processes import Identity

_NAME = "status.json"


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a worker is; written whenever something of it changes."""

    process: Identity | None = None
    """Whom to signal: see ``roles.worker_process``."""
    writer: WriterName = WriterName("")
    """Under which it reports; empty until it has read the ledger."""
    running: tuple[str, ...] = ()
    """``<job>.<attempt>`` of all that it runs."""
    slots: tuple[WorkerName, ...] = ()
    """Those that this uses, other workers' among them."""
    problem: str = ""
    """Why the slot must take no work; empty where it may."""
    newest_key: str = ""
    """The key of its newest acknowledged fact."""
    pending_facts: int = 0
    """Reported locally, not yet in the bucket."""
    cursor: int = 0
    """The number of the first message that it has not handled."""


def write_status(worker_dir: Path, status: WorkerStatus) -> None:
    """Replace the status whole; what stood there stays where the disk does not take it."""
    fresh = worker_dir / f"{_NAME}.new"
    # A full disk is already told of by whatever else it refuses.
    with contextlib.suppress(OSError):
        fresh.write_bytes(msgspec.json.encode(status))
        fresh.replace(worker_dir / _NAME)


def read_status(worker_dir: Path) -> WorkerStatus | None:
    """What the worker said last, or None where it said nothing that can be read."""
    try:
        return msgspec.json.decode((worker_dir / _NAME).read_bytes(), type=WorkerStatus)
    except (OSError, msgspec.DecodeError):
        return None
