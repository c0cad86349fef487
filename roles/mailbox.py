"""A worker's mailbox: reading on, ahead of what it can act on.

Owns the number of the next message and those that were read and are not yet handled. It
reads by GET of the predicted next name. An order to run waits here until the slot is
free; an order to stop is given out at once, whatever stands before it. A message that this
version cannot read stays in its place: nothing behind it is run, and why is said.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ledger.errors import LedgerError
from ledger.events import SCHEMA, AnyMessage, RunMessage, StopMessage, decode_message
from ledger.journal import decode_header_of
from ledger.keys import message_key
from ledger.names import WorkerName
from roles.context import Context

LOOK_MAX = 16
"""Messages read in one look; the next look follows at once if there may be more."""

_JITTER_PERCENT = 20


class Unreadable(msgspec.Struct, frozen=True):
    """A message of a newer version, or of a kind that this one does not know."""

    n: int
    reason: str


class Mailbox:
    """The mailbox of ``worker`` from message ``first`` on."""

    def __init__(self, context: Context, worker: WorkerName, first: int) -> None:
        self._context = context
        self._worker = worker
        self._next = first
        self._waiting: deque[RunMessage | Unreadable] = deque()
        self._stops: deque[StopMessage] = deque()
        self._due_ms = 0

    @property
    def cursor(self) -> int:
        """The number of the first message that is not handled."""
        return min([self._next, *(queue[0].n for queue in (self._waiting, self._stops) if queue)])

    def first(self) -> RunMessage | Unreadable | None:
        """The message that is to be handled next, of those that were read."""
        return self._waiting[0] if self._waiting else None

    def handled(self) -> None:
        """The first message is dealt with; what is reported from now on says so."""
        self._waiting.popleft()

    def holds(self, job: str, attempt: int) -> bool:
        """Whether an order to run this attempt was read and is not handled."""
        return any(
            isinstance(message, RunMessage) and (message.job.id, message.attempt) == (job, attempt)
            for message in self._waiting
        )

    def due_ms(self) -> int:
        """The boot time of the next look."""
        return self._due_ms

    def hurry(self) -> None:
        """Look again at once: somebody says that there is a message."""
        self._due_ms = 0

    def first_stop(self) -> StopMessage | None:
        """The first order to stop that was read and is not handled."""
        return self._stops[0] if self._stops else None

    def stop_handled(self) -> None:
        """The first order to stop has been passed on."""
        self._stops.popleft()

    def look(self, *, followed: bool) -> None:
        """Read what has come. One GET more than messages.

        ``followed`` says that somebody wakes this worker, so that the next look can wait
        longer. Raises TransientError (nothing is lost by that), and LedgerError where a
        message is not this worker's.
        """
        for _ in range(LOOK_MAX):
            key = message_key(self._worker, self._next)
            body = self._context.store.get(key)
            if body is None:
                self._wait(followed=followed)
                return
            message = self._read(key, body)
            self._next += 1
            if isinstance(message, StopMessage):
                self._stops.append(message)
            else:
                self._waiting.append(message)

    def _wait(self, *, followed: bool) -> None:
        timings, rng = self._context.timings, self._context.rng
        interval_ms = timings.mailbox_followed_ms if followed else timings.mailbox_alone_ms
        percent = rng.randint(100 - _JITTER_PERCENT, 100 + _JITTER_PERCENT)
        self._due_ms = self._context.clock.boot_ms() + interval_ms * percent // 100

    def _read(self, key: str, body: bytes) -> AnyMessage | Unreadable:
        header = decode_header_of(body, key)
        if header.v > SCHEMA:
            return Unreadable(self._next, f"{key} has format {header.v}: upgrade gpuq")
        try:
            message = decode_message(body)
        except msgspec.ValidationError as error:
            return Unreadable(self._next, f"{key} cannot be read ({error}): upgrade gpuq")
        self._context.store.sync(key)
        if (message.ledger, message.worker, message.n) != (
            self._context.ledger,
            self._worker,
            self._next,
        ):
            raise LedgerError(f"{key} holds message {message.n} of {message.worker}")
        return message
