"""A fleet in one process: a real leader, and workers played by writing their facts.

What the commands show is thus made by the real ``decide`` and read from a real folder, and
a test says when a page is posted.
"""

from __future__ import annotations

import random
from pathlib import Path

from ledger import events as e
from ledger.clock import SystemClock
from ledger.journal import Journal, create_ledger
from ledger.keys import log_key, log_piece_key
from ledger.names import JobId, NodeName, WorkerName
from ledger.spool import DirectorySpools
from ledger.state import Attempt, State
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore
from ledger.timings import Timings
from ledger.writer import BeatWriter, FactWriter, new_writer
from roles.context import Context
from roles.leader import Leader


class Fleet:
    """A ledger in the folder ``root``, its leader, and any number of workers."""

    def __init__(self, root: Path, state_dir: Path) -> None:
        clock, self._rng = SystemClock(), random.Random(7)
        self.store: SettlingStore = open_store(str(root), clock=clock, rng=self._rng)
        info = create_ledger(self.store, self._rng)
        self._context = Context(
            store=self.store,
            ledger=info.ledger,
            clock=clock,
            rng=self._rng,
            timings=Timings(),
            state_dir=state_dir,
            host="fleet",
            machine="fleet",
        )
        self._journal = Journal(self.store, info.ledger)
        self._leader: Leader | None = None
        self._writers: dict[str, FactWriter] = {}

    @property
    def state(self) -> State:
        """What the leader knows; changed by ``post`` alone."""
        return self._journal.projection.state

    def post(self) -> None:
        """Have the leader post everything that was reported; elected at the first call."""
        if self._leader is None:
            self._journal.load()
            writer = new_writer(self._rng, "dispatcher-fleet")
            self._leader = Leader(self._context, self._journal, writer, lambda decisions: None)
            assert self._leader.elect()
        self._leader.step()

    def ready(
        self,
        worker: str,
        *,
        pool: str = "default",
        gpu: str = "",
        memory_bytes: int = 0,
        price_micros: int = 0,
    ) -> None:
        """A worker reports for the first time."""
        node, _, slot = worker.rpartition("-")
        fact = e.WorkerReady(
            at=self.store.clock_ms(),
            worker=WorkerName(worker),
            cursor=0,
            node=NodeName(node),
            machine=node,
            pool=pool,
            price_micros=price_micros,
            slot=e.Slot(
                kind=slot[:3], index=int(slot[3:]), gpu_name=gpu, gpu_memory_bytes=memory_bytes
            ),
        )
        self.report(worker, fact)

    def submit(self, job: str) -> None:
        """A job of that id, from another machine."""
        spec = e.JobSpec(
            id=JobId(job), name="job", organization="o", workload_class="batch",
            pool="default", user="u", argv=("true",),
        )  # fmt: skip
        self.report("cli-elsewhere", e.Submitted(at=self.store.clock_ms(), job=spec))

    def start(self, job: str) -> None:
        attempt = self._attempt(job)
        fact = e.AttemptStarted(
            at=self.store.clock_ms(),
            worker=attempt.lead,
            cursor=attempt.message + 1,
            job=JobId(job),
            attempt=attempt.number,
        )
        self.report(attempt.lead, fact)

    def finish(
        self,
        job: str,
        rc: int,
        *,
        outcome: str = "exited",
        log: bytes = b"",
        ran_ms: int = 1_500,
        report: e.Report | None = None,
    ) -> None:
        """Ship the whole log as a worker does, then report the end."""
        attempt = self._attempt(job)
        newline = b"\n" if log and not log.endswith(b"\n") else b""
        key = log_key(job, attempt.number)
        self.store.put_once(key, b"%b%brc=%d\n" % (log, newline, rc))
        now_ms = self.store.clock_ms()
        fact = e.AttemptFinished(
            at=now_ms,
            worker=attempt.lead,
            cursor=attempt.message + 1,
            job=JobId(job),
            attempt=attempt.number,
            outcome=outcome,
            rc=rc,
            started_at=now_ms - ran_ms,
            ended_at=now_ms,
            log_bytes=len(log),
            report=report,
        )
        self.report(attempt.lead, fact)

    def ship_piece(self, job: str, n: int, piece: bytes) -> None:
        self.store.put_once(log_piece_key(job, self._attempt(job).number, n), piece)

    def beat(self, node: str, slots: dict[str, e.SlotBeat]) -> None:
        writer = new_writer(self._rng, f"node-{node}")
        beat = e.Beat(
            writer=writer,
            n=0,
            at=self.store.clock_ms(),
            node=NodeName(node),
            host="h",
            machine=node,
            slots=slots,
        )
        BeatWriter(self.store, writer).put(beat)

    def report(self, name: str, fact: e.AnyFact) -> None:
        if name not in self._writers:
            spools = DirectorySpools(self._context.spools_dir)
            timings = self._context.timings
            self._writers[name] = FactWriter(self.store, self._rng, timings, spools, name)
        self._writers[name].report(fact)
        self._writers[name].flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _attempt(self, job: str) -> Attempt:
        attempt = self.state.jobs[JobId(job)].last
        assert attempt is not None, f"{job} was not assigned"
        return attempt
