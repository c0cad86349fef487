"""Who held which slot from when to when: the audit's view of the fold.

Owns ``UsageLog``, which watches pages as they are folded and keeps of each attempt that ran
its span, its slots and what became of it; and of each slot when it was there to be used. It
keeps what jobs were even where the fold has archived them. Fairness charges are no part of
it: what was used is never given back. Pure: no clock, no I/O.

An attempt holds its slots from the start of its command until nothing of it is left
(``finish``), until its worker knew no more of it (``lost``), or, where neither was said, until
the page that declared it lost. One that runs holds them until the last page.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from ledger import events as e
from ledger.decisions import YIELDED
from ledger.events import AttemptRef, JobState, Liveness
from ledger.names import JobId, NodeName, WorkerName, WriterName
from ledger.projection import Projection
from ledger.state import Attempt, Job, Phase, State, Worker
from ledger.transitions import end_state

_SWEEP_EVERY = 1_000
"""So many more attempts than after the last look are noted before archived ones are wrapped up."""


class Became(StrEnum):
    """What became of the work of an attempt."""

    DONE = "done"
    """It ended with 0, or saved and gave way at the end of its quantum."""
    FAILED = "failed"
    """It ended with another code, at a limit, or could not be started."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """Through no fault of its own: its node was lost or drained, or a newer attempt counted."""
    RUNNING = "running"


class SlotUsed(msgspec.Struct, frozen=True, kw_only=True):
    """A slot as it was when the attempt was assigned."""

    worker: WorkerName
    node: NodeName
    gpu: str
    """Uuid of its GPU, else the worker's name."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that ran. ``slots`` holds the lead worker's first."""

    job: JobId
    attempt: int
    name: str
    organization: str
    user: str
    workload_class: str
    pool: str
    slots: tuple[SlotUsed, ...]
    assigned_at: int
    started_at: int
    ended_at: int
    """Until when it held its slots, as far as is known."""
    became: Became
    asked_ms: int
    """Slot-milliseconds that it was expected to take when it was assigned."""
    outcome: str
    rc: int | None
    reason: str


class SlotUp(msgspec.Struct, frozen=True, kw_only=True):
    """A slot was there from ``up_at`` until ``down_at``; its node cost this much an hour."""

    worker: WorkerName
    node: NodeName
    gpu: str
    pool: str
    up_at: int
    down_at: int
    price_micros: int


class _Noted(msgspec.Struct, kw_only=True):
    """An attempt that was assigned: the fold's own objects, which it goes on changing."""

    job: Job
    attempt: Attempt
    spec: e.JobSpec
    slots: tuple[SlotUsed, ...]
    asked_ms: int
    lost_at: int | None = None
    gave_way: bool = False
    """It was stopped, and its job went back to its flow."""
    was_cancelled: bool = False
    """With its end its job was cancelled; a retry may follow."""


class UsageLog:
    """Call ``page`` after each page that counts was folded. O(events in it), amortised."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._noted: dict[AttemptRef, _Noted] = {}
        self._order: list[AttemptRef] = []
        self._wrapped: dict[AttemptRef, Use] = {}
        self._sweep_at = _SWEEP_EVERY
        self._slots = _Slots(projection.state)

    def page(self, page: e.Page) -> None:
        """Take over what the page, which the projection has folded, says."""
        self._note_ends(page)
        for decision in page.decisions:
            match decision:
                case e.AttemptAssigned():
                    self._assigned(decision)
                case e.LossDeclared():
                    ref = AttemptRef(decision.job, decision.attempt)
                    if ref in self._noted:
                        self._noted[ref].lost_at = page.at
                case _:
                    pass
        self._slots.page(page)
        if len(self._noted) >= self._sweep_at:
            self._sweep()

    def uses(self) -> Iterator[Use]:
        """Every attempt that ran, in the order in which they were assigned."""
        for ref in self._order:
            use = self._wrapped.get(ref) or self._use(ref)
            if use is not None:
                yield use

    def slots(self) -> list[SlotUp]:
        """When each slot was there, until the last page."""
        return self._slots.spans()

    def _note_ends(self, page: e.Page) -> None:
        """What only this page tells: whether a job that was stopped goes on."""
        went_back = {d.job for d in page.decisions if isinstance(d, e.JobRequeued)}
        for fact in (posted.fact for posted in page.facts):
            if isinstance(fact, e.AttemptFinished):
                noted = self._noted.get(AttemptRef(fact.job, fact.attempt))
                if noted is not None:
                    noted.gave_way = fact.job in went_back
                    noted.was_cancelled = noted.job.state is JobState.CANCELLED

    def _assigned(self, decision: e.AttemptAssigned) -> None:
        state = self._projection.state
        job = state.jobs[decision.job]
        attempt = job.attempt(decision.attempt)
        assert attempt is not None, decision
        spec, ref = job.placed, AttemptRef(job.id, attempt.number)
        self._order.append(ref)
        self._noted[ref] = _Noted(
            job=job,
            attempt=attempt,
            spec=spec,
            slots=tuple(_slot_used(state.workers[name]) for name in decision.slots),
            asked_ms=len(decision.slots) * self._projection.expected_ms(spec),
        )

    def _sweep(self) -> None:
        """Wrap up what the fold has forgotten, and so will not change again."""
        jobs = self._projection.state.jobs
        for ref in [ref for ref in self._noted if ref.job not in jobs]:
            use = self._use(ref)
            if use is not None:
                self._wrapped[ref] = use
            del self._noted[ref]
        self._order = [ref for ref in self._order if ref in self._noted or ref in self._wrapped]
        self._sweep_at = 2 * len(self._noted) + _SWEEP_EVERY

    def _use(self, ref: AttemptRef) -> Use | None:
        """None where it held no slot: it never ran."""
        noted = self._noted[ref]
        attempt, spec = noted.attempt, noted.spec
        if attempt.started_at is None or not attempt.ran:
            return None
        return Use(
            job=ref.job,
            attempt=ref.attempt,
            name=spec.name,
            organization=spec.organization,
            user=spec.user,
            workload_class=spec.workload_class,
            pool=spec.pool,
            slots=noted.slots,
            assigned_at=attempt.assigned_at,
            started_at=attempt.started_at,
            ended_at=max(attempt.started_at, self._ended_at(noted)),
            became=_became(noted),
            asked_ms=noted.asked_ms,
            outcome=attempt.outcome,
            rc=attempt.rc,
            reason=attempt.reason,
        )

    def _ended_at(self, noted: _Noted) -> int:
        attempt = noted.attempt
        if attempt.phase is Phase.LOST:
            assert noted.lost_at is not None
            return noted.lost_at
        return self._projection.state.at if attempt.ended_at is None else attempt.ended_at


def _became(noted: _Noted) -> Became:
    """What became of the work of an attempt that ran, as far as the fold knows."""
    attempt = noted.attempt
    if attempt.phase is Phase.LOST or attempt.outcome == "lost" or attempt.superseded:
        return Became.LOST
    if attempt.phase is not Phase.ENDED or attempt.rc is None:
        return Became.RUNNING
    outcome = attempt.outcome
    if attempt.stop_reason == YIELDED and not noted.was_cancelled:
        if noted.gave_way:
            return Became.DONE
        outcome = "exited"  # it ended instead of saving
    match end_state(outcome, attempt.rc):
        case JobState.COMPLETED:
            return Became.DONE
        case JobState.CANCELLED:
            return Became.LOST if noted.gave_way else Became.CANCELLED
        case JobState.NODE_FAIL:
            return Became.LOST
        case _:
            return Became.FAILED


class _Slots:
    """Since when each worker's slot is there, and when it was.

    From the facts one by one, because a page may hold the end of a worker and, hours later,
    the beginning of the next.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._since: dict[WorkerName, SlotUp] = {}
        self._past: list[SlotUp] = []
        self._writers: dict[WorkerName, WriterName] = {}

    def page(self, page: e.Page) -> None:
        for posted in page.facts:
            match posted.fact:
                case e.WorkerReady() as ready if self._counts(ready):
                    self._ready(ready)
                case e.WorkerRetired() as retired:
                    if self._writers.get(retired.worker) == retired.writer:
                        self._down(retired.worker, retired.at)
                case e.PolicyApplied():
                    self._repool(page.at)
                case _:
                    pass
        for seen in page.seen:
            if isinstance(seen, e.NodeSeen):
                self._seen(seen, page.at)

    def spans(self) -> list[SlotUp]:
        at = self._state.at
        return [*self._past, *(_closed(up, at) for up in self._since.values())]

    def _counts(self, ready: e.WorkerReady) -> bool:
        """Not that of a refused machine, and not of a former incarnation, told of late."""
        worker = self._state.workers.get(ready.worker)
        is_refused = ready.writer in self._state.nodes[ready.node].intruders
        return (
            worker is not None and not is_refused and not 0 < ready.incarnation < worker.incarnation
        )

    def _ready(self, ready: e.WorkerReady) -> None:
        self._writers[ready.worker] = ready.writer
        self._up(
            SlotUp(
                worker=ready.worker,
                node=ready.node,
                gpu=ready.slot.gpu_uuid or ready.worker,
                pool=self._state.workers[ready.worker].pool,
                price_micros=ready.price_micros,
                up_at=ready.at,
                down_at=ready.at,
            )
        )
        for name in self._state.nodes[ready.node].workers:
            if not self._state.workers[name].ready:  # another machine has taken the name
                self._down(name, ready.at)

    def _repool(self, at: int) -> None:
        """A policy may give workers to other pools."""
        for name, up in list(self._since.items()):
            pool = self._state.workers[name].pool
            self._up(msgspec.structs.replace(up, pool=pool, up_at=at, down_at=at))

    def _seen(self, seen: e.NodeSeen, at: int) -> None:
        for name in self._state.nodes[seen.node].workers:
            worker = self._state.workers[name]
            if seen.liveness is Liveness.GONE:
                self._down(name, at)
            elif worker.ready and not worker.retired:
                self._back(name, at)

    def _back(self, name: WorkerName, at: int) -> None:
        """Its node was heard of again."""
        before = next((up for up in reversed(self._past) if up.worker == name), None)
        if before is not None and name not in self._since:
            self._up(msgspec.structs.replace(before, up_at=at, down_at=at))

    def _up(self, now: SlotUp) -> None:
        known = self._since.get(now.worker)
        if known is not None:
            if now == msgspec.structs.replace(known, up_at=now.up_at, down_at=now.up_at):
                return
            self._down(now.worker, now.up_at)
        self._since[now.worker] = now

    def _down(self, name: WorkerName, at: int) -> None:
        up = self._since.pop(name, None)
        if up is not None:
            self._past.append(_closed(up, at))


def _closed(up: SlotUp, at: int) -> SlotUp:
    return msgspec.structs.replace(up, down_at=max(up.up_at, at))


def _slot_used(worker: Worker) -> SlotUsed:
    return SlotUsed(worker=worker.name, node=worker.node, gpu=worker.slot.gpu_uuid or worker.name)
