"""What a worker says to the ledger, and what it remembers of having said.

Owns the facts of one incarnation: each is signed with the worker's name and with the
cursor (what it has handled by then), is durable before anything rests on it, and an end is
noted so that no later incarnation takes the attempt for lost.
"""

from __future__ import annotations

import contextlib
from typing import TypedDict

import structlog
from msgspec.structs import replace

from ledger import events as e
from ledger.errors import RequestError
from ledger.events import AttemptRef
from ledger.keys import attempt_name
from ledger.names import NodeName, WorkerName
from ledger.writer import FactWriter
from roles.context import Context
from roles.mailbox import Mailbox
from roles.workspace import REPORTED_MAX, Notes, Workspace

log = structlog.get_logger()


class _Signature(TypedDict):
    at: int
    worker: WorkerName
    cursor: int


class Reports:
    """No method makes a request; each raises RequestError where the disk is full."""

    def __init__(
        self,
        context: Context,
        writer: FactWriter,
        mailbox: Mailbox,
        workspace: Workspace,
        notes: Notes,
        worker: WorkerName,
    ) -> None:
        self._context = context
        self._writer = writer
        self._mailbox = mailbox
        self._workspace = workspace
        self._notes = notes
        self._worker = worker
        self._newest = -1

    @property
    def acknowledged(self) -> int:
        """The number of the newest fact that stands in the bucket; -1 for none."""
        return self._newest - self._writer.pending

    def knows_end(self, ref: AttemptRef) -> bool:
        """Whether the attempt's end was reported, by whichever incarnation."""
        return attempt_name(ref.job, ref.attempt) in self._notes.reported

    def ready(
        self,
        node: NodeName,
        pool: str,
        slot: e.Slot,
        running: tuple[AttemptRef, ...],
        price_micros: int,
    ) -> None:
        self._report(
            e.WorkerReady(
                **self._signature(),
                node=node,
                machine=self._context.machine,
                pool=pool,
                slot=slot,
                running=running,
                incarnation=self._notes.incarnation,
                price_micros=price_micros,
            )
        )

    def started(self, ref: AttemptRef, at: int, pid: int = 0) -> None:
        """``at`` on the store's clock; ``pid`` of the runner, where it is known."""
        signature = self._signature()
        signature["at"] = at
        self._report(e.AttemptStarted(**signature, job=ref.job, attempt=ref.attempt, pid=pid))
        log.info("started", attempt=attempt_name(ref.job, ref.attempt))

    def ended(self, end: e.AttemptFinished | e.AttemptLost) -> int:
        """Sign and report an end; the number of its fact.

        It is reported when the spool has it, whatever becomes of the notes: without them
        the next incarnation reports it once more, which counts for nothing.
        """
        signed = replace(end, worker=self._worker, cursor=self._mailbox.cursor)
        number = self._report(signed)
        name = attempt_name(end.job, end.attempt)
        self._notes.reported = [*self._notes.reported, name][-REPORTED_MAX:]
        log.info("ended", attempt=name, reason=end.reason)
        with contextlib.suppress(RequestError):
            self._workspace.write_notes(self._notes)
        return number

    def skipped(self) -> None:
        """A message was handled and needs nothing else to be said."""
        self._report(e.MessageSkipped(**self._signature()))

    def retired(self, reason: str) -> None:
        self._report(e.WorkerRetired(**self._signature(), reason=reason))

    def _signature(self) -> _Signature:
        return {
            "at": self._context.store.clock_ms(),
            "worker": self._worker,
            "cursor": self._mailbox.cursor,
        }

    def _report(self, fact: e.AnyFact) -> int:
        self._newest = self._writer.report(fact)
        self._notes.cursor = self._mailbox.cursor
        return self._newest
