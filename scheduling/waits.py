"""What a job's wait was made of: every millisecond of it under one heading.

Owns the headings and the rule by which the time between two pages gets one: it is the
heading of the state after the earlier page, except that nothing could happen while nobody
led. docs/CLI.md, "What a wait was made of", gives the same rule for people. A wait is the
time from the submit to the first start, of a job that never started to its end, else to now.
Pure, integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ledger import events as e
from ledger.arrays import member_of
from ledger.events import JobState
from ledger.names import FlowId, JobId
from ledger.state import Job
from scheduling.aside import waited_for
from scheduling.class_shares import KEPT
from scheduling.explain import jobs_ahead
from scheduling.followed import Followed
from scheduling.placement import Shape


class Heading(StrEnum):
    """Why a job does not run, in the order in which the first that holds is taken."""

    NO_DISPATCHER = "no dispatcher"
    NOT_POSTED = "not yet posted"
    HELD = "held or put off"
    DEPENDENCY = "dependency"
    BEGIN = "before its begin"
    ASSIGNED = "assigned, not started"
    ARRAY_LIMIT = "limit of its array"
    NO_SLOT = "no serving slot"
    OWN_LIMIT = "own limit"
    KEPT = "kept for another class"
    EARLIER_JOBS = "earlier jobs of its flow"
    POOL_LIMIT = "limit of the pool"
    OTHERS_TURN = "others' turn"


_NEEDS_A_LEADER = frozenset(Heading) - {Heading.HELD, Heading.BEGIN, Heading.ASSIGNED}


class Stretch(msgspec.Struct, frozen=True):
    """One heading for some time; it lasts until the next one begins."""

    begin: int
    heading: Heading


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment of the job, and the pool's clock just after it."""

    at: int
    decision: e.AttemptAssigned
    virtual_time: int


class Wait:
    """An observer of one job. A page costs O(jobs) while the job waits, else O(1)."""

    def __init__(self, followed: Followed, job_id: JobId) -> None:
        self._followed = followed
        self._job_id = job_id
        self.job: Job | None = None
        """As of the last page; it is remembered when the fold has long archived it."""
        self.stretches: list[Stretch] = []
        self.assigned: Decided | None = None
        """Its last assignment."""
        self._blocked_at: dict[FlowId, int] = {}
        self._open = Stretch(followed.state.at, Heading.NOT_POSTED)
        followed.observers.append(self)

    def step(self, decision: e.AnyDecision | None, flows: Sequence[FlowId]) -> None:
        state = self._followed.state
        match decision:
            case e.AttemptAssigned() if decision.job == self._job_id:
                clock = state.pools[state.jobs[decision.job].placed.pool]
                self.assigned = Decided(
                    at=state.at, decision=decision, virtual_time=clock.virtual_time
                )
            case e.FlowBlocked():
                self._blocked_at[decision.flow] = state.at
            case e.FlowFreed():
                self._blocked_at.pop(decision.flow, None)

    def page(self, page: e.Page) -> None:
        state = self._followed.state
        self.job = state.jobs.get(self._job_id, self.job)
        elected = any(isinstance(decision, e.Elected) for decision in page.decisions)
        heading = self._open.heading
        if elected and heading in _NEEDS_A_LEADER:
            heading = Heading.NO_DISPATCHER
        self._add(Stretch(self._open.begin, heading))
        self._open = Stretch(state.at, self._heading())

    def blocked_since(self, flow: FlowId) -> int | None:
        """When the flow was blocked; None where that was before what was folded."""
        return self._blocked_at.get(flow)

    @property
    def heading(self) -> Heading:
        """Of the state after the last page."""
        return self._open.heading

    @property
    def heading_since(self) -> int:
        """Since when the job has waited under the heading of now."""
        last = self.stretches[-1] if self.stretches else self._open
        return last.begin if last.heading is self._open.heading else self._open.begin

    def breakdown(self, now_ms: int) -> dict[Heading, int]:
        """Milliseconds of the wait by heading; they sum to ``wait_ms``. O(stretches)."""
        if self.job is None:
            return {}
        begin = self.job.submitted_at
        end = max(begin, waited_until(self.job, now_ms))
        parts: dict[Heading, int] = {}
        stretches = [*self.stretches, self._open]
        ends = [*(stretch.begin for stretch in stretches[1:]), end]
        # What lies before the first page that was looked at is of the first heading.
        begins = [begin, *(stretch.begin for stretch in stretches[1:])]
        for stretch, from_ms, until_ms in zip(stretches, begins, ends, strict=True):
            part_ms = min(until_ms, end) - max(from_ms, begin)
            if part_ms > 0:
                parts[stretch.heading] = parts.get(stretch.heading, 0) + part_ms
        return parts

    def _add(self, stretch: Stretch) -> None:
        if not self.stretches or self.stretches[-1].heading is not stretch.heading:
            self.stretches.append(stretch)

    def _heading(self) -> Heading:
        job = self._whole() if self.job is None else self.job
        if job is None:
            return Heading.NOT_POSTED
        if job.state is JobState.HELD or job.state.ended:
            return Heading.HELD
        if job.state is not JobState.PENDING:
            return Heading.ASSIGNED
        if job.aside_since is not None:
            state, spec = self._followed.state, job.spec
            waited = waited_for(state, job) or set(spec.after_artifacts) - state.artifacts.keys()
            return Heading.DEPENDENCY if waited else Heading.BEGIN
        return self._pending(job) if job.in_queue else Heading.ARRAY_LIMIT

    def _whole(self) -> Job | None:
        """The array as part of which a member waits before it is a job of its own."""
        named = member_of(self._job_id)
        return self._followed.state.jobs.get(named[0]) if named is not None else None

    def _pending(self, job: Job) -> Heading:
        followed, spec = self._followed, job.placed
        if not followed.fleet.serves(spec.pool, Shape.of(spec)):
            return Heading.NO_SLOT
        limit = followed.state.flows[spec.flow].limit
        if limit:
            return Heading.KEPT if limit.startswith(KEPT) else Heading.OWN_LIMIT
        if jobs_ahead(followed.state, job):
            return Heading.EARLIER_JOBS
        hold = followed.headroom.hold(job)
        if hold is not None and hold.of_pool:
            return Heading.POOL_LIMIT
        return Heading.OTHERS_TURN


def first_start(job: Job) -> int | None:
    """When its first attempt started that is known to have started (ms), or None."""
    starts = (a.started_at for a in job.attempts if a.started_at is not None and a.ran)
    return next(starts, None)


def waited_until(job: Job, now_ms: int) -> int:
    """When its wait was over: its first start, else its end, else now."""
    started_at = first_start(job)
    if started_at is not None:
        return started_at
    return now_ms if job.ended_at is None else job.ended_at


def wait_ms(job: Job, now_ms: int) -> int:
    """How long it waited, or has waited so far."""
    return max(0, waited_until(job, now_ms) - job.submitted_at)


def queue_wait_ms(job: Job, now_ms: int) -> int:
    """The part of it that did not pass before it could enter its queue."""
    return max(0, waited_until(job, now_ms) - job.queued_since)
