"""A ledger in memory, driven page by page: the builder of the unit and property tests.

``World`` plays every process there is by writing the facts they would write; decisions are
made by the real ``take_turn``. It keeps all pages, so that they can be folded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ledger import events as e
from ledger.events import AttemptRef, encode, kind_of
from ledger.keys import FactKey
from ledger.names import Epoch, JobId, NodeName, Seq, WorkerName, WriterName
from ledger.policy import Policy
from ledger.projection import Projection
from ledger.state import RULES, Attempt, Job, State
from scheduling.decide import Scheduler
from scheduling.turn import take_turn

LEADER = WriterName("dispatcher-n1~aaaaaaaa")
START_MS = 1_800_000_000_000


def job_id(number: int) -> JobId:
    """A valid id that shows its number: 7 -> ``aaaaaaah``."""
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    text = ""
    for _ in range(8):
        number, digit = divmod(number, 32)
        text = letters[digit] + text
    return JobId(text)


class World:
    """One leader, any number of workers; time only moves when told."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.at = START_MS
        self.pages: list[e.Page] = []
        self.projection = Projection(State(ledger="test"))
        self.scheduler = Scheduler(self.projection)
        self.facts: list[e.Posted] = []
        self.seen: list[e.AnySeen] = []
        self.decisions: list[e.AnyDecision] = []
        self._numbers: dict[str, int] = {}
        self._jobs = 0
        self.turn(elected=True)
        if policy is not None:
            self.fact(e.PolicyApplied(at=self.at, policy=policy, by="test"), "cli")
            self.turn()

    @property
    def state(self) -> State:
        return self.projection.state

    # -- what processes say

    def fact(self, fact: e.AnyFact, writer: str) -> None:
        name = WriterName(f"{writer}~aaaaaaaa" if "~" not in writer else writer)
        n = self._numbers.get(name, 0)
        self._numbers[name] = n + 1
        key = FactKey(stamp_ms=self.at, writer=name, n=n, kind=kind_of(fact)).format()
        replaced = _numbered(fact, name, n)
        self.facts.append(e.Posted(key=key, fact=replaced))

    def node_up(
        self,
        node: str,
        slots: int,
        *,
        pool: str = "default",
        kind: str = "cpu",
        gpu: str = "",
        gpu_memory_bytes: int = 0,
        machine: str = "",
    ) -> None:
        for index in range(slots):
            slot = e.Slot(kind=kind, index=index, gpu_name=gpu, gpu_memory_bytes=gpu_memory_bytes)
            self.ready(f"{node}-{kind}{index}", slot, pool=pool, machine=machine or node)

    def ready(
        self,
        worker: str,
        slot: e.Slot,
        *,
        pool: str = "default",
        machine: str = "m",
        running: Sequence[AttemptRef] = (),
        cursor: int | None = None,
    ) -> None:
        name = WorkerName(worker)
        known = self.state.workers.get(name)
        if cursor is None:
            cursor = known.cursor if known else 0
        self.fact(
            e.WorkerReady(
                at=self.at,
                worker=name,
                cursor=cursor,
                node=NodeName(worker.rsplit("-", 1)[0]),
                machine=machine,
                pool=pool,
                slot=slot,
                running=tuple(running),
            ),
            worker,
        )

    def submit(
        self,
        organization: str = "a",
        *,
        workload_class: str = "batch",
        pool: str = "default",
        name: str = "job",
        slots: int = 1,
        estimate_ms: int = 1_000,
        **more: object,
    ) -> JobId:
        spec = e.JobSpec(
            id=job_id(self._jobs),
            name=name,
            organization=organization,
            workload_class=workload_class,
            pool=pool,
            user="u",
            slots=slots,
            estimate_ms=estimate_ms,
            **more,  # type: ignore[arg-type]
        )
        self._jobs += 1
        self.fact(e.Submitted(at=self.at, job=spec), f"cli-{organization}")
        return spec.id

    def cancel(self, job: JobId) -> None:
        self.fact(e.CancelRequested(at=self.at, job=job, by="test"), "cli")

    def start(self, job: JobId) -> None:
        attempt = self.attempt(job)
        self.fact(
            e.AttemptStarted(
                at=self.at,
                worker=attempt.lead,
                cursor=attempt.message + 1,
                job=job,
                attempt=attempt.number,
            ),
            attempt.lead,
        )

    def finish(
        self, job: JobId, *, rc: int = 0, outcome: str = "exited", number: int | None = None
    ) -> None:
        attempt = self.attempt(job, number)
        worker = self.state.workers[attempt.lead]
        self.fact(
            e.AttemptFinished(
                at=self.at,
                worker=attempt.lead,
                cursor=worker.next_message,
                job=job,
                attempt=attempt.number,
                outcome=outcome,
                rc=rc,
                started_at=attempt.started_at or attempt.assigned_at,
                ended_at=self.at,
            ),
            attempt.lead,
        )

    def lost(self, job: JobId, *, ran: bool = True) -> None:
        attempt = self.attempt(job)
        self.fact(
            e.AttemptLost(
                at=self.at,
                worker=attempt.lead,
                cursor=attempt.message + 1,
                job=job,
                attempt=attempt.number,
                reason="state lost",
                ran=ran,
            ),
            attempt.lead,
        )

    def see(self, seen: e.AnySeen) -> None:
        self.seen.append(seen)

    def node_is(self, node: str, liveness: e.Liveness) -> None:
        self.see(e.NodeSeen(node=NodeName(node), liveness=liveness))

    # -- the leader

    def turn(self, *, elected: bool = False, after_ms: int = 0) -> list[e.AnyDecision]:
        """Post everything said so far as one page; returns its decisions."""
        self.at += after_ms
        epoch = Epoch(self.state.epoch + 1 if elected else self.state.epoch)
        facts, seen = tuple(self.facts), tuple(self.seen)
        self.facts, self.seen = [], []
        seq, previous = Seq(self.state.seq + 1), self.state.page_sha256
        decisions, fair = take_turn(
            self.projection,
            self.scheduler,
            at=self.at,
            epoch=epoch,
            leader=LEADER,
            facts=facts,
            seen=seen,
            elected=elected,
        )
        page = e.Page(
            ledger="test",
            seq=seq,
            epoch=epoch,
            leader=LEADER,
            at=self.at,
            prev_sha256=previous,
            rules=RULES,
            facts=facts,
            seen=seen,
            decisions=decisions,
            fair=fair,
            put_id=e.PutId(f"put{seq}"),
        )
        self.pages.append(page)
        self.projection.finish(page.seq, hashlib.sha256(encode(page)).hexdigest())
        self.decisions.extend(decisions)
        return list(decisions)

    # -- looking

    def job(self, job: JobId) -> Job:
        return self.state.jobs[job]

    def attempt(self, job: JobId, number: int | None = None) -> Attempt:
        attempt = self.job(job).attempt(number or len(self.job(job).attempts))
        assert attempt is not None, (job, number)
        return attempt

    def assigned(self) -> list[JobId]:
        """Jobs in the order of their assignments so far."""
        return [d.job for d in self.decisions if isinstance(d, e.AttemptAssigned)]

    def fold(self) -> Projection:
        """All pages folded by a reader that never saw a scheduler."""
        reader = Projection(State(ledger="test"))
        for page in self.pages:
            reader.apply(page, hashlib.sha256(encode(page)).hexdigest())
        return reader


def _numbered(fact: e.AnyFact, writer: WriterName, n: int) -> e.AnyFact:
    return msgspec.structs.replace(fact, writer=writer, n=n)
