"""When this node's supervisor was last heard by the bucket: ``last-beat`` in the node's folder.

Owns that file. The workers judge by it whether their supervisor still does its work: one that
hangs holds its lock like any other. Standing there is the boot and its clock's time at which
the put of the last acknowledged beat began.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from roles.processes import boot_id

_NAME = "last-beat"


def write_last_beat(node_dir: Path, boot_ms: int) -> None:
    """Replace it, as far as the disk takes that: without it the workers beat themselves."""
    fresh = node_dir / f"{_NAME}.new"
    with contextlib.suppress(OSError):
        fresh.write_text(f"{boot_id()} {boot_ms}")
        fresh.replace(node_dir / _NAME)


def read_last_beat(node_dir: Path) -> int | None:
    """Its time (ms) in this boot; None where there is none that can be read."""
    try:
        boot, _, time_ms = (node_dir / _NAME).read_text().rpartition(" ")
        return int(time_ms) if boot == boot_id() else None
    except (OSError, ValueError):
        return None
