"""The members of arrays: how they become jobs, and what their ends make of the array.

Owns the moves that an array adds to those of ``ledger.transitions``. An array is one job
that stands in its flow's queue for all members that are left. A member that is assigned, or
named in a request, becomes a job of its own by a rule (``ledger.arrays``) and is from then on
like any other; the array counts it. Pure: no clock, no I/O. Costs are O(1) and the array's
ranges unless said.
"""

from __future__ import annotations

from bisect import insort

from msgspec.structs import replace

from ledger.arrays import (
    malformed,
    member_id,
    member_of,
    member_spec,
    position_of,
    size_of,
)
from ledger.events import ArraySpec, CancelRequested, JobSpec, JobState
from ledger.names import JobId
from ledger.policy import Standing
from ledger.state import Array, Job
from ledger.transitions import Transitions


class Members(Transitions):
    """The moves of arrays and their members, on one ``State``."""

    def new_job(self, spec: JobSpec, submitted_at: int) -> Job:
        """A job that arrives now; an array takes a place in the order for each member."""
        job = Job(spec=spec, arrival=self.state.arrivals, submitted_at=submitted_at)
        job.size = self.estimated_cost(spec)
        if spec.array is not None and not malformed(spec.array):  # else it is rejected
            job.array = Array(first_arrival=job.arrival, left=size_of(spec.array))
        self.state.arrivals += job.waiting
        self.state.jobs[spec.id] = job
        return job

    def named(self, job_id: JobId) -> Job | None:
        """The job of that id; a member that is left becomes one."""
        job = self.state.jobs.get(job_id)
        return self._split(job_id) if job is None else job

    def is_of_known_array(self, job_id: JobId) -> bool:
        """Whether it names a member of an array that was submitted."""
        named = member_of(job_id)
        return named is not None and (named[0] in self.state.jobs or named[0] in self.state.archive)

    def _split(self, job_id: JobId) -> Job | None:
        """Make a member that waits as part of its array wait by itself, in the same place."""
        job = self.member_left(job_id)
        if job is None:
            return None
        whole = self.state.jobs[JobId(job_id.partition("_")[0])]
        _, array = _array_of(whole)
        self.state.jobs[job_id] = job
        if array.suspended:
            self.fair.resume(self.flow_of(job), 1, divided=self.is_divided(job))
        _take(array, job.arrival - array.first_arrival)
        whole.arrival = array.first_arrival + array.next
        self.touch(job)
        self.follow(job)
        return job

    def member_left(self, job_id: JobId) -> Job | None:
        """The job that a member which is left would be; None where the id names no such member."""
        named = member_of(job_id)
        whole = self.state.jobs.get(named[0]) if named is not None else None
        if named is None or whole is None or whole.array is None or not whole.state.queued:
            return None
        spec, array = _array_of(whole)
        position = position_of(spec, named[1])
        if position is None or position < array.next or position in array.taken:
            return None
        return Job(
            spec=member_spec(whole.spec, named[1]),
            arrival=array.first_arrival + position,
            submitted_at=whole.submitted_at,
            state=whole.state,
            reason=whole.reason if whole.state is JobState.HELD else "",
            moved=whole.moved,
            size=whole.size,
            standing=whole.standing,
            wakes_at=whole.wakes_at,
            aside_since=whole.aside_since,
            entered_at=whole.entered_at,
        )

    def follow(self, job: Job) -> None:
        """Take over into its array where a member stands; nothing for any other job."""
        named = member_of(job.id)
        whole = self.state.jobs.get(named[0]) if named is not None else None
        if named is None or whole is None or whole.array is None:
            return
        array, index = whole.array, named[1]
        array.begun -= array.open.pop(index, False)
        if job.counted is not None:
            array.ended[job.counted] -= 1
            job.counted = None
        if job.state.ended:
            job.counted = job.state
            array.ended[job.state] = array.ended.get(job.state, 0) + 1
        else:
            array.open[index] = bool(job.attempts)
            array.begun += array.open[index]
        at = self.state.at if job.ended_at is None else job.ended_at
        self._regulate(whole, at)

    def _regulate(self, whole: Job, at: int) -> None:
        """Let the array wait, stand back or end as its members require."""
        _, array = _array_of(whole)
        if whole.state.queued and not array.left:
            self.unqueue(whole, JobState.RUNNING)
        if whole.is_waiting:
            self._keep_limit(whole)
        is_over = not array.open and (array.closed is not None or not array.left)
        if is_over and not whole.state.ended:
            super().end(whole, _state_of(array), whole.reason or _told(array), at)
        elif whole.state.ended and not is_over:
            super().reopen(whole, JobState.RUNNING)
        self.touch(whole)

    def _keep_limit(self, whole: Job) -> None:
        """An array of which enough is underway offers nothing until one of them has ended."""
        spec, array = _array_of(whole)
        is_full = 0 < spec.at_once <= array.begun
        if is_full and not array.suspended:
            self.fair.suspend(self.flow_of(whole), array.left)
        elif array.suspended and not is_full:
            divided = self.is_divided(whole)
            self.fair.resume(self.flow_of(whole), array.left, divided=divided)
        array.suspended = is_full

    def join(self, job: Job, *, resumed: bool = False) -> None:
        super().join(job, resumed=resumed)
        if job.array is not None:
            self._keep_limit(job)

    def leave(self, job: Job) -> None:
        super().leave(job)
        if job.array is not None:
            job.array.suspended = False

    def end(self, job: Job, state: JobState, reason: str, at: int) -> None:
        """Of an array: what is left ends so; the array itself once its members have.

        What ends one that was not admitted, or stands aside, holds for its members as well.
        """
        if job.array is None:
            super().end(job, state, reason, at)
            self.follow(job)
        elif not job.state.ended and job.array.closed is None:
            job.array.closed = state
            job.reason = reason
            takes_all = state is JobState.REJECTED or job.aside_since is not None
            fresh = self._not_begun(job) if takes_all else []
            self.unqueue(job, JobState.RUNNING)
            for member in fresh:
                self.end(member, state, reason, at)
            self._regulate(job, at)

    def admit(self, job: Job, standing: Standing) -> None:
        super().admit(job, standing)
        for member in self._not_begun(job):
            super().admit(member, standing)

    def _not_begun(self, whole: Job) -> list[Job]:
        """Members that a request made jobs, and that were never assigned. O(open)."""
        names = sorted(whole.array.open) if whole.array is not None else []
        members = (self.state.jobs[member_id(whole.id, index)] for index in names)
        return [member for member in members if member.state.queued and not member.attempts]

    def reopen(self, job: Job, state: JobState) -> None:
        super().reopen(job, state)
        self.follow(job)

    def cancel_members(self, whole: Job, cancel: CancelRequested) -> list[CancelRequested]:
        """The cancel of an array, as one of each member that has not ended. O(those)."""
        assert whole.array is not None
        return [
            replace(cancel, job=member_id(whole.id, index)) for index in sorted(whole.array.open)
        ]

    def retry(self, job: Job) -> None:
        """Of an array: what is left begins, and what failed and is still kept. O(ended)."""
        if job.array is None:
            super().retry(job)
            self.follow(job)
            return
        spec, array = _array_of(job)
        failed = [
            self.state.jobs[name]
            for name in self.state.ended
            if (member_of(name) or ("", 0))[0] == job.id and self.state.jobs[name].state.retryable
        ]
        job.cancel, array.closed = None, None
        if array.left:
            self.health.trust(job.spec)
            self.state.ended.remove(job.id)
            array.first_arrival = self.state.arrivals - array.next
            job.arrival = self.state.arrivals
            self.state.arrivals += size_of(spec) - array.next
            job.ended_at = None
            self.enter(job)
        for member in sorted(failed, key=lambda member: (member_of(member.id) or ("", 0))[1]):
            self.retry(member)


def _array_of(job: Job) -> tuple[ArraySpec, Array]:
    assert job.spec.array is not None
    assert job.array is not None
    return job.spec.array, job.array


def _take(array: Array, position: int) -> None:
    """The member at ``position`` is left no more. Amortised O(taken)."""
    array.left -= 1
    insort(array.taken, position)
    while array.taken and array.taken[0] == array.next:
        del array.taken[0]
        array.next += 1


def _state_of(array: Array) -> JobState:
    """How the array ended: as what is left, else as its worst members."""
    others = {state for state, count in array.ended.items() if count} - {JobState.COMPLETED}
    if array.closed is not None:
        return array.closed
    if not others:
        return JobState.COMPLETED
    return JobState.CANCELLED if others == {JobState.CANCELLED} else JobState.FAILED


def _told(array: Array) -> str:
    """What became of those that did not complete: ``3 FAILED, 1 TIMEOUT``."""
    return ", ".join(
        f"{count} {state.value}"
        for state, count in sorted(array.ended.items())
        if count and state is not JobState.COMPLETED
    )
