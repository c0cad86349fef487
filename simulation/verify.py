"""Verification: every decision of a ledger derived again from the pages before it.

Owns the comparison of a journal with what ``scheduling.turn`` makes of its facts and seen
events: the chain of hashes, that no page is missing, each decision, and the digest of the
fair state. It stops at the first difference, because all that follows would rest on it.

Each page is vouched for by the next one, which repeats its hash. Nobody vouches for the very
last page: of it, only what its own decisions and its fair digest rest on is checked. An edit
there that changes neither (a ``put_id``, a user's name, the text of a reason, a leader's name
that makes the page void) is found once another page follows, or by whoever noted the ``head``
of an earlier verification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ledger.errors import LedgerError, UpgradeError
from ledger.events import Elected, Page
from ledger.journal import BATCH_MAX, decode_journal_page
from ledger.keys import JOURNAL, page_key, parse_page_key
from ledger.names import Seq
from ledger.projection import Projection
from ledger.state import RULES, State
from ledger.stores.base import Store
from scheduling.decide import Scheduler
from scheduling.turn import take_turn
from simulation.difference import Difference, plain
from simulation.objects import ObjectCounts, Objects

_BROKEN = (ArithmeticError, AssertionError, LookupError, ValueError)
"""What the fold raises over facts or decisions that no leader would have let in."""


class Verification(msgspec.Struct, kw_only=True):
    """The outcome. ``skipped_pages`` carry another version of the rules: folded only; so are
    ``earlier_pages``, which are before the period."""

    ledger: str
    pages: int = 0
    decisions: int = 0
    facts: int = 0
    jobs: int = 0
    ended_jobs: int = 0
    epochs: int = 0
    void_pages: int = 0
    skipped_pages: int = 0
    earlier_pages: int = 0
    fair: str = ""
    """Digest of the fair state after the last page."""
    head: str = ""
    """sha256 of the last page: who keeps it can tell whether the history before it changed."""
    difference: Difference | None = None
    """The first in the journal; all that follows would rest on it."""
    differences: list[Difference] = []
    """That one, or else those of all other objects."""
    objects: ObjectCounts | None = None
    """Of the other objects; None where they were not looked at."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Only decisions and objects of pages posted from then, and until then, are checked."""

    from_ms: int = 0
    until_ms: int | None = None


WHOLE = Period()


def verify(
    store: Store,
    ledger: str,
    progress: Callable[[Verification], None] = lambda report: None,
    period: Period = WHOLE,
) -> Verification:
    """Fold the journal from page 0 and derive each decision again. O(events * log n).

    ``progress`` is called after each page. Raises TransientError where the store gives no
    news, UpgradeError where the chain holds a page of a newer format.
    """
    return _Verifier(store, ledger, period).run(progress)


def verify_all(
    store: Store,
    ledger: str,
    progress: Callable[[Verification], None] = lambda report: None,
    period: Period = WHOLE,
) -> Verification:
    """The same, and all other objects held against the journal, if that itself is sound."""
    objects = Objects(store, ledger, from_ms=period.from_ms)
    verifier = _Verifier(store, ledger, period, objects.page)
    report = verifier.run(progress)
    if report.difference is None:
        is_whole = period.until_ms is None
        report.differences = list(objects.differences(verifier.projection, is_whole=is_whole))
        report.objects = objects.counts
    return report


class _Verifier:
    def __init__(
        self,
        store: Store,
        ledger: str,
        period: Period,
        watch: Callable[[Page, Projection], None] = lambda page, projection: None,
    ) -> None:
        """``watch`` is called with each page that counts, once it is folded."""
        self._store = store
        self._period = period
        self._watch = watch
        self.projection = Projection(State(ledger=ledger))
        self._scheduler: Scheduler | None = None
        self._report = Verification(ledger=ledger)
        self._is_over = False
        """The period ended before the page that was looked at last."""

    def run(self, progress: Callable[[Verification], None]) -> Verification:
        report, state = self._report, self.projection.state
        for key, body in _bodies(self._store):
            report.difference = self._check(key, body)
            if report.difference is not None:
                report.differences = [report.difference]
                break
            if self._is_over:
                break
            report.pages += 1
            progress(report)
        report.jobs = len(state.jobs) + len(state.archive)
        report.ended_jobs = len(state.ended) + len(state.archive)
        report.epochs, report.void_pages = state.epoch, state.void_pages
        report.fair = self.projection.fair.digest()
        report.head = state.page_sha256
        return report

    def _check(self, key: str, body: bytes | None) -> Difference | None:
        seq = Seq(self.projection.state.seq + 1)
        if body is None:
            return Difference(
                page=seq, key=key, field="body", recorded=None, derived="a page: later ones exist"
            )
        sha256 = hashlib.sha256(body).hexdigest()
        try:
            page = decode_journal_page(body, key)
        except LedgerError as error:
            if isinstance(error, UpgradeError) and self._link_after(seq) == sha256:
                raise
            return Difference(
                page=seq, key=key, field="body", recorded=str(error), derived="a page"
            )
        wrong = self._chain(page, key, sha256)
        if wrong is not None:
            return wrong
        until_ms = self._period.until_ms
        self._is_over = until_ms is not None and page.at > until_ms
        if self._is_over:
            return None
        try:
            return self._fold(page, key, sha256)
        except _BROKEN as error:
            broken = f"{type(error).__name__}: {error}"
            return _difference(page, key, "facts", broken, "facts that can be folded")

    def _chain(self, page: Page, key: str, sha256: str) -> Difference | None:
        state = self.projection.state
        for field, value in (("ledger", state.ledger), ("seq", state.seq + 1)):
            if getattr(page, field) != value:
                return _difference(page, key, field, getattr(page, field), value)
        if page.prev_sha256 != state.page_sha256:
            return self._broken_link(page, key, sha256)
        if page.at < state.at:
            return _difference(page, key, "at", page.at, f"at least {state.at}")
        return None

    def _broken_link(self, page: Page, key: str, sha256: str) -> Difference:
        """Of the two pages at a broken link, the changed one is the one that none vouches for."""
        state = self.projection.state
        vouched = self._link_after(page.seq)
        if state.seq < 0 or vouched not in ("", sha256):
            return _difference(page, key, "prev_sha256", page.prev_sha256, state.page_sha256)
        return Difference(
            page=state.seq,
            key=page_key(state.seq),
            field="sha256",
            recorded=state.page_sha256,
            derived=f"{page.prev_sha256}, says page {page.seq}",
        )

    def _link_after(self, seq: Seq) -> str:
        """Which hash the page after ``seq`` says that ``seq`` has; empty if it says none."""
        body = self._store.get(page_key(seq + 1))
        try:
            return _decode_link(body).prev_sha256 if body is not None else ""
        except msgspec.DecodeError:
            return ""

    def _fold(self, page: Page, key: str, sha256: str) -> Difference | None:
        report = self._report
        is_earlier = page.at < self._period.from_ms
        if is_earlier or page.rules != RULES or not self.projection.is_legitimate(page):
            report.earlier_pages += is_earlier
            report.skipped_pages += page.rules != RULES and not is_earlier
            self._scheduler = None
            if self.projection.apply(page, sha256):
                self._watch(page, self.projection)
            return None
        wrong = self._decisions(page, key)
        if wrong is None:
            report.facts += len(page.facts)
            report.decisions += len(page.decisions)
            self.projection.finish(page.seq, sha256)
            self._watch(page, self.projection)
        return wrong

    def _decisions(self, page: Page, key: str) -> Difference | None:
        if self._scheduler is None:
            self._scheduler = Scheduler(self.projection)
        elected = any(isinstance(decision, Elected) for decision in page.decisions)
        derived, fair = take_turn(
            self.projection,
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


class _Link(msgspec.Struct, frozen=True):
    """All that is read of a page to learn what it says of the one before it."""

    prev_sha256: str = ""


_decode_link = msgspec.json.Decoder(_Link).decode


def _difference(page: Page, key: str, field: str, recorded: Any, derived: Any) -> Difference:
    return Difference(
        page=page.seq,
        key=key,
        field=field,
        recorded=plain(recorded),
        derived=plain(derived),
    )


def _bodies(store: Store) -> Iterator[tuple[str, bytes | None]]:
    """All pages in order, fetched side by side; None, and the end, where one is missing."""
    seq = 0
    while True:
        for body in store.get_many([page_key(seq + i) for i in range(BATCH_MAX)]):
            if body is None:
                break
            yield page_key(seq), body
            seq += 1
        else:
            continue
        if not _has_page_after(store, page_key(seq)):
            return
        # Asked for once more: it may have been posted after the first look.
        body = store.get(page_key(seq))
        yield page_key(seq), body
        if body is None:
            return
        seq += 1


def _has_page_after(store: Store, key: str) -> bool:
    for entry in store.list(JOURNAL, key):
        try:
            parse_page_key(entry.key)
        except ValueError:  # a stray object is no page
            continue
        return True
    return False
