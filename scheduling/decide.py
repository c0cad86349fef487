"""The decisions of one page, as a pure function of the state before them.

Owns ``Scheduler.decide``: given a projection to which a page's facts and seen events have
been applied, it derives the page's decisions, applying each as it is made. No clock, no
random, no I/O, integers only; whoever folds the same pages derives the same decisions.
When it returns there is nothing left to decide at that time, so that nothing but the
pages carries over from one page to the next.
"""

from __future__ import annotations

from collections.abc import Collection

from sortedcontainers import SortedList

from ledger import events as e
from ledger.events import SUPERSEDED, JobState, Liveness
from ledger.names import JobId, WorkerName
from ledger.projection import Projection
from ledger.state import Attempt, Job, Phase, Worker
from scheduling.admission import Admission
from scheduling.aside import Aside
from scheduling.cost import grown_cost_ms
from scheduling.dispatch import Dispatch
from scheduling.headroom import Headroom
from scheduling.health import Health
from scheduling.placement import Fleet, trouble
from scheduling.quantum import Quanta
from scheduling.queues import Queues
from scheduling.retries import retry_of
from scheduling.waiting import DEADLINE, next_waiting_due, waiting_due

MOVED = "moved"
"""Why an assigned job is taken back whose user wants it elsewhere."""


CLAIM_WITHIN_MS = 180_000
"""A message that nobody claimed for so long is taken back: its worker hangs."""


class Scheduler:
    """Indexes over one projection, and the rules that turn its changes into decisions."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._out: list[e.AnyDecision] = []
        self._pending: dict[JobId, None] = {}
        self._pools: dict[str, None] = {}
        self._dues: SortedList[tuple[int, JobId]] = SortedList()
        self._due: dict[JobId, int] = {}
        self._led: dict[WorkerName, set[JobId]] = {}
        self._leads: dict[JobId, tuple[WorkerName, ...]] = {}
        self.fleet = Fleet(projection.state)
        self._admission = Admission(projection.state)
        self._headroom = Headroom(projection, self.fleet)
        self.queues = Queues(projection, self._headroom)
        self._health = Health(projection)
        self._dispatch = Dispatch(projection, self.queues, self.fleet, self._headroom)
        self._quanta = Quanta(projection, self.queues, self._headroom)
        self._aside = Aside(projection)
        for job in projection.state.jobs.values():
            self._watch_attempts(job)

    def next_due_ms(self) -> int | None:
        """When time alone will make something to decide, or None."""
        dues = [self._dues[0][0] if self._dues else None, self._health.next_due_ms()]
        for pool, window in self._projection.state.windows.items():
            if self.queues.shapes(pool):
                dues.append(window.next_change_ms())
        if any(pool.waiting for pool in self._projection.state.pools.values()):
            dues.append(self._projection.daily.next_change_ms())
        return min((due for due in dues if due is not None), default=None)

    def decide(self, at: int) -> list[e.AnyDecision]:
        """All decisions at time ``at`` (ms), each already applied to the projection.

        O(what was touched * log n).
        """
        self._out = []
        touched = self._projection.touched
        if touched.everything or touched.standing:
            self._admission.forget()
        if touched.everything:
            self._look_at_everything()
        submitted, failed = list(touched.submitted), list(touched.failed_fast)
        finished = list(touched.finished)
        self._take_over()
        self._admit(submitted, at)
        self._draw_conclusions(failed, at)
        for job_id in finished:
            self._retry(self._projection.state.jobs[job_id], at)
        self._settle_jobs(at)
        while self._health.follow_probes(at, self.emit):
            self._settle_jobs(at)
        self._act_on_time(at)
        self._serve_pools(at)
        return self._out

    @property
    def wanted_artifacts(self) -> Collection[str]:
        """Objects of the store that jobs wait for."""
        return self._aside.artifacts

    def emit(self, decision: e.AnyDecision) -> None:
        """Make a decision: it is applied at once, and the indexes follow."""
        self._out.append(decision)
        self._projection.apply_decision(decision)
        self._take_over()

    def _look_at_everything(self) -> None:
        state, touched = self._projection.state, self._projection.touched
        touched.everything = False
        touched.jobs.update(dict.fromkeys(state.jobs))
        touched.workers.update(dict.fromkeys(state.workers))
        self._projection.fair.touch_all()
        self._pools.update(dict.fromkeys(state.pools))

    def _take_over(self) -> None:
        """Bring the indexes up to what the projection has touched."""
        projection = self._projection
        state, touched = projection.state, projection.touched
        for job_id in touched.jobs:
            job = state.jobs[job_id]
            self.queues.update(job)
            for limit in self._headroom.update(job):
                self._pools.update(dict.fromkeys(self._dispatch.limit_eased(limit)))
            self._health.update_job(job)
            self._quanta.update(job)
            self._aside.update(job)
            self._watch_attempts(job)
            self._pending[job_id] = None
            projection.fair.touched[job.placed.flow] = None
            self._pools[job.placed.pool] = None
        pools: set[str] = set()
        for name in touched.workers:
            pools |= self.fleet.refresh(name)
            led = self._led.get(name)
            if led:
                self._pending.update(dict.fromkeys(sorted(led)))
        for pool in pools:
            self._dispatch.pool_changed(pool)
            self._pools[pool] = None
        self._take_over_shares()
        for node in touched.nodes:
            self._health.update_node(node)
        for path in touched.artifacts:
            self._aside.update_artifact(path)
        self._pools.update(touched.pools)
        for limit in touched.eased:
            self._pools.update(dict.fromkeys(sorted(self._dispatch.limit_eased(limit))))
        for flow_id in projection.fair.touched:
            if flow_id in state.flows:
                self.queues.rank_again(flow_id)
                self._pools[state.flows[flow_id].pool] = None
                self._dispatch.flow_changed(flow_id)
        touched.clear()
        projection.fair.touched.clear()

    def _take_over_shares(self) -> None:
        """Other slots of a class run: it may have room again, and its place in the order."""
        shares = self._headroom.shares
        for pool, workload_class in shares.take_changes():
            self._dispatch.look_at_held(pool)
            self._pools[pool] = None
            if shares.turned(pool, workload_class):
                flows = self.queues.flows_of(pool, workload_class)
                self._projection.fair.touched.update(flows)

    # -- jobs

    def _admit(self, submitted: list[JobId], at: int) -> None:
        """Reject what may not run or never can; give the others their standing.

        Of those that make a queue too long the newest go first.
        """
        jobs = [self._projection.state.jobs[job_id] for job_id in submitted]
        for job in jobs:
            verdict = self._admission.verdict_on(job, at)
            if verdict is not None and not job.state.ended:
                self.emit(verdict)
        for job in reversed(jobs):
            if job.state is JobState.PENDING and (reason := self._overfull(job)):
                self.emit(e.JobRejected(job=job.id, reason=reason))

    def _overfull(self, job: Job) -> str:
        """Which queue is too long with it; empty where none is."""
        for scope, limits in self._projection.state.policy.limits_of(job.placed.flow):
            waiting = self._headroom.waiting(scope)
            if limits.queue_length and waiting > limits.queue_length:
                others = waiting - job.waiting
                return f"{scope} has {others} jobs waiting, at most {limits.queue_length} may"
        return ""

    def _retry(self, job: Job, at: int) -> None:
        again = retry_of(self._projection, job, at)
        if again is not None:
            self.emit(again)

    def _draw_conclusions(self, failed: list[JobId], at: int) -> None:
        """What this page's fast failures mean for their nodes, and for what waits."""
        self._health.follow_probes(at, self.emit)
        self._health.blame(failed, at, self.emit)
        for job_id in failed:
            copies = self._health.copies_of(self._projection.state.jobs[job_id])
            self._pending.update(dict.fromkeys(copies))

    def _settle_jobs(self, at: int) -> None:
        while self._pending or self._aside.has_changed:
            if not self._pending:
                self._aside.decide(at, self.emit)
                continue
            job_id = next(iter(self._pending))
            del self._pending[job_id]
            job = self._projection.state.jobs.get(job_id)
            if job is not None:
                self._settle_job(job)

    def _settle_job(self, job: Job) -> None:
        """Whatever the job's attempts call for now."""
        for attempt in job.attempts:
            if attempt.phase is not Phase.ENDED:
                self._settle_attempt(job, attempt)
        if job.in_queue and (reason := self._health.why_held(job)):
            self.emit(e.JobHeld(job=job.id, reason=reason))
        last = job.last
        if last is None or job.state.ended or job.state.queued:
            return
        if last.phase is Phase.ENDED:
            node = self._projection.state.nodes[self._projection.state.workers[last.lead].node]
            revoked = last.outcome == "revoked" and node.health.blocked
            counted = not revoked and last.stop_reason != e.YIELDED
            reason = last.stop_reason or last.reason
            self.emit(e.JobRequeued(job=job.id, reason=reason, counted=counted))
        elif last.phase is Phase.LOST and self._projection.may_rerun(job, last):
            self.emit(e.JobRequeued(job=job.id, reason=f"attempt {last.number} was lost"))

    def _settle_attempt(self, job: Job, attempt: Attempt) -> None:
        state = self._projection.state
        worker = state.workers[attempt.lead]
        node = state.nodes[worker.node]
        liveness = node.liveness
        unwanted = self._unwanted(job, attempt)
        match attempt.phase:
            case Phase.ASSIGNED:
                ref = e.AttemptRef(job.id, attempt.number)
                reason = unwanted or trouble(state, worker, ref) or (MOVED if job.moving else "")
                if reason:
                    self.emit(e.RevokeBegun(job=job.id, attempt=attempt.number, reason=reason))
            case Phase.STARTED | Phase.STOPPING if liveness is Liveness.GONE:
                self.emit(e.LossDeclared(job=job.id, attempt=attempt.number))
            case Phase.STARTED if not attempt.stop_ordered and (unwanted or node.drained_now):
                self._stop(job, attempt, unwanted or f"node {node.name} is drained")
            case Phase.STOPPING if _is_hastened(job, attempt):
                self._stop(job, attempt, unwanted)
            case Phase.LOST if liveness is Liveness.FRESH and _may_be_there(worker, job, attempt):
                if not unwanted:
                    self.emit(e.AttemptFound(job=job.id, attempt=attempt.number))
                elif not attempt.stop_ordered:
                    self._stop(job, attempt, unwanted)
            case _:
                pass

    def _unwanted(self, job: Job, attempt: Attempt) -> str:
        """Why this attempt must not run (on); empty where it may."""
        if job.last is not attempt:
            return SUPERSEDED
        if job.cancel is not None:
            return "cancelled"
        if job.state.ended and job.state is not JobState.NODE_FAIL:
            return "ended"
        return ""

    def _stop(self, job: Job, attempt: Attempt, reason: str) -> None:
        cancel = job.cancel
        self.emit(
            e.StopOrdered(
                job=job.id,
                attempt=attempt.number,
                worker=attempt.lead,
                message=self._projection.state.workers[attempt.lead].next_message,
                reason=reason,
                grace_ms=(cancel.grace_ms if cancel else 0) or job.spec.grace_ms,
            )
        )

    # -- what time and workers will make something of

    def _watch_attempts(self, job: Job) -> None:
        """Which workers lead the job's attempts that are not over, and when one overruns."""
        before = self._leads.get(job.id, ())
        leads = tuple(a.lead for a in job.attempts if a.phase is not Phase.ENDED)
        if leads != before:
            self._leads.pop(job.id, None)
            for name in before:
                self._led[name].discard(job.id)
            if leads:
                self._leads[job.id] = leads
            for name in leads:
                self._led.setdefault(name, set()).add(job.id)
        self._watch_time(job)

    def _watch_time(self, job: Job) -> None:
        before, due = self._due.get(job.id), self._due_at(job)
        if due == before:
            return
        if before is not None:
            del self._due[job.id]
            self._dues.remove((before, job.id))
        if due is not None:
            self._due[job.id] = due
            self._dues.add((due, job.id))

    def _due_at(self, job: Job) -> int | None:
        """When time alone makes something of the job to decide."""
        last = job.last
        if job.aside_since is not None:
            dues = [job.spec.deadline_at or None, self._aside.due_at(job)]
            return min((due for due in dues if due is not None), default=None)
        if job.state.queued:
            return next_waiting_due(self._projection.state.policy, job)
        if last is None or last.settled or last.phase is Phase.REVOKING:
            return None
        if last.started_at is not None:
            dues = [self._quanta.due_at(job), self._exhausted_at(last)]
            return min((due for due in dues if due is not None), default=None)
        if last.phase is Phase.ASSIGNED:
            return min(_claim_due(last), job.spec.deadline_at or _claim_due(last))
        return None

    @staticmethod
    def _exhausted_at(attempt: Attempt) -> int | None:
        """When it has used up its charge; tokens are no matter of time."""
        if attempt.output_factor or attempt.started_at is None:
            return None
        return attempt.started_at + attempt.charged_run_ms

    def _act_on_time(self, at: int) -> None:
        while self._dues and self._dues[0][0] <= at:
            job = self._projection.state.jobs[self._dues[0][1]]
            decision = self._due_decision(job, at)
            if decision is None:
                self._pools[job.placed.pool] = None
                self._watch_time(job)
            else:
                self.emit(decision)
                self._settle_jobs(at)

    def _due_decision(self, job: Job, at: int) -> e.AnyDecision | None:
        """What becomes of a job now; None where its pool must be looked at (its quantum).

        Also where what was due is no more: that of which nobody knew has come.
        """
        if job.state.queued:
            due = waiting_due(self._projection.state.policy, job, at)
            return due or self._aside.verdict(job, at)
        last = job.last
        assert last is not None
        if last.started_at is None:
            reason = f"{last.lead} has not claimed it for {CLAIM_WITHIN_MS // 1000} s"
            if at < _claim_due(last):
                reason = DEADLINE
            return e.RevokeBegun(job=job.id, attempt=last.number, reason=reason)
        exhausted = self._exhausted_at(last)
        if exhausted is None or exhausted > at:
            return None
        cost_ms = grown_cost_ms(last.started_at, len(last.slots), last.cost_ms, last.rate, at)
        return e.OverrunCharged(job=job.id, attempt=last.number, cost_ms=cost_ms)

    # -- pools

    def _serve_pools(self, at: int) -> None:
        """Serve what was touched, also by serving another pool: a probe closes its node to all."""
        while pools := sorted(set(self._pools) - {""}):
            self._dispatch.serve(pools[0], at, self.emit)
            yields = self._quanta.who_yields(pools[0], at)
            if yields is not None:
                assert yields.last is not None
                self._stop(yields, yields.last, e.YIELDED)
            del self._pools[pools[0]]
        self._pools.clear()
        self._pending.clear()


def _claim_due(attempt: Attempt) -> int:
    """Until when its worker must have claimed it."""
    return attempt.assigned_at + CLAIM_WITHIN_MS


def _may_be_there(worker: Worker, job: Job, attempt: Attempt) -> bool:
    """Whether the worker may still run it: it is the same machine, and did not deny it."""
    return worker.ready and worker.occupant == e.AttemptRef(job.id, attempt.number)


def _is_hastened(job: Job, attempt: Attempt) -> bool:
    """Whether a cancel leaves the attempt less time than the order to stop that it has."""
    if job.last is not attempt or job.cancel is None:
        return False
    return 0 < job.cancel.grace_ms < job.grace_ms(attempt.stop_grace_ms)
