"""A ledger in memory, driven page by page: the builder of the unit and property tests.

``World`` plays every process there is by writing the facts they would write; decisions are
made by the real ``take_turn``. It keeps all pages, so that they can be folded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ledger import events as e
from ledger.events import AttemptRef, JobState, Liveness, encode, kind_of
from ledger.keys import FactKey
from ledger.names import Epoch, JobId, NodeName, Seq, WorkerName, WriterName, as_name
from ledger.policy import Policy
from ledger.projection import Projection
from ledger.state import RULES, Attempt, Job, Phase, State
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


def sha256_of(page: e.Page) -> str:
    """The hash of the page as it stands in the bucket."""
    return hashlib.sha256(encode(page)).hexdigest()


class World:
    """One leader, any number of workers; time only moves when told."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.at = START_MS
        self.leader = LEADER
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
            self.apply_policy(policy)
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
        machine: str = "",
        running: Sequence[AttemptRef] = (),
        cursor: int | None = None,
        incarnation: str = "aaaaaaaa",
        number: int = 0,
    ) -> None:
        """A worker reports for the first time, or again after it was started anew."""
        name = WorkerName(worker)
        node = worker.rsplit("-", 1)[0]
        known = self.state.workers.get(name)
        if cursor is None:
            cursor = known.cursor if known else 0
        self.fact(
            e.WorkerReady(
                at=self.at,
                worker=name,
                cursor=cursor,
                node=NodeName(node),
                machine=machine or node,
                pool=pool,
                slot=slot,
                running=tuple(running),
                incarnation=number,
            ),
            f"{worker}~{incarnation}",
        )

    def ready_again(
        self, worker: str, *, running: Sequence[AttemptRef] = (), cursor: int | None = None
    ) -> None:
        """The worker's next incarnation, on the same machine."""
        known = self.state.workers[WorkerName(worker)]
        self.ready(
            worker,
            known.slot,
            pool=known.declared_pool,
            running=running,
            cursor=cursor,
            incarnation="bbbbbbbb",
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
        user: str = "u",
        **more: object,
    ) -> JobId:
        spec = e.JobSpec(
            id=job_id(self._jobs),
            name=name,
            organization=organization,
            workload_class=workload_class,
            pool=pool,
            user=user,
            slots=slots,
            estimate_ms=estimate_ms,
            **more,  # type: ignore[arg-type]
        )
        self._jobs += 1
        kind = e.Submitted if spec.array is None else e.ArraySubmitted
        self.fact(kind(at=self.at, job=spec), f"cli-{as_name(organization)}")
        return spec.id

    def cancel(self, job: JobId, grace_ms: int = 0) -> None:
        self.fact(e.CancelRequested(at=self.at, job=job, by="test", grace_ms=grace_ms), "cli")

    def hold(self, job: JobId) -> None:
        self.fact(e.HoldRequested(at=self.at, job=job, by="test"), "cli")

    def release(self, job: JobId) -> None:
        self.fact(e.ReleaseRequested(at=self.at, job=job, by="test"), "cli")

    def apply_policy(self, policy: Policy) -> None:
        self.fact(e.PolicyApplied(at=self.at, policy=policy, by="test"), "cli")

    def move(self, job: JobId, pool: str = "default", worker: str = "") -> None:
        self.fact(e.MoveRequested(at=self.at, job=job, pool=pool, worker=worker, by="test"), "cli")

    def retry(self, job: JobId) -> None:
        self.fact(e.RetryRequested(at=self.at, job=job, by="test"), "cli")

    def drain(self, node: str, *, now: bool = False) -> None:
        self.fact(e.DrainRequested(at=self.at, node=NodeName(node), by="test", now=now), "cli")

    def undrain(self, node: str) -> None:
        self.fact(e.UndrainRequested(at=self.at, node=NodeName(node), by="test"), "cli")

    def retire(self, worker: str) -> None:
        known = self.state.workers[WorkerName(worker)]
        self.fact(e.WorkerRetired(at=self.at, worker=known.name, cursor=known.cursor), known.writer)

    def skip(self, worker: str) -> None:
        """The worker has handled all its messages and has nothing else to say."""
        known = self.state.workers[WorkerName(worker)]
        self.fact(
            e.MessageSkipped(at=self.at, worker=known.name, cursor=known.next_message), worker
        )

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
        self,
        job: JobId,
        *,
        rc: int = 0,
        outcome: str = "exited",
        number: int | None = None,
        report: e.Report | None = None,
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
                report=report,
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

    def claim(self, job: JobId, owner: str) -> None:
        """The leader has learnt who owns the job's last attempt."""
        attempt = self.attempt(job)
        self.see(e.ClaimSeen(job=job, attempt=attempt.number, owner=owner))

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
            leader=self.leader,
            facts=facts,
            seen=seen,
            elected=elected,
        )
        page = e.Page(
            ledger="test",
            seq=seq,
            epoch=epoch,
            leader=self.leader,
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
        self.projection.finish(page.seq, sha256_of(page))
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
            reader.apply(page, sha256_of(page))
        return reader


def world_of_one_node(slots: int = 1, policy: Policy | None = None) -> World:
    """A world with one node, ``n1``, that serves ``slots`` CPU slots."""
    made = World(policy)
    made.node_up("n1", slots)
    made.turn()
    return made


def assigned_job(made: World, **spec: object) -> JobId:
    job = made.submit(**spec)  # type: ignore[arg-type]
    made.turn()
    assert made.job(job).state is JobState.ASSIGNED
    return job


def running_job(made: World, **spec: object) -> JobId:
    job = assigned_job(made, **spec)
    made.start(job)
    made.turn()
    assert made.job(job).state is JobState.RUNNING
    return job


def lost_job(made: World, **spec: object) -> JobId:
    """A job whose node has been silent for so long that its attempt counts as lost."""
    job = running_job(made, **spec)
    made.node_is("n1", Liveness.GONE)
    made.turn()
    assert made.attempt(job).phase is Phase.LOST
    return job


def _numbered(fact: e.AnyFact, writer: WriterName, n: int) -> e.AnyFact:
    return msgspec.structs.replace(fact, writer=writer, n=n)
