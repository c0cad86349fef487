"""The truth behind the facts: worker processes that keep to the protocol, under any schedule.

``Processes`` plays the workers of a ``World``: it alone knows what really runs. It follows
docs/ARCHITECTURE.md, "Workers and supervisors": the kind in a claim decides, facts of a node
that is cut off arrive later and in order, a new incarnation reports what it adopted and what
it lost. It asserts that nothing runs twice and that no slot runs two things.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledger import events as e
from ledger.events import AttemptRef
from ledger.names import BASE32, NodeName, WorkerName
from tests.world import World


@dataclass
class Process:
    """One worker. ``cursor`` is the number after the last message that a fact of it names."""

    name: WorkerName
    node: NodeName
    slot: e.Slot
    incarnation: int = 0
    cursor: int = 0
    running: AttemptRef | None = None
    started_at: int = 0

    @property
    def writer(self) -> str:
        return f"{self.name}~{'a' * 7}{BASE32[self.incarnation % 32]}"


@dataclass
class Processes:
    """All worker processes, the claims, and the facts that nodes could not yet send."""

    world: World
    workers: dict[WorkerName, Process] = field(default_factory=dict)
    claims: dict[AttemptRef, str] = field(default_factory=dict)
    unsent: dict[NodeName, list[tuple[e.AnyFact, str]]] = field(default_factory=dict)
    """By node that is cut off from the bucket."""
    executed: set[AttemptRef] = field(default_factory=set)

    def add_node(self, node: str, slots: list[e.Slot]) -> None:
        for slot in slots:
            name = WorkerName(f"{node}-{slot.kind}{slot.index}")
            self.workers[name] = Process(name=name, node=NodeName(node), slot=slot)
            self.report_ready(self.workers[name])

    # -- facts

    def report(self, process: Process, fact: e.AnyFact) -> None:
        """Durable at once; in the bucket when the node can reach it."""
        if process.node in self.unsent:
            self.unsent[process.node].append((fact, process.writer))
        else:
            self.world.fact(fact, process.writer)

    def report_ready(self, process: Process) -> None:
        adopted = () if process.running is None else (process.running,)
        self.report(
            process,
            e.WorkerReady(
                at=self.world.at,
                worker=process.name,
                cursor=process.cursor,
                node=process.node,
                machine=process.node,
                pool="default",
                slot=process.slot,
                running=adopted,
                incarnation=process.incarnation + 1,
            ),
        )

    def cut_off(self, node: NodeName) -> None:
        self.unsent.setdefault(node, [])

    def reconnect(self, node: NodeName) -> None:
        for fact, writer in self.unsent.pop(node, []):
            self.world.fact(fact, writer)

    # -- what a worker does

    def message_for(self, process: Process) -> e.AnyMessage | None:
        """Its next message, if it can see one."""
        worker = self.world.state.workers.get(process.name)
        if worker is None or process.node in self.unsent:
            return None
        return worker.messages.get(process.cursor)

    def handle(self, process: Process, *, dies: str = "") -> None:
        """Take the next message.

        ``dies`` says where a process dies that would start a job: ``before exec`` (the claim
        is in, the command was never run) or ``after exec`` (it runs, but no fact says so).
        """
        message = self.message_for(process)
        match message:
            case e.RunMessage():
                self._run(process, message, dies)
            case e.StopMessage():
                process.cursor += 1
                if process.running == AttemptRef(message.job, message.attempt):
                    self.end(process, outcome="stopped", rc=143)
                else:
                    self._skip(process)
            case None:
                pass

    def _run(self, process: Process, message: e.RunMessage, dies: str) -> None:
        ref = AttemptRef(message.job.id, message.attempt)
        if process.running is not None:
            return
        if self.claims.get(ref) == "revoke":
            process.cursor += 1
            self._skip(process)
            return
        self.claims[ref] = "start"
        if dies == "before exec":
            process.incarnation += 1
            self.report_ready(process)
            process.cursor += 1
            self._lose(process, ref, ran=False)
            return
        self._execute(process, ref, message.slots)
        if dies == "after exec":
            process.incarnation += 1
            self.report_ready(process)
        process.cursor += 1
        self.report(
            process,
            e.AttemptStarted(
                at=self.world.at,
                worker=process.name,
                cursor=process.cursor,
                job=ref.job,
                attempt=ref.attempt,
            ),
        )

    def _execute(self, process: Process, ref: AttemptRef, slots: tuple[WorkerName, ...]) -> None:
        assert ref not in self.executed, f"{ref} runs twice"
        self.executed.add(ref)
        for other in self.workers.values():
            if other.running is not None:
                taken = self._slots(other.running) & set(slots)
                assert not taken, f"{taken} of {ref} run {other.running}"
        process.running, process.started_at = ref, self.world.at

    def _slots(self, ref: AttemptRef) -> set[WorkerName]:
        for page in self.world.pages:
            for decision in page.decisions:
                if (
                    isinstance(decision, e.AttemptAssigned)
                    and AttemptRef(decision.job, decision.attempt) == ref
                ):
                    return set(decision.slots)
        raise AssertionError(f"{ref} was never assigned")

    def _skip(self, process: Process) -> None:
        self.report(
            process,
            e.MessageSkipped(at=self.world.at, worker=process.name, cursor=process.cursor),
        )

    def end(
        self, process: Process, *, outcome: str, rc: int, report: e.Report | None = None
    ) -> None:
        """The job of the process has exited."""
        ref = process.running
        assert ref is not None
        process.running = None
        self.report(
            process,
            e.AttemptFinished(
                at=self.world.at,
                worker=process.name,
                cursor=process.cursor,
                job=ref.job,
                attempt=ref.attempt,
                outcome=outcome,
                rc=rc,
                started_at=process.started_at,
                ended_at=self.world.at,
                report=report,
            ),
        )

    def _lose(self, process: Process, ref: AttemptRef, *, ran: bool) -> None:
        self.report(
            process,
            e.AttemptLost(
                at=self.world.at,
                worker=process.name,
                cursor=process.cursor,
                job=ref.job,
                attempt=ref.attempt,
                reason="unknown here",
                ran=ran,
            ),
        )

    def restart(self, process: Process, *, forgets: bool) -> None:
        """A new incarnation adopts what runs, or (after a reboot) reports it as lost."""
        process.incarnation += 1
        ref = process.running
        if forgets:
            process.running = None
        self.report_ready(process)
        if forgets and ref is not None:
            self._lose(process, ref, ran=True)

    def retire(self, process: Process) -> None:
        self.report(
            process,
            e.WorkerRetired(at=self.world.at, worker=process.name, cursor=process.cursor),
        )

    # -- what the leader learns

    def settle_claim(self, ref: AttemptRef) -> None:
        """The leader tries the claim of an attempt that it takes back."""
        owner = self.claims.setdefault(ref, "revoke")
        self.world.see(e.ClaimSeen(job=ref.job, attempt=ref.attempt, owner=owner))
