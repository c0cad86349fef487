"""One term of leadership: the wheel that reads, decides, puts a page, and only then acts.

Order of effects in one turn, and what a crash after each costs:

1. read facts and beats              nothing
2. build the page in memory          nothing
3. ``put_new`` the page              if it is in, the next leader finds it and goes on at 4
4. deliver the page's messages       the next leader delivers them again, same names, same bytes
5. try the claims being revoked      the next leader tries them again; the body decides
6. report the outcomes in the next page

After Lost everything prepared is thrown away and read anew from the ledger. Refuses to go
on (``FencedError``) when the journal names another leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from ledger import events as e
from ledger.checkpoint import save_checkpoint
from ledger.claims import read_claim
from ledger.errors import FencedError, InDoubtError, LedgerError, TransientError
from ledger.journal import Journal, new_put_id
from ledger.keys import claim_key, message_key
from ledger.names import Epoch, Seq, WorkerName, WriterName
from ledger.reader import BeatTail, FactTail
from ledger.state import RULES, State, Worker
from ledger.stores.base import Won
from ledger.timings import CHECKPOINT_EVERY_PAGES, SECOND_MS
from ledger.writer import BeatWriter
from roles.artifacts import ArtifactWatch
from roles.context import Context
from roles.devices import BUSY, busy_problem
from roles.liveness import LivenessJudge
from scheduling.decide import Scheduler
from scheduling.turn import take_turn

SKEW_MAX_MS = 60 * SECOND_MS
"""A clock further than this from the journal's (plus its silence) must not lead."""


log = structlog.get_logger()


class Leader:
    """Holds the epoch that its election page named, until it is fenced.

    ``on_page`` is told of each page after its messages are delivered (to wake workers of
    this machine).
    """

    def __init__(
        self,
        context: Context,
        journal: Journal,
        writer: WriterName,
        on_page: Callable[[Sequence[e.AnyDecision]], None],
    ) -> None:
        self._context = context
        self._journal = journal
        self._writer = writer
        self._on_page = on_page
        self._facts = FactTail(context.store, context.clock, context.timings)
        self._beats = BeatTail(context.store, context.clock, context.timings)
        self._beat_writer = BeatWriter(context.store, writer)
        self._artifacts = ArtifactWatch(context.store, context.clock, context.timings)
        self._judge = LivenessJudge(context.timings)
        self._problems: dict[WorkerName, str] = {}
        self._claims: dict[e.AttemptRef, str] = {}
        self._unreadable: set[e.AttemptRef] = set()
        self._prepared = False
        """The projection holds a page that is not known to be in."""
        self._delivered: dict[WorkerName, int] = {}
        self.page_at = -1
        self.page_ms = 0
        """When the newest page was made, on the journal's clock and on the boot clock."""
        self._failing_since_ms: int | None = None
        """Since when no turn could be finished (boot clock)."""
        self._next_beat_ms = 0
        self._next_beats_poll_ms = 0
        self._beat_is_in = True
        """The newest beat of its own. While none goes through, nobody else's does either."""
        self._take_over_journal()

    @property
    def _state(self) -> State:
        return self._journal.projection.state

    @property
    def is_settled(self) -> bool:
        """Whether the projection holds nothing but pages that are in."""
        return not self._prepared

    @property
    def _leads(self) -> bool:
        return (self._state.epoch, self._state.leader) == (self._epoch, self._writer)

    def _take_over_journal(self) -> None:
        """Begin from what the journal says: indexes, and every message not yet passed."""
        self._scheduler = Scheduler(self._journal.projection)
        self._delivered = {name: worker.cursor for name, worker in self._state.workers.items()}

    def elect(self) -> bool:
        """Post the election page; False where somebody else was faster."""
        self._epoch = Epoch(self._state.epoch + 1)
        self._post((), (), elected=True)
        return self._leads

    def step(self) -> None:
        """One turn of the wheel. Raises FencedError, or TransientError (try again)."""
        began_ms = self._context.clock.boot_ms()
        try:
            finished = self._turn()
        except TransientError:
            self._note_failure(began_ms)
            raise
        if finished:
            self._failing_since_ms = None
        else:
            self._note_failure(began_ms)

    def _note_failure(self, began_ms: int) -> None:
        """A leader that cannot finish a turn must not hold the lease by beating."""
        if self._failing_since_ms is None:
            self._failing_since_ms = began_ms
        failing_ms = self._context.clock.boot_ms() - self._failing_since_ms
        if failing_ms > self._context.timings.lease_ms:
            raise FencedError(f"could finish no turn for {failing_ms // 1000} s")

    def _turn(self) -> bool:
        """Whether it was finished; False where its page is in doubt."""
        if self._prepared:
            self._reload()
        if not self._leads:
            raise FencedError(
                f"{self._state.leader or 'nobody'} leads epoch {self._state.epoch}, "
                f"not {self._writer} epoch {self._epoch}"
            )
        self._beat()
        self._deliver()
        self._try_claims()
        facts, refused = self._read()
        seen = (*refused, *self._seen())
        due = self._scheduler.next_due_ms()
        if facts or seen or (due is not None and due <= self._context.store.clock_ms()):
            return self._post(facts, seen, elected=False)
        return True

    def _note_page(self, *, age_ms: int) -> None:
        """The newest page was made ``age_ms`` ago."""
        self.page_at, self.page_ms = self._state.at, self._context.clock.boot_ms() - age_ms

    def _check_clock(self) -> None:
        """Raise FencedError where this clock has left the journal's since the last page."""
        off_ms = self._context.store.clock_ms() - self.page_at
        silence_ms = self._context.clock.boot_ms() - self.page_ms
        if abs(off_ms) > SKEW_MAX_MS + silence_ms:
            raise FencedError(f"the store's clock is {off_ms // 1000} s off the journal's")

    # -- reading

    def _read(self) -> tuple[tuple[e.Posted, ...], tuple[e.FactRefused, ...]]:
        now_ms = self._context.clock.boot_ms()
        if now_ms >= self._next_beats_poll_ms:
            for beat in self._beats.poll():
                self._note_beat(beat)
            self._next_beats_poll_ms = now_ms + self._context.timings.beats_poll_ms
        state = self._state
        polled = self._facts.poll(
            state.writers, state.newest_stamp_ms, state.at, state.held_stamp_ms
        )
        for key in self._facts.take_strays():
            log.warning("no fact can have this key", key=key)
        if self._beat_is_in:
            self._judge.read_succeeded(self._context.clock.boot_ms())
        facts = tuple(item for item in polled if isinstance(item, e.Posted))
        for posted in facts:
            self._note_sign_of(posted.fact)
        return facts, tuple(item for item in polled if isinstance(item, e.FactRefused))

    def _note_sign_of(self, fact: e.AnyFact) -> None:
        if isinstance(fact, e.WorkerReady):
            node = self._state.nodes.get(fact.node)
            if node is None or node.machine in ("", fact.machine):
                self._judge.sign_of_life(fact.node)
            self._problems.pop(fact.worker, None)
        elif isinstance(fact, e.WorkerFact):
            worker = self._state.workers.get(fact.worker)
            if worker is not None:
                self._judge.sign_of_life(worker.node)
                if isinstance(fact, e.AttemptFinished):
                    self._note_use_of(worker, fact.utilisation_percent)

    def _note_use_of(self, worker: Worker, percent: int | None) -> None:
        """The slot's GPU was read right after a job of ours: newer than any beat."""
        known = self._problems.get(worker.name, worker.problem)
        if percent is not None and (not known or known.endswith(BUSY)):
            self._problems[worker.name] = busy_problem(percent)

    def _note_beat(self, beat: e.Beat) -> None:
        node = self._state.nodes.get(beat.node)
        self._facts.hint(beat.newest)
        if node is None or beat.machine != node.machine:
            return
        self._judge.sign_of_life(beat.node)
        for name, slot in beat.slots.items():
            self._problems[WorkerName(name)] = slot_problem(slot)

    def _seen(self) -> list[e.AnySeen]:
        state = self._state
        seen: list[e.AnySeen] = []
        for ref, owner in self._claims.items():
            if ref in state.revoking:
                seen.append(e.ClaimSeen(job=ref.job, attempt=ref.attempt, owner=owner))
        for name, problem in self._problems.items():
            worker = state.workers.get(name)
            if worker is not None and bool(worker.problem) != bool(problem):
                seen.append(e.SlotSeen(worker=name, problem=problem))
        found = self._artifacts.look(self._scheduler.wanted_artifacts)
        seen.extend(e.ArtifactSeen(path=path) for path in found)
        return [*seen, *self._judge.judge(state)]

    # -- posting

    def _post(self, facts: Sequence[e.Posted], seen: Sequence[e.AnySeen], *, elected: bool) -> bool:
        """Build and put one page, and act on it once it is in; False where it is in doubt.

        In doubt for longer than the lease, or Lost: whatever stands at this seq counts. It
        is read, and what was prepared is built afresh from it.
        """
        if not elected:
            self._check_clock()
        self._prepared = True
        built_ms = self._context.clock.boot_ms()
        page = self._build(tuple(facts), tuple(seen), elected=elected)
        try:
            outcome = self._journal.post(page, patience_ms=self._context.timings.lease_ms)
        except InDoubtError:
            outcome = None
        if isinstance(outcome, Won):
            self._journal.finish(page)
            self._prepared = False
            self._note_page(age_ms=self._context.clock.boot_ms() - built_ms)
            self._act(page)
        else:
            self._reload()
        return outcome is not None

    def _build(
        self, facts: tuple[e.Posted, ...], seen: tuple[e.AnySeen, ...], *, elected: bool
    ) -> e.Page:
        state = self._state
        seq, previous = Seq(state.seq + 1), state.page_sha256
        at = max(self._context.store.clock_ms(), state.at)
        decisions, fair = take_turn(
            self._journal.projection,
            self._scheduler,
            at=at,
            epoch=self._epoch,
            leader=self._writer,
            facts=facts,
            seen=seen,
            elected=elected,
        )
        return e.Page(
            ledger=self._context.ledger,
            seq=seq,
            epoch=self._epoch,
            leader=self._writer,
            at=at,
            prev_sha256=previous,
            rules=RULES,
            facts=facts,
            seen=seen,
            decisions=decisions,
            fair=fair,
            put_id=new_put_id(self._context.rng),
        )

    def _reload(self) -> None:
        """Throw the prepared page away and read what is there."""
        self._journal.load()
        self._take_over_journal()
        self._prepared = False
        if self.page_at != self._state.at:
            self._note_page(age_ms=max(0, self._context.store.clock_ms() - self._state.at))

    # -- acting, only after the page is in

    def _act(self, page: e.Page) -> None:
        if page.seq and page.seq % CHECKPOINT_EVERY_PAGES == 0:
            save_checkpoint(self._context.store, self._state)
        try:
            self._deliver()
            self._try_claims()
        except TransientError:
            return  # the next step tries again before it posts anything new
        finally:
            self._on_page(page.decisions)

    def _deliver(self) -> None:
        """Put every message above the workers' cursors that was not put yet, in order."""
        for name, worker in self._state.workers.items():
            n = max(self._delivered.get(name, 0), worker.cursor)
            while n < worker.next_message:
                body = e.encode(worker.messages[n])
                self._context.store.put_once(message_key(name, n), body)
                n += 1
                self._delivered[name] = n

    def _try_claims(self) -> None:
        """Try to take back what is being revoked; the next page says who won."""
        revoking = self._state.revoking
        self._claims = {ref: self._claims[ref] for ref in revoking if ref in self._claims}
        for ref in revoking:
            if ref not in self._claims and ref not in self._unreadable:
                try:
                    self._claims[ref] = self._try_claim(ref)
                except LedgerError as error:
                    # That attempt stays as it is; nobody else has to wait for it.
                    log.error("leaves a claim alone", reason=str(error))
                    self._unreadable.add(ref)

    def _try_claim(self, ref: e.AttemptRef) -> str:
        claim = e.Claim(
            ledger=self._context.ledger,
            put_id=new_put_id(self._context.rng),
            job=ref.job,
            attempt=ref.attempt,
            owner="revoke",
            writer=self._writer,
            at=self._context.store.clock_ms(),
        )
        outcome = self._context.store.put_new(
            claim_key(ref.job, ref.attempt),
            e.encode(claim),
            patience_ms=self._context.timings.leader_beat_ms,
        )
        if isinstance(outcome, Won):
            return claim.owner
        return read_claim(outcome.body, claim.ledger, ref.job, ref.attempt).owner

    def _beat(self) -> None:
        now_ms = self._context.clock.boot_ms()
        if now_ms < self._next_beat_ms or self._failing_since_ms is not None:
            return
        self._next_beat_ms = now_ms + self._context.timings.leader_beat_ms
        self._beat_is_in = False
        self._beat_writer.put(
            e.Beat(
                writer=self._writer,
                n=0,
                at=self._context.store.clock_ms(),
                host=self._context.host,
                machine=self._context.machine,
                epoch=self._epoch,
            )
        )
        self._beat_is_in = True


def slot_problem(slot: e.SlotBeat) -> str:
    """Why a slot takes no work, by its supervisor's beat; empty where it may.

    A utilisation counts only if it was read while none of our jobs ran there.
    """
    if not slot.alive:
        return "its worker is not running"
    if slot.problem:
        return slot.problem
    return "" if slot.running else busy_problem(slot.utilisation_percent)


def workers_told(decisions: Iterable[e.AnyDecision]) -> set[WorkerName]:
    """Workers to whom these decisions send a message."""
    told: set[WorkerName] = set()
    for decision in decisions:
        if isinstance(decision, e.AttemptAssigned):
            told.add(decision.slots[0])
        elif isinstance(decision, e.StopOrdered):
            told.add(decision.worker)
    return told
