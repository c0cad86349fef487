"""A worker: serves one slot, runs what its mailbox says and reports what happens.

The order of effects, and what a crash after each costs:

1.  lock the slot                          nothing; the lock ends with the process
2.  drain older spools, fold the ledger    nothing
3.  compare with this machine, ``ready``   it is said again, by the next incarnation
4.  read a message                         it is read again: the cursor stands before it
5.  fetch script and snapshot, write the   a folder; the message is handled again
    plan
6.  ``put_new`` the claim                  the next incarnation finds a former one's claim and
                                           a plan without a runner: ``lost``, certainly not run
7.  launch the runner                      it is adopted; its start is announced then
8.  report ``start``                       nothing
9.  the runner writes its result           nothing; it is read whenever a worker is there
10. put the pieces of its outputs, one a   what is there is not sent again
    round, then their manifest
11. put the whole log                      it is put again, the same bytes
12. report the end                         a second copy under another writer, which the fold
                                           ignores because the attempt has ended
13. note that it was reported              nothing
14. after the acknowledgement, and once    nothing; the folder is removed by the next
    the log is up: remove the folder       incarnation

12 does not wait for 10 and 11 where the bucket is away: the end is in the spool with its true
time, outputs and log follow, and the slot starts nothing until the outputs are up or given up.
7 happens only within ``start_within_ms`` of the first try of 6, and the runner looks at the
clock again as its last act before exec. A log piece's bounds are noted before it is put, so the
same piece is put again.

One loop, no threads: ``step`` makes one round and says how long to wait; waiting is the
caller's. Refuses to begin where a second worker has its slot, or where its node's name
belongs to another machine.
"""

from __future__ import annotations

from typing import Protocol

from ledger.errors import RequestError
from ledger.events import AttemptRef
from ledger.journal import Journal
from ledger.names import JobId
from ledger.timings import SECOND_MS
from ledger.writer import FactWriter, drain_spools
from roles.adoption import foreign_machine, take_stock
from roles.context import Context
from roles.gate import Gate
from roles.service import Service, WorkerOptions, WorkerParts

NOT_OFFERED = "its slot is no longer offered"


class Waker(Protocol):
    """What a worker waits on."""

    def wait_ms(self, timeout_ms: int) -> bool:
        """Wait until woken (True) or for ``timeout_ms`` (False)."""


class Worker:
    """Serves one slot, from taking its lock to the end of its retirement.

    ``retire`` and ``stop_jobs`` may be called by a signal handler: they only note what is
    to be done by the next ``step``.
    """

    def __init__(self, context: Context, options: WorkerOptions, parts: WorkerParts) -> None:
        self._context = context
        self._options = options
        self._parts = parts
        self._gate = Gate(context)
        self._service: Service | None = None
        self._retiring = ""
        self._stopping = ""

    def run(self, waker: Waker) -> None:
        """Serve until retired and done.

        Raises RequestError where it must not or cannot begin, LedgerError where the ledger
        is not what the protocol allows (a job that runs goes on).
        """
        self._parts.workspace.lock()
        try:
            while (wait_ms := self.step()) is not None:
                if waker.wait_ms(wait_ms):
                    self.hurry()
        finally:
            self.close()

    def step(self) -> int | None:
        """One round; how long to wait (ms) unless woken, or None at the end.

        The slot is locked. Nothing has begun as long as the ledger cannot be read.
        """
        if self._service is None:
            self._try_to_begin()
        if self._service is None:
            # What runs here when it retires now is adopted by the next incarnation.
            return None if self._retiring else self._gate.closed_for_ms
        if self._retiring:
            self._service.retire(self._retiring)
        if self._stopping:
            self._service.stop_jobs(self._stopping)
            self._stopping = ""
        return self._service.step()

    def hurry(self) -> None:
        """Somebody says that there is a message."""
        if self._service is not None:
            self._service.hurry()

    def retire(self, reason: str) -> None:
        """Start nothing more, let what runs end, report it, and be done."""
        self._retiring = self._retiring or reason

    def stop_jobs(self, reason: str) -> None:
        """As ``retire``, and stop what runs: TERM, its grace, KILL."""
        self.retire(reason)
        self._stopping = reason

    def close(self) -> None:
        """Give up the slot. What is not yet reported is left to the next incarnation."""
        if self._service is not None:
            self._service.close()
        self._parts.workspace.unlock()

    def _try_to_begin(self) -> None:
        if self._stopping:
            for job, number in self._parts.launcher.known():
                self._parts.launcher.attempt(job, number).stop(
                    self._stopping, self._context.timings.grace_ms
                )
        if not self._retiring:
            self._gate.attempt(self._begin)
        if self._gate.refusal is not None:
            raise self._gate.refusal

    def _begin(self) -> None:
        context, parts, worker = self._context, self._parts, self._options.worker
        drain_spools(context.store, context.timings, parts.spools)
        journal = Journal(context.store, context.ledger)
        journal.load()
        state = journal.projection.state
        self._refuse_second_machine(foreign_machine(state, self._options.node, context.machine))
        notes = parts.workspace.read_notes()
        known = state.workers.get(worker)
        if known is not None:
            notes.cursor = max(notes.cursor, known.cursor)
            notes.incarnation = max(notes.incarnation, known.incarnation)
        notes.incarnation += 1
        parts.workspace.write_notes(notes)  # before anybody hears of it
        here = {
            AttemptRef(JobId(job), number): parts.launcher.attempt(job, number).state()
            for job, number in parts.launcher.known()
        }
        inheritance = take_stock(state, worker, here, notes.reported)
        writer = FactWriter(context.store, context.rng, context.timings, parts.spools, worker)
        service = Service(context, self._options, parts, writer, notes)
        service.inherit(inheritance)
        self._service = service
        if self._options.leaving:
            self.retire(NOT_OFFERED)

    def _refuse_second_machine(self, machine: str) -> None:
        if machine:
            raise RequestError(
                f"node {self._options.node} belongs to another machine ({machine}): give this "
                f"one another name with --node, or wait until that one has been silent for "
                f"{self._context.timings.lost_ms // SECOND_MS} s"
            )
