"""A leader while the bucket can be read and takes no writes: then nobody else can beat."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import TransientError
from ledger.events import AttemptStarted, JobState, Liveness
from ledger.names import JobId, NodeName, WorkerName
from ledger.stores.settling import NEWS_PATIENCE_MS
from ledger.timings import MINUTE_MS, SECOND_MS
from simulation.memory import ManualClock, MemoryStore
from tests.roles.test_leader import TIMINGS, Bench
from tests.world import START_MS


class ReadOnlyStore(MemoryStore):
    """Once ``refuses``, a put takes as long as the real stores wait for news."""

    refuses = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._manual = clock

    def before(self, op: str, key: str) -> None:
        if op == "put" and self.refuses:
            self._manual.advance_ms(NEWS_PATIENCE_MS)
            raise TransientError("503")


class Led:
    """A ledger whose one dispatcher is at work whenever time passes."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = ManualClock(wall_ms=START_MS, boot_ms=1_000_000)
        self.store = ReadOnlyStore(self.clock)
        self.bench = Bench(tmp_path, self.store)
        self.bench.clock = self.clock
        self._dispatcher = self.bench.dispatcher()

    def pass_ms(self, duration_ms: int) -> None:
        ends_ms = self.clock.boot_ms() + duration_ms
        while self.clock.boot_ms() < ends_ms:
            self.clock.advance_ms(self._dispatcher.step())

    def start_job(self) -> JobId:
        """A job that runs on ``n1``."""
        self.pass_ms(5_000)
        self.bench.ready()
        job = self.bench.submit()
        self.pass_ms(5_000)
        now_ms = self.store.clock_ms()
        worker = WorkerName("n1-cpu0")
        started = AttemptStarted(at=now_ms, worker=worker, cursor=1, job=job, attempt=1)
        self.bench.fact(started, worker)
        self.pass_ms(5_000)
        assert self.job_state(job) is JobState.RUNNING
        return job

    def liveness(self) -> Liveness:
        return self.bench.fold().projection.state.nodes[NodeName("n1")].liveness

    def job_state(self, job: JobId) -> JobState:
        return self.bench.fold().projection.state.jobs[job].state


# Whether a fault shows depends on where in its round an outage meets the leader.
@pytest.mark.parametrize("outage_s", range(180, 1_300, 40))
def test_time_in_which_nobody_can_write_is_nobodys_silence(tmp_path: Path, outage_s: int) -> None:
    led = Led(tmp_path)
    job = led.start_job()
    led.store.refuses = True
    led.pass_ms(outage_s * SECOND_MS)
    led.store.refuses = False
    led.pass_ms(TIMINGS.beat_ms)
    assert led.liveness() is Liveness.FRESH
    assert led.job_state(job) is JobState.RUNNING


def test_after_an_outage_a_node_that_stays_silent_is_noticed(tmp_path: Path) -> None:
    led = Led(tmp_path)
    led.start_job()
    led.store.refuses = True
    led.pass_ms(5 * MINUTE_MS)
    led.store.refuses = False
    led.pass_ms(2 * TIMINGS.beat_ms + TIMINGS.fresh_ms + MINUTE_MS)
    assert led.liveness() is Liveness.STALE
