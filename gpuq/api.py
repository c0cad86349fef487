"""gpuq from Python: a queue, and the jobs in it.

Owns what ``import gpuq`` offers for scripts, commands and single calls of functions
(docs/PYTHON.md); ``gpuq/executor.py`` makes futures of them. It asks for what the command
line asks for, by the same table of options and with the same errors; nothing is printed on
stdout. A ``Queue`` may be used by several threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from gpuq.calls import find_outcome, name_of, pack_call, value_of
from gpuq.cli import app
from gpuq.client import open_client
from gpuq.config import Invocation, StoreFlags
from gpuq.joboptions import JOB_OPTIONS
from gpuq.logs import FOLLOW_MAX_MS, FOLLOW_MIN_MS, NO_RC, WHOLE_PATIENCE_MS, read_log
from gpuq.options import Kind, Option
from gpuq.script import Body, read_script
from gpuq.selectors import select
from gpuq.submission import submit_wish, wish_for
from gpuq.view import View, read_view
from ledger.errors import GpuqError, RequestError
from ledger.events import CancelRequested, JobState
from ledger.names import JobId

OptionValue = str | int | bool | timedelta | Sequence[str] | Mapping[str, str] | None
"""Of an option of ``gpuq submit``; None says nothing."""

Target = Callable[..., Any] | str | os.PathLike[str] | Sequence[str]
"""A function, a script's file, or the words of a command."""


class JobFailedError(GpuqError):
    """A job ended otherwise than COMPLETED, or without the result that was asked for.

    ``exit_code`` is that of ``gpuq wait``: the job's own, or 77 where it has none.
    """

    job: JobId
    state: JobState
    rc: int | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a job stands in the journal."""

    state: JobState
    rc: int | None = None
    reason: str = ""
    has_started: bool = False


class Queue:
    """A ledger, opened as the command line opens it. Makes no request before it is needed."""

    def __init__(
        self,
        store: str | None = None,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        ca_bundle: str | None = None,
    ) -> None:
        """Without ``store``: ``GPUQ_STORE``, the configuration file, the default folder."""
        flags = StoreFlags(
            store=store, endpoint_url=endpoint_url, region=region, ca_bundle=ca_bundle
        )
        commands: Any = typer.main.get_command(app)
        self._context = typer.Context(
            commands.commands["submit"], obj=Invocation(flags=flags, environ=dict(os.environ))
        )
        self._client = open_client(self._context)
        self._journal = self._client.load_journal()
        self._lock = threading.RLock()
        """Over the journal, of which there is one for all threads."""

    def submit(
        self,
        target: Target,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        python: str = "python3",
        **options: OptionValue,
    ) -> Job:
        """Submit a job; it is in the store when this returns.

        A string or path is a script's file and ``args`` its arguments; a list or tuple of
        strings is a command; whatever can be called is called with ``args`` and ``kwargs`` by
        the program ``python`` of the node. ``options`` are those of ``gpuq submit``, with
        ``_`` for ``-`` and ``class_`` for ``--class``.

        Raises RequestError for what the command line would refuse, TransientError where the
        store gives no news.
        """
        said = said_by(options)
        body = _body(target, args, kwargs or {}, python)
        with self._lock:
            view = self._view()
            wish = wish_for(self._context, self._client, view, body, said)
            submit_wish(self._client, view, wish)
        spec = wish.spec
        return Job(self, spec.id, spec.name, is_call=callable(target))

    def job(self, selector: str) -> Job:
        """The job that ``selector`` stands for on the command line: an id, a name, ``last``."""
        with self._lock:
            view = self._view()
            job = select(self._client, view, selector)
            known = view.state.jobs.get(job)
        return Job(self, job, known.spec.name if known is not None else "")

    def _view(self) -> View:
        self._journal.follow()
        return read_view(self._journal, self._client.settings.timings)

    def follow(self) -> None:
        """Read what was posted since. One GET, and one for each page that is new."""
        with self._lock:
            # Page by page: more at once takes threads, which a Python that is about to end
            # no longer starts.
            self._journal.follow(batch_max=1)

    def standing(self, job: JobId) -> Standing:
        """Where ``job`` stands by what was read last; PENDING where nothing is known yet."""
        with self._lock:
            state = self._journal.projection.state
            known, archived = state.jobs.get(job), state.archive.get(job)
            if known is not None:
                last = known.last
                return Standing(
                    state=known.state,
                    rc=last.rc if last is not None and known.state.ended else None,
                    reason=known.reason,
                    has_started=any(a.started_at is not None for a in known.attempts),
                )
            if archived is not None:
                return Standing(state=archived.state, rc=archived.rc, has_started=True)
            if job in state.refused:
                return Standing(state=JobState.REJECTED, reason=state.refused[job])
        return Standing(state=JobState.PENDING)

    def log(self, job: JobId) -> tuple[bytes, bool]:
        """What the newest attempt of ``job`` wrote so far, and whether that is all."""
        with self._lock:
            return read_log(self._client, self._journal, job)

    def request_cancel(self, job: JobId, reason: str) -> None:
        """Ask for the end of ``job``; the leader's next page decides."""
        client = self._client
        fact = CancelRequested(
            job=job, at=client.store.clock_ms(), by=client.settings.user.value, reason=reason
        )
        client.send(fact, f"the cancel of {job}")

    def pause(self) -> None:
        """Between two looks at what is posted."""
        self._client.clock.sleep_ms(self._client.rng.randint(FOLLOW_MIN_MS, FOLLOW_MAX_MS))


class Job:
    """One job of a queue; ``id`` and ``name`` are what the command line shows."""

    def __init__(self, queue: Queue, id: JobId, name: str, *, is_call: bool = False) -> None:
        """``is_call``: it is known to call a function, so what it writes is no result."""
        self.queue = queue
        self.id = id
        self.name = name
        self._is_call = is_call

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name}>"

    @property
    def state(self) -> JobState:
        """Where it stands now."""
        return self.standing().state

    def standing(self) -> Standing:
        """Where it stands now, with its exit code and reason."""
        self.queue.follow()
        return self.queue.standing(self.id)

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait until it has ended; how. Raises TimeoutError after ``timeout`` seconds."""
        return self._ended(timeout).state

    def result(self, timeout: float | None = None) -> Any:
        """Wait until it has ended; what the function returned, else what the job wrote (bytes).

        Raises what the function raised; JobFailedError where the job did not complete;
        TimeoutError after ``timeout`` seconds.
        """
        standing = self._ended(timeout)
        return self.value_in(self.whole_log(standing), standing)

    def logs(self) -> bytes:
        """What it has written so far, in its newest attempt."""
        self.queue.follow()
        return self.queue.log(self.id)[0]

    def cancel(self, reason: str = "") -> None:
        """Ask for its end, as ``gpuq cancel`` does; does nothing where it has ended."""
        if not self.state.ended:
            self.queue.request_cancel(self.id, reason)

    def value_in(self, log: bytes, standing: Standing) -> Any:
        """As ``result``, of a job that is known to have ended so and to have written ``log``."""
        outcome = find_outcome(log, self.id)
        if outcome is not None:
            return value_of(outcome)
        if standing.state is not JobState.COMPLETED or self._is_call:
            raise _failure(self, standing)
        return log

    def _ended(self, timeout: float | None) -> Standing:
        give_up_s = None if timeout is None else time.monotonic() + timeout
        while not (standing := self.standing()).state.ended:
            if give_up_s is not None and time.monotonic() >= give_up_s:
                raise TimeoutError(f"{self.id} is {standing.state.value} after {timeout:g} s")
            self.queue.pause()
        return standing

    def whole_log(self, standing: Standing) -> bytes:
        """The log of a job that has ended so, which may be there a moment later."""
        give_up_s = time.monotonic() + WHOLE_PATIENCE_MS / 1000
        log, is_whole = self.queue.log(self.id)
        while not is_whole and standing.rc is not None and time.monotonic() < give_up_s:
            self.queue.pause()
            log, is_whole = self.queue.log(self.id)
        return log


def submit(
    target: Target,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    python: str = "python3",
    **options: OptionValue,
) -> Job:
    """``Queue().submit(...)``: one job in the ledger that the settings name."""
    return Queue().submit(target, *args, kwargs=kwargs, python=python, **options)


def _failure(job: Job, standing: Standing) -> JobFailedError:
    rc = "" if standing.rc is None else f", rc={standing.rc}"
    reason = standing.reason
    if standing.state is JobState.COMPLETED:
        reason = "it told no result"
    error = JobFailedError(
        f"{job.id} ({job.name}) ended as {standing.state.value}{rc}"
        f"{f': {reason}' if reason else ''}; see 'gpuq logs {job.id}'"
    )
    error.job, error.state, error.rc = job.id, standing.state, standing.rc
    error.exit_code = NO_RC if standing.rc is None else standing.rc
    return error


def said_by(options: Mapping[str, OptionValue]) -> dict[str, Any]:
    """``options`` as flags say them. Raises RequestError for one that there is none of."""
    known = {option.parameter: option for option in JOB_OPTIONS}
    said: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            mend = f"did you mean {near[0]!r}?" if near else "see 'gpuq submit --help'"
            raise RequestError(f"{name!r} is no option of a job: {mend}")
        if value is not None:
            said[name] = _as_flag(known[name], value)
    return said


def _as_flag(option: Option[Any], value: Any) -> Any:
    match option.kind, value:
        case Kind.SWITCH, bool():
            return value
        case ((Kind.LIST | Kind.GATHERED), Mapping()):
            return [f"{name}={text}" for name, text in value.items()]
        case ((Kind.LIST | Kind.GATHERED), (list() | tuple())):
            return [str(word) for word in value]
        case ((Kind.LIST | Kind.GATHERED), str()):
            return [value]
        case Kind.VALUE, timedelta():
            return f"{round(value.total_seconds())}s"
        case Kind.VALUE, (str() | int()) if not isinstance(value, bool):
            return str(value)
    raise RequestError(f"{option.parameter}={value!r}: say it as 'gpuq submit {option.flags[0]}'")


def _body(target: Target, args: Sequence[Any], kwargs: Mapping[str, Any], python: str) -> Body:
    if callable(target):
        script = pack_call(target, args, kwargs, python=python)
        return Body(name=name_of(target), script=script)
    if kwargs:
        raise RequestError("kwargs= go to functions: give a script its arguments as words")
    words = tuple(str(word) for word in args)
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        return Body(name=Path(path).name, path=path, script=read_script(path), argv=words)
    command = (*(str(word) for word in target), *words)
    if not command or not command[0]:
        raise RequestError("the command is empty: name a program")
    return Body(name=os.path.basename(command[0]) or command[0], argv=command)
