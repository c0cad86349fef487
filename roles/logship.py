"""The way of an attempt's log into the bucket: pieces while it grows, then the whole.

Owns ``logs/<job>.<attempt>/<n>`` and ``logs/<job>.<attempt>.log``. A piece is the raw
bytes between two offsets of the log. Its bounds are noted on the disk before it is put, so
that the worker that comes after a crash puts the same bytes under the same number; what
comes after is a new piece. Thus the pieces are contiguous and hold no byte twice. The
whole log ends with a line ``rc=N``.

The first piece goes out ``log_flush_min_ms`` after the start; each further one takes twice
as long as the one before, up to ``log_flush_max_ms``; ``LOG_FLUSH_BYTES`` go out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledger.events import AttemptRef
from ledger.keys import log_key, log_piece_key
from ledger.timings import LOG_FLUSH_BYTES
from roles.context import Context
from roles.launcher import JobHandle
from roles.workspace import LogNote

PIECE_MAX_BYTES = 4 * LOG_FLUSH_BYTES
"""What gathered while the bucket was away goes out in pieces of this size."""


class LogShipper:
    """Ships the log of one attempt. ``note`` is where an earlier worker stood."""

    def __init__(
        self,
        context: Context,
        ref: AttemptRef,
        handle: JobHandle,
        note: LogNote,
        keep: Callable[[LogNote], None],
    ) -> None:
        """``keep`` makes a note durable."""
        self._context = context
        self._ref = ref
        self._handle = handle
        self._keep = keep
        self._n, self._sent_bytes, self._end_bytes = note.n, note.start, note.end
        self._inherited = note.end > note.start
        self._interval_ms = context.timings.log_flush_min_ms
        self._due_ms = context.clock.boot_ms() + self._interval_ms

    def ship_due(self) -> None:
        """Put a piece if it is time for one. Raises TransientError: call again.

        At most two requests, and only the first call of a process makes the second.
        """
        unsent = self._handle.log_size() - self._sent_bytes
        now_ms = self._context.clock.boot_ms()
        if unsent >= LOG_FLUSH_BYTES or (unsent > 0 and now_ms >= self._due_ms):
            self._ship_piece()
            timings = self._context.timings
            self._interval_ms = min(2 * self._interval_ms, timings.log_flush_max_ms)
            self._due_ms = now_ms + self._interval_ms

    def ship_rest(self) -> None:
        """Put all that is not yet put as pieces, of a log that has ended without an rc."""
        while self._sent_bytes < self._handle.log_size():
            self._ship_piece()

    def ship_whole(self, rc: int, notes: Sequence[str] = ()) -> None:
        """Put the whole log of an attempt that has ended, and what there is to note. One PUT."""
        log = self._handle.final_log() if self._handle.state() == "ended" else b""
        newline = b"\n" if log and not log.endswith(b"\n") else b""
        lines = b"".join(f"[gpuq: left out: {note}]\n".encode() for note in notes)
        key = log_key(self._ref.job, self._ref.attempt)
        self._context.store.put_once(key, b"%b%b%brc=%d\n" % (log, newline, lines, rc))

    def _ship_piece(self) -> None:
        key = log_piece_key(self._ref.job, self._ref.attempt, self._n)
        # What an earlier worker put counts as it stands: after a power cut the log on this
        # disk may have lost the end of it.
        standing = self._context.store.get(key) if self._inherited else None
        piece = self._put(key) if standing is None else standing
        self._inherited = False
        self._n += 1
        self._sent_bytes += len(piece)
        self._end_bytes = self._sent_bytes

    def _put(self, key: str) -> bytes:
        """Put the piece that is underway, or else the next one; its bytes."""
        if self._end_bytes == self._sent_bytes:
            end = min(self._handle.log_size(), self._sent_bytes + PIECE_MAX_BYTES)
            self._keep(LogNote(self._n, self._sent_bytes, end))
            self._end_bytes = end
        piece = self._handle.read_log(self._sent_bytes, self._end_bytes - self._sent_bytes)
        self._context.store.put_once(key, piece)
        return piece
