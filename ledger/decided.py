"""What decisions change: the half of the fold that the leader runs as it decides.

Owns ``apply_decision``, total over all decisions. Whether the decision was right is not
asked here: it stands in a page whose leader was entitled to it (``ledger.projection``).
Pure: no clock, no I/O.
"""

from __future__ import annotations

from typing import assert_never

from ledger import events as e
from ledger.daily import Draw, Use
from ledger.estimates import cost_rate
from ledger.events import AttemptRef, JobState
from ledger.fair_state import charge
from ledger.members import Members
from ledger.names import JobId, Seq, WorkerName
from ledger.policy import Standing
from ledger.state import Attempt, Job, NodeHealth, Phase, Reservation


class Decided(Members):
    """The moves that decisions make."""

    def apply_decision(self, decision: e.AnyDecision) -> None:
        match decision:
            case e.Elected():
                self.state.format = decision.format
                self.touched.everything = True
            case e.JobRejected():
                self._end_job(decision.job, JobState.REJECTED, decision.reason)
            case e.JobAdmitted():
                standing = Standing(decision.organization, decision.workload_class)
                self.admit(self.state.jobs[decision.job], standing)
            case e.JobExpired():
                self._end_job(decision.job, JobState.EXPIRED, decision.reason)
            case e.DependencyMissed():
                self._end_job(decision.job, JobState.DEPENDENCY_NEVER, decision.reason)
            case e.JobRetried():
                self.try_again(self.state.jobs[decision.job], decision.reason, decision.until)
            case e.RetryDenied():
                job = self.state.jobs[decision.job]
                job.reason = "; ".join(part for part in (job.reason, decision.reason) if part)
                self.touch(job)
            case e.JobResumed():
                self.queue(self.state.jobs[decision.job])
            case e.AttemptAssigned():
                self._assign(decision)
            case e.StopOrdered():
                self._stop(decision)
            case e.RevokeBegun():
                self._revoke(decision)
            case e.JobRequeued():
                job = self.state.jobs[decision.job]
                self.requeue(job, decision.reason, self.state.at, counted=decision.counted)
            case e.LossDeclared():
                self._declare_lost(decision)
            case e.AttemptFound():
                self._found(decision)
            case e.SlotsReserved():
                self.state.reservations[decision.pool] = Reservation(
                    job=decision.job,
                    node=decision.node,
                    start_at=decision.start_at,
                    made_at=self.state.at,
                )
            case e.ReservationEnded():
                self.state.reservations.pop(decision.pool, None)
            case e.FlowBlocked():
                flow = self.state.flows[decision.flow]
                self.fair.block(flow, decision.reason, decision.limit)
            case e.FlowFreed():
                flow = self.state.flows[decision.flow]
                divided = self.state.policy.pool(flow.pool).is_divided
                self.fair.free(flow, decision.credit, divided=divided)
            case e.OverrunCharged():
                self._overrun(decision)
            case e.JobHeld():
                self.hold(decision.job, decision.reason)
            case e.NodeBlocked():
                blocked = NodeHealth(
                    blocked=decision.reason, until=decision.until, pause_ms=decision.pause_ms
                )
                self.block(decision.node, blocked)
            case e.NodeProbed():
                self.probe(decision.node, None)
            case e.NodeFreed():
                self.block(decision.node, NodeHealth())
            case _:
                assert_never(decision)

    def _assign(self, decision: e.AttemptAssigned) -> None:
        state = self.state
        job = self.named(decision.job)
        assert job is not None, decision
        flow = self.flow_of(job)
        self.fair.dispatch(
            flow,
            start_tag=decision.start_tag,
            finish_tag=decision.finish_tag,
            discipline=state.policy.discipline(job.placed.pool),
            backfill=decision.backfill,
            turns=decision.turns,
        )
        attempt = Attempt(
            number=decision.attempt,
            slots=decision.slots,
            message=decision.message,
            assigned_at=state.at,
            cost_ms=decision.cost_ms,
            weight=decision.weight,
            rate=cost_rate(state, job.placed),
            draw=Draw(
                gpus=self._gpus_of(decision.slots),
                price=state.policy.pool(job.placed.pool).price,
                reserved=Use(decision.gpu_ms, decision.money_micros),
            ),
        )
        job.attempts.append(attempt)
        self.reserve(job, attempt)
        if attempt.number == 1:
            self.earn_retries(job)
        job.state, job.reason = JobState.ASSIGNED, ""
        self._post(
            e.RunMessage(
                ledger=state.ledger,
                worker=attempt.lead,
                n=decision.message,
                seq=Seq(state.seq + 1),
                job=job.spec,
                attempt=decision.attempt,
                slots=decision.slots,
                machine=self._machine_of(attempt.lead),
            )
        )
        self.occupy(job, attempt)
        node = state.nodes[state.workers[attempt.lead].node]
        if node.health.probing and node.health.probe is None:
            self.probe(node.name, AttemptRef(job.id, attempt.number))
        self.touch(job)
        self.follow(job)

    def _gpus_of(self, slots: tuple[WorkerName, ...]) -> int:
        return sum(self.state.workers[name].slot.kind == "gpu" for name in slots)

    def _stop(self, decision: e.StopOrdered) -> None:
        state = self.state
        job, attempt = self._find(decision.job, decision.attempt)
        assert job is not None and attempt is not None, decision
        attempt.stop_ordered = True
        attempt.stop_reason, attempt.stop_grace_ms = decision.reason, decision.grace_ms
        if attempt.phase is Phase.STARTED:
            attempt.phase = Phase.STOPPING
            if job.last is attempt and not job.state.ended:
                job.state = JobState.STOPPING
        self._post(
            e.StopMessage(
                ledger=state.ledger,
                worker=decision.worker,
                n=decision.message,
                seq=Seq(state.seq + 1),
                job=decision.job,
                attempt=decision.attempt,
                reason=decision.reason,
                grace_ms=decision.grace_ms,
                machine=self._machine_of(decision.worker),
            )
        )
        self.touch(job)

    def _machine_of(self, worker: WorkerName) -> str:
        return self.state.nodes[self.state.workers[worker].node].machine

    def _post(self, message: e.AnyMessage) -> None:
        """Number and body of a message follow from the page alone."""
        worker = self.state.workers[message.worker]
        assert message.n == worker.next_message, (message, worker.next_message)
        worker.messages[message.n] = message
        worker.next_message = message.n + 1
        self.touched.workers[worker.name] = None

    def _revoke(self, decision: e.RevokeBegun) -> None:
        job, attempt = self._find(decision.job, decision.attempt)
        assert job is not None and attempt is not None, decision
        attempt.phase = Phase.REVOKING
        attempt.reason = decision.reason
        self.touch(job)
        self.state.revoking.append(AttemptRef(job.id, attempt.number))

    def _declare_lost(self, decision: e.LossDeclared) -> None:
        job, attempt = self._find(decision.job, decision.attempt)
        assert job is not None and attempt is not None, decision
        attempt.phase = Phase.LOST
        if attempt.started_at is None:
            attempt.started_at = attempt.assigned_at
        self.note_begin(job, attempt, attempt.started_at)
        self.settle(job, attempt, self.actual_cost(attempt, self.state.at))
        self.book_use(job, attempt, self.state.at)
        self.touch(job)
        if job.last is not attempt:
            return
        reason = f"node of {attempt.lead} was silent"
        if job.cancel is not None:
            self.end(job, JobState.CANCELLED, job.cancel.reason, self.state.at)
        elif not self.may_rerun(job, attempt):
            self.end(job, JobState.NODE_FAIL, reason, self.state.at)

    def _found(self, decision: e.AttemptFound) -> None:
        job, attempt = self._find(decision.job, decision.attempt)
        assert job is not None and attempt is not None, decision
        stopping = attempt.stop_ordered
        attempt.phase = Phase.STOPPING if stopping else Phase.STARTED
        attempt.retried = False
        self.reopen(job, JobState.STOPPING if stopping else JobState.RUNNING)

    def _overrun(self, decision: e.OverrunCharged) -> None:
        job, attempt = self._find(decision.job, decision.attempt)
        assert job is not None and attempt is not None, decision
        before = charge(attempt.cost_ms, attempt.weight)
        attempt.cost_ms = decision.cost_ms
        self.fair.adjust(self.flow_of(job), charge(decision.cost_ms, attempt.weight) - before)
        self.raise_use(attempt)
        self.touch(job)

    # -- helpers

    def _end_job(self, job_id: JobId, state: JobState, reason: str) -> None:
        self.end(self.state.jobs[job_id], state, reason, self.state.at)

    def _attempt(self, job: JobId, number: int) -> Attempt | None:
        return self._find(job, number)[1]

    def _find(self, job_id: JobId, number: int) -> tuple[Job | None, Attempt | None]:
        job = self.state.jobs.get(job_id)
        return job, job.attempt(number) if job is not None else None
