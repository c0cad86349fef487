"""The process of one worker, or of several, on a real machine: its parts, and its signals.

SIGTERM or SIGINT retires it (what runs ends and is reported, nothing new starts); the same
signal again, or SIGUSR2, also stops what runs. SIGUSR1 retires it however often it comes.

Workers that share a process have a thread each and share nothing else. One that must not or
cannot serve is tried again after a while, as a supervisor would; what no worker should ever
raise ends the process, which costs no job anything.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from ledger.errors import LedgerError, RequestError
from ledger.names import WorkerName
from ledger.spool import DirectorySpools
from roles.context import Context
from roles.devices import Reading
from roles.launcher import LocalLauncher
from roles.service import WorkerOptions, WorkerParts
from roles.wake import WakeFifo, wake
from roles.worker import NOT_OFFERED, Worker
from roles.workspace import LocalWorkspace

TRY_AGAIN_MS = 10_000
"""After so long a worker that shares its process tries to serve again."""

EX_SOFTWARE = 70

log = structlog.get_logger()


def serve(
    context: Context,
    options: WorkerOptions,
    read_gpus: Callable[[], Mapping[WorkerName, Reading]] = dict,
) -> None:
    """Be the worker of this slot until it has retired. To be called in the main thread.

    Raises RequestError where the slot is taken or cannot be served, LedgerError.
    """
    served = Served(context, options, read_gpus)
    _heed([served])
    served.run()


def serve_together(context: Context, workers: Sequence[WorkerOptions]) -> None:
    """Be the workers of these slots until all have retired. To be called in the main thread."""
    all_served = [
        Served(replace(context, rng=random.Random(context.rng.getrandbits(64))), options)
        for options in workers
    ]
    _heed(all_served)
    with ThreadPoolExecutor(len(all_served), "worker") as threads:
        futures = [threads.submit(served.run_for_ever) for served in all_served]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for error in filter(None, (future.exception() for future in done)):
            log.error("the process of these workers ends", exc_info=error)
            os._exit(EX_SOFTWARE)  # the others are killed in mid-step, which they survive


class Served:
    """A slot and whoever serves it. What is ordered also holds for who serves it later."""

    def __init__(
        self,
        context: Context,
        options: WorkerOptions,
        read_gpus: Callable[[], Mapping[WorkerName, Reading]] = dict,
    ) -> None:
        self._context = context
        self._options = options
        self._read_gpus = read_gpus
        self._folder = context.worker_dir(options.worker)
        self._worker = self._new_worker()
        self._orders: list[Callable[[Worker], None]] = []

    def run(self) -> None:
        """Until it has retired; raises what its worker raises."""
        fifo = WakeFifo(self._wake)
        try:
            self._worker.run(fifo)
        finally:
            fifo.close()

    def run_for_ever(self) -> None:
        """Until it has retired, whatever is in the way meanwhile."""
        while True:
            try:
                self.run()
            except (RequestError, LedgerError) as error:
                log.error("cannot serve", worker=self._options.worker, reason=str(error))
            else:
                return
            if self._orders:
                return
            self._context.clock.sleep_ms(TRY_AGAIN_MS)
            self._worker = self._new_worker()
            for order in self._orders:
                order(self._worker)

    def tell(self, order: Callable[[Worker], None]) -> None:
        """Have it done by the next step; for signal handlers."""
        self._orders.append(order)
        order(self._worker)
        wake(self._wake)

    @property
    def _wake(self) -> Path:
        return self._folder / "wake"

    def _new_worker(self) -> Worker:
        options = self._options
        parts = WorkerParts(
            launcher=LocalLauncher(self._folder / "jobs"),
            spools=DirectorySpools(self._context.spools_dir),
            workspace=LocalWorkspace(self._context, options.node, options.worker),
            read_gpus=self._read_gpus,
        )
        return Worker(self._context, options, parts)


def _heed(workers: Sequence[Served]) -> None:
    heard: set[int] = set()

    def heed(signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGUSR1:
            order = partial(Worker.retire, reason=NOT_OFFERED)
        elif signum in heard or signum == signal.SIGUSR2:
            order = partial(Worker.stop_jobs, reason="its node was stopped")
        else:
            order = partial(Worker.retire, reason="its node was stopped")
        heard.add(signum)
        for worker in workers:
            worker.tell(order)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, heed)
