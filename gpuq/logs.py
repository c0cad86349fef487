"""``gpuq logs`` and ``gpuq wait``: what a job wrote, byte for byte, and its exit code.

Owns the reading of a log: whole where it is there, else its pieces by their predicted
names. What was shipped in pieces is a prefix of the whole, so a reader goes from one to
the other by counting bytes. Interrupting a reader never touches the job.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from gpuq.client import Client, open_client
from gpuq.job import Shown, rc_of
from gpuq.render import say
from gpuq.selectors import SELECTORS, select, select_many
from gpuq.view import View, read_view
from ledger.arrays import index_at, indices, member_id
from ledger.errors import RequestError
from ledger.events import JobState
from ledger.journal import Journal
from ledger.keys import LOGS, log_key, log_piece_key
from ledger.names import JobId

FOLLOW_MIN_MS = 400
FOLLOW_MAX_MS = 700
"""A follower asks again after a random time between these two."""

WHOLE_PATIENCE_MS = 10_000
"""A job's end may be known before its whole log is there; so long a follower waits for it."""

NO_RC = 77
"""Exit code for a job that ended without one (cancelled while queued, rejected, lost)."""

INTERRUPTED = 130

_RC_LINE = re.compile(rb"rc=(\d+)\n?\Z")
_ATTEMPT = re.compile(r"logs/[a-z2-7]{8}(?:_\d+)?\.(\d+)[./]")


def logs(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="An id, the beginning of one, a name, or 'last'.")
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until it ends; exit with its code.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last N lines.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Else the last.")] = None,
) -> None:
    """Show what a job wrote, exactly as it wrote it."""
    client = open_client(context)
    journal, view, job_id = _find(client, job)
    known = view.state.jobs.get(job_id)
    if known is not None and known.spec.array is not None:
        first = member_id(job_id, index_at(known.spec.array, 0))
        raise RequestError(f"{job_id} is an array: name a member, such as {first}")
    follower = _Follower(client, journal, job_id, attempt, lines)
    if not follow:
        if not follower.show():
            say(f"gpuq: {job_id} has written nothing yet ({_standing(view, job_id)})")
        return
    try:
        code = follower.follow(view)
    except KeyboardInterrupt:
        say(f"gpuq: detached; {job_id} goes on: gpuq logs -f {job_id}")
        code = INTERRUPTED
    raise typer.Exit(code)


def wait(
    context: typer.Context,
    jobs: Annotated[list[str], typer.Argument(metavar="JOB", help=SELECTORS)],
) -> None:
    """Wait until jobs have ended; exit with the first exit code that is not 0."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    raise typer.Exit(wait_for(client, select_many(client, view, jobs, asks_for_all=False)))


def wait_for(client: Client, ids: Sequence[JobId]) -> int:
    """Until all have ended, and say how; the first exit code that is not 0, else 0.

    Ctrl-C only detaches, with ``INTERRUPTED``.
    """
    journal = client.load_journal()
    try:
        say(f"gpuq: waits for {len(ids)} job{'' if len(ids) == 1 else 's'}; Ctrl-C only detaches")
        view = _view_of_ends(client, journal, ids)
    except KeyboardInterrupt:
        say(f"gpuq: detached; what was waited for goes on: gpuq wait {' '.join(ids)}")
        return INTERRUPTED
    for job in ids:
        say(f"gpuq: {job} {_standing(view, job)}")
    codes = [exit_code(view, job) for job in ids]
    return next((code for code in codes if code), 0)


def _view_of_ends(client: Client, journal: Journal, ids: Sequence[JobId]) -> View:
    while True:
        view = read_view(journal, client.settings.timings)
        if all(has_ended(view, job) for job in ids):
            return view
        client.clock.sleep_ms(client.rng.randint(FOLLOW_MIN_MS, FOLLOW_MAX_MS))
        journal.follow()


def read_log(client: Client, journal: Journal, job: JobId) -> tuple[bytes, bool]:
    """What its newest attempt has written so far, and whether that is all."""
    return _Follower(client, journal, job, None, None).read()


def has_ended(view: View, job: JobId) -> bool:
    """False too where nothing is known of the job yet: a listing may skip what is new."""
    known = view.job(job)
    if known is not None:
        return known.state.ended
    never_begins = view.projection.is_of_known_array(job)
    return never_begins or job in view.state.archive or job in view.state.refused


def exit_code(view: View, job: JobId) -> int:
    """The job's own exit code; ``NO_RC`` where it ended without one.

    Of an array the first code that is not 0, in order of the indices.
    """
    known, archived = view.state.jobs.get(job), view.state.archive.get(job)
    rc = None
    if known is not None and known.spec.array is not None:
        codes = (exit_code(view, member_id(job, index)) for index in indices(known.spec.array))
        return next((code for code in codes if code), 0)
    if known is not None:
        rc = rc_of(known)
    elif archived is not None:
        rc = 0 if archived.state is JobState.COMPLETED else archived.rc
    return NO_RC if rc is None else rc


def _find(client: Client, text: str) -> tuple[Journal, View, JobId]:
    journal = client.load_journal()
    view = read_view(journal, client.settings.timings)
    return journal, view, select(client, view, text)


def _standing(view: View, job_id: JobId) -> str:
    """State and reason, in a few words."""
    job = view.job(job_id)
    if job is None:
        archived = view.state.archive.get(job_id)
        return archived.state.value if archived is not None else "refused"
    why = Shown(view).why(job)
    rc = rc_of(job)
    words = job.state.value if rc is None else f"{job.state.value}, rc={rc}"
    return f"{words}: {why}" if why else words


class _Follower:
    """Writes the log of one attempt to stdout, each byte once."""

    def __init__(
        self,
        client: Client,
        journal: Journal,
        job: JobId,
        attempt: int | None,
        lines: int | None,
    ) -> None:
        self._client = client
        self._journal = journal
        self._job = job
        self._asked_attempt = attempt
        self._lines = lines
        self._attempt = 0
        self._next_piece = 0
        self._shown_bytes = 0
        self._ended_ms = 0
        """When the end was first seen, on the boot clock; 0 before."""

    def show(self) -> bool:
        """What there is now; False where there is nothing yet."""
        data, whole = self.read()
        self._write(data)
        return bool(data) or whole

    def read(self) -> tuple[bytes, bool]:
        """What was not yet shown of the attempt, and whether that is all there will ever be."""
        self._choose_attempt()
        return self._read()

    def follow(self, view: View) -> int:
        """Until the job has ended; its exit code."""
        said = ""
        while True:
            ended = has_ended(view, self._job) or self._asked_attempt_is_over(view)
            data, whole = self.read()
            self._write(data)
            if ended and (whole or not self._is_to_come(view)):
                return self._code(view)
            standing = _standing(view, self._job)
            if not self._shown_bytes and standing != said:
                said = standing
                say(f"gpuq: {self._job} has written nothing yet ({standing})")
            self._pause()
            view = read_view(self._journal, self._client.settings.timings)

    def _is_to_come(self, view: View) -> bool:
        """Whether the whole log of a job that has ended should be there soon."""
        now_ms = self._client.clock.boot_ms()
        self._ended_ms = self._ended_ms or now_ms
        job = view.state.jobs.get(self._job)
        attempt = job.attempt(self._attempt) if job is not None else None
        has_rc = attempt is not None and attempt.rc is not None
        return has_rc and now_ms - self._ended_ms < WHOLE_PATIENCE_MS

    def _pause(self) -> None:
        sys.stdout.flush()
        self._client.clock.sleep_ms(self._client.rng.randint(FOLLOW_MIN_MS, FOLLOW_MAX_MS))
        self._journal.follow()

    def _asked_attempt_is_over(self, view: View) -> bool:
        job = view.state.jobs.get(self._job)
        attempt = job.attempt(self._asked_attempt or 0) if job is not None else None
        return attempt is not None and attempt.ended_at is not None

    def _choose_attempt(self) -> None:
        """The attempt asked for, else the newest; a newer one is shown from its beginning."""
        newest = self._asked_attempt or self._newest_attempt()
        if newest == self._attempt:
            return
        if self._attempt and self._shown_bytes:
            say(f"gpuq: {self._job} runs again: attempt {newest}")
        self._attempt, self._next_piece, self._shown_bytes = newest, 0, 0

    def _newest_attempt(self) -> int:
        state = self._journal.projection.state
        job = state.jobs.get(self._job)
        if job is not None or self._job not in state.archive:
            return len(job.attempts) if job is not None else 0
        found = [
            int(match[1])
            for entry in self._client.store.list(f"{LOGS}{self._job}.")
            if (match := _ATTEMPT.match(entry.key)) is not None
        ]
        return max(found, default=0)

    def _read(self) -> tuple[bytes, bool]:
        """What was not yet shown, and whether that is all there will ever be."""
        if not self._attempt:
            return b"", False
        store = self._client.store
        whole = store.get(log_key(self._job, self._attempt))
        if whole is not None:
            return self._without_rc_line(whole)[self._shown_bytes :], True
        pieces = []
        while piece := store.get(log_piece_key(self._job, self._attempt, self._next_piece)):
            pieces.append(piece)
            self._next_piece += 1
        return b"".join(pieces), False

    def _without_rc_line(self, whole: bytes) -> bytes:
        """The job's own bytes: the last line ``rc=N`` is gpuq's, and so may be a newline before."""
        match = _RC_LINE.search(whole)
        own = whole if match is None else whole[: match.start()]
        job = self._journal.projection.state.jobs.get(self._job)
        attempt = job.attempt(self._attempt) if job is not None else None
        written = attempt.log_bytes if attempt is not None and attempt.rc is not None else None
        return own[:-1] if written == len(own) - 1 else own

    def _write(self, data: bytes) -> None:
        is_first = not self._shown_bytes
        self._shown_bytes += len(data)
        if is_first and self._lines is not None:
            data = last_lines(data, self._lines)
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def _code(self, view: View) -> int:
        job = view.state.jobs.get(self._job)
        if job is not None and self._asked_attempt is not None:
            attempt = job.attempt(self._asked_attempt)
            if attempt is None:
                raise RequestError(f"{self._job} has no attempt {self._asked_attempt}")
            return NO_RC if attempt.rc is None else attempt.rc
        return exit_code(view, self._job)


def last_lines(data: bytes, count: int) -> bytes:
    """The last ``count`` lines of ``data``; a last line without its end counts."""
    if count == 0:
        return b""
    at = len(data)
    if data.endswith(b"\n"):
        at -= 1
    for _ in range(count):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]
