"""A journal followed page by page, with the indexes that explain each state.

Owns the order in which a page is taken apart for those who ask about the past: its facts and
seen events as one step, then each decision as one, then the whole page. Decides nothing and
changes nothing that ``Projection.apply`` would not change. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ledger import events as e
from ledger.names import FlowId
from ledger.projection import Projection, check_chain
from ledger.state import State
from scheduling.headroom import Headroom
from scheduling.placement import Fleet


class Observer(Protocol):
    """Who looks on. The projection is that of ``Followed``, at each call up to date."""

    def step(self, decision: e.AnyDecision | None, flows: Sequence[FlowId]) -> None:
        """A decision was applied (None: the page's facts and seen); it touched these flows."""

    def page(self, page: e.Page) -> None:
        """All of a page was applied; ``touched`` still says what it changed."""


class Followed:
    """Folds ``state`` further. A page costs O(events in it), plus what its observers do."""

    def __init__(self, state: State) -> None:
        self.projection = Projection(state)
        self.fleet = Fleet(state)
        self.headroom = Headroom(self.projection, self.fleet)
        self.observers: list[Observer] = []

    @property
    def state(self) -> State:
        return self.projection.state

    def fold(self, page: e.Page, sha256: str) -> None:
        """Take over the next page; a void one counts for nothing.

        Raises LedgerError on a gap, a fork or a foreign ledger.
        """
        projection, state = self.projection, self.state
        check_chain(page, state.ledger, state.seq, state.page_sha256)
        if not projection.is_legitimate(page):
            projection.apply(page, sha256)
            return
        projection.begin(page.at, page.epoch, page.leader, page.facts, page.seen)
        self._stepped(None)
        for decision in page.decisions:
            projection.apply_decision(decision)
            self._stepped(decision)
        for name in projection.touched.workers:
            self.fleet.refresh(name)
        for job in projection.touched.jobs:
            self.headroom.update(state.jobs[job])
        for observer in self.observers:
            observer.page(page)
        projection.finish(page.seq, sha256)

    def _stepped(self, decision: e.AnyDecision | None) -> None:
        touched = self.projection.fair.touched
        flows = tuple(touched)
        touched.clear()
        for observer in self.observers:
            observer.step(decision, flows)
