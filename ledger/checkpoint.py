"""Saved projections: how a reader need not fold the journal from its beginning.

Owns the body of ``checkpoints/``: the whole state after one page, with that page's hash,
format and rules. Written only from pages that are in. A checkpoint that cannot be read,
or whose page is another, is passed over for the next older one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import msgspec
import zstandard

from ledger.events import SCHEMA
from ledger.keys import CHECKPOINTS, checkpoint_key, page_key, parse_checkpoint_key
from ledger.names import Seq
from ledger.state import RULES, State
from ledger.stores.base import Store

TRIES = 5
"""How many checkpoints a reader looks at before it folds from page 0."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """``rules`` is the version of the decisions that led there."""

    v: int = SCHEMA
    rules: int = RULES
    seq: Seq
    page_sha256: str
    state: State


def encode_checkpoint(state: State) -> bytes:
    """JSON in zstandard; the same state always gives the same bytes. O(state).

    JSON, because tags are integers that outgrow 64 bits; with a checksum, so that a damaged
    body is never taken for another state.
    """
    checkpoint = Checkpoint(seq=state.seq, page_sha256=state.page_sha256, state=state)
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return compressor.compress(msgspec.json.encode(checkpoint))


def decode_checkpoint(body: bytes) -> Checkpoint | None:
    """The checkpoint, or None where this version cannot read it. O(state)."""
    # Piece by piece, because a damaged head may name a size that no memory holds.
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        plain = decompressor.decompress(body)
        return msgspec.json.decode(plain, type=Checkpoint) if decompressor.eof else None
    except (zstandard.ZstdError, msgspec.DecodeError):
        return None


def save_checkpoint(store: Store, state: State) -> None:
    """Save the state after a page that is in. One PUT."""
    store.put_once(checkpoint_key(state.seq), encode_checkpoint(state))


def newest_checkpoint(store: Store, ledger: str) -> State | None:
    """The newest state that agrees with its page, or None. One LIST, two GETs."""
    for seq in islice(_saved(store), TRIES):
        body = store.get(checkpoint_key(seq))
        page = store.get(page_key(seq))
        checkpoint = decode_checkpoint(body) if body is not None else None
        if (
            checkpoint is not None
            and page is not None
            and checkpoint.v <= SCHEMA
            and checkpoint.state.ledger == ledger
            and checkpoint.page_sha256 == hashlib.sha256(page).hexdigest()
        ):
            return checkpoint.state
    return None


def _saved(store: Store) -> Iterator[Seq]:
    """After which pages there are checkpoints, newest first; other objects do not count."""
    for entry in store.list(CHECKPOINTS):
        with suppress(ValueError):
            yield parse_checkpoint_key(entry.key)
