"""One incarnation of a worker at work: from what it inherits to its last report.

Owns the slot's attempts between mailbox and facts; ``roles.worker`` states the order of
effects. What is local (noticing ends, stopping, reporting into the spool) goes on while the
bucket is away; requests are made in rounds that end at the first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from ledger import events as e
from ledger.errors import RequestError
from ledger.events import SUPERSEDED, AttemptRef
from ledger.journal import Journal
from ledger.keys import attempt_name
from ledger.names import NodeName, WorkerName
from ledger.spool import SpoolStorage
from ledger.writer import FactWriter
from roles.adoption import Inheritance
from roles.claiming import Claiming, Owner, prepare_claim
from roles.context import Context
from roles.devices import Reading
from roles.gate import Gate
from roles.jobplan import JobBase
from roles.launcher import JobHandle, Launcher
from roles.logship import LogShipper
from roles.mailbox import Mailbox, Unreadable
from roles.processes import Identity
from roles.reports import Reports
from roles.slotgpu import SlotGpu
from roles.standin import StandIn
from roles.status import WorkerStatus
from roles.watching import WatchedAttempt, lost
from roles.workspace import LogNote, Notes, Workspace

log = structlog.get_logger()

FORMER_END = -1
"""Number of an end's fact that a former incarnation reported (and that was drained)."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Who a worker is, and what its jobs are started with."""

    worker: WorkerName
    node: NodeName
    pool: str
    slot: e.Slot
    job_base: JobBase
    leaving: bool = False
    """The slot is no longer offered: end what is underway, tell of it, and be done."""
    price_micros: int = 0
    """What its node costs an hour, in millionths; 0: not told."""
    process: Identity | None = None
    """Of the worker itself, for its supervisor."""


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """All by which a worker acts on its machine."""

    launcher: Launcher
    spools: SpoolStorage
    workspace: Workspace
    read_gpus: Callable[[], Mapping[WorkerName, Reading]] = dict
    """The node's GPUs by slot as they are now; empty where there is none, or for a CPU slot."""


class Service:
    """Begins with ``inherit``. ``writer`` has reported nothing yet."""

    def __init__(
        self,
        context: Context,
        options: WorkerOptions,
        parts: WorkerParts,
        writer: FactWriter,
        notes: Notes,
    ) -> None:
        self._context = context
        self._options = options
        self._parts = parts
        self._writer = writer
        self._notes = notes
        self._mailbox = Mailbox(context, options.worker, notes.cursor)
        self._reports = Reports(
            context, writer, self._mailbox, parts.workspace, notes, options.worker
        )
        self._stand_in = StandIn(
            context,
            parts.workspace,
            writer.writer,
            worker=options.worker,
            node=options.node,
            pool=options.pool,
        )
        self._gate = Gate(context)
        self._gpu = SlotGpu(context, options.worker, parts.read_gpus, parts.workspace)
        self._watched: dict[AttemptRef, WatchedAttempt] = {}
        self._claiming: Claiming | None = None
        self._stopped_ahead: dict[AttemptRef, str] = {}
        """Orders to stop what has not been started here (yet)."""
        self._status = WorkerStatus()
        self._refusal = ""
        self._retiring = ""
        self._retired = False
        self._gives_up_ms: int | None = None

    # -- the beginning

    def inherit(self, inheritance: Inheritance) -> None:
        """Report readiness, and what became of the former incarnations' attempts.

        Durable on return, and no request. Raises RequestError where the disk is full.
        """
        for ref in inheritance.watch:
            attempt = self._watch(ref, self._parts.launcher.attempt(ref.job, ref.attempt))
            if self._reports.knows_end(ref):
                attempt.look()
                attempt.end_fact = FORMER_END
        running = tuple(a.ref for a in self._watched.values() if not a.is_reported)
        options = self._options
        self._reports.ready(options.node, options.pool, options.slot, running, options.price_micros)
        for stop in inheritance.stops:
            self._stop(self._watched[stop.ref], stop.reason, stop.grace_ms)
        for ref in inheritance.unannounced:
            self._reports.started(ref, self._watched[ref].claimed_at)
        for loss in inheritance.losses:
            reason = "its worker's machine knows nothing of it"
            self._reports.ended(lost(self._context, loss.ref, reason, ran=loss.ran))
        self._parts.workspace.write_notes(self._notes)
        for ref in inheritance.litter:
            self._parts.launcher.attempt(ref.job, ref.attempt).discard()
        log.info("ready", worker=self._options.worker, adopted=len(self._watched))

    # -- the loop

    def step(self) -> int | None:
        """One round of all there is to do; how long to wait (ms), or None at the end."""
        for attempt in self._watched.values():
            attempt.look()
        went_through = self._gate.attempt(self._round)
        self._refusal = str(self._gate.refusal or "")
        if not went_through:
            self._report_ends_without_bucket()
        self._tell_exclusive_jobs()
        self._gpu.look(self._wanted_slots(), is_used=any(a.runs for a in self._watched.values()))
        self._discard_what_is_done()
        self._say_status()
        return None if self._is_over() else self._wait_ms()

    def hurry(self) -> None:
        """Somebody says that there is a message."""
        self._mailbox.hurry()

    def retire(self, reason: str) -> None:
        """Start nothing more; ``step`` returns None when what runs has ended."""
        self._retiring = self._retiring or reason

    def stop_jobs(self, reason: str) -> None:
        """Stop what runs, each with its own grace."""
        for attempt in self._watched.values():
            self._stop(attempt, reason)

    def close(self) -> None:
        """Leave what is pending to the next incarnation."""
        self._writer.close()

    def _round(self) -> None:
        self._flush()
        for attempt in self._watched.values():
            if not attempt.runs and not attempt.outputs.is_over:
                attempt.outputs.step()
        for attempt in self._to_be_reported():
            attempt.ship_end_of_log()  # where this fails, the end is reported all the same
            self._report_end(attempt)
        self._report_retirement()
        self._flush()
        if self._context.clock.boot_ms() >= self._mailbox.due_ms():
            self._look_into_mailbox()
        self._handle_stops()
        while self._handle_first():
            pass
        self._flush()
        for attempt in self._watched.values():
            if attempt.runs:
                attempt.shipper.ship_due()
        for attempt in self._ended(reported=True):
            if not attempt.log_is_up and attempt.outputs.is_over:
                attempt.ship_end_of_log()
        self._stand_in.beat_if_alone(self._status)

    def _report_ends_without_bucket(self) -> None:
        """An outage delays what is told of an end, never the end that is told."""
        try:
            self._handle_stops()
            for attempt in self._to_be_reported(with_outputs=False):
                self._report_end(attempt)
            self._report_retirement()
        except RequestError as error:
            self._refusal = str(error)

    def _wait_ms(self) -> int:
        due_ms = self._mailbox.due_ms() - self._context.clock.boot_ms()
        wait_ms = self._gate.closed_for_ms or due_ms
        if any(not a.runs and not a.outputs.is_over for a in self._watched.values()):
            return max(1, self._gate.closed_for_ms)
        if self._watched:
            wait_ms = min(wait_ms, self._context.timings.worker_tick_ms)
        return max(1, min(wait_ms, self._gpu.look_again_ms() or wait_ms))

    def _is_over(self) -> bool:
        """Retired, and all is told; what cannot be told is left to the next incarnation."""
        grace_ms = self._context.timings.grace_ms
        if not self._retired or any(
            attempt.runs or attempt.outputs.is_moving(grace_ms)
            for attempt in self._watched.values()
        ):
            return False
        if self._claiming is None and not self._watched and not self._writer.pending:
            return True
        now_ms = self._context.clock.boot_ms()
        if self._gives_up_ms is None:
            self._gives_up_ms = now_ms + grace_ms
        return now_ms >= self._gives_up_ms

    # -- messages

    def _look_into_mailbox(self) -> None:
        self._mailbox.look(followed=self._parts.workspace.is_followed())

    def _flush(self) -> None:
        """Put what is pending; what went through is a sign of life of this node."""
        pending, now_ms = self._writer.pending, self._context.clock.boot_ms()
        try:
            self._writer.flush()
        finally:
            if self._writer.pending < pending:
                self._stand_in.note_heard(now_ms)

    def _tell_exclusive_jobs(self) -> None:
        heard_ms = self._stand_in.heard_ms()
        for attempt in self._watched.values():
            if attempt.runs and heard_ms is not None:
                attempt.note_bucket_seen(heard_ms)

    def _handle_stops(self) -> None:
        while (message := self._mailbox.first_stop()) is not None:
            if self._is_for_another(message):
                self._mailbox.stop_handled()
                self._reports.skipped()
                continue
            attempt = self._watched.get(AttemptRef(message.job, message.attempt))
            if attempt is not None and attempt.runs:
                self._stop(attempt, message.reason, message.grace_ms)
                self._mailbox.stop_handled()  # the report of its end will tell so
            elif self._mailbox.holds(message.job, message.attempt):
                self._stopped_ahead[AttemptRef(message.job, message.attempt)] = message.reason
                self._mailbox.stop_handled()
            else:
                self._mailbox.stop_handled()
                self._reports.skipped()

    def _stop(self, attempt: WatchedAttempt, reason: str, grace_ms: int = 0) -> None:
        """``grace_ms`` 0: the job's own. What no longer counts must write nothing more."""
        if attempt.runs:
            attempt.handle.stop(reason, 0 if reason == SUPERSEDED else grace_ms or attempt.grace_ms)

    def _handle_first(self) -> bool:
        """Deal with the message whose turn it is; False where there is none, or not yet."""
        message = self._mailbox.first()
        if message is None or isinstance(message, Unreadable):
            return False
        ref = AttemptRef(message.job.id, message.attempt)
        known = ref in self._watched or self._reports.knows_end(ref)
        if known or self._is_for_another(message):
            self._mailbox.handled()
            self._reports.skipped()
            return True
        if self._claiming is None:
            if self._retiring or self._is_occupied() or not self._gpu.is_free(message.slots):
                return False
            self._claiming = prepare_claim(
                self._context,
                message,
                self._parts.launcher.attempt(ref.job, ref.attempt),
                self._options.job_base,
                self._parts.workspace.free_port(),
            )
        owner = self._claiming.settle(self._writer.writer)
        claiming, self._claiming = self._claiming, None
        self._mailbox.handled()
        self._act(ref, claiming, owner)
        return True

    def _is_for_another(self, message: e.AnyMessage) -> bool:
        """Whether it was for a machine that had this worker's name before.

        Raises RequestError where another machine has it now: this one was silent for so long
        that it lost its place. What runs here was declared lost, and is stopped.
        """
        own = self._context.machine
        if message.machine in ("", own):
            return False
        journal = Journal(self._context.store, self._context.ledger)
        journal.load()
        node = journal.projection.state.nodes.get(self._options.node)
        if node is None or node.machine in ("", own):
            return True
        for attempt in self._watched.values():
            self._stop(attempt, SUPERSEDED)
        raise RequestError(
            f"node {self._options.node} belongs to another machine ({node.machine}) now: give "
            "one of the two another --node"
        )

    def _act(self, ref: AttemptRef, claiming: Claiming, owner: Owner) -> None:
        """The claim is settled, and only now is anything done."""
        stopped = self._stopped_ahead.pop(ref, "")
        if owner == "revoked":
            claiming.handle.discard()
            self._reports.skipped()
            return
        attempt = self._watch(ref, claiming.handle)  # which reaps the runner that it starts
        if owner == "former":
            attempt.lose("a former incarnation claimed it", ran=not claiming.never_ran)
        elif claiming.is_late:
            attempt.lose("too much time passed until its claim was settled", ran=False)
        elif 0 < claiming.message.job.deadline_at <= self._context.store.clock_ms():
            attempt.lose("its deadline passed before it began", ran=False)
        elif stopped or self._retiring:
            attempt.lose(stopped or self._retiring, ran=False)
        elif claiming.unfit:
            attempt.fail(claiming.unfit)
        else:
            self._tell_exclusive_jobs()  # of the silence before its start
            runner = claiming.handle.launch()
            self._reports.started(ref, self._context.store.clock_ms(), runner.pid)
            return
        self._report_end(attempt)

    # -- attempts

    def _watch(self, ref: AttemptRef, handle: JobHandle) -> WatchedAttempt:
        name = attempt_name(ref.job, ref.attempt)
        note = self._notes.logs.get(name, LogNote())

        def keep(note: LogNote) -> None:
            self._notes.logs[name] = note
            self._parts.workspace.write_notes(self._notes)

        shipper = LogShipper(self._context, ref, handle, note, keep)
        self._watched[ref] = WatchedAttempt(self._context, ref, handle, shipper)
        return self._watched[ref]

    def _ended(self, *, reported: bool) -> list[WatchedAttempt]:
        return [a for a in self._watched.values() if not a.runs and a.is_reported == reported]

    def _to_be_reported(self, *, with_outputs: bool = True) -> list[WatchedAttempt]:
        """Ended, and a reading of the GPU no longer shows what they did there.

        ``with_outputs``: and their outputs are in the store, or given up.
        """
        return [
            attempt
            for attempt in self._ended(reported=False)
            if (attempt.outputs.is_over or not with_outputs)
            and not (
                isinstance(attempt.end, e.AttemptFinished)
                and self._gpu.is_settling(attempt.end.ended_at)
            )
        ]

    def _discard_what_is_done(self) -> None:
        """Nothing is needed any more of what the bucket knows whole."""
        acknowledged = self._reports.acknowledged
        for attempt in self._ended(reported=True):
            if (
                attempt.log_is_up
                and attempt.end_fact is not None
                and attempt.end_fact <= acknowledged
                and not self._left_of(attempt)
            ):
                attempt.handle.discard()
                self._notes.logs.pop(attempt.name, None)
                del self._watched[attempt.ref]

    def _left_of(self, attempt: WatchedAttempt) -> list[Identity]:
        return [p for p in attempt.unkillable if self._parts.workspace.is_alive(p)]

    def _wanted_slots(self) -> Sequence[WorkerName]:
        """Those of the job that is next; its own where none is."""
        first = self._mailbox.first()
        return first.slots if isinstance(first, e.RunMessage) else (self._options.worker,)

    def _is_occupied(self) -> bool:
        """A job that came next could change the outputs of the one before."""
        return any(
            a.runs or not a.outputs.is_over or self._left_of(a) for a in self._watched.values()
        )

    # -- what it says

    def _report_end(self, attempt: WatchedAttempt) -> None:
        end = attempt.end
        assert end is not None
        if isinstance(end, e.AttemptFinished):
            parts = [end.reason, attempt.outputs.reason]
            end = replace(
                end,
                utilisation_percent=self._gpu.utilisation_percent(),
                reason="; ".join(part for part in parts if part),
            )
        self._gpu.job_ended(attempt.slots or (self._options.worker,))
        attempt.end_fact = self._reports.ended(end)

    def _report_retirement(self) -> None:
        if self._retiring and not self._retired:
            self._reports.retired(self._retiring)
            self._retired = True

    def _problem(self) -> str:
        """Why the slot must take no work."""
        left = [p.pid for a in self._watched.values() for p in self._left_of(a)]
        if left:
            return f"processes of an ended job cannot be killed: {left}"
        first = self._mailbox.first()
        if isinstance(first, Unreadable):
            return first.reason
        uploading = [a.name for a in self._ended(reported=True) if not a.outputs.is_over]
        if uploading:
            return f"the outputs of {uploading[0]} are not uploaded yet"
        return self._gpu.problem or self._refusal

    def _say_status(self) -> None:
        status = WorkerStatus(
            process=self._options.process,
            writer=self._writer.writer,
            running=tuple(a.name for a in self._watched.values() if a.runs),
            slots=tuple(s for a in self._watched.values() if a.runs for s in a.slots),
            problem=self._problem(),
            newest_key=self._writer.newest_key,
            pending_facts=self._writer.pending,
            cursor=self._mailbox.cursor,
        )
        if status != self._status:
            self._parts.workspace.write_status(status)
            self._status = status
