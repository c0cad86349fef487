"""Two leaders that nothing tells apart, racing for every page; users and workers are played.

Both were elected under one name for one epoch, so neither is ever fenced: that they make
one history rests on the slots of the journal alone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger import events as e
from ledger.clock import SystemClock
from ledger.errors import TransientError
from ledger.events import JobState
from ledger.journal import Journal, create_ledger
from ledger.keys import JOURNAL, MAILBOX, page_key, parse_message_key
from ledger.names import WriterName
from ledger.stores.base import Lost, Store, Won
from ledger.timings import Timings
from roles.context import Context
from roles.leader import Leader
from simulation.verify import verify
from tests.e2e.cluster import Place
from tests.e2e.played import PlayedUser, PlayedWorker
from tests.waiting import wait_until

PAGES = 200
RACE_S = 200
TURN_S = 60
TWIN = WriterName("dispatcher-twin~aaaaaaaa")

TIMINGS = msgspec.structs.replace(Timings(), leader_beat_ms=3_600_000)
"""One beat each: a twin's second could get the name of the other's, and those must differ."""


class CountingJournal(Journal):
    """``outcomes`` counts what became of the pages that were put through this journal."""

    def __init__(self, store: Store, ledger: str) -> None:
        super().__init__(store, ledger)
        self.outcomes: Counter[type[Won | Lost]] = Counter()

    def post(self, page: e.Page, *, patience_ms: int) -> Won | Lost:
        outcome = super().post(page, patience_ms=patience_ms)
        self.outcomes[type(outcome)] += 1
        return outcome


class Race:
    """Two leaders in their threads, and their users and workers in this one."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place, self._folder = place, folder
        self.ledger = create_ledger(place.store, random.Random()).ledger
        self._over = threading.Event()
        self._turns = threading.Barrier(2)
        self.user = PlayedUser(self._context())
        self.workers = [PlayedWorker(self._context(), i, slow=i % 2 == 1) for i in range(4)]

    def run(self) -> list[CountingJournal]:
        """Until there are enough pages and every job has ended; the journals of the two."""
        contexts = [self._context(), self._context()]
        journals = [CountingJournal(context.store, self.ledger) for context in contexts]
        leaders = [
            Leader(context, journal, TWIN, lambda decisions: None)
            for context, journal in zip(contexts, journals, strict=True)
        ]
        # The second one finds its own name on the election page, and takes it for its own.
        assert all(leader.elect() for leader in leaders)
        for leader in leaders:
            leader.step()
        with ThreadPoolExecutor(2) as threads:
            racing = [threads.submit(self._lead, leader) for leader in leaders]
            try:
                wait_until(lambda: self._is_over(racing), deadline_s=RACE_S, what="the race ends")
            finally:
                self._over.set()
            for each in racing:
                each.result()
        self._close()
        return journals

    def _lead(self, leader: Leader) -> None:
        """Begin every turn in the same moment as the other one."""
        try:
            while not self._over.is_set():
                self._turns.wait(TURN_S)
                with suppress(TransientError):
                    leader.step()
        except threading.BrokenBarrierError:
            return  # the other one has ended
        finally:
            self._turns.abort()

    def _is_over(self, racing: Iterable[Future[None]]) -> bool:
        if any(each.done() for each in racing):
            return True
        self.user.act(submits=self.user.pages < PAGES)
        for worker in self.workers:
            worker.act()
        return self.user.pages >= PAGES and not self.user.open_jobs()

    def _close(self) -> None:
        self.user.close()
        for worker in self.workers:
            worker.close()

    def _context(self) -> Context:
        """Of another process, as far as the store can tell."""
        return Context(
            store=self._place.open(),
            ledger=self.ledger,
            clock=SystemClock(),
            rng=random.Random(),
            timings=TIMINGS,
            state_dir=self._folder / "state",
            host="host",
            machine="machine",
        )


@pytest.mark.parametrize("place", ["folder", "seaweedfs", "ceph"], indirect=True)
def test_two_leaders_of_one_name_and_epoch_make_one_history(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loser of a page reads the journal anew, which is not what takes its time here.
    monkeypatch.setattr("roles.leader.CHECKPOINT_EVERY_PAGES", 3)
    race = Race(place, folder)
    journals = race.run()
    for journal in journals:
        assert min(journal.outcomes[Won], journal.outcomes[Lost]) >= PAGES // 20

    report = verify(place.store, race.ledger)
    assert (report.difference, report.void_pages, report.epochs) == (None, 0, 1)
    assert report.pages == sum(journal.outcomes[Won] for journal in journals) >= PAGES
    pages = dense_pages(place.store)
    check_decided_once(pages)
    assert delivered(place.store) == ordered(pages)
    check_executed_once(race)


def dense_pages(store: Store) -> list[e.Page]:
    keys = [entry.key for entry in store.list(JOURNAL)]
    assert keys == [page_key(seq) for seq in range(len(keys))]
    return [e.decode_page(body) for body in store.get_many(keys) if body is not None]


def check_decided_once(pages: Iterable[e.Page]) -> None:
    """No fact was admitted twice, no attempt assigned, stopped or taken back twice."""
    counts: Counter[Any] = Counter()
    for page in pages:
        counts.update((posted.fact.writer, posted.fact.n) for posted in page.facts)
        for said in (*page.decisions, *page.seen):
            if isinstance(said, e.AttemptAssigned | e.StopOrdered | e.RevokeBegun | e.ClaimSeen):
                counts[e.kind_of(said), said.job, said.attempt] += 1
    assert {what: count for what, count in counts.items() if count != 1} == {}
    assert {kind for kind, *_ in counts} >= {"assign", "stop", "revoke", "claim"}


Order = tuple[str, str, int, int]
"""Kind of message, job, attempt, and the page that decided it."""


def ordered(pages: Iterable[e.Page]) -> dict[tuple[str, int], Order]:
    """What the pages say must stand in each worker's mailbox, by its number."""
    orders: dict[tuple[str, int], Order] = {}
    for page in pages:
        for decision in page.decisions:
            if isinstance(decision, e.AttemptAssigned):
                place = (decision.slots[0], decision.message)
                orders[place] = ("run", decision.job, decision.attempt, page.seq)
            elif isinstance(decision, e.StopOrdered):
                place = (decision.worker, decision.message)
                orders[place] = ("stop", decision.job, decision.attempt, page.seq)
    return orders


def delivered(store: Store) -> dict[tuple[str, int], Order]:
    """What does stand there."""
    found: dict[tuple[str, int], Order] = {}
    for entry in store.list(MAILBOX):
        body = store.get(entry.key)
        assert body is not None
        message = e.decode_message(body)
        job = message.job.id if isinstance(message, e.RunMessage) else message.job
        order = (e.kind_of(message), job, message.attempt, message.seq)
        found[parse_message_key(entry.key)] = order
    return found


def check_executed_once(race: Race) -> None:
    """Every job but a cancelled one ran, and none of them twice."""
    executed: Counter[str] = Counter()
    for worker in race.workers:
        executed.update(worker.executed)
    assert max(executed.values()) == 1
    cancelled = race.user.cancelled
    kept = [job for job in race.user.submitted if job not in cancelled]
    assert {race.user.find_state(job) for job in kept} == {JobState.COMPLETED}
    assert all(executed[job] == 1 for job in kept)
    unexecuted = [job for job in cancelled if not executed[job]]
    assert {race.user.find_state(job) for job in unexecuted} == {JobState.CANCELLED}
