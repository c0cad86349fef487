"""The process of a worker on a real machine: its parts, and the signals it heeds.

SIGTERM or SIGINT retires it (what runs ends and is reported, nothing new starts); the same
signal again, or SIGUSR2, also stops what runs. SIGUSR1 retires it however often it comes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from types import FrameType

from ledger.names import WorkerName
from ledger.spool import DirectorySpools
from roles.context import Context
from roles.devices import Reading
from roles.launcher import LocalLauncher
from roles.service import WorkerOptions, WorkerParts
from roles.wake import WakeFifo, wake
from roles.worker import NOT_OFFERED, Worker
from roles.workspace import LocalWorkspace


def serve(
    context: Context,
    options: WorkerOptions,
    read_gpus: Callable[[], Mapping[WorkerName, Reading]] = dict,
) -> None:
    """Be the worker of this slot until it has retired. To be called in the main thread.

    Raises RequestError where the slot is taken or cannot be served, LedgerError.
    """
    folder = context.worker_dir(options.worker)
    parts = WorkerParts(
        launcher=LocalLauncher(folder / "jobs"),
        spools=DirectorySpools(context.spools_dir),
        workspace=LocalWorkspace(context, options.node, options.worker),
        read_gpus=read_gpus,
    )
    worker = Worker(context, options, parts)
    fifo = WakeFifo(folder / "wake")
    heard: set[int] = set()

    def heed(signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGUSR1:
            worker.retire(NOT_OFFERED)
        elif signum in heard or signum == signal.SIGUSR2:
            worker.stop_jobs("its node was stopped")
        else:
            worker.retire("its node was stopped")
        heard.add(signum)
        wake(folder / "wake")

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, heed)
    try:
        worker.run(fifo)
    finally:
        fifo.close()
