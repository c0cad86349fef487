"""``gpuq.Executor``: the interface of ``concurrent.futures``, each call a job of the queue.

Owns the futures of the calls that this process submitted, and the thread that settles them
by what the journal says. It promises what the library's documentation promises of any
executor; where a queue cannot, docs/PYTHON.md says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from gpuq.api import Job, OptionValue, Queue, Standing, said_by
from ledger.errors import GpuqError, RequestError, TransientError
from ledger.events import JobState

P = ParamSpec("P")
T = TypeVar("T")

_DECIDED_PATIENCE_LOOKS = 40
"""So often ``cancel`` looks whether the leader has decided; about 20 seconds."""


class JobFuture(futures.Future[T]):
    """The future of a call; ``job`` is the job that makes it."""

    def __init__(self, job: Job, look: Callable[[], None]) -> None:
        """``look`` settles what can be settled by what is posted now."""
        super().__init__()
        self.job = job
        self._look = look
        self._settling = threading.Lock()

    def cancel(self) -> bool:
        """Whether the call will not be made. Asks the queue, and waits for its answer.

        A call that has begun goes on, and this returns False; so it does where nobody
        decides within 20 seconds, but then the request stands.
        """
        self._look()
        if not (self.running() or self.done()):
            self.job.cancel("its future was cancelled")
            for _ in range(_DECIDED_PATIENCE_LOOKS):
                self._look()
                if self.running() or self.done():
                    break
                self.job.queue.pause()
        return self.cancelled()

    def settle(self, standing: Standing) -> None:
        """Move on to where the job stands; any thread may."""
        if self.done():
            return
        with self._settling:
            if self.done():
                return
            if standing.state is JobState.CANCELLED and not standing.has_started:
                super().cancel()
                self.set_running_or_notify_cancel()
                return
            if not self.running() and (standing.has_started or standing.state.ended):
                self.set_running_or_notify_cancel()
            if standing.state.ended:
                self._set_outcome(standing)

    def fail(self, error: GpuqError) -> None:
        """Nothing more can be learnt of the call."""
        with self._settling:
            if not self.done():
                self.set_exception(error)

    def _set_outcome(self, standing: Standing) -> None:
        try:
            log = self.job.whole_log(standing)
        except TransientError:
            return  # it comes later
        try:
            value = self.job.value_in(log, standing)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks for the result
            self.set_exception(error)
        else:
            self.set_result(value)


class Executor(futures.Executor):
    """Calls functions on the nodes of a queue.

    >>> with Executor(gpus=1, time="1h") as executor:
    ...     losses = list(executor.map(train, [1e-3, 1e-4]))
    """

    def __init__(
        self, queue: Queue | None = None, *, python: str = "python3", **options: OptionValue
    ) -> None:
        """``python`` and ``options`` are as in ``Queue.submit``, for each call.

        Raises RequestError for ``key``, which would make all calls one job.
        """
        if options.get("key") is not None:
            raise RequestError("key= names one job, and an Executor submits many: leave it out")
        said_by(options)
        self._queue = queue if queue is not None else Queue()
        self._python = python
        self._options = options
        self._lock = threading.Lock()
        self._open: list[JobFuture[Any]] = []
        self._watcher: threading.Thread | None = None
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> JobFuture[T]:
        """Submit the call as a job; it is in the store when this returns."""
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            job = self._queue.submit(fn, *args, kwargs=kwargs, python=self._python, **self._options)
            future: JobFuture[T] = JobFuture(job, self._look)
            self._open.append(future)
            if self._watcher is None:
                # No daemon: as with every executor, Python ends when all futures are done.
                self._watcher = threading.Thread(target=self._watch, name="gpuq-executor")
                self._watcher.start()
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """As the library's; each ``chunksize`` calls are one job, made one after the other."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        calls = zip(*iterables, strict=False)
        chunks = iter(lambda: list(islice(calls, chunksize)), [])
        give_up_s = None if timeout is None else time.monotonic() + timeout
        unfinished = [self.submit(_in_turn(fn), chunk) for chunk in chunks]
        unfinished.reverse()

        def values() -> Iterator[T]:
            try:
                while unfinished:
                    left_s = None if give_up_s is None else give_up_s - time.monotonic()
                    yield from unfinished.pop().result(left_s)
            finally:
                self._request_cancel(unfinished)

        return values()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait`` return when all futures are done.

        With ``cancel_futures`` a cancel is asked for each call that has not begun.
        """
        with self._lock:
            self._is_shut_down = True
            unfinished, watcher = list(self._open), self._watcher
        if cancel_futures:
            self._request_cancel(unfinished)
        if wait and watcher is not None and watcher is not threading.current_thread():
            watcher.join()

    def _request_cancel(self, unwanted: Sequence[JobFuture[Any]]) -> None:
        """Of those that have not begun; waits for no answer."""
        if unwanted:
            self._look()
        for future in unwanted:
            if not (future.running() or future.done()):
                self._queue.request_cancel(future.job.id, "its executor no longer wants it")

    def _watch(self) -> None:
        """Settle futures until none is open."""
        while True:
            with self._lock:
                self._open = [future for future in self._open if not future.done()]
                if not self._open:
                    self._watcher = None
                    return
            try:
                self._look()
            except TransientError:
                pass  # a future cannot be asked again, so this outlasts any outage
            except GpuqError as error:
                self._fail(error)
            self._queue.pause()

    def _look(self) -> None:
        self._queue.follow()
        with self._lock:
            unfinished = [future for future in self._open if not future.done()]
        for future in unfinished:
            future.settle(self._queue.standing(future.job.id))

    def _fail(self, error: GpuqError) -> None:
        """Nothing more can be learnt of any call."""
        with self._lock:
            unfinished = [future for future in self._open if not future.done()]
        for future in unfinished:
            future.fail(error)


def _in_turn(fn: Callable[..., T]) -> Callable[[list[tuple[Any, ...]]], list[T]]:
    """A function of several calls of ``fn``.

    It is local, so that it is pickled whole: gpuq need not be installed where it is called.
    """

    def call_each(calls: list[tuple[Any, ...]]) -> list[T]:
        return [fn(*args) for args in calls]

    call_each.__qualname__ = getattr(fn, "__qualname__", "map")
    return call_each
