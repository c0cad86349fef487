"""What a stretch of the journal says of waits, ends, attempts and costs, group by group.

Owns the counting: one look at each page, by what it changed. What is kept beside the counts
is bounded by the jobs that the fold itself still has whole. Percentiles are by nearest rank
over buckets no wider than 1/64 of their value, and given as a bucket's upper end. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from ledger import events as e
from ledger.arrays import size_of
from ledger.events import JobState
from ledger.names import FlowId, JobId, flow_parts
from ledger.state import Attempt, Job, Phase
from scheduling.followed import Followed
from scheduling.waits import first_start, queue_wait_ms

DIMENSIONS = ("org", "class", "pool")

EXACT_BITS = 7
"""Waits are kept with so many leading binary digits."""

_FORGOTTEN_AT_LEAST = 1_000

Key = tuple[str, ...]


class Distribution:
    """Durations in buckets: exact below 128 ms, then to 1/64. Memory O(log of the largest)."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: Counter[int] = Counter()

    def add(self, value_ms: int) -> None:
        shift = max(0, value_ms.bit_length() - EXACT_BITS)
        upper_ms = (((value_ms >> shift) + 1) << shift) - 1
        self._buckets[upper_ms] += 1
        self.count += 1

    def percentile(self, percent: int) -> int | None:
        """The smallest value that ``percent`` % of all do not exceed; None without values."""
        rank = -(-self.count * percent // 100)
        for upper_ms in sorted(self._buckets):
            rank -= self._buckets[upper_ms]
            if rank <= 0:
                return upper_ms
        return None


class Cost(msgspec.Struct, kw_only=True):
    """Of attempts that were settled: what was charged at dispatch, and what they cost."""

    estimated: int = 0
    actual: int = 0


class Group(msgspec.Struct, kw_only=True):
    """What was counted since ``since_ms``; ``waiting``, ``held`` and ``late`` as of the end."""

    waits: Distribution = msgspec.field(default_factory=Distribution)
    overdue: int = 0
    """Of those that started: waited longer than the policy's target."""
    submitted: int = 0
    started: int = 0
    ended: Counter[JobState] = msgspec.field(default_factory=Counter)
    cancelled_waiting: int = 0
    cancelled_started: int = 0
    attempts: int = 0
    retries: int = 0
    lost: int = 0
    slot_ms: Cost = msgspec.field(default_factory=Cost)
    tokens: Cost = msgspec.field(default_factory=Cost)
    after_cancel_slot_ms: int = 0
    """What attempts occupied after their job was cancelled."""
    calls: int = 0
    """Requests that jobs reported; ``throttled`` and ``timeouts`` are of them."""
    throttled: int = 0
    timeouts: int = 0
    waiting: int = 0
    held: int = 0
    late: int = 0
    """Waiting still, for longer than the policy's target."""


class _Known(msgspec.Struct, kw_only=True):
    """What was counted of a job already."""

    started: bool = False
    ended: JobState | None = None
    estimates: dict[int, int] = {}
    """By number of an attempt that is not settled: what was charged at first."""
    reported: set[int] = set()
    lost: set[int] = set()


class Metrics:
    """An observer that counts from ``since_ms`` on. A page costs O(jobs that it touched)."""

    def __init__(self, followed: Followed, since_ms: int, by: Sequence[str]) -> None:
        self._followed = followed
        self._since_ms = since_ms
        self._by = tuple(by)
        self._known: dict[JobId, _Known] = {}
        self._retried: list[JobId] = []
        self.groups: dict[Key, Group] = {}
        for job in followed.state.jobs.values():
            unsettled = {a.number: a.cost_ms for a in job.attempts if not a.settled}
            self._known[job.id] = _Known(estimates=unsettled)
            self._note(job, counts=False)
        followed.observers.append(self)

    def step(self, decision: e.AnyDecision | None, flows: Sequence[FlowId]) -> None:
        state = self._followed.state
        match decision:
            case e.JobRetried():
                self._retried.append(decision.job)
            case e.AttemptAssigned():
                known = self._known.setdefault(decision.job, _Known())
                known.estimates[decision.attempt] = decision.cost_ms
                if state.at >= self._since_ms:
                    self._group(state.jobs[decision.job]).attempts += 1

    def page(self, page: e.Page) -> None:
        state, touched = self._followed.state, self._followed.projection.touched
        counts = state.at >= self._since_ms
        self._retried.extend(self._asked_again(page))
        if counts:
            for job_id in self._retried:
                self._group(state.jobs[job_id]).retries += 1
            for job_id in touched.submitted:
                array = state.jobs[job_id].spec.array
                count = 1 if array is None else size_of(array)
                self._group(state.jobs[job_id]).submitted += count
        self._retried.clear()
        for job_id in touched.jobs:
            self._note(state.jobs[job_id], counts=counts)
        self._forget()

    def groups_at(self, now_ms: int) -> dict[Key, Group]:
        """The groups, in order of their keys, with what waits now. O(jobs). Once only."""
        for job in self._followed.state.jobs.values():
            if job.state.queued:
                group, count = self._group(job), job.waiting
                group.waiting += count * (job.state is JobState.PENDING)
                group.held += count * (job.state is JobState.HELD)
                is_late = first_start(job) is None and self._is_overdue(job, now_ms)
                group.late += count * is_late
        return dict(sorted(self.groups.items()))

    def _asked_again(self, page: e.Page) -> list[JobId]:
        """Ended jobs that a user had tried again."""
        again = []
        for posted in page.facts:
            if isinstance(posted.fact, e.RetryRequested):
                job = self._followed.state.jobs.get(posted.fact.job)
                known = self._known.get(posted.fact.job)
                if job is not None and known is not None and known.ended and not job.state.ended:
                    again.append(job.id)
        return again

    def _group(self, job: Job) -> Group:
        names = dict(zip(DIMENSIONS, flow_parts(job.placed.flow), strict=True))
        key = tuple(names[dimension] for dimension in self._by)
        return self.groups.setdefault(key, Group())

    def _is_overdue(self, job: Job, now_ms: int) -> bool:
        target_ms = self._followed.state.policy.wait_target_ms(job.placed.flow)
        return job.aside_since is None and 0 < target_ms < queue_wait_ms(job, now_ms)

    def _note(self, job: Job, *, counts: bool) -> None:
        """Take over what became of the job; ``counts``: it is of the time that is asked for."""
        known = self._known.setdefault(job.id, _Known())
        group = self._group(job) if counts else Group()
        if not known.started and first_start(job) is not None:
            known.started = True
            group.started += 1
            group.waits.add(queue_wait_ms(job, self._followed.state.at))
            group.overdue += self._is_overdue(job, self._followed.state.at)
        self._note_end(job, known, group)
        for attempt in job.attempts:
            self._note_attempt(job, attempt, known, group)

    def _note_end(self, job: Job, known: _Known, group: Group) -> None:
        """A loss may be taken back, or taken up again: then it was no end.

        Of an array only those members that will never be jobs of their own.
        """
        ended, count = job.state if job.state.ended else None, 1
        if job.array is not None:
            ended, count = job.array.closed, job.array.left
        if ended is known.ended:
            return
        if known.ended is JobState.NODE_FAIL and group.ended[known.ended]:
            group.ended[known.ended] -= 1
        known.ended = ended
        if ended is not None:
            group.ended[ended] += count
        if ended is JobState.CANCELLED:
            group.cancelled_waiting += count * (not known.started)
            group.cancelled_started += known.started

    def _note_attempt(self, job: Job, attempt: Attempt, known: _Known, group: Group) -> None:
        lost = attempt.phase is Phase.LOST or (attempt.outcome == "lost" and attempt.ran)
        if lost is not (attempt.number in known.lost):
            known.lost ^= {attempt.number}
            group.lost += 1 if lost else -min(1, group.lost)
        if attempt.report is not None and attempt.number not in known.reported:
            known.reported.add(attempt.number)
            group.calls += attempt.report.requests
            group.throttled += attempt.report.throttled
            group.timeouts += attempt.report.timeouts
        if not attempt.settled or attempt.number not in known.estimates:
            return
        estimated = known.estimates.pop(attempt.number)
        until = self._followed.state.at if attempt.ended_at is None else attempt.ended_at
        actual = self._followed.projection.actual_cost(attempt, until) if attempt.ran else 0
        cost = group.tokens if attempt.output_factor else group.slot_ms
        cost.estimated += estimated
        cost.actual += actual
        if job.cancel is not None and attempt.started_at is not None:
            since = max(job.cancel.at, attempt.started_at)
            group.after_cancel_slot_ms += len(attempt.slots) * max(0, until - since)

    def _forget(self) -> None:
        """Drop what was kept of jobs that the fold has archived. Amortised O(1)."""
        jobs = self._followed.state.jobs
        if len(self._known) > 2 * len(jobs) + _FORGOTTEN_AT_LEAST:
            self._known = {job: known for job, known in self._known.items() if job in jobs}
