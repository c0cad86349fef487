"""The moves that facts and decisions are made of: queueing, ending, occupying, settling.

Owns every change of a job's, attempt's or slot's standing, so that each rule is written
once. Works on a ``State`` and marks what it touched; ``ledger.projection`` says which
event makes which move. Pure: no clock, no I/O.
"""

from __future__ import annotations

from msgspec.structs import replace

from ledger import estimates
from ledger.calibration import calibration_key
from ledger.daily import DailyUse, Use, gpu_use_ms, reported_micros
from ledger.events import AttemptRef, JobSpec, JobState, Report
from ledger.fair_state import FairState, Flow, charge
from ledger.health import HealthLog, failed_fast
from ledger.keys import attempt_name
from ledger.names import FlowId, JobId, NodeName, Seq, WorkerName
from ledger.policy import Standing
from ledger.rates import Window
from ledger.state import (
    ArchivedJob,
    Attempt,
    Job,
    Node,
    NodeHealth,
    Phase,
    Placement,
    State,
    Worker,
    digest_of,
)

REQUEUES_MAX = 5
"""After so many requeues a job is held: something is wrong with it or with the fleet."""

RECENT_ENDED_MAX = 1_000
"""Ended jobs kept whole in the projection; older ones are archived."""

RECENT_STEMS_MAX = 10_000

RETRY_FLOOR = 10
"""Further attempts that a flow may have before it had any first ones."""

RETRY_BUDGET_MAX = 100
"""Further attempts that a flow can save up."""

_OUTCOME_STATES = {
    "timeout": JobState.TIMEOUT,
    "deadline": JobState.EXPIRED,
    "oom": JobState.OUT_OF_MEMORY,
    "exclusive": JobState.NODE_FAIL,
}


class Touched:
    """What changed since the last page: the scheduler looks at nothing else. Ordered."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, None] = {}
        self.workers: dict[WorkerName, None] = {}
        self.nodes: dict[NodeName, None] = {}
        self.submitted: dict[JobId, None] = {}
        self.finished: dict[JobId, None] = {}
        self.failed_fast: dict[JobId, None] = {}
        self.artifacts: dict[str, None] = {}
        self.pools: dict[str, None] = {}
        """Of which the window let something go."""
        self.standing = False
        """A worker came, or serves another pool or with another slot."""
        self.eased: dict[str, None] = {}
        """Limits, as ``str(Scope)``, against which less counts because time has passed."""
        self.everything = False
        """Set by an election or a policy: the leader looks at all there is."""

    def clear(self) -> None:
        self.jobs.clear()
        self.workers.clear()
        self.nodes.clear()
        self.submitted.clear()
        self.finished.clear()
        self.pools.clear()
        self.artifacts.clear()
        self.eased.clear()
        self.failed_fast.clear()
        self.standing = False
        self.everything = False


class Transitions:
    """The moves, on one ``State``. Costs are O(1) unless said."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fair = FairState(state.flows, state.pools)
        self.daily = DailyUse(state.used_by_hour)
        self.health = HealthLog(state)
        self.touched = Touched()

    # -- lookups

    def worker(self, name: WorkerName, node: NodeName) -> Worker:
        """The worker of that name; it begins as one that never reported."""
        worker = self.state.workers.get(name)
        if worker is None:
            worker = Worker(name=name, node=node)
            self.state.workers[name] = worker
            self.node(node).workers.append(name)
        return worker

    def node(self, name: NodeName) -> Node:
        """The node of that name; it begins as one that never reported."""
        if name not in self.state.nodes:
            self.state.nodes[name] = Node(name=name)
        return self.state.nodes[name]

    def flow_of(self, job: Job) -> Flow:
        spec = job.placed
        return self.fair.flow(spec.organization, spec.workload_class, spec.pool)

    def touch(self, job: Job) -> None:
        self.touched.jobs[job.id] = None

    # -- jobs

    def join(self, job: Job, *, resumed: bool = False) -> None:
        """The job, or all that is left of an array, enters its flow's queue."""
        divided = self.is_divided(job)
        self.fair.join(self.flow_of(job), job.waiting, divided=divided, resumed=resumed)

    def leave(self, job: Job) -> None:
        """It leaves that queue again, undispatched."""
        self.fair.leave(self.flow_of(job), job.waiting, suspended=not job.in_queue)

    def is_divided(self, job: Job) -> bool:
        """Whether its pool is divided among classes."""
        return self.state.policy.pool(job.placed.pool).is_divided

    def enter(self, job: Job) -> None:
        """Put an open job into its queue, or aside where it waits for others or its time first."""
        spec, at = job.spec, self.state.at
        awaits = spec.after or self.missing_artifacts(spec) or spec.begin_at > at
        if job.attempts or not awaits:
            self.queue(job)
            return
        job.state, job.reason = JobState.PENDING, ""
        job.aside_since, job.wakes_at = at, spec.begin_at if spec.begin_at > at else 0
        self.touch(job)

    def missing_artifacts(self, spec: JobSpec) -> list[str]:
        """Objects that it waits for and nobody has found yet."""
        return [path for path in spec.after_artifacts if path not in self.state.artifacts]

    def queue(self, job: Job, *, resumed: bool = False) -> None:
        """Put an open job into its flow's waiting queue; ``resumed``: as if it never left."""
        job.state = JobState.PENDING
        job.reason, job.wakes_at = "", 0
        if job.aside_since is not None:
            job.aside_since, job.entered_at = None, self.state.at
        self.join(job, resumed=resumed)
        self.touch(job)

    def unqueue(self, job: Job, state: JobState) -> None:
        """Take a queued job out, into ``state``."""
        if job.is_waiting:
            self.leave(job)
        if job.aside_since is not None:
            job.aside_since, job.wakes_at = None, 0
        job.state = state
        self.touch(job)

    def hold(self, job_id: JobId, reason: str) -> None:
        """Keep a waiting job from being dispatched."""
        job = self.state.jobs.get(job_id)
        if job is not None and job.state is JobState.PENDING:
            self.unqueue(job, JobState.HELD)
            job.reason = reason

    def end(self, job: Job, state: JobState, reason: str, at: int) -> None:
        """The job is over, in ``state``; a loss is provisional and may be reopened."""
        assert state.ended
        if job.state.ended:
            return
        self.unqueue(job, state)
        job.moving = None
        job.reason = reason
        job.ended_at = at
        self.state.ended.append(job.id)

    def reopen(self, job: Job, state: JobState) -> None:
        """A job whose attempt was lost is running after all."""
        if job.state.ended:
            self.state.ended.remove(job.id)
            job.ended_at = None
            job.state = state
        else:
            self.unqueue(job, state)
        job.reason = ""
        self.touch(job)

    def requeue(self, job: Job, reason: str, at: int, *, counted: bool) -> None:
        """Back to its flow, with its arrival order; a cancelled job ends instead.

        That a user moves a job, or that its node is blocked, says nothing against the job,
        so it does not count. A failure for which the node is to blame is taken back.
        """
        if job.state.ended:
            self.reopen(job, JobState.RUNNING)
        never_ran = job.last is not None and not job.last.ran
        if job.moving is None:
            job.requeues += counted
        else:
            self._settle_unrun(job)
            never_ran = never_ran and job.moving.pool == job.placed.pool
            job.moved, job.moving = job.moving, None
            job.size = self.estimated_cost(job.placed)
        if job.cancel is not None:
            self.end(job, JobState.CANCELLED, job.cancel.reason, at)
        elif job.requeues > REQUEUES_MAX:
            job.state = JobState.HELD
            job.reason = f"requeued {job.requeues} times, last because {reason}"
            self.touch(job)
        else:
            self.queue(job, resumed=never_ran)
            job.reason = reason
        self._settle_unrun(job)

    def _settle_unrun(self, job: Job) -> None:
        """Give back what was charged for an attempt that never ran.

        Only once the job waits again: a pool that seemed wholly idle for a moment would
        forgive all debt.
        """
        if job.last is not None and not job.last.ran:
            self.settle(job, job.last, 0)

    def move(self, job: Job, place: Placement) -> None:
        """Have an unstarted job wait elsewhere; one that is assigned is taken back first."""
        if job.is_waiting and place.pool != job.placed.pool:
            self.leave(job)
            job.moved = place
            self.join(job)
        elif job.state.queued or self._is_assigned_to(job, place):
            job.moved, job.moving = place, None
        elif job.state is JobState.ASSIGNED:
            job.moving = place
        job.size = self.estimated_cost(job.placed)
        self.touch(job)

    def _is_assigned_to(self, job: Job, place: Placement) -> bool:
        assigned = job.state is JobState.ASSIGNED and place.pool == job.placed.pool
        return assigned and job.last is not None and job.last.lead == place.worker

    def retry(self, job: Job) -> None:
        """Put an ended job back into its flow, behind all that wait there.

        One that never ran waits again for the jobs that it names, as they stand now.
        """
        self.health.trust(job.spec)
        self.state.ended.remove(job.id)
        if job.last is not None:
            job.last.retried = job.tried_again = True
        job.arrival = self.state.arrivals
        self.state.arrivals += 1
        job.cancel, job.ended_at, job.requeues = None, None, 0
        self.enter(job)

    def admit(self, job: Job, standing: Standing) -> None:
        """Have a queued job wait as somebody else than it said."""
        if job.is_waiting:
            self.leave(job)
            job.standing = standing
            self.join(job)
        else:
            job.standing = standing
        job.size = self.estimated_cost(job.placed)
        self.touch(job)

    def try_again(self, job: Job, reason: str, until: int) -> None:
        """Put a job that failed off; it will wait behind all that wait now."""
        flow = self.flow_of(job).id
        if job.last is None or not job.last.excused:
            self.state.retry_budgets[flow] = self.retry_budget(flow) - 1_000
        self.reopen(job, JobState.HELD)
        job.tried_again = True
        job.arrival = self.state.arrivals
        self.state.arrivals += 1
        job.reason, job.wakes_at = reason, until

    def retry_budget(self, flow: FlowId) -> int:
        """Thousandths of attempts that the flow may have beyond first ones."""
        return self.state.retry_budgets.get(flow, RETRY_FLOOR * 1_000)

    def earn_retries(self, job: Job) -> None:
        """A first attempt adds its part to the retry budget of its flow."""
        flow = self.flow_of(job)
        earned = 10 * self.state.policy.pool(flow.pool).retry.budget_percent
        saved = self.retry_budget(flow.id) + earned
        self.state.retry_budgets[flow.id] = min(saved, RETRY_BUDGET_MAX * 1_000)

    def archive(self, seq: Seq) -> None:
        """Forget the details of jobs that ended long ago. Amortised O(1) a job."""
        ended = self.state.ended
        surplus = len(ended) - RECENT_ENDED_MAX
        if surplus < RECENT_ENDED_MAX // 4:
            return
        occupied = {w.occupant.job for w in self.state.workers.values() if w.occupant}
        kept = [job for job in ended[:surplus] if job in occupied]
        for job_id in ended[:surplus]:
            if job_id not in occupied:
                job = self.state.jobs.pop(job_id)
                self.state.archive[job_id] = ArchivedJob(
                    job.state, job.last.rc if job.last else None, digest_of(job.spec), seq
                )
        self.state.ended = kept + ended[surplus:]

    # -- attempts

    def may_rerun(self, job: Job, attempt: Attempt) -> bool:
        """Whether a lost attempt may be followed by another."""
        return job.spec.idempotent or attempt.retried or not attempt.ran

    def settle(self, job: Job, attempt: Attempt, actual: int) -> None:
        """Book what the attempt cost, once; later ends book nothing."""
        if attempt.settled:
            return
        attempt.settled = True
        difference = charge(actual, attempt.weight) - charge(attempt.cost_ms, attempt.weight)
        self.fair.settle(self.flow_of(job), difference)

    def actual_cost(self, attempt: Attempt, until: int) -> int:
        """What it cost if it ran until then, by what it occupied or the tokens that it reported.

        Of a call of an external service that reported no tokens the estimate stands.
        """
        report = attempt.report
        if not attempt.output_factor:
            return estimates.cost_of(self.occupancy_ms(attempt, until), attempt.rate)
        if report is None or not (report.input_tokens or report.output_tokens):
            return attempt.cost_ms
        return report.input_tokens + attempt.output_factor * report.output_tokens

    def occupancy_ms(self, attempt: Attempt, until: int) -> int:
        """Slot-milliseconds between its start and ``until``; 0 if it never started."""
        if attempt.started_at is None:
            return 0
        return len(attempt.slots) * max(0, until - attempt.started_at)

    # -- external services

    def reserve(self, job: Job, attempt: Attempt) -> None:
        """The attempt counts in its pool's window from now on, where the pool has one."""
        spec = job.placed
        api = self.state.policy.pool(spec.pool).api
        if api is not None:
            attempt.output_factor = max(1, api.output_factor)
            window = self.state.windows.setdefault(spec.pool, Window())
            window.reserve(
                attempt_name(job.id, attempt.number), max(1, spec.requests), tokens_of(spec)
            )

    def forget_minutes(self, at: int) -> None:
        """Let go what began more than a minute ago. O(reserved)."""
        for pool, window in self.state.windows.items():
            counted = len(window.reserved)
            window.forget(at)
            if len(window.reserved) != counted:
                self.touched.pools[pool] = None

    # -- limits a day

    def may_use(self, spec: JobSpec, gpus: int) -> Use:
        """What the job may draw on the limits a day, on so many GPUs."""
        return estimates.may_use(self.state, spec, gpus)

    def book_use(self, job: Job, attempt: Attempt, until: int) -> None:
        """The attempt ran until then: what it used is booked, as far as it is not yet.

        One that was lost is booked with what it used so far, and with the rest where it is
        found again.
        """
        draw = attempt.draw
        run_ms = 0 if attempt.started_at is None else until - attempt.started_at
        requests = max(1, job.spec.requests)
        used = Use(gpu_use_ms(draw.gpus, run_ms), reported_micros(draw, requests, attempt.report))
        more = used.beyond(draw.booked)
        self.daily.book(job.placed.flow, more, self.state.at)
        attempt.draw = replace(draw, booked=draw.booked.plus(more))

    def raise_use(self, attempt: Attempt) -> None:
        """It may run as long as its charge now allows, which may be longer than was expected."""
        draw = attempt.draw
        more = Use(gpu_use_ms(draw.gpus, attempt.charged_run_ms)).beyond(draw.reserved)
        attempt.draw = replace(draw, reserved=draw.reserved.plus(more))

    def forget_day(self, at: int) -> None:
        """Let go what ended more than a day ago. Amortised O(1) an attempt."""
        for scope in self.daily.forget(at):
            self.touched.eased[str(scope)] = None
            if scope.kind == "pool":
                self.touched.pools[scope.name] = None

    def note_begin(self, job: Job, attempt: Attempt, at: int) -> None:
        window = self._window(job, attempt)
        if window is not None:
            window.start(attempt_name(job.id, attempt.number), at)

    def note_use(self, job: Job, attempt: Attempt, report: Report | None) -> None:
        """The attempt is over and said what it used; nothing where it never ran."""
        window = self._window(job, attempt)
        who = attempt_name(job.id, attempt.number)
        if window is None:
            return
        if not attempt.ran:
            window.give_back(who)
        elif report is not None:
            window.lower(who, report.requests, report.input_tokens + report.output_tokens)
        self.touched.pools[job.placed.pool] = None

    def _window(self, job: Job, attempt: Attempt) -> Window | None:
        if not attempt.output_factor:
            return None
        return self.state.windows.get(job.placed.pool)

    # -- slots

    def occupy(self, job: Job, attempt: Attempt) -> None:
        ref = AttemptRef(job.id, attempt.number)
        for name in attempt.slots:
            self.state.workers[name].occupant = ref
            self.touched.workers[name] = None

    def vacate(self, job: Job, attempt: Attempt) -> None:
        """Free the slots that this attempt (and no later one) holds."""
        ref = AttemptRef(job.id, attempt.number)
        for name in attempt.slots:
            worker = self.state.workers[name]
            if worker.occupant == ref:
                worker.occupant = None
                self.touched.workers[name] = None

    def end_attempt(self, job: Job, attempt: Attempt, outcome: str, at: int) -> None:
        """Nothing of the attempt runs any more; its slots are free."""
        attempt.phase = Phase.ENDED
        attempt.outcome = outcome
        attempt.ended_at = at
        self.forget_revoke(job.id, attempt.number)
        self.vacate(job, attempt)
        self.touch(job)

    def mark_started(self, job: Job, attempt: Attempt) -> None:
        """The claim is known to be a start."""
        self.forget_revoke(job.id, attempt.number)
        if attempt.phase < Phase.STARTED:
            attempt.phase = Phase.STOPPING if attempt.stop_ordered else Phase.STARTED
            job.moving = None
            if job.last is attempt and not job.state.ended:
                job.state = JobState.STOPPING if attempt.stop_ordered else JobState.RUNNING
        self.touch(job)

    def forget_revoke(self, job: JobId, attempt: int) -> None:
        ref = AttemptRef(job, attempt)
        if ref in self.state.revoking:
            self.state.revoking.remove(ref)

    # -- health

    def note_health(self, job: Job, attempt: Attempt) -> None:
        """The last attempt of the job was finished: it tells of its node and its command."""
        self.health.ended(job, attempt)
        if failed_fast(attempt):
            self.touched.failed_fast[job.id] = None

    def touch_node(self, name: NodeName) -> None:
        self.touched.nodes[name] = None
        self.touched.workers.update(dict.fromkeys(self.state.nodes[name].workers))

    def block(self, name: NodeName, health: NodeHealth) -> None:
        """Let the node take no jobs, or again some, as ``health`` says.

        If it takes none, what failed there in a row uses up none of its jobs' retries.
        """
        node = self.state.nodes[name]
        if health.blocked:
            jobs = {failure.job for failure in node.health.failures} & self.state.jobs.keys()
            for attempt in (a for job in jobs for a in self.state.jobs[job].attempts):
                attempt.excused |= attempt.lead in node.workers and failed_fast(attempt)
        node.health = health
        self.touch_node(name)

    def probe(self, name: NodeName, attempt: AttemptRef | None) -> None:
        """The blocked node takes one job (None), or has got it."""
        health = self.state.nodes[name].health
        health.probing, health.probe = True, attempt
        self.touch_node(name)

    # -- workers

    def advance_cursor(self, worker: Worker, cursor: int) -> None:
        """Messages below the cursor are handled; their bodies need not be kept."""
        if worker.cursor < cursor <= worker.next_message:
            worker.cursor = cursor
            for number in [n for n in worker.messages if n < cursor]:
                del worker.messages[number]
            self.touched.workers[worker.name] = None

    def resolve_pool(self, worker: Worker) -> None:
        worker.pool = self.state.policy.pool_of(worker.name, worker.declared_pool)
        self.touched.standing = True
        self.touched.workers[worker.name] = None

    # -- estimates

    def expected(self, spec: JobSpec) -> tuple[int, str]:
        """Run time to charge for (ms), and who says so."""
        return estimates.expected(self.state, spec)

    def expected_ms(self, spec: JobSpec) -> int:
        """Run time to charge for."""
        return self.expected(spec)[0]

    def estimated_cost(self, spec: JobSpec) -> int:
        """What a dispatch is charged: slot-milliseconds, or tokens in an API pool."""
        return estimates.estimated_cost(self.state, spec)

    def calibrate(self, job: Job, attempt: Attempt, at: int) -> None:
        """Learn from a call that reported its tokens. O(flows)."""
        spec, report = job.placed, attempt.report
        estimated = estimates.tokens_cost(spec, attempt.output_factor)
        if not attempt.output_factor or not estimated or report is None:
            return
        actual = report.input_tokens + attempt.output_factor * report.output_tokens
        if actual:
            moved = estimates.calibration_of(self.state, spec).moved(
                actual=actual, estimated=estimated, at=at
            )
            self.state.calibrations[calibration_key(spec.pool, spec.workload_class)] = moved
            for flow in self.fair.flows.values():
                if (flow.pool, flow.workload_class) == (spec.pool, spec.workload_class):
                    self.fair.touched[flow.id] = None

    def learn(self, spec: JobSpec, run_ms: int) -> None:
        """Blend a finished job's run time into what its like are expected to take."""
        recent = self.state.recent_cost_ms
        key = estimates.stem(spec)
        before = recent.pop(key, None)
        recent[key] = max(1, run_ms if before is None else (3 * before + run_ms) // 4)
        if len(recent) > RECENT_STEMS_MAX:
            forgotten = next(iter(recent))
            del recent[forgotten]
            self.fair.touched[estimates.flow_of_stem(forgotten)] = None


def end_state(outcome: str, rc: int) -> JobState:
    """The job state that an attempt's outcome means."""
    if outcome in _OUTCOME_STATES:
        return _OUTCOME_STATES[outcome]
    if outcome == "stopped":
        return JobState.CANCELLED
    return JobState.COMPLETED if rc == 0 else JobState.FAILED


def tokens_of(spec: JobSpec) -> int:
    """What a job may take of a minute's tokens."""
    return spec.input_tokens + spec.max_output_tokens
