"""A user and workers that a test plays by writing their facts, against real leaders."""

from __future__ import annotations

from collections import Counter

from ledger import events as e
from ledger.events import JobState
from ledger.journal import Journal, new_put_id
from ledger.keys import claim_key, message_key
from ledger.names import JobId, NodeName, WorkerName, new_job_id
from ledger.spool import DirectorySpools
from ledger.stores.base import Won
from ledger.writer import FactWriter
from roles.context import Context

OPEN_MAX = 6
"""Jobs of the user that have not ended."""
DOOMED = "doomed"
"""Every fourth job, which is cancelled if the user finds it assigned."""


class PlayedUser:
    """Submits jobs, and cancels some of them."""

    def __init__(self, context: Context) -> None:
        self.submitted: list[JobId] = []
        self.cancelled: set[JobId] = set()
        self._context = context
        self._journal = Journal(context.store, context.ledger)
        self._facts = _fact_writer(context, "cli-here")

    @property
    def pages(self) -> int:
        """How many there were when the user last looked."""
        return self._journal.projection.state.seq + 1

    def act(self, *, submits: bool) -> None:
        self._journal.follow()
        if submits and len(self.open_jobs()) < OPEN_MAX:
            self._submit(DOOMED if len(self.submitted) % 4 == 0 else "job")
        for job in self.submitted[::4]:
            if self.find_state(job) is JobState.ASSIGNED and job not in self.cancelled:
                self.cancelled.add(job)
                self._facts.report(e.CancelRequested(at=self._now_ms(), job=job, by="u"))
        self._facts.flush()

    def open_jobs(self) -> list[JobId]:
        states = {job: self.find_state(job) for job in self.submitted}
        return [job for job, state in states.items() if state is None or not state.ended]

    def find_state(self, job: JobId) -> JobState | None:
        """Of a job that stands in a page."""
        known = self._journal.projection.state.jobs.get(job)
        return known.state if known is not None else None

    def close(self) -> None:
        self._facts.close()

    def _submit(self, name: str) -> None:
        spec = e.JobSpec(
            id=new_job_id(self._context.rng), name=name, organization="o",
            workload_class="batch", pool="default", user="u", argv=("true",),
        )  # fmt: skip
        self._facts.report(e.Submitted(at=self._now_ms(), job=spec))
        self.submitted.append(spec.id)

    def _now_ms(self) -> int:
        return self._context.store.clock_ms()


class PlayedWorker:
    """Claims what its mailbox orders, and says that it ran; ``executed`` counts that.

    A slow one claims a doomed job only when a leader has already taken it back.
    """

    def __init__(self, context: Context, index: int, *, slow: bool) -> None:
        self.executed: Counter[JobId] = Counter()
        self._name = WorkerName(f"n1-cpu{index}")
        self._context = context
        self._slow = slow
        self._facts = _fact_writer(context, self._name)
        self._cursor = 0
        self._running: e.AttemptRef | None = None
        self._facts.report(
            e.WorkerReady(
                at=self._now_ms(), worker=self._name, cursor=0, node=NodeName("n1"), machine="m",
                pool="default", slot=e.Slot(kind="cpu", index=index),
            )
        )  # fmt: skip

    def act(self) -> None:
        """End what was begun in the last round, and deal with the next message."""
        if self._running is not None:
            self._finish(self._running)
        body = self._context.store.get(message_key(self._name, self._cursor))
        if body is not None:
            self._handle(e.decode_message(body))
        self._facts.flush()

    def close(self) -> None:
        self._facts.close()

    def _handle(self, message: e.AnyMessage) -> None:
        if isinstance(message, e.StopMessage):
            self._cursor += 1
            self._skip()
            return
        key = claim_key(message.job.id, message.attempt)
        if self._slow and message.job.name == DOOMED and self._context.store.get(key) is None:
            return
        self._cursor += 1
        ref = e.AttemptRef(message.job.id, message.attempt)
        if isinstance(self._context.store.put_new(key, e.encode(self._claim(ref))), Won):
            self._start(ref)
        else:
            self._skip()

    def _claim(self, ref: e.AttemptRef) -> e.Claim:
        return e.Claim(
            ledger=self._context.ledger, put_id=new_put_id(self._context.rng), job=ref.job,
            attempt=ref.attempt, owner="start", writer=self._facts.writer, at=self._now_ms(),
        )  # fmt: skip

    def _start(self, ref: e.AttemptRef) -> None:
        self.executed[ref.job] += 1
        self._running = ref
        self._facts.report(
            e.AttemptStarted(
                at=self._now_ms(), worker=self._name, cursor=self._cursor, job=ref.job,
                attempt=ref.attempt,
            )
        )  # fmt: skip

    def _finish(self, ref: e.AttemptRef) -> None:
        self._running = None
        now_ms = self._now_ms()
        self._facts.report(
            e.AttemptFinished(
                at=now_ms, worker=self._name, cursor=self._cursor, job=ref.job,
                attempt=ref.attempt, outcome="exited", rc=0, started_at=now_ms, ended_at=now_ms,
            )
        )  # fmt: skip

    def _skip(self) -> None:
        self._facts.report(
            e.MessageSkipped(at=self._now_ms(), worker=self._name, cursor=self._cursor)
        )

    def _now_ms(self) -> int:
        return self._context.store.clock_ms()


def _fact_writer(context: Context, name: str) -> FactWriter:
    spools = DirectorySpools(context.spools_dir)
    return FactWriter(context.store, context.rng, context.timings, spools, name)
