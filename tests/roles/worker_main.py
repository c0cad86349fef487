"""The worker's process for tests: ``python -m tests.roles.worker_main STORE STATE TIMINGS``."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import msgspec

from ledger.clock import SystemClock
from ledger.errors import GpuqError
from ledger.events import Slot
from ledger.stores.directory import DirectoryStore
from ledger.timings import Timings
from roles.context import Context
from roles.jobplan import JobBase, safe_env
from roles.processes import boot_id, identity_of
from roles.service import WorkerOptions
from roles.worker_process import serve
from tests.roles.worker_rig import NODE, WORKER


def context_of(store: Path, state: Path, timings: Timings) -> Context:
    clock, rng = SystemClock(), random.Random()
    return Context(
        store=DirectoryStore(store, clock=clock, rng=rng),
        ledger="test",
        clock=clock,
        rng=rng,
        timings=timings,
        state_dir=state,
        host="host1",
        machine="m1",
    )


def main(store: str, state: str, timings: str) -> None:
    options = WorkerOptions(
        worker=WORKER,
        node=NODE,
        pool="default",
        slot=Slot(kind="cpu", index=0),
        job_base=JobBase(
            boot_id=boot_id(), env=safe_env(os.environ), secrets_dir=Path("/no/secrets")
        ),
        process=identity_of(os.getpid()),
    )
    serve(context_of(Path(store), Path(state), msgspec.json.decode(timings, type=Timings)), options)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except GpuqError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
