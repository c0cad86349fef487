"""The dispatcher: follows the journal, and leads where nobody else does.

Owns the candidate's side of the election. A candidate follows the journal (and so wakes
its machine's workers), and judges on its own clock how long the leader has been silent: no
page and no dispatcher beat for a lease. It then posts an election page. Leases only avoid
contention; that two never decide at once rests on the journal's slots alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from ledger import events as e
from ledger.errors import FencedError, RequestError, TransientError
from ledger.journal import Journal
from ledger.keys import BEATS, BeatKey, after_stamp
from ledger.names import NodeName
from ledger.writer import new_writer
from roles.context import Context
from roles.leader import SKEW_MAX_MS, Leader, workers_told
from roles.notices import Notices
from roles.wake import Neighbours

log = structlog.get_logger()


class Dispatcher:
    """One candidate of one node. ``stopping`` is asked before every step."""

    def __init__(
        self,
        context: Context,
        node: NodeName,
        neighbours: Neighbours,
        stopping: Callable[[], bool] = lambda: False,
        notices: Notices | None = None,
    ) -> None:
        self._context = context
        self._node = node
        self._neighbours = neighbours
        self._stopping = stopping
        self._notices = notices
        self._journal = Journal(context.store, context.ledger)
        self._leader: Leader | None = None
        self._loaded = False
        self._sign_ms = 0
        self._followed_ms = 0
        self._page_at = 0
        self._page_ms: int | None = None
        """When the newest page was made: as it says, and on the boot clock."""
        self._sign_key = ""
        self._next_beats_look_ms = 0
        self._refusal = ""
        self._errors = 0

    @property
    def leads(self) -> bool:
        return self._leader is not None

    @property
    def has_read(self) -> bool:
        """Whether it knows how old the journal is by its own clock."""
        return self._page_ms is not None

    def run(self) -> None:
        """Follow and lead until ``stopping``. Raises LedgerError where an operator is needed."""
        while not self._stopping():
            self._context.clock.sleep_ms(self.step())
        if self._leader is not None:
            self.step()  # what was reported until now is posted before this process ends

    def step(self) -> int:
        """One round; returns how long to wait before the next (ms)."""
        timings = self._context.timings
        try:
            if self._leader is None:
                self._follow()
            else:
                self._leader.step()
                self._tell_ends(self._leader)
                self._neighbours.mark_following()
        except FencedError as error:
            log.info("stepped down", node=self._node, reason=str(error))
            if self._leader is not None:
                self._page_at, self._page_ms = self._leader.page_at, self._leader.page_ms
            self._leader = None
            self._loaded = False
        except (TransientError, RequestError) as error:
            # A right that was withdrawn or a folder that is gone may come back; nobody else
            # on this node would notice.
            self._errors += 1
            log.warning("no news from the store", node=self._node, reason=str(error))
            return self._back_off_ms()
        self._errors = 0
        if self._leader is not None:
            return self._jittered(timings.leader_tick_ms)
        return self._context.rng.randint(timings.follow_min_ms, timings.follow_max_ms)

    def _tell_ends(self, leader: Leader) -> None:
        """Of what is posted only: a page in doubt may never have been."""
        if self._notices is not None and leader.is_settled:
            self._notices.look(self._journal.projection.state)

    def _jittered(self, period_ms: int) -> int:
        return self._context.rng.randint(period_ms * 9 // 10, period_ms)

    def _back_off_ms(self) -> int:
        timings = self._context.timings
        ceiling_ms = min(timings.retry_max_ms, timings.retry_min_ms << min(self._errors, 10))
        return self._context.rng.randint(timings.retry_min_ms, ceiling_ms)

    # -- following

    def _follow(self) -> None:
        if self._loaded:
            pages = self._journal.follow()
        else:
            self._journal.load()
            pages = []
            self._note_load()
            self._loaded = True
        for page in pages:
            self._saw_leader()
            self._wake(page.decisions)
        now_ms = self._context.clock.boot_ms()
        if pages:
            gap_ms = now_ms - self._followed_ms
            self._note_page(prompt=gap_ms < self._context.timings.lease_ms)
        self._followed_ms = now_ms
        self._neighbours.mark_following()
        if self._leader_is_silent():
            self._take_over()

    def _note_load(self) -> None:
        """Judge the silence before this process began by stamps, and never again by them.

        One that led or lost meanwhile may have a wrong clock: it waits for a lease, and takes
        a page that it did not see coming for one that was made just now.
        """
        if self._page_ms is None:
            self._note_page(prompt=False)
            self._sign_ms = self._first_sign_ms()
            return
        self._saw_leader()
        if self._page_at != self._journal.projection.state.at:
            self._note_page(prompt=True)

    def _note_page(self, *, prompt: bool) -> None:
        """Note when the newest page was made, on the boot clock.

        One that was seen as it came was made just now. Of one that stood there already
        this clock is trusted once; later steps of it are noticed by the difference.
        """
        store, clock = self._context.store, self._context.clock
        self._page_at = self._journal.projection.state.at
        age_ms = 0 if prompt else max(0, store.clock_ms() - self._page_at)
        self._page_ms = clock.boot_ms() - age_ms

    def _first_sign_ms(self) -> int:
        """When the leader was last heard of before this process began (boot clock).

        Only here are other processes' stamps read: they can make a take-over early, which
        costs a contest for one page, never safety.
        """
        store, state = self._context.store, self._journal.projection.state
        newest_ms = max(state.at, self._newest_leader_beat_ms())
        age_ms = max(0, store.clock_ms() - newest_ms)
        return self._context.clock.boot_ms() - age_ms

    def _saw_leader(self) -> None:
        self._sign_ms = self._context.clock.boot_ms()

    def _leader_is_silent(self) -> bool:
        clock, timings = self._context.clock, self._context.timings
        silence_ms = clock.boot_ms() - self._sign_ms
        if silence_ms < timings.lease_ms // 2 or clock.boot_ms() < self._next_beats_look_ms:
            return False
        self._next_beats_look_ms = clock.boot_ms() + self._jittered(timings.lease_ms // 3)
        self._newest_leader_beat_ms()
        return clock.boot_ms() - self._sign_ms >= timings.lease_ms

    def _newest_leader_beat_ms(self) -> int:
        """Look for a dispatcher's beat that was not seen before: a sign of life. One LIST."""
        store, timings = self._context.store, self._context.timings
        since_ms = store.clock_ms() - 2 * timings.lease_ms
        newest: BeatKey | None = None
        for entry in store.list(BEATS, after_stamp(BEATS, since_ms)):
            key = _leader_beat(entry.key)
            if key is not None:
                newest = key
        if newest is None:
            return 0
        if newest.format() != self._sign_key:
            self._sign_key = newest.format()
            self._saw_leader()
        return newest.stamp_ms

    # -- taking over

    def _take_over(self) -> None:
        refusal = self._why_not_lead()
        if refusal:
            if refusal != self._refusal:
                log.error("does not lead", node=self._node, reason=refusal)
            self._refusal = refusal
            return
        self._refusal = ""
        writer = new_writer(self._context.rng, f"dispatcher-{self._node}")
        leader = Leader(self._context, self._journal, writer, self._wake)
        self._loaded = False  # until the election is settled, the projection is a draft
        won = leader.elect()
        self._loaded = True
        if won:
            log.info("leads", node=self._node, writer=writer)
            self._leader = leader
        else:
            self._saw_leader()

    def _why_not_lead(self) -> str:
        """A clock that is far from the journal's would stamp wrong times; empty if near.

        The silence counts twice, because a page can land long after it was made (its leader
        slept over the put): then every clock seems ahead, and yet somebody must lead.
        """
        state = self._journal.projection.state
        if state.seq < 0:
            return ""
        assert self._page_ms is not None
        silence_ms = self._context.clock.boot_ms() - self._page_ms
        ahead_ms = self._context.store.clock_ms() - state.at
        if abs(ahead_ms) > SKEW_MAX_MS + 2 * silence_ms:
            way = "ahead of" if ahead_ms > 0 else "behind"
            return f"this clock is {abs(ahead_ms) // 1000} s {way} the journal: set it right"
        return ""

    def _wake(self, decisions: Iterable[e.AnyDecision]) -> None:
        for worker in sorted(workers_told(decisions)):
            self._neighbours.wake(worker)


def _leader_beat(text: str) -> BeatKey | None:
    try:
        key = BeatKey.parse(text)
    except ValueError:
        return None
    return key if key.writer.startswith("dispatcher-") else None
