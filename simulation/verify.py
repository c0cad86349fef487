"""Verification: every decision of a ledger derived again from the pages before it.

Owns the comparison of a journal with what ``scheduling.turn`` makes of its facts and seen
events: the chain of hashes, each decision, and the digest of the fair state. It stops at
the first difference, because all that follows would rest on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from ledger.errors import LedgerError
from ledger.events import Elected, Page
from ledger.journal import BATCH_MAX, decode_journal_page
from ledger.keys import page_key
from ledger.projection import Projection
from ledger.state import RULES, State
from ledger.stores.base import Store
from scheduling.decide import Scheduler
from scheduling.turn import take_turn


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal says beside what it should say, as JSON values."""

    page: int
    key: str
    field: str
    recorded: Any
    derived: Any


class Verification(msgspec.Struct, kw_only=True):
    """The outcome. ``skipped_pages`` carry another version of the rules: folded only."""

    ledger: str
    pages: int = 0
    decisions: int = 0
    facts: int = 0
    jobs: int = 0
    ended_jobs: int = 0
    epochs: int = 0
    void_pages: int = 0
    skipped_pages: int = 0
    fair: str = ""
    """Digest of the fair state after the last page."""
    difference: Difference | None = None


def verify(store: Store, ledger: str) -> Verification:
    """Fold the journal from page 0 and derive each decision again. O(events * log n).

    Raises TransientError where the store gives no news.
    """
    return _Verifier(store, ledger).run()


class _Verifier:
    def __init__(self, store: Store, ledger: str) -> None:
        self._store = store
        self._projection = Projection(State(ledger=ledger))
        self._scheduler = Scheduler(self._projection)
        self._report = Verification(ledger=ledger)

    def run(self) -> Verification:
        report, state = self._report, self._projection.state
        for key, body in _bodies(self._store):
            report.difference = self._check(key, body)
            if report.difference is not None:
                break
            report.pages += 1
        report.jobs = len(state.jobs) + len(state.archive)
        report.ended_jobs = len(state.ended) + len(state.archive)
        report.epochs, report.void_pages = state.epoch, state.void_pages
        report.fair = self._projection.fair.digest()
        return report

    def _check(self, key: str, body: bytes) -> Difference | None:
        seq = self._projection.state.seq + 1
        try:
            page = decode_journal_page(body, key)
        except LedgerError as error:
            return Difference(page=seq, key=key, field="body", recorded=str(error), derived="")
        wrong = self._chain(page, key)
        if wrong is not None:
            return wrong
        sha256 = hashlib.sha256(body).hexdigest()
        if page.rules != RULES or not self._projection.is_legitimate(page):
            self._report.skipped_pages += page.rules != RULES
            self._projection.apply(page, sha256)
            self._scheduler = Scheduler(self._projection)
            return None
        self._report.facts += len(page.facts)
        self._report.decisions += len(page.decisions)
        wrong = self._decisions(page, key)
        self._projection.finish(page.seq, sha256)
        return wrong

    def _chain(self, page: Page, key: str) -> Difference | None:
        state = self._projection.state
        expected = {
            "ledger": state.ledger,
            "seq": state.seq + 1,
            "prev_sha256": state.page_sha256,
        }
        for field, value in expected.items():
            if getattr(page, field) != value:
                return _difference(page, key, field, getattr(page, field), value)
        if page.at < state.at:
            return _difference(page, key, "at", page.at, f"at least {state.at}")
        return None

    def _decisions(self, page: Page, key: str) -> Difference | None:
        elected = any(isinstance(decision, Elected) for decision in page.decisions)
        derived, fair = take_turn(
            self._projection,
            self._scheduler,
            at=page.at,
            epoch=page.epoch,
            leader=page.leader,
            facts=page.facts,
            seen=page.seen,
            elected=elected,
        )
        for index in range(max(len(derived), len(page.decisions))):
            recorded = page.decisions[index] if index < len(page.decisions) else None
            expected = derived[index] if index < len(derived) else None
            if recorded != expected:
                return _difference(page, key, f"decisions[{index}]", recorded, expected)
        if fair != page.fair:
            return _difference(page, key, "fair", page.fair, fair)
        return None


def _difference(page: Page, key: str, field: str, recorded: Any, derived: Any) -> Difference:
    return Difference(
        page=page.seq,
        key=key,
        field=field,
        recorded=msgspec.to_builtins(recorded),
        derived=msgspec.to_builtins(derived),
    )


def _bodies(store: Store) -> Iterator[tuple[str, bytes]]:
    """All pages in order, fetched side by side."""
    first = 0
    while True:
        keys = [page_key(seq) for seq in range(first, first + BATCH_MAX)]
        for key, body in zip(keys, store.get_many(keys), strict=True):
            if body is None:
                return
            yield key, body
        first += BATCH_MAX
