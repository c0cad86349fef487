"""An order to drain that comes while a worker is being started reaches it as well."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.events import Slot
from ledger.names import NodeName, WorkerName
from ledger.timings import Timings
from roles.context import Context
from roles.status import WorkerStatus
from roles.supervisor import Supervisor, SupervisorOptions
from simulation.memory import ManualClock, MemoryStore

WORKER = WorkerName("n1-cpu0")


class SlowHost:
    """Its only worker ends when it is signalled, and nobody knows it before it was started."""

    def __init__(self, during_start: Callable[[], None]) -> None:
        self._during_start = during_start
        self.living = False
        self.heard: list[signal.Signals] = []
        self._looks = 0

    def process_of(self, worker: WorkerName) -> str:
        return worker

    def take(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def start(self, name: str, leaving: Slot | None = None) -> None:
        self._during_start()
        self.living = True

    def runs(self, name: str) -> bool:
        self._looks += 1
        assert self._looks < 1_000, "it waits for a worker that was told nothing"
        return self.living

    def ended(self, name: str) -> int | str | None:
        return None

    def signal(self, name: str, signum: signal.Signals) -> None:
        if self.living:
            self.heard.append(signum)
            self.living = False

    def dismiss(self, worker: WorkerName) -> None:
        raise AssertionError("no slot leaves")

    def status(self, name: str) -> WorkerStatus | None:
        return None

    def note_beat(self, boot_ms: int) -> None:
        pass

    def free_bytes(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("order", "signum"), [("drain", signal.SIGTERM), ("stop_jobs", signal.SIGUSR2)]
)
def test_a_worker_that_is_being_started_hears_the_order_too(
    order: str, signum: signal.Signals
) -> None:
    clock = ManualClock()
    context = Context(
        store=MemoryStore(clock),
        ledger="test",
        clock=clock,
        rng=random.Random(1),
        timings=Timings(),
        state_dir=Path("/nonexistent"),
        host="host1",
        machine="m1",
    )
    options = SupervisorOptions(
        node=NodeName("n1"),
        pool="default",
        slots={WORKER: Slot(kind="cpu", index=0)},
        dispatches=False,
        read_gpus=lambda: (),
    )
    host = SlowHost(lambda: getattr(supervisor, order)())
    supervisor = Supervisor(context, options, host)
    supervisor.run()
    assert host.heard == [signum]
