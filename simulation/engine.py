"""The discrete-event engine: the leader's own decisions, in virtual time.

Owns the clock and the facts. A ``Workload`` says when jobs arrive and how long they take;
whose turn it is and where a job goes is decided by the real ``Scheduler`` over a real
``Projection``, page after page, as a leader does it. What workers would report (ready, start,
finish, retire) is posted when it would happen, with no delay. Nothing is written, hashed or
encoded. At one instant completions free their slots first, then slots come and go, then jobs
arrive in the workload's order, then the page is decided.

An attempt starts at the instant of its assignment; its ``start`` is posted in the next page,
which is made in time for whatever rests on it. A job whose slot is withdrawn runs to its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ledger import events as e
from ledger.keys import FactKey
from ledger.names import BASE32, Epoch, JobId, Seq, WorkerName, WriterName
from ledger.policy import Policy
from ledger.projection import Projection
from ledger.state import State, Worker
from scheduling.decide import Scheduler
from simulation.workload import Presence, SimJob, Workload

_LEADER = WriterName("dispatcher-simulation~aaaaaaaa")
_CLIENT = WriterName("cli-simulation~aaaaaaaa")
_EPOCH = Epoch(1)


class Run(msgspec.Struct, kw_only=True):
    """What became of one job. Times are None where it did not come to that."""

    job: SimJob
    start_ms: int | None = None
    end_ms: int | None = None
    workers: tuple[WorkerName, ...] = ()
    dispatch: int = -1
    """How many decisions were made before its assignment: the order of starts."""
    backfill: bool = False
    cost_ms: int = 0
    """Charged at dispatch, slot-milliseconds."""
    weight: tuple[int, int] = (1, 1)
    """Of its flow at dispatch: numerator and denominator."""
    refused: str = ""

    @property
    def wait_ms(self) -> int | None:
        return None if self.start_ms is None else self.start_ms - self.job.arrival_ms


class Outcome(msgspec.Struct, kw_only=True):
    """A run of a workload under a policy. ``runs`` are in the order of the jobs."""

    workload: Workload
    policy: Policy
    runs: list[Run]
    pages: int
    decisions: list[tuple[int, e.AnyDecision]]
    """Each with the time at which it was made."""
    ended_at_ms: int
    """The last instant that was looked at."""
    projection: Projection
    """As it stands at the end."""

    @property
    def slots(self) -> dict[str, list[Presence]]:
        """The slots of each pool, as the policy divides them."""
        pools: dict[str, list[Presence]] = {}
        for slot in self.workload.slots:
            pool = self.policy.pool_of(slot.worker, slot.pool)
            pools.setdefault(pool, []).append(slot)
        return pools


def simulate(workload: Workload, policy: Policy | None = None) -> Outcome:
    """Run the workload under ``policy`` (else its own). O(events * log n), see ``scheduling``."""
    return _Engine(workload, workload.policy if policy is None else policy).run()


class _End(NamedTuple):
    """An attempt that will end: in order of time, then of its start."""

    at: int
    order: int
    job: int
    attempt: int


class _Engine:
    def __init__(self, workload: Workload, policy: Policy) -> None:
        self._workload = workload
        self._policy = policy
        self._projection = Projection(State(ledger="simulation"))
        self._scheduler = Scheduler(self._projection)
        self._runs = [Run(job=job) for job in workload.jobs]
        self._decisions: list[tuple[int, e.AnyDecision]] = []
        self._arrivals = sorted(range(len(self._runs)), key=self._arrival_of)
        self._arrived = 0
        self._changes = sorted(_changes(workload), key=lambda change: change[:3])
        self._changed = 0
        self._ends: list[_End] = []
        self._starts: list[e.AttemptStarted] = []
        self._starts_due: int | None = None
        """When something would rest on a start that is not posted yet."""
        self._numbers: dict[WriterName, int] = {}

    def _arrival_of(self, index: int) -> int:
        return self._runs[index].job.arrival_ms

    def run(self) -> Outcome:
        until, at = self._workload.until_ms, 0
        while True:
            following = self._next_ms()
            if following is None or (until is not None and following > until):
                break
            at = following
            self._page(at)
        return Outcome(
            workload=self._workload,
            policy=self._policy,
            runs=self._runs,
            pages=self._projection.state.seq + 1,
            decisions=self._decisions,
            ended_at_ms=at if until is None else until,
            projection=self._projection,
        )

    def _next_ms(self) -> int | None:
        """The next instant at which something happens; None where all is done.

        Slots that only come or go when no job is left concern nobody.
        """
        times = []
        if self._ends:
            times.append(self._ends[0].at)
        if self._arrived < len(self._arrivals):
            times.append(self._arrival_of(self._arrivals[self._arrived]))
        due = self._scheduler.next_due_ms()
        times.extend(time for time in (due, self._starts_due) if time is not None)
        waits = any(clock.waiting for clock in self._projection.state.pools.values())
        if self._changed < len(self._changes) and (times or waits):
            times.append(self._changes[self._changed][0])
        return min(times, default=None)

    def _page(self, at: int) -> None:
        """One page, as ``scheduling.turn`` makes it."""
        projection = self._projection
        seq = Seq(projection.state.seq + 1)
        facts = [self._post(fact, fact.worker, at) for fact in self._starts]
        self._starts.clear()
        self._starts_due = None
        facts.extend(self._finished(at))
        if seq == 0:
            facts.append(self._post(e.PolicyApplied(at=at, policy=self._policy), _CLIENT, at))
        facts.extend(self._slots_changed(at))
        facts.extend(self._submitted(at))
        projection.begin(at, _EPOCH, _LEADER, facts, ())
        if seq == 0:
            projection.apply_decision(e.Elected(format=e.SCHEMA))
        self._follow(at, self._scheduler.decide(at))
        projection.finish(seq, "")

    # -- facts

    def _post(self, fact: e.AnyFact, writer: str, at: int) -> e.Posted:
        name = WriterName(writer if "~" in writer else f"{writer}~aaaaaaaa")
        n = self._numbers.get(name, 0)
        self._numbers[name] = n + 1
        key = FactKey(stamp_ms=at, writer=name, n=n, kind=e.kind_of(fact)).format()
        return e.Posted(key=key, fact=msgspec.structs.replace(fact, writer=name, n=n))

    def _finished(self, at: int) -> Iterator[e.Posted]:
        while self._ends and self._ends[0].at <= at:
            end = heapq.heappop(self._ends)
            run = self._runs[end.job]
            run.end_ms = end.at
            lead = self._projection.state.workers[run.workers[0]]
            assert run.start_ms is not None
            fact = e.AttemptFinished(
                at=end.at,
                worker=lead.name,
                cursor=lead.next_message,
                job=_job_id(end.job),
                attempt=end.attempt,
                outcome="exited",
                rc=0,
                started_at=run.start_ms,
                ended_at=end.at,
            )
            yield self._post(fact, lead.name, at)

    def _slots_changed(self, at: int) -> Iterator[e.Posted]:
        changes = self._changes
        while self._changed < len(changes) and changes[self._changed][0] <= at:
            _, comes, _, slot = changes[self._changed]
            self._changed += 1
            known = self._projection.state.workers.get(slot.worker)
            cursor = known.cursor if known is not None else 0
            if comes:
                yield self._post(_ready(slot, at, cursor, known), slot.worker, at)
            else:
                fact = e.WorkerRetired(at=at, worker=slot.worker, cursor=cursor)
                yield self._post(fact, slot.worker, at)

    def _submitted(self, at: int) -> Iterator[e.Posted]:
        while self._arrived < len(self._arrivals):
            index = self._arrivals[self._arrived]
            job = self._runs[index].job
            if job.arrival_ms > at:
                return
            self._arrived += 1
            yield self._post(e.Submitted(at=at, job=_spec(index, job)), _CLIENT, at)

    # -- decisions

    def _follow(self, at: int, decided: list[e.AnyDecision]) -> None:
        for decision in decided:
            self._decisions.append((at, decision))
            match decision:
                case e.AttemptAssigned():
                    self._start(at, decision)
                case e.JobRejected() | e.JobExpired():
                    self._runs[_index(decision.job)].refused = decision.reason
                case e.StopOrdered() | e.RevokeBegun() | e.JobRequeued() | e.JobHeld():
                    raise AssertionError(f"nothing here calls for {decision}")
                case _:
                    pass

    def _start(self, at: int, assigned: e.AttemptAssigned) -> None:
        index = _index(assigned.job)
        run = self._runs[index]
        run.start_ms, run.workers, run.backfill = at, assigned.slots, assigned.backfill
        run.dispatch = len(self._decisions)
        run.cost_ms, run.weight = assigned.cost_ms, assigned.weight
        fact = e.AttemptStarted(
            at=at,
            worker=assigned.slots[0],
            cursor=assigned.message + 1,
            job=assigned.job,
            attempt=assigned.attempt,
        )
        self._starts.append(fact)
        attempt = self._projection.state.jobs[assigned.job].last
        assert attempt is not None
        exhausted = at + attempt.charged_run_ms
        due = self._starts_due
        self._starts_due = exhausted if due is None else min(due, exhausted)
        end = _End(at + run.job.duration_ms, run.dispatch, index, assigned.attempt)
        heapq.heappush(self._ends, end)


_Change = tuple[int, bool, int, Presence]
"""When a slot comes (True) or goes; at one instant it goes first."""


def _changes(workload: Workload) -> Iterator[_Change]:
    for order, slot in enumerate(workload.slots):
        yield slot.from_ms, True, order, slot
        if slot.until_ms is not None:
            yield slot.until_ms, False, order, slot


def _ready(slot: Presence, at: int, cursor: int, known: Worker | None) -> e.WorkerReady:
    occupant = known.occupant if known is not None else None
    return e.WorkerReady(
        at=at,
        worker=slot.worker,
        cursor=cursor,
        node=slot.node,
        machine=slot.node,
        pool=slot.pool,
        slot=slot.slot,
        running=() if occupant is None else (occupant,),
    )


def _spec(index: int, job: SimJob) -> e.JobSpec:
    return e.JobSpec(
        id=_job_id(index),
        name=job.name,
        organization=job.organization,
        workload_class=job.workload_class,
        pool=job.pool,
        user="simulation",
        slots=job.slots,
        gpu_type=job.gpu_type,
        gpu_memory_bytes=job.gpu_memory_bytes,
        worker=job.worker,
        exclude=job.exclude,
        priority=job.priority,
        estimate_ms=job.estimate_ms,
        time_limit_ms=job.time_limit_ms,
    )


def _job_id(index: int) -> JobId:
    """A valid id that shows its number: 7 -> ``aaaaaaah``."""
    text = ""
    for _ in range(8):
        index, digit = divmod(index, 32)
        text = BASE32[digit] + text
    return JobId(text)


def _index(job: JobId) -> int:
    index = 0
    for letter in job:
        index = 32 * index + _DIGITS[letter]
    return index


_DIGITS = {letter: digit for digit, letter in enumerate(BASE32)}
