"""``gpuq submit --snapshot``: a tree of files, as it is now, into the store.

Owns the limit of its size, what is recorded of it, and the order of writing: the pieces, then
the manifest that names them; the submit fact comes after both. So an upload that is killed
leaves pieces that nobody names, and the next one sends only what is missing.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gpuq.checkout import find_checkout
from gpuq.render import printable, size
from gpuq.tree import OWN_RULES, Walk
from ledger.archive import Entry, Manifest, pack
from ledger.errors import RequestError, TransientError
from ledger.events import Snapshot, encode
from ledger.pieces import pieces_of, put_pieces
from ledger.stores.base import Store
from ledger.timings import SNAPSHOT_MAX_BYTES
from ledger.writer import put_blob

_SHOWN = 5


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was taken and is not yet in the store."""

    spec: Snapshot
    manifest: bytes
    archive: bytes

    def upload(self, store: Store) -> None:
        """Have it in the store; what is there already is not sent again."""
        try:
            put_pieces(store, self.archive)
            put_blob(store, self.manifest)
        except TransientError as error:
            raise TransientError(
                f"{error}; the snapshot is not whole in the store and nothing was submitted: try "
                "again, what is there already is not sent twice"
            ) from error


class Packing:
    """Takes each snapshot once for all jobs of a call."""

    def __init__(self) -> None:
        self._packed: dict[tuple[str, str], Packed] = {}

    def pack(self, directory: str, cwd: str) -> Packed:
        """As ``pack_snapshot``."""
        if (directory, cwd) not in self._packed:
            self._packed[directory, cwd] = pack_snapshot(directory, cwd)
        return self._packed[directory, cwd]


def pack_snapshot(directory: str, cwd: str) -> Packed:
    """Take the snapshot of ``directory``. Raises RequestError for a tree that cannot be kept.

    A job that was to begin in ``cwd`` begins in the same place of the tree, or at its root where
    that is elsewhere.
    """
    root = Path(os.path.realpath(directory))
    checkout = find_checkout(root)
    entries = Walk(root, checkout).entries()
    _check_size(root, entries)
    archive = io.BytesIO()
    files_bytes = pack(root, entries, archive, SNAPSHOT_MAX_BYTES)
    pieces = pieces_of(archive.getvalue())
    manifest = encode(Manifest(archive=pieces, files=len(entries), size=files_bytes))
    spec = Snapshot(
        manifest=hashlib.sha256(manifest).hexdigest(), directory=_directory(root, entries, cwd)
    )
    if checkout is not None:
        spec = msgspec.structs.replace(
            spec, commit=checkout.commit, branch=checkout.branch, dirty=checkout.dirty
        )
    return Packed(spec=spec, manifest=manifest, archive=archive.getvalue())


def _directory(root: Path, entries: Sequence[Entry], cwd: str) -> str:
    """Where in the tree a job of ``cwd`` begins; its root is empty."""
    begin = os.path.relpath(os.path.realpath(cwd), root)
    if begin == "." or begin == ".." or begin.startswith("../"):
        return ""
    if not any(entry.name == begin and entry.kind == "folder" for entry in entries):
        raise RequestError(
            f"the job would begin in {printable(begin)}, which is not in the snapshot: mend the "
            "ignore files, or name another folder with --chdir"
        )
    return begin


def _check_size(root: Path, entries: Sequence[Entry]) -> None:
    total = sum(entry.size for entry in entries)
    if total <= SNAPSHOT_MAX_BYTES:
        return
    largest = _largest(entries)
    shown = ", ".join(f"{printable(name)} {size(of_name)}" for name, of_name in largest)
    raise RequestError(
        f"the snapshot would have {size(total)}, at most {size(SNAPSHOT_MAX_BYTES)} are taken. "
        f"Largest: {shown}. Leave one out with a line in {printable(str(root / OWN_RULES))}: "
        f"/{printable(largest[0][0])}"
    )


def _largest(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """The five largest folders (with a slash), and files of the root, with their bytes.

    A folder stands for all below it, unless one folder in it holds more than half of that.
    """
    totals: Counter[str] = Counter()
    folders = {entry.name for entry in entries if entry.kind == "folder"}
    for entry in entries:
        parts = entry.name.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        totals.update(dict.fromkeys(above or [entry.name], entry.size))
    hollow = {
        posixpath.dirname(name)
        for name, of_name in totals.items()
        if 2 * of_name > totals.get(posixpath.dirname(name), 2 * of_name)
    }
    kept = [(name, of_name) for name, of_name in totals.items() if name not in hollow]
    largest = sorted(kept, key=lambda pair: (-pair[1], pair[0]))[:_SHOWN]
    return [(f"{name}/" if name in folders else name, of_name) for name, of_name in largest]
