"""Bytes of any length as blobs: cutting, skipping what is there, and noticing damage."""

from __future__ import annotations

import hashlib

import pytest

from ledger.errors import TransientError
from ledger.keys import BLOBS, blob_key
from ledger.pieces import DamagedError, get_pieces, pieces_of, put_pieces
from ledger.timings import PIECE_BYTES
from simulation.memory import ManualClock, MemoryStore

WHOLE = bytes(range(256)) * (PIECE_BYTES // 256) + b"a" * PIECE_BYTES + b"the rest"


class FailingStore(MemoryStore):
    """Gives no news after so many puts."""

    def __init__(self, puts: int) -> None:
        super().__init__(ManualClock())
        self.puts_left = puts

    def before(self, kind: str, key: str) -> None:
        if kind == "put":
            if not self.puts_left:
                raise TransientError("no news")
            self.puts_left -= 1


def test_what_is_cut_is_joined_again() -> None:
    store = MemoryStore(ManualClock())
    whole = pieces_of(WHOLE)
    put_pieces(store, WHOLE)
    assert whole.size == 2 * PIECE_BYTES + len(b"the rest")
    assert whole.pieces[2] == hashlib.sha256(b"the rest").hexdigest()
    assert b"".join(get_pieces(store, whole)) == WHOLE


def test_nothing_is_no_piece() -> None:
    store = MemoryStore(ManualClock())
    assert pieces_of(b"").pieces == ()
    put_pieces(store, b"")
    assert list(get_pieces(store, pieces_of(b""))) == []


def test_an_upload_that_was_interrupted_sends_only_what_is_missing() -> None:
    store = FailingStore(puts=2)
    with pytest.raises(TransientError):
        put_pieces(store, WHOLE)
    assert len(list(store.list(BLOBS))) == 2
    store.puts_left = 1
    put_pieces(store, WHOLE)
    assert b"".join(get_pieces(store, pieces_of(WHOLE))) == WHOLE


def test_a_piece_that_is_missing_or_changed_is_named() -> None:
    store = MemoryStore(ManualClock())
    whole = pieces_of(WHOLE)
    key = blob_key(whole.pieces[2])
    for piece in (WHOLE[:PIECE_BYTES], WHOLE[PIECE_BYTES : 2 * PIECE_BYTES]):
        store.put_once(blob_key(hashlib.sha256(piece).hexdigest()), piece)
    with pytest.raises(DamagedError, match=f"{key} is not in the store"):
        list(get_pieces(store, whole))
    store.put_once(key, b"the test")
    with pytest.raises(DamagedError, match=f"{key} is not what its name says"):
        list(get_pieces(store, whole))
