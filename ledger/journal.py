"""The journal: reading it in order, posting the next page, and the ledger's identity.

Owns the chain of pages. A ``Journal`` follows it into a projection; ``post`` is the only
place that creates a page. Lost means that somebody else posted that seq: the caller must
throw its prepared state away (``reload``) and read what is there.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import msgspec

from ledger.checkpoint import newest_checkpoint
from ledger.errors import LedgerError, RequestError, UpgradeError
from ledger.events import (
    SCHEMA,
    Header,
    LedgerInfo,
    Page,
    PutId,
    decode_header,
    decode_ledger_info,
    decode_page,
    encode,
)
from ledger.keys import JOURNAL, LEDGER, page_key
from ledger.names import token
from ledger.projection import Projection, check_chain
from ledger.state import State
from ledger.stores.base import Lost, Store, Won

BATCH_MAX = 16
"""Pages asked for at once while a reader is behind."""

PUT_ID_CHARACTERS = 26


def new_put_id(rng: random.Random) -> PutId:
    """130 random bits that mark one write as one's own."""
    return PutId(token(rng, PUT_ID_CHARACTERS))


def create_ledger(store: Store, rng: random.Random) -> LedgerInfo:
    """Write ``gpuq.json``; where there is one already, that is the ledger."""
    info = LedgerInfo(ledger=token(rng, 16), created_at=store.clock_ms(), put_id=new_put_id(rng))
    outcome = store.put_new(LEDGER, encode(info))
    return decode_info(outcome.body) if isinstance(outcome, Lost) else info


def read_ledger(store: Store) -> LedgerInfo:
    """Who this ledger is. Raises RequestError where there is none."""
    body = store.get(LEDGER)
    if body is None:
        raise RequestError(f"no ledger at {store.url}: make one with 'gpuq init {store.url}'")
    return decode_info(body)


def decode_info(body: bytes) -> LedgerInfo:
    """The ledger's identity; raises UpgradeError where its format is newer."""
    header = decode_header_of(body, LEDGER)
    if header.v > SCHEMA or header.format > SCHEMA:
        raise UpgradeError(
            f"the ledger has format {max(header.v, header.format)}, "
            f"this gpuq reads {SCHEMA}: upgrade gpuq"
        )
    try:
        return decode_ledger_info(body)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{LEDGER} cannot be read: {error}") from error


def decode_header_of(body: bytes, key: str) -> Header:
    """What can be read of any body; raises LedgerError where it is no JSON object."""
    try:
        return decode_header(body)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{key} cannot be read: {error}") from error


def decode_journal_page(body: bytes, key: str) -> Page:
    """A page; raises UpgradeError for a newer format or kind, LedgerError for garbage."""
    header = decode_header_of(body, key)
    try:
        if header.v <= SCHEMA:
            return decode_page(body)
    except msgspec.ValidationError as error:
        raise UpgradeError(
            f"{key} holds what this gpuq does not know ({error}): upgrade gpuq"
        ) from error
    except msgspec.DecodeError as error:
        raise LedgerError(f"{key} cannot be read: {error}") from error
    raise UpgradeError(f"{key} has format {header.v}, this gpuq reads {SCHEMA}: upgrade gpuq")


class Journal:
    """Follows the journal of one ledger into ``projection``."""

    def __init__(self, store: Store, ledger: str) -> None:
        self.store = store
        self.ledger = ledger
        self.projection = Projection(State(ledger=ledger))

    def load(self, *, saved: State | None = None) -> list[Page]:
        """Start anew from the newest checkpoint and read to the end; returns the pages read.

        With ``saved``, a state that agrees with its page, start from that instead: it is
        folded in place.
        """
        state = saved or newest_checkpoint(self.store, self.ledger)
        self.projection = Projection(state or State(ledger=self.ledger))
        return self.follow()

    def follow(self, *, batch_max: int = BATCH_MAX) -> list[Page]:
        """Fold all pages that are there; returns them. ``batch_max`` are fetched at once.

        A page is folded when its successor has vouched for its hash, or when there is none:
        what was changed behind the newest page is found before anything rests on it.
        """
        pages: list[Page] = []
        seq, sha256 = self.projection.state.seq, self.projection.state.page_sha256
        held: Page | None = None
        for key, body in self._unread(batch_max):
            try:
                page = decode_journal_page(body, key)
            except UpgradeError:
                self._fold(held, sha256)
                raise
            check_chain(page, self.ledger, seq, sha256)
            self._fold(held, sha256)
            held, seq, sha256 = page, page.seq, hashlib.sha256(body).hexdigest()
            pages.append(page)
        self._fold(held, sha256)
        return pages

    def _unread(self, batch_max: int) -> Iterator[tuple[str, bytes]]:
        """Keys and bodies of the pages after the last folded one, durable.

        One GET where there is none; while pages come, batches that double up to ``batch_max``.
        """
        first, batch = self.projection.state.seq + 1, 1
        while True:
            keys = [page_key(first + i) for i in range(batch)]
            bodies = self.store.get_many(keys)
            if bodies[0] is not None:
                self.store.sync(JOURNAL)
            for key, body in zip(keys, bodies, strict=True):
                if body is None:
                    return
                yield key, body
            first += batch
            batch = min(2 * batch, batch_max)

    def post(self, page: Page, *, patience_ms: int) -> Won | Lost:
        """Create the page. Raises InDoubtError when its fate is not known in time.

        After Won the caller folds it with ``finish``; after Lost it must ``load``.
        """
        return self.store.put_new(page_key(page.seq), encode(page), patience_ms=patience_ms)

    def finish(self, page: Page) -> None:
        """A page whose facts, seen and decisions were applied while it was built is in."""
        self.projection.finish(page.seq, hashlib.sha256(encode(page)).hexdigest())

    def _fold(self, held: Page | None, sha256: str) -> None:
        if held is not None:
            self.projection.apply(held, sha256)
