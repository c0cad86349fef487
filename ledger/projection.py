"""The fold: what the ledger says, computed from its pages.

Owns ``apply``: one page after another changes the state, in the order facts, seen,
decisions. It is total (every event has one meaning here), pure (no clock, no random, no
I/O) and the only code that changes a state, for the leader that builds a page exactly as
for everyone who reads it. It refuses a broken chain; a page of a leader that no longer
was one is void: it takes its place in the chain and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from ledger import events as e
from ledger import state as projection_state
from ledger.arrays import member_of
from ledger.decided import Decided
from ledger.decisions import YIELD_RC, YIELDED
from ledger.errors import LedgerError, UpgradeError
from ledger.events import JobState, Liveness
from ledger.keys import FactKey
from ledger.names import NAME, WORKER, Epoch, JobId, Seq, WorkerName, WriterName, flow_id
from ledger.policy import Refusal
from ledger.rates import admits, next_due
from ledger.state import (
    INTRUDERS_MAX,
    UNEXPLAINED,
    Attempt,
    Job,
    NodeHealth,
    Phase,
    Placement,
    digest_of,
    standing_of,
)
from ledger.transitions import end_state


def check_chain(page: e.Page, ledger: str, seq: int, sha256: str) -> None:
    """Raise unless ``page`` is the successor of page ``seq``, whose hash is ``sha256``."""
    if page.v > e.SCHEMA:
        raise UpgradeError(
            f"page {page.seq} has format {page.v}, this gpuq reads {e.SCHEMA}: upgrade gpuq"
        )
    if page.ledger != ledger:
        raise LedgerError(f"page {page.seq} belongs to ledger {page.ledger}")
    if page.seq != seq + 1:
        raise LedgerError(f"page {page.seq} cannot follow page {seq}")
    if page.prev_sha256 != sha256:
        raise LedgerError(
            f"broken chain at page {page.seq}: it follows {page.prev_sha256[:12]}, "
            f"but page {seq} is {sha256[:12]}"
        )


class Projection(Decided):
    """A state and its fold. ``touched`` is what the last page, or part of one, changed."""

    def apply(self, page: e.Page, sha256: str) -> bool:
        """Fold one page; False where it is void.

        Raises LedgerError on a gap, a fork or a foreign ledger, UpgradeError on a newer
        schema. O(events in the page).
        """
        check_chain(page, self.state.ledger, self.state.seq, self.state.page_sha256)
        void = not self.is_legitimate(page)
        if void:
            self.state.void_pages += 1
        else:
            self.begin(page.at, page.epoch, page.leader, page.facts, page.seen)
            for decision in page.decisions:
                self.apply_decision(decision)
        self.finish(page.seq, sha256)
        return not void

    def is_legitimate(self, page: e.Page) -> bool:
        """Whether its leader was entitled to post it."""
        if any(isinstance(decision, e.Elected) for decision in page.decisions):
            return page.epoch == self.state.epoch + 1
        return (page.epoch, page.leader) == (self.state.epoch, self.state.leader)

    def begin(
        self,
        at: int,
        epoch: Epoch,
        leader: WriterName,
        facts: Sequence[e.Posted],
        seen: Sequence[e.AnySeen],
    ) -> None:
        """Facts and seen of a page: all that its decisions rest on."""
        self._hold_tail(at)
        self.state.at = max(self.state.at, at)
        self.forget_minutes(self.state.at)
        self.forget_day(self.state.at)
        self.state.epoch, self.state.leader = epoch, leader
        for posted in facts:
            self.apply_fact(posted)
        for event in seen:
            self.apply_seen(event)

    def finish(self, seq: Seq, sha256: str) -> None:
        """The page is complete."""
        self.state.seq = seq
        self.state.page_sha256 = sha256
        self.archive(seq)
        self.touched.clear()
        self.fair.touched.clear()

    # -- facts

    def apply_fact(self, posted: e.Posted) -> None:
        key = FactKey.parse(posted.key)
        fact = posted.fact
        self._admit(fact.writer, fact.n, key.stamp_ms)
        if isinstance(fact, e.WorkerReady):
            self._ready(fact)
        elif isinstance(fact, e.WorkerFact):
            self._worker_fact(fact)
        else:
            self._request(fact)

    def _hold_tail(self, at: int) -> None:
        """After a long pause, keep listing facts from before it for a while."""
        state = self.state
        if state.held_stamp_ms is not None and at > state.held_until:
            state.held_stamp_ms = None
        if at - state.at > projection_state.GAP_MS and state.newest_stamp_ms is not None:
            held_ms = state.held_stamp_ms
            state.held_stamp_ms = min(state.newest_stamp_ms, held_ms or state.newest_stamp_ms)
            state.held_until = at + projection_state.GAP_HELD_MS

    def _admit(self, writer: WriterName, n: int, stamp_ms: int) -> None:
        state = self.state
        state.writers[writer] = max(state.writers.get(writer, 0), n + 1)
        state.newest_stamp_ms = max(state.newest_stamp_ms or 0, min(stamp_ms, state.at))

    def _request(self, fact: e.Fact) -> None:
        match fact:
            case e.Submitted():
                self._submit(fact)
            case e.CancelRequested():
                self._cancel(fact)
            case e.HoldRequested():
                job = self.named(fact.job)
                if job is not None:
                    self.hold(job.id, fact.reason or f"held by {fact.by}")
            case e.ReleaseRequested():
                job = self.named(fact.job)
                if job is not None and job.state is JobState.HELD:
                    job.requeues = 0
                    self.health.trust(job.spec)
                    self.enter(job)
            case e.MoveRequested():
                self._move(fact)
            case e.RetryRequested():
                job = self.state.jobs.get(fact.job)
                if job is not None and job.state.retryable:
                    self.retry(job)
            case e.PolicyApplied():
                self._policy(fact)
            case e.DrainRequested():
                node = self.node(fact.node)
                node.drained = fact.reason or node.drained or UNEXPLAINED
                node.drained_by, node.drained_now = fact.by, fact.now
                self.touch_node(fact.node)
            case e.UndrainRequested():
                node = self.node(fact.node)
                node.drained, node.drained_now = "", False
                self.block(fact.node, NodeHealth())
            case _:
                raise AssertionError(f"unknown fact {fact!r}")

    def _submit(self, fact: e.Submitted) -> None:
        spec, state = fact.job, self.state
        if member_of(spec.id) is not None:
            return  # a member follows from its array, and cannot be submitted
        known = state.jobs.get(spec.id)
        archived = state.archive.get(spec.id)
        if known is not None:
            if digest_of(known.spec) != digest_of(spec):
                known.conflicting_submits += 1
            return
        if archived is not None:
            return
        job = self.new_job(spec, fact.at)
        job.over_rate = self._over_rate(spec)
        self.touched.submitted[spec.id] = None
        early = [name for name in state.pending_cancels if name.partition("_")[0] == spec.id]
        cancels = [state.pending_cancels.pop(name) for name in early]
        if spec.held:
            job.state = JobState.HELD
            job.reason = "held at submit"
            self.touch(job)
        else:
            self.enter(job)
        for cancel in cancels:
            self._cancel(cancel)

    def _over_rate(self, spec: e.JobSpec) -> str:
        """Whose rate of submissions this one breaks; else it is counted, and empty."""
        state = self.state
        standing = standing_of(state.policy, spec)
        if isinstance(standing, Refusal):
            return ""
        flow = flow_id(standing.organization, standing.workload_class, spec.pool)
        counted: dict[str, int] = {}
        for scope, limits in state.policy.limits_of(flow):
            pace = limits.submissions_per_minute
            if pace:
                due_at = state.submissions_due.get(str(scope), 0)
                burst = limits.submissions_burst or pace
                if not admits(due_at, state.at, per_minute=pace, burst=burst):
                    return str(scope)
                counted[str(scope)] = next_due(due_at, state.at, per_minute=pace)
        state.submissions_due.update(counted)
        return ""

    def _cancel(self, fact: e.CancelRequested) -> None:
        job = self.named(fact.job)
        if job is None:
            if fact.job not in self.state.archive and not self.is_of_known_array(fact.job):
                self.state.pending_cancels[fact.job] = fact
            return
        is_provisional = job.state is JobState.NODE_FAIL and job.last_is_lost
        if job.state.ended and not is_provisional:
            return
        if job.cancel is not None:
            if job.is_hastened_by(fact):
                job.cancel = replace(job.cancel, grace_ms=fact.grace_ms)
                self.touch(job)
                self._cancel_members(job, fact)
            return
        job.cancel = fact
        self.touch(job)
        if is_provisional:
            self.reopen(job, JobState.RUNNING)
        if is_provisional or job.state.queued:
            self.end(job, JobState.CANCELLED, fact.reason or f"by {fact.by}", self.state.at)
        self._cancel_members(job, fact)

    def _cancel_members(self, job: Job, fact: e.CancelRequested) -> None:
        if job.array is not None:
            for each in self.cancel_members(job, fact):
                self._cancel(each)

    def _move(self, fact: e.MoveRequested) -> None:
        job = self.named(fact.job)
        pin_is_sound = not fact.worker or WORKER.fullmatch(fact.worker)
        if job is not None and NAME.fullmatch(fact.pool) and pin_is_sound:
            self.move(job, Placement(fact.pool, fact.worker))

    def _policy(self, fact: e.PolicyApplied) -> None:
        state = self.state
        state.policy = fact.policy
        state.policy_version += 1
        state.policy_by, state.policy_at = fact.by, fact.at
        for worker in state.workers.values():
            self.resolve_pool(worker)
        self.touched.everything = True
        self.fair.touch_all()

    def _ready(self, fact: e.WorkerReady) -> None:
        node = self.node(fact.node)
        serving = any(not self.state.workers[name].retired for name in node.workers)
        if node.machine not in ("", fact.machine) and serving:
            if node.liveness is not Liveness.GONE:
                node.intruder = fact.machine
                node.intruders = [*node.intruders, fact.writer][-INTRUDERS_MAX:]
                return
            node.intruder = ""
        worker = self.worker(fact.worker, fact.node)
        if 0 < fact.incarnation < worker.incarnation:
            return  # of a former incarnation, and told of late
        if node.machine != fact.machine:
            node.health = NodeHealth()
            for name in node.workers:
                self.state.workers[name].ready = False
                self.state.workers[name].occupant = None
        node.machine = fact.machine
        node.liveness = Liveness.FRESH
        worker.writer, worker.slot, worker.declared_pool = fact.writer, fact.slot, fact.pool
        worker.incarnation, worker.price_micros = fact.incarnation, fact.price_micros
        worker.ready, worker.retired, worker.problem = True, "", ""
        self.advance_cursor(worker, fact.cursor)
        self.resolve_pool(worker)
        self._end_occupancy(worker.name, fact)
        self.touch_node(fact.node)

    def _end_occupancy(self, name: WorkerName, fact: e.WorkerReady) -> None:
        """What the former incarnation occupied and this one does not list is over.

        An attempt whose message is still ahead of the cursor is not: it will be run.
        """
        worker = self.state.workers[name]
        for running in fact.running:
            attempt = self._attempt(running.job, running.attempt)
            if attempt is not None and attempt.phase is not Phase.ENDED:
                worker.occupant = running
                return
        ref = worker.occupant
        if ref is None:
            return
        attempt = self._attempt(ref.job, ref.attempt)
        if attempt is not None and (attempt.message >= fact.cursor or attempt.lead != name):
            return
        worker.occupant = None

    def _worker_fact(self, fact: e.WorkerFact) -> None:
        worker = self.state.workers.get(fact.worker)
        if worker is None or fact.writer in self.state.nodes[worker.node].intruders:
            return
        match fact:
            case e.AttemptStarted():
                self._started(fact)
            case e.AttemptFinished():
                self._finished(fact)
            case e.AttemptLost():
                self._lost(fact)
            case e.MessageSkipped():
                pass
            case e.WorkerRetired():
                if fact.writer == worker.writer:
                    worker.retired = fact.reason or "retired"
                    self.touch_node(worker.node)
            case _:
                raise AssertionError(f"unknown fact {fact!r}")
        self.advance_cursor(worker, fact.cursor)

    def _started(self, fact: e.AttemptStarted) -> None:
        job, attempt = self._find(fact.job, fact.attempt)
        if job is None or attempt is None:
            return
        if attempt.started_at is None:
            attempt.started_at = fact.at
        self.note_begin(job, attempt, fact.at)
        self.mark_started(job, attempt)

    def _finished(self, fact: e.AttemptFinished) -> None:
        job, attempt = self._find(fact.job, fact.attempt)
        if job is None or attempt is None:
            return
        already_ended = attempt.phase is Phase.ENDED and attempt.rc is not None
        if already_ended:
            return
        attempt.rc, attempt.log_bytes = fact.rc, fact.log_bytes
        attempt.started_at, attempt.reason = fact.started_at, fact.reason
        attempt.report = fact.report
        self.note_begin(job, attempt, fact.started_at)
        self.note_use(job, attempt, fact.report)
        self.settle(job, attempt, self.actual_cost(attempt, fact.ended_at))
        self.book_use(job, attempt, fact.ended_at)
        self.end_attempt(job, attempt, fact.outcome, fact.ended_at)
        if job.last is not attempt:
            attempt.superseded = True
            return
        job.moving = None
        self.note_health(job, attempt)
        self.touched.finished[job.id] = None
        if fact.outcome in ("exited", "timeout"):
            self.learn(job.placed, fact.ended_at - fact.started_at)
        if fact.outcome == "exited":
            self.calibrate(job, attempt, self.state.at)
        if self._goes_back(job, attempt):
            return
        if job.state is JobState.NODE_FAIL:
            self.reopen(job, JobState.RUNNING)
        yielded = attempt.stop_reason == YIELDED and job.cancel is None
        outcome = "exited" if yielded else fact.outcome
        state = end_state(outcome, fact.rc)
        self.end(job, state, fact.reason, fact.ended_at)

    def _goes_back(self, job: Job, attempt: Attempt) -> bool:
        """A job that was ended for the fleet's sake is requeued where it may run again."""
        ordered = attempt.outcome == "stopped" and attempt.stop_ordered
        if attempt.stop_reason == YIELDED:
            ordered = ordered and attempt.rc == YIELD_RC
            return ordered and job.cancel is None and not job.state.ended
        gave_way = attempt.outcome in ("stopped", "exclusive") and self.may_rerun(job, attempt)
        return (ordered or gave_way) and job.cancel is None and not job.state.ended

    def _lost(self, fact: e.AttemptLost) -> None:
        job, attempt = self._find(fact.job, fact.attempt)
        if job is None or attempt is None or attempt.phase is Phase.ENDED:
            return
        attempt.ran = fact.ran
        attempt.reason = fact.reason
        self.note_begin(job, attempt, fact.at)
        self.note_use(job, attempt, None)
        if fact.ran:
            self.settle(job, attempt, self.actual_cost(attempt, fact.at))
            self.book_use(job, attempt, fact.at)
        elif job.last is not attempt or job.cancel is not None:
            self.settle(job, attempt, 0)
        self.end_attempt(job, attempt, "lost", fact.at)
        if job.last is not attempt:
            attempt.superseded = True
        elif job.cancel is not None:
            self.end(job, JobState.CANCELLED, job.cancel.reason, fact.at)
        elif not self.may_rerun(job, attempt):
            self.end(job, JobState.NODE_FAIL, fact.reason, fact.at)
        elif job.state is JobState.NODE_FAIL:
            self.reopen(job, JobState.RUNNING)

    # -- seen

    def apply_seen(self, seen: e.AnySeen) -> None:
        match seen:
            case e.SlotSeen():
                worker = self.state.workers.get(seen.worker)
                if worker is not None:
                    worker.problem = seen.problem
                    self.touched.workers[seen.worker] = None
            case e.NodeSeen():
                self.node(seen.node).liveness = seen.liveness
                self.touch_node(seen.node)
            case e.ClaimSeen():
                self._claim(seen)
            case e.FactRefused():
                self._refused(seen)
            case e.ArtifactSeen():
                self.state.artifacts.setdefault(seen.path, self.state.at)
                self.touched.artifacts[seen.path] = None
            case _:
                assert_never(seen)

    def _claim(self, seen: e.ClaimSeen) -> None:
        job, attempt = self._find(seen.job, seen.attempt)
        self.forget_revoke(seen.job, seen.attempt)
        if job is None or attempt is None or attempt.phase > Phase.REVOKING:
            return
        if seen.owner == "start":
            self.mark_started(job, attempt)
        if seen.owner != "revoke":
            return
        attempt.ran = False
        self.note_use(job, attempt, None)
        if job.last is not attempt or job.state.ended:
            self.settle(job, attempt, 0)
        self.end_attempt(job, attempt, "revoked", self.state.at)

    def _refused(self, seen: e.FactRefused) -> None:
        state = self.state
        state.writers[seen.writer] = max(state.writers.get(seen.writer, 0), seen.n + 1)
        if seen.job and seen.job not in state.jobs and seen.job not in state.archive:
            state.refused[JobId(seen.job)] = seen.reason
