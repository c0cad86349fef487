"""The snapshots that a node has unpacked, and a job's private copy of one.

Owns ``snapshots/`` of a ledger's local state: one tree for each manifest, unpacked once and then
only read, and at most ``SNAPSHOTS_KEPT`` of them, those that were used last. What a job writes
goes into its own copy, which its attempt's folder holds and which goes with that folder.

A tree is unpacked beside its place and renamed into it, under a lock that ends with its holder:
what a killed worker left half is removed by the next one. Trees stand below the id of the boot
that unpacked them, because a power cut can empty files that were just written; those of former
boots are removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from ledger.archive import Manifest, unpack
from ledger.errors import RequestError, TransientError
from ledger.events import SCHEMA, Snapshot
from ledger.pieces import DamagedError, get_blob, get_pieces
from ledger.timings import SNAPSHOT_MAX_BYTES, SNAPSHOTS_KEPT
from roles.context import Context
from roles.locks import FileLock

_UNFINISHED = ".new"
_NOT_FOR_THIS_DISK = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
"""A name that this disk cannot hold: that job fails, and the next one may run."""


def place_snapshot(context: Context, boot_id: str, snapshot: Snapshot, target: Path) -> str:
    """Make ``target`` a private copy of the snapshot; why it cannot be had, or empty.

    Fetches and unpacks it where this node does not have it yet, and blocks for so long. Raises
    TransientError where the store gives no news or another worker of this node is at it, and
    RequestError where the disk does not take it.
    """
    folder = context.ledger_dir / "snapshots"
    lock = FileLock.take_soon(folder / "lock", context.clock)
    if lock is None:
        raise TransientError("another worker of this node unpacks a snapshot")
    try:
        trees = folder / boot_id
        trees.mkdir(exist_ok=True, mode=0o700)
        _remove_litter(folder, trees)
        tree = trees / snapshot.manifest
        if not tree.exists():
            _unpack(context, snapshot, trees)
        os.utime(tree)
        _forget_oldest(trees)
        remove_tree(target)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copytree(tree, target, symlinks=True)
    except DamagedError as error:
        return f"its snapshot is unusable: {error}; submit it again"
    except OSError as error:
        if error.errno in _NOT_FOR_THIS_DISK:
            return f"its snapshot cannot be unpacked on this node: {error.strerror}"
        # Of a copy that failed, the first of all that was said.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise RequestError(
            f"cannot unpack a snapshot below {folder}: {why}; free some disk, or choose another "
            "state folder"
        ) from error
    finally:
        lock.release()
    return ""


def _unpack(context: Context, snapshot: Snapshot, trees: Path) -> None:
    manifest = _manifest(get_blob(context.store, snapshot.manifest))
    unfinished = trees / f"{snapshot.manifest}{_UNFINISHED}"
    with tempfile.TemporaryFile(dir=trees) as archive:
        for piece in get_pieces(context.store, manifest.archive):
            archive.write(piece)
        archive.seek(0)
        unpack(archive, unfinished, manifest)
    unfinished.rename(trees / snapshot.manifest)


def _manifest(body: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise DamagedError(f"its manifest cannot be read ({error})") from error
    if manifest.v > SCHEMA:
        raise DamagedError(f"its manifest has format {manifest.v}, which this node cannot read")
    if max(manifest.size, manifest.archive.size) > SNAPSHOT_MAX_BYTES:
        raise DamagedError(f"it is larger than {SNAPSHOT_MAX_BYTES} bytes")
    return manifest


def _remove_litter(folder: Path, trees: Path) -> None:
    """What former boots and killed workers left; nobody else is here, says the lock."""
    for path in folder.iterdir():
        if path.is_dir() and path != trees:
            remove_tree(path)
    for path in trees.glob(f"*{_UNFINISHED}"):
        remove_tree(path)


def _forget_oldest(trees: Path) -> None:
    by_use = sorted(trees.iterdir(), key=lambda tree: tree.stat().st_mtime_ns)
    for tree in by_use[:-SNAPSHOTS_KEPT]:
        remove_tree(tree)


def remove_tree(path: Path) -> None:
    """Remove a folder, if it is there, with all that a job made read-only in it.

    What belongs to another user, who alone may remove it, is left.
    """
    if not path.exists():
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, names, _ in os.walk(path):
            for name in names:
                with contextlib.suppress(OSError):
                    _make_writable(Path(folder) / name)
        shutil.rmtree(path, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    if not folder.is_symlink():
        folder.chmod(0o700)
