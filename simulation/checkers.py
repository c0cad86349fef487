"""What must be true of every run, by observers that see what really happened.

Owns the invariants: no attempt runs twice, no two attempts of a job at once unless the
first was declared lost, a slot runs one thing, no acknowledged job is lost, every end is
recorded with its rc, messages and pages are dense and belong to each other, and every
reader comes to the same state. A breach raises ``Breach`` naming what and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from ledger import events as e
from ledger.arrays import indices, member_id, size_of
from ledger.errors import LedgerError
from ledger.events import JobState
from ledger.journal import Journal, decode_journal_page
from ledger.keys import BEATS, FACTS, JOURNAL, MAILBOX, page_key, parse_message_key, parse_page_key
from ledger.names import JobId
from ledger.projection import Projection
from ledger.state import Job, Phase, State
from ledger.timings import Timings
from roles.launcher import Plan
from simulation.bucket import Bucket
from simulation.hub import Process
from simulation.machine import Machine
from simulation.memory import ManualClock, MemoryStore
from simulation.verify import verify_all

CLOCK_ERROR_MAX_MS = 70_000
"""How far a page's time may be from the true one: what a leader may be off, and a little."""

ELECTED_OFF_MS = 60_000
"""The same where somebody takes over, and twice the silence (rule 6)."""

LIST_LATE_MAX_MS = 50_000
"""How late a LIST of the simulation shows a key, with some that are skipped."""


class Breach(Exception):
    """An invariant does not hold."""


class Run(msgspec.Struct, kw_only=True):
    """One attempt that really ran."""

    job: str
    attempt: int
    machine: str
    worker: str
    slots: tuple[str, ...]
    began_ms: int
    ended_ms: int | None = None
    rc: int | None = None
    disk: int = 0


class Truth:
    """Records what ran, and checks at once what can be checked at once."""

    def __init__(self, bucket: Bucket, timings: Timings) -> None:
        self._bucket = bucket
        self.runs: list[Run] = []
        self.acknowledged: set[JobId] = set()
        self.declared_lost: set[tuple[str, int]] = set()
        self._slots: dict[tuple[str, int], tuple[str, ...]] = {}
        """By attempt, what it was given."""
        self.cancelled: dict[JobId, int] = {}
        """When a cancel was acknowledged (true time)."""
        self.retried: set[JobId] = set()
        """Jobs that somebody asked to be retried."""
        self.knows_better: set[Process] = set()
        """Dispatchers that ran before their machine's clock was stepped."""
        self._newest_at = 0
        self._page_ms = bucket.hub.now_ms
        self._leader: tuple[int, str] = (0, "")
        self._elected_ms = 0
        self._assigned: dict[tuple[str, int], tuple[int, int]] = {}
        """By attempt: when it was assigned, and when that leader had begun to lead (true time)."""
        self.wiped: set[str] = set()
        """Machines that lost a disk."""
        self.breaches: list[str] = []
        self._signs: dict[str, list[int]] = {}
        self._timings = timings
        bucket.watchers.append(self._landed)

    def _breach(self, text: str) -> None:
        self.breaches.append(f"at {self._bucket.hub.now_ms} ms: {text}")

    def _landed(self, key: str, body: bytes) -> None:
        if key.startswith(JOURNAL):
            self._page_landed(e.decode_page(body))
        elif key.startswith((FACTS, BEATS)):
            writer = key.split(".")[1].partition("~")[0]
            if not writer.startswith(("dispatcher-", "cli")):
                signs = self._signs.setdefault(_node_of(writer), [])
                signs.append(self._bucket.hub.now_ms)

    def _page_landed(self, page: e.Page) -> None:
        elects = any(isinstance(decision, e.Elected) for decision in page.decisions)
        if self._bucket.hub.running in self.knows_better:
            now_ms = self._bucket.hub.now_ms
            off_ms = page.at - max(now_ms, self._newest_at)
            silence_ms = now_ms - self._page_ms
            allowed_ms = CLOCK_ERROR_MAX_MS + silence_ms
            if elects:
                allowed_ms = max(allowed_ms, ELECTED_OFF_MS + 2 * silence_ms)
            if off_ms > allowed_ms:
                self._breach(f"page {page.seq} is stamped {off_ms} ms ahead")
        self._newest_at = max(self._newest_at, page.at)
        self._page_ms = self._bucket.hub.now_ms
        if elects and page.epoch == self._leader[0] + 1:
            self._leader = (page.epoch, page.leader)
            self._elected_ms = self._bucket.hub.now_ms
        if (page.epoch, page.leader) != self._leader:
            return
        for decision in page.decisions:
            if isinstance(decision, e.LossDeclared):
                self.declared_lost.add((decision.job, decision.attempt))
            elif isinstance(decision, e.AttemptAssigned):
                self._slots[(decision.job, decision.attempt)] = decision.slots
                moments = (self._bucket.hub.now_ms, self._elected_ms)
                self._assigned[(decision.job, decision.attempt)] = moments
                self._check_slots(decision)
        for seen in page.seen:
            if isinstance(seen, e.NodeSeen) and seen.liveness is e.Liveness.GONE:
                self._check_silence(seen, page.at)

    def _check_slots(self, decision: e.AttemptAssigned) -> None:
        """No slot is given away while something of an earlier attempt runs there."""
        for run in self.runs:
            taken = [slot for slot in run.slots if slot in decision.slots]
            if run.ended_ms is None and taken:
                self._breach(
                    f"{taken[0]} is given to {decision.job}.{decision.attempt} while "
                    f"{run.job}.{run.attempt} runs there"
                )

    def _check_silence(self, seen: e.NodeSeen, at: int) -> None:
        """Nobody is called gone who was heard meanwhile, as far as LIST can be late.

        ``at`` is the page's time, which may be ahead of the true one; nobody hears ahead.
        """
        at = min(at, self._bucket.hub.now_ms)
        if seen.node in self.wiped:
            return  # what stands there now is another machine
        slack_ms = LIST_LATE_MAX_MS + 2 * self._timings.beat_ms
        first_ms, last_ms = at - self._timings.lost_ms + slack_ms, at - LIST_LATE_MAX_MS
        heard = [sign for sign in self._signs.get(seen.node, []) if first_ms < sign < last_ms]
        if heard:
            self._breach(f"{seen.node} is called gone, but was heard {at - heard[-1]} ms before")

    def executed(self, machine: Machine, worker: str, plan: Plan) -> None:
        run = Run(
            job=plan.job,
            attempt=plan.attempt,
            machine=machine.name,
            worker=worker,
            slots=self._slots[(plan.job, plan.attempt)],
            began_ms=self._bucket.hub.now_ms,
            disk=machine.generation,
        )
        if (run.job, run.attempt) in self.declared_lost:
            self._breach(f"attempt {run.job}.{run.attempt} starts after it was declared lost")
        for other in self.runs:
            if (other.job, other.attempt) == (run.job, run.attempt):
                self._breach(f"attempt {run.job}.{run.attempt} ran twice")
            elif other.ended_ms is None:
                self._check_beside(run, other)
        self.runs.append(run)

    def _check_beside(self, run: Run, other: Run) -> None:
        if other.job == run.job and (other.job, other.attempt) not in self.declared_lost:
            self._breach(
                f"attempts {other.attempt} and {run.attempt} of {run.job} run at once, "
                "and the first was not declared lost"
            )
        shared = set(other.slots) & set(run.slots)
        if shared and other.machine == run.machine:
            self._breach(f"{min(shared)} runs {other.job}.{other.attempt} and {run.job} at once")

    def ended(self, machine: Machine, worker: str, plan: Plan, rc: int | None) -> None:
        for run in self.runs:
            if (run.job, run.attempt) == (plan.job, plan.attempt) and run.ended_ms is None:
                run.ended_ms, run.rc = self._bucket.hub.now_ms, rc

    def check_told(self, state: State, disks: dict[str, int], before_ms: int) -> None:
        """The ledger knows of every end before ``before_ms``, on whichever slot it was."""
        for run in self.runs:
            if run.ended_ms is not None and run.ended_ms < before_ms:
                try:
                    self._check_run(state, run, disks)
                except Breach as breach:
                    self._breach(f"still untold: {breach}")

    def check_now(self) -> None:
        """What no later event can mend. Raises Breach."""
        if self.breaches:
            raise Breach(self.breaches[0])

    def check_end(self, ledger: str, disks: dict[str, int]) -> State:
        """All that can only be judged when everything has drained."""
        store = frozen(self._bucket)
        state = self._check_readers(store, ledger)
        self._check_messages(ledger)
        self._check_pages(store, ledger)
        self._check_jobs(state, disks)
        return state

    def _check_pages(self, store: MemoryStore, ledger: str) -> None:
        """Losses are of what had started by the page that declares them."""
        projection = Projection(State(ledger=ledger))
        while (body := store.get(page_key(projection.state.seq + 1))) is not None:
            page = decode_journal_page(body, "page")
            if projection.is_legitimate(page):
                _check_losses(projection, page)
            projection.apply(page, hashlib.sha256(body).hexdigest())

    def _check_readers(self, store: MemoryStore, ledger: str) -> State:
        report = verify_all(store, ledger)
        if report.differences:
            raise Breach(f"replay differs: {msgspec.json.encode(report.differences).decode()}")
        journal = Journal(store, ledger)
        try:
            journal.load()
        except LedgerError as error:
            raise Breach(f"the journal cannot be read: {error}") from error
        whole = fold(store, ledger)
        loaded = journal.projection
        if msgspec.json.encode(whole.state) != msgspec.json.encode(loaded.state):
            raise Breach("a reader from the checkpoint comes to another state")
        if whole.fair.digest() != report.fair:
            raise Breach("the fair state of a plain reader differs from the replayed one")
        pages = [parse_page_key(key) for key in self._bucket.keys(JOURNAL)]
        if pages != list(range(len(pages))):
            raise Breach("the journal is not dense")
        return whole.state

    def _check_messages(self, ledger: str) -> None:
        """Every message is what one page decided, and numbers are dense."""
        decided = dict(_decided_messages(self._bucket, ledger))
        numbers: dict[str, int] = {}
        for key in self._bucket.keys(MAILBOX):
            worker, n = parse_message_key(key)
            if n != numbers.get(worker, 0):
                raise Breach(f"the mailbox of {worker} has a hole before {n}")
            numbers[worker] = n + 1
            message = e.decode_message(self._bucket.bodies[key])
            job = message.job if isinstance(message, e.StopMessage) else message.job.id
            if decided.get((worker, n)) != (message.seq, job, message.attempt):
                raise Breach(f"{key} is not what the journal decided")

    def _check_jobs(self, state: State, disks: dict[str, int]) -> None:
        for acknowledged in self.acknowledged:
            if acknowledged not in state.jobs and acknowledged not in state.archive:
                raise Breach(f"job {acknowledged} was acknowledged and is lost")
        for run in self.runs:
            self._check_run(state, run, disks)
            self._check_order(state, run)
        for job_id, at_ms in self.cancelled.items():
            self._check_cancel(state, job_id, at_ms)
        ran = {run.job for run in self.runs}
        for job_id, job in state.jobs.items():
            never_ran = job.state is JobState.NODE_FAIL and job_id not in ran
            if never_ran and _node_of(job.attempts[-1].lead) not in self.wiped:
                raise Breach(f"job {job_id} is NODE_FAIL and was never executed")
        for job_id, job in state.jobs.items():
            if job.array is not None:
                _check_members(state, job)
            if job.state is JobState.COMPLETED and job.last is not None and job.last.rc != 0:
                raise Breach(f"job {job_id} is COMPLETED with rc {job.last.rc}")

    def _check_order(self, state: State, run: Run) -> None:
        """What waits for another's success ran after that, and nothing before its begin.

        That is a time of the ledger, so it is compared with the page that assigned the attempt.
        """
        job = state.jobs[JobId(run.job)]
        spec, attempt = job.spec, job.attempt(run.attempt)
        if attempt is not None and attempt.assigned_at < spec.begin_at:
            raise Breach(f"{run.job}.{run.attempt} ran before {spec.begin_at}")
        for each in spec.after:
            if each.end == "ok" and not self._succeeded_by(run.began_ms) >= _jobs_of(
                state, each.job
            ):
                raise Breach(f"{run.job}.{run.attempt} ran before {each.job} had succeeded")

    def _succeeded_by(self, at_ms: int) -> set[str]:
        """Jobs of which an attempt had ended well by then."""
        ended = ((run, run.ended_ms) for run in self.runs if run.rc == 0)
        return {run.job for run, ended_ms in ended if ended_ms is not None and ended_ms <= at_ms}

    def _check_cancel(self, state: State, job_id: JobId, at_ms: int) -> None:
        """No job is assigned long after its cancel was acknowledged, and somebody led."""
        job = state.jobs.get(job_id)
        if job is None or job.cancel is not None or job.last is None or job_id in self.retried:
            return
        assigned_ms, elected_ms = self._assigned[(job_id, job.last.number)]
        if assigned_ms > max(at_ms, elected_ms) + LIST_LATE_MAX_MS + 20_000:
            raise Breach(f"the cancel of {job_id} was acknowledged and had no effect")

    def _check_run(self, state: State, run: Run, disks: dict[str, int]) -> None:
        """An end that its machine knew of is in the ledger, with its rc."""
        if run.rc is None or disks[run.machine] != run.disk:
            return
        job = state.jobs.get(JobId(run.job))
        attempt = job.attempt(run.attempt) if job else None
        if attempt is None or attempt.rc != run.rc:
            recorded = "nothing" if attempt is None else f"{attempt.outcome} rc={attempt.rc}"
            raise Breach(
                f"{run.job}.{run.attempt} ended with rc {run.rc} on {run.machine}, "
                f"the ledger has {recorded}"
            )


def _jobs_of(state: State, job_id: JobId) -> set[str]:
    """The job itself, or all members of an array."""
    array = state.jobs[job_id].spec.array
    return {job_id} if array is None else {member_id(job_id, index) for index in indices(array)}


def _check_members(state: State, whole: Job) -> None:
    """Each index is left or one job, and the array counts each of them once."""
    assert whole.array is not None
    assert whole.spec.array is not None
    jobs = [name for name in state.jobs if name.startswith(f"{whole.id}_")]
    jobs += [name for name in state.archive if name.startswith(f"{whole.id}_")]
    counted = len(whole.array.open) + sum(whole.array.ended.values())
    if not len(jobs) == counted == size_of(whole.spec.array) - whole.array.left:
        raise Breach(f"array {whole.id} counts {counted} members, and {len(jobs)} are jobs")
    if whole.state.ended and whole.array.left and whole.array.closed is None:
        raise Breach(f"array {whole.id} is {whole.state} and has members left")


def _node_of(writer: str) -> str:
    """``node-n1``, ``dispatcher-n1``, ``n1-cpu0`` are all of node ``n1``."""
    return writer.removeprefix("node-").removeprefix("dispatcher-").split("-")[0]


def _check_losses(projection: Projection, page: e.Page) -> None:
    """Only what is known to have started can be lost: an open claim is revoked first."""
    seen = {(s.job, s.attempt) for s in page.seen if isinstance(s, e.ClaimSeen)}
    told = {
        (posted.fact.job, posted.fact.attempt)
        for posted in page.facts
        if isinstance(posted.fact, e.AttemptStarted | e.AttemptFinished)
    }
    for decision in page.decisions:
        if isinstance(decision, e.LossDeclared):
            job = projection.state.jobs[decision.job]
            attempt = job.attempt(decision.attempt)
            known = attempt is not None and attempt.phase >= Phase.STARTED
            if not known and (decision.job, decision.attempt) not in seen | told:
                raise Breach(f"page {page.seq} loses {decision.job}, whose claim is open")


def frozen(bucket: Bucket) -> MemoryStore:
    """What stands in the bucket, in a store without faults."""
    store = MemoryStore(ManualClock(wall_ms=bucket.hub.now_ms))
    for key, body in bucket.bodies.items():
        store.put_once(key, body)
    return store


def fold(store: MemoryStore, ledger: str) -> Projection:
    projection = Projection(State(ledger=ledger))
    while (body := store.get(page_key(projection.state.seq + 1))) is not None:
        page = decode_journal_page(body, "page")
        projection.apply(page, hashlib.sha256(body).hexdigest())
    return projection


def _decided_messages(
    bucket: Bucket, ledger: str
) -> Iterator[tuple[tuple[str, int], tuple[int, str, int]]]:
    projection = Projection(State(ledger=ledger))
    for key in bucket.keys(JOURNAL):
        page = e.decode_page(bucket.bodies[key])
        legitimate = projection.apply(page, hashlib.sha256(bucket.bodies[key]).hexdigest())
        for decision in page.decisions if legitimate else ():
            if isinstance(decision, e.AttemptAssigned):
                place = (decision.slots[0], decision.message)
            elif isinstance(decision, e.StopOrdered):
                place = (decision.worker, decision.message)
            else:
                continue
            yield place, (page.seq, decision.job, decision.attempt)


def parked_jobs(state: State) -> set[JobId]:
    """Jobs that are held, arrays with such a member, and all that wait for one of these."""
    jobs = state.jobs
    parked = {job.id for job in jobs.values() if job.state is JobState.HELD}
    parked |= {
        job.id
        for job in jobs.values()
        if job.array is not None
        and any(member_id(job.id, index) in parked for index in job.array.open)
    }
    while True:
        behind = {
            job.id
            for job in jobs.values()
            if job.aside_since is not None and any(each.job in parked for each in job.spec.after)
        }
        if behind <= parked:
            return parked
        parked |= behind
