"""Bytes of any length as blobs: cut into pieces, each under its own hash.

Owns the cutting and the joining. A piece that is in the store already is not sent again, so an
upload that was interrupted goes on where it was. Whoever names the pieces in an object of
their own puts that object last: what is half there is then named by nobody. Nothing is handed
out before it was compared with its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from ledger.errors import LedgerError
from ledger.keys import blob_key
from ledger.stores.base import Store
from ledger.timings import PIECE_BYTES
from ledger.writer import put_blob


class DamagedError(LedgerError):
    """What the store should hold is missing there, or is not what its hash says."""


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of one whole are."""

    size: int
    """Bytes of the whole."""
    sha256: str
    """Of the whole."""
    pieces: tuple[str, ...]
    """The sha256 of each blob, in order; all have ``PIECE_BYTES`` but the last."""


def pieces_of(whole: bytes) -> Pieces:
    """How ``whole`` is cut."""
    return Pieces(
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        pieces=tuple(hashlib.sha256(piece).hexdigest() for piece in _cut(whole)),
    )


def put_pieces(store: Store, whole: bytes) -> None:
    """Have all pieces of ``whole`` in the store. Raises TransientError: call again."""
    for piece in _cut(whole):
        put_piece(store, piece)


def put_piece(store: Store, piece: bytes) -> str:
    """Have it in the store as a blob; its sha256. One LIST, and a PUT where it is not there."""
    sha256 = hashlib.sha256(piece).hexdigest()
    key = blob_key(sha256)
    if any(entry.key == key and entry.size == len(piece) for entry in store.list(key)):
        return sha256
    return put_blob(store, piece)


def get_pieces(store: Store, whole: Pieces) -> Iterator[bytes]:
    """The bytes, piece by piece. Raises DamagedError, at the end also for the whole."""
    digest, size = hashlib.sha256(), 0
    for sha256 in whole.pieces:
        data = get_blob(store, sha256)
        digest.update(data)
        size += len(data)
        yield data
    if (size, digest.hexdigest()) != (whole.size, whole.sha256):
        raise DamagedError(f"{len(whole.pieces)} blobs do not make up {whole.sha256}")


def get_blob(store: Store, sha256: str) -> bytes:
    """The bytes under their hash. Raises DamagedError."""
    key = blob_key(sha256)
    data = store.get(key)
    if data is None:
        raise DamagedError(f"{key} is not in the store")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedError(f"{key} is not what its name says")
    return data


def _cut(whole: bytes) -> Iterator[bytes]:
    for start in range(0, len(whole), PIECE_BYTES):
        yield whole[start : start + PIECE_BYTES]
