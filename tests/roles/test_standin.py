"""A worker beats in its supervisor's place, and only then."""

from __future__ import annotations

import random
from pathlib import Path

from ledger.events import decode_beat
from ledger.keys import BEATS
from ledger.names import NodeName, WorkerName, WriterName
from ledger.timings import Timings
from roles.context import Context
from roles.lastbeat import write_last_beat
from roles.locks import FileLock
from roles.standin import StandIn
from roles.status import WorkerStatus
from roles.workspace import LocalWorkspace
from simulation.memory import ManualClock, MemoryStore
from tests.world import START_MS

NODE, WORKER = NodeName("n1"), WorkerName("n1-cpu0")


def test_a_worker_beats_once_an_interval_while_its_supervisor_is_gone_or_hangs(
    tmp_path: Path,
) -> None:
    clock = ManualClock(wall_ms=START_MS, boot_ms=1)
    store = MemoryStore(clock)
    context = Context(
        store=store,
        ledger="test",
        clock=clock,
        rng=random.Random(0),
        timings=Timings(),
        state_dir=tmp_path,
        host="host",
        machine="machine",
    )
    supervisor = FileLock.try_take(context.node_dir(NODE) / "supervisor.lock")
    assert supervisor is not None
    stand_in = StandIn(
        context,
        LocalWorkspace(context, NODE, WORKER),
        WriterName("n1-cpu0~aaaaaaaa"),
        worker=WORKER,
        node=NODE,
        pool="default",
    )
    status = WorkerStatus(running=("aaaaaaab.1",), newest_key="k", writer=WriterName("w"))

    def beats_in_ten_minutes(*, supervisor_beats: bool) -> int:
        before = len(list(store.list(BEATS)))
        for second in range(600):
            if supervisor_beats and second % 60 == 0:
                write_last_beat(context.node_dir(NODE), clock.boot_ms())
            clock.advance_ms(1_000)
            stand_in.beat_if_alone(status)
        return len(list(store.list(BEATS))) - before

    assert beats_in_ten_minutes(supervisor_beats=True) == 0
    # It holds its lock and hangs, since 60 s: the first is due when 120 s have passed.
    assert beats_in_ten_minutes(supervisor_beats=False) == 9
    assert beats_in_ten_minutes(supervisor_beats=True) == 0
    supervisor.release()
    assert beats_in_ten_minutes(supervisor_beats=True) == 10
    newest = list(store.list(BEATS))[-1]
    body = store.get(newest.key)
    assert body is not None
    beat = decode_beat(body)
    assert (beat.node, beat.machine, beat.newest) == (NODE, "machine", {"w": "k"})
    assert beat.slots[WORKER].alive
    assert beat.slots[WORKER].running == "aaaaaaab.1"
