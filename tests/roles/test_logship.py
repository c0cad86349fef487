"""How a log gets into the bucket: contiguous pieces, then the whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ledger.errors import TransientError
from ledger.events import AttemptRef
from ledger.keys import log_key, log_piece_key
from ledger.names import JobId
from ledger.timings import LOG_FLUSH_BYTES
from roles.context import Context
from roles.logship import PIECE_MAX_BYTES, LogShipper
from roles.workspace import LogNote
from simulation.memory import ManualClock, MemoryStore
from tests.roles.worker_rig import TIMINGS, Disk, Effects, FakeAttempt

REF = AttemptRef(JobId("aaaaaaaa"), 1)
WHOLE = log_key(REF.job, REF.attempt)
ALL_BYTES = bytes(range(256))


class Bucket(MemoryStore):
    """May take a write and lose the answer, or not answer at all."""

    loses_answers = False
    is_away = False

    def before(self, op: str, key: str) -> None:
        if self.is_away:
            raise TransientError("no news")

    def after(self, op: str, key: str) -> None:
        if self.loses_answers and op == "put":
            raise TransientError("no news")


class Shipping:
    """One log, its bucket, and the note that is on the disk."""

    def __init__(self) -> None:
        self.clock = ManualClock(boot_ms=1_000_000)
        self.bucket = Bucket(self.clock)
        self.handle = FakeAttempt(Disk(self.clock, Effects()), "aaaaaaaa.1")
        self.handle.standing = "running"
        self.note = LogNote()
        self.begin()

    def begin(self) -> None:
        """A worker begins, from the note of the one before."""
        context = Context(
            store=self.bucket,
            ledger="test",
            clock=self.clock,
            rng=random.Random(1),
            timings=TIMINGS,
            state_dir=Path("/fake"),
            host="host1",
            machine="m1",
        )
        self.shipper = LogShipper(context, REF, self.handle, self.note, self._keep)

    def _keep(self, note: LogNote) -> None:
        self.note = note

    def write(self, data: bytes) -> None:
        self.handle.log += data

    def after(self, wait_ms: int) -> None:
        self.clock.advance_ms(wait_ms)
        self.shipper.ship_due()

    def pieces(self) -> list[bytes]:
        found: list[bytes] = []
        while (piece := self.bucket.get(log_piece_key(*REF_KEY, len(found)))) is not None:
            found.append(piece)
        return found


REF_KEY = (REF.job, REF.attempt)


@pytest.fixture
def shipping() -> Shipping:
    return Shipping()


def test_the_first_piece_goes_out_after_two_seconds_and_then_ever_later(
    shipping: Shipping,
) -> None:
    sent_at_ms = []
    for second in range(100):
        shipping.write(b"x")
        before = len(shipping.pieces())
        shipping.after(1_000)
        if len(shipping.pieces()) > before:
            sent_at_ms.append((second + 1) * 1_000)
    # 2 s, then pauses of 4, 8, 16, 30, 30 s.
    assert sent_at_ms == [2_000, 6_000, 14_000, 30_000, 60_000, 90_000]


def test_much_at_once_does_not_wait(shipping: Shipping) -> None:
    shipping.write(b"x" * LOG_FLUSH_BYTES)
    shipping.after(0)
    assert [len(piece) for piece in shipping.pieces()] == [LOG_FLUSH_BYTES]


def test_nothing_new_costs_no_request(shipping: Shipping) -> None:
    shipping.after(60_000)
    assert not shipping.bucket.counts


def test_what_gathered_goes_out_in_pieces_of_limited_size(shipping: Shipping) -> None:
    shipping.write(b"x" * (PIECE_MAX_BYTES + 5))
    shipping.after(2_000)
    shipping.after(4_000)
    assert [len(piece) for piece in shipping.pieces()] == [PIECE_MAX_BYTES, 5]


def test_every_byte_value_arrives_as_it_was(shipping: Shipping) -> None:
    for byte in ALL_BYTES:
        shipping.write(bytes([byte]))
        shipping.after(30_000)
    assert b"".join(shipping.pieces()) == ALL_BYTES


def test_a_lost_answer_is_settled_by_the_same_piece(shipping: Shipping) -> None:
    shipping.write(b"one")
    shipping.bucket.loses_answers = True
    with pytest.raises(TransientError):
        shipping.after(2_000)
    shipping.write(b"two")
    shipping.bucket.loses_answers = False
    shipping.after(30_000)
    shipping.after(30_000)
    assert shipping.pieces() == [b"one", b"two"]


@pytest.mark.parametrize("lands", [True, False])
def test_the_next_worker_goes_on_where_the_pieces_end(shipping: Shipping, lands: bool) -> None:
    shipping.write(b"one")
    shipping.after(2_000)
    shipping.write(b"two")
    shipping.bucket.loses_answers, shipping.bucket.is_away = lands, not lands
    with pytest.raises(TransientError):
        shipping.after(30_000)
    shipping.bucket.loses_answers = shipping.bucket.is_away = False
    shipping.write(b"three")
    shipping.begin()
    shipping.after(30_000)
    shipping.after(30_000)
    assert shipping.pieces() == [b"one", b"two", b"three"]


def test_after_a_power_cut_that_shortened_the_log_the_piece_there_counts(
    shipping: Shipping,
) -> None:
    shipping.write(b"one two")
    shipping.after(2_000)
    shipping.handle.log = b"one \0\0\0 and more"
    shipping.begin()
    shipping.after(30_000)
    shipping.after(30_000)
    assert shipping.pieces() == [b"one two", b" and more"]


@pytest.mark.parametrize(
    ("log", "whole"),
    [
        (b"done\n", b"done\nrc=3\n"),
        (b"no newline", b"no newline\nrc=3\n"),
        (b"", b"rc=3\n"),
        (b"\xff\r", b"\xff\r\nrc=3\n"),
    ],
)
def test_the_whole_log_ends_with_a_line_of_its_rc(
    shipping: Shipping, log: bytes, whole: bytes
) -> None:
    shipping.write(log)
    shipping.handle.standing = "ended"
    shipping.shipper.ship_whole(3)
    shipping.shipper.ship_whole(3)
    assert shipping.bucket.get(WHOLE) == whole


def test_a_log_without_an_rc_ends_in_pieces(shipping: Shipping) -> None:
    shipping.write(b"x" * (2 * PIECE_MAX_BYTES + 1))
    shipping.handle.standing = "dead"
    shipping.shipper.ship_rest()
    assert [len(p) for p in shipping.pieces()] == [PIECE_MAX_BYTES, PIECE_MAX_BYTES, 1]
    assert shipping.bucket.get(WHOLE) is None
