"""A ledger as a workload: its real arrivals, durations, and slots over time.

Owns what of a journal is kept. A job arrives when its user last sent it on its way (submit,
release or retry), or when it entered its queue after what it waited for. It takes as long as
its last attempt that was finished took; in the pool and under the pin where it was last moved
to. What never ran to an end says no duration: it is left out and counted. A slot is there while
it would have been given work. The policy is the one in force at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ledger import events as e
from ledger.journal import Journal
from ledger.names import JobId, WorkerName
from ledger.projection import Projection
from ledger.state import State
from ledger.stores.base import Store
from scheduling.placement import trouble
from simulation.engine import Outcome, Run
from simulation.workload import Assignment, Presence, SimJob, Workload

_OF_JOBS = (
    e.Submitted, e.CancelRequested, e.HoldRequested, e.ReleaseRequested, e.MoveRequested,
    e.RetryRequested, e.AttemptStarted, e.AttemptFinished, e.AttemptLost, e.MessageSkipped,
    e.ClaimSeen, e.FactRefused, e.AttemptAssigned, e.StopOrdered, e.JobRequeued, e.FlowBlocked,
    e.FlowFreed, e.OverrunCharged, e.SlotsReserved, e.ReservationEnded, e.RevokeBegun,
    e.JobResumed, e.DependencyMissed, e.ArtifactSeen,
)  # fmt: skip
"""What can change nothing in which slots are there."""


class _Story(msgspec.Struct):
    """What the journal says of one job."""

    spec: e.JobSpec
    arrival_ms: int
    assigned: dict[int, Assignment] = {}
    """By attempt."""
    finished: e.AttemptFinished | None = None


def recorded(store: Store, ledger: str) -> Workload:
    """The workload of a whole ledger. O(events).

    Raises LedgerError on a broken chain, TransientError where the store gives no news.
    """
    return workload_of(Journal(store, ledger).follow(), ledger)


def workload_of(pages: Sequence[e.Page], ledger: str) -> Workload:
    """The same of pages that are known to be a chain from page 0."""
    projection = Projection(State(ledger=ledger))
    stories: dict[JobId, _Story] = {}
    slots = _Slots()
    assignments = 0
    for page in pages:
        if projection.is_legitimate(page):
            projection.begin(page.at, page.epoch, page.leader, page.facts, page.seen)
            for decision in page.decisions:
                projection.apply_decision(decision)
            for posted in page.facts:
                _tell(stories, posted.fact)
            for decision in page.decisions:
                if isinstance(decision, e.JobResumed):
                    _enter(stories[decision.job], page.at)
                elif isinstance(decision, e.AttemptAssigned):
                    assigned = stories[decision.job].assigned
                    assigned[decision.attempt] = _assignment(decision, assignments)
                    assignments += 1
            if any(not isinstance(event, _OF_JOBS) for event in _events(page)):
                slots.look(projection.state)
        projection.finish(page.seq, page.prev_sha256)
    jobs = [_job(story, story.finished) for story in stories.values() if story.finished]
    return Workload(
        title=f"ledger {ledger}",
        jobs=tuple(sorted(jobs, key=lambda job: job.arrival_ms)),
        slots=slots.presences(),
        policy=projection.state.policy,
        left_out=len(stories) - len(jobs),
    )


def _events(page: e.Page) -> Iterator[object]:
    yield from (posted.fact for posted in page.facts)
    yield from page.seen
    yield from page.decisions


def _tell(stories: dict[JobId, _Story], fact: e.AnyFact) -> None:
    match fact:
        case e.Submitted():
            stories.setdefault(fact.job.id, _Story(fact.job, fact.at))
        case e.ReleaseRequested() | e.RetryRequested() if fact.job in stories:
            stories[fact.job].arrival_ms = fact.at
        case e.MoveRequested() if fact.job in stories:
            story = stories[fact.job]
            story.spec = msgspec.structs.replace(story.spec, pool=fact.pool, worker=fact.worker)
        case e.AttemptFinished() if fact.job in stories:
            stories[fact.job].finished = fact
        case _:
            pass


def _enter(story: _Story, at: int) -> None:
    """What waited for others, or for its time, arrives only when that has come."""
    spec = story.spec
    if spec.after or spec.after_artifacts or spec.begin_at:
        story.arrival_ms = at


def _job(story: _Story, finished: e.AttemptFinished) -> SimJob:
    spec = story.spec
    return SimJob(
        name=spec.name,
        organization=spec.organization,
        workload_class=spec.workload_class,
        pool=spec.pool,
        arrival_ms=story.arrival_ms,
        duration_ms=max(0, finished.ended_at - finished.started_at),
        slots=spec.slots,
        gpu_type=spec.gpu_type,
        gpu_memory_bytes=spec.gpu_memory_bytes,
        worker=spec.worker,
        exclude=spec.exclude,
        priority=spec.priority,
        estimate_ms=spec.estimate_ms,
        time_limit_ms=spec.time_limit_ms,
        recorded_start_ms=finished.started_at,
        assignment=story.assigned.get(finished.attempt),
        columns={"user": spec.user, "name": spec.name, "job": spec.id},
    )


def _assignment(made: e.AttemptAssigned, order: int) -> Assignment:
    return Assignment(
        order=order,
        workers=made.slots,
        cost_ms=made.cost_ms,
        weight=made.weight,
        backfill=made.backfill,
    )


def as_it_was(workload: Workload) -> Outcome | None:
    """What really became of the jobs of a ledger; None where the source is none.

    No page is decided again: there are none, and no decisions.
    """
    runs = [_run(job, job.assignment) for job in workload.jobs if job.assignment is not None]
    if not runs or len(runs) < len(workload.jobs):
        return None
    return Outcome(
        workload=workload,
        policy=workload.policy,
        runs=runs,
        pages=0,
        decisions=[],
        ended_at_ms=max(run.end_ms or 0 for run in runs),
        projection=Projection(State(ledger=workload.title)),
    )


def _run(job: SimJob, assigned: Assignment) -> Run:
    assert job.recorded_start_ms is not None
    start_ms = max(job.arrival_ms, job.recorded_start_ms)  # two clocks may differ a little
    return Run(
        job=job,
        start_ms=start_ms,
        end_ms=start_ms + job.duration_ms,
        workers=assigned.workers,
        dispatch=assigned.order,
        backfill=assigned.backfill,
        cost_ms=assigned.cost_ms,
        weight=assigned.weight,
    )


class _Slots:
    """Which workers would be given work, and since when."""

    def __init__(self) -> None:
        self._since: dict[WorkerName, Presence] = {}
        self._past: list[Presence] = []

    def look(self, state: State) -> None:
        """Take over what the state says at its time. O(workers)."""
        for worker in state.workers.values():
            is_there = bool(worker.pool) and not trouble(state, worker)
            known = self._since.get(worker.name)
            if known is not None and (not is_there or known.pool != worker.pool):
                del self._since[worker.name]
                self._past.append(msgspec.structs.replace(known, until_ms=state.at))
                known = None
            if is_there and known is None:
                self._since[worker.name] = Presence(
                    worker=worker.name,
                    node=worker.node,
                    pool=worker.pool,
                    slot=worker.slot,
                    from_ms=state.at,
                )

    def presences(self) -> tuple[Presence, ...]:
        past = [slot for slot in self._past if slot.until_ms != slot.from_ms]
        return (*past, *self._since.values())
