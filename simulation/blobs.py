"""The blobs of a ledger, held against their names and against what needs them.

Owns which blobs must be there: what pages name, and the pieces that manifests name. Every blob
that stands there must be what its name says, also one that nobody needs (an upload that was
interrupted leaves such).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ledger.archive import Manifest
from ledger.journal import BATCH_MAX
from ledger.keys import BLOBS, blob_key
from ledger.names import Seq
from ledger.stores.base import Store
from simulation.difference import Difference

_BLOB = re.compile(r"blobs/([0-9a-f]{64})")
_BATCH_MAX_BYTES = 32 * 1024 * 1024


class Blobs:
    """Collects what is needed, then tells the differences."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._needed: dict[str, tuple[Seq, str]] = {}
        """By sha256: the page that needs it first, and as what."""
        self._snapshots: dict[str, Seq] = {}
        self.count = 0
        """How many were looked at."""
        self.strays = 0

    def need(self, sha256: str, seq: Seq, what: str = "the blob that this page names") -> None:
        """This page, or what it names, is worth nothing without that blob."""
        self._needed.setdefault(sha256, (seq, what))

    def need_snapshot(self, manifest: str, seq: Seq) -> None:
        """The same of a manifest and all the pieces that it names."""
        self.need(manifest, seq)
        self._snapshots.setdefault(manifest, seq)

    def differences(self, from_seq: Seq) -> Iterator[Difference]:
        """What is not needed before ``from_seq``. One LIST, one GET a blob."""
        for manifest, seq in self._snapshots.items():
            if seq >= from_seq:
                yield from self._read_manifest(manifest, seq)
        sizes = self._standing()
        judged = [
            name
            for name in {**self._needed, **sizes}
            if self._needed.get(name, (from_seq, ""))[0] >= from_seq
        ]
        self.count += len(judged)
        for name, body in self._fetch(judged, sizes):
            needed = self._needed.get(name)
            page = None if needed is None else needed[0]
            if body is None:
                derived = "a blob that was listed" if needed is None else needed[1]
                yield _difference(page, name, "body", None, derived)
            elif hashlib.sha256(body).hexdigest() != name:
                yield _difference(page, name, "sha256", hashlib.sha256(body).hexdigest(), name)

    def _read_manifest(self, name: str, seq: Seq) -> Iterator[Difference]:
        body = self._store.get(blob_key(name))
        if body is None or hashlib.sha256(body).hexdigest() != name:
            return  # it is told with all other blobs
        try:
            manifest = msgspec.json.decode(body, type=Manifest)
        except msgspec.DecodeError as error:
            yield _difference(seq, name, "body", str(error), "the manifest of a snapshot")
            return
        for piece in manifest.archive.pieces:
            self.need(piece, seq, "a piece of the snapshot that this page names")

    def _standing(self) -> dict[str, int]:
        sizes = {}
        for entry in self._store.list(BLOBS):
            match = _BLOB.fullmatch(entry.key)
            if match is None:
                self.strays += 1
            else:
                sizes[match[1]] = entry.size
        return sizes

    def _fetch(
        self, names: Sequence[str], sizes: Mapping[str, int]
    ) -> Iterator[tuple[str, bytes | None]]:
        """In batches that memory bears."""
        batch: list[str] = []
        batch_bytes = 0
        for name in names:
            batch_bytes += sizes.get(name, 0)
            if len(batch) == BATCH_MAX or (batch and batch_bytes > _BATCH_MAX_BYTES):
                yield from zip(batch, self._get(batch), strict=True)
                batch, batch_bytes = [], sizes.get(name, 0)
            batch.append(name)
        yield from zip(batch, self._get(batch), strict=True)

    def _get(self, names: Sequence[str]) -> Sequence[bytes | None]:
        return self._store.get_many([blob_key(name) for name in names])


def _difference(seq: Seq | None, name: str, field: str, recorded: Any, derived: Any) -> Difference:
    return Difference(page=seq, key=blob_key(name), field=field, recorded=recorded, derived=derived)
