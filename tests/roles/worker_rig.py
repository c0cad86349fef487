"""A worker without a machine: its disk, jobs, leader and bucket are in memory.

``Disk`` is what survives the worker's death: spools, notes, and the attempts, whose jobs
go on. ``Rig`` plays the leader with the real fold and scheduler, and can kill the worker
at any effect: each request (before and after it took effect) and each local write.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledger import events as e
from ledger.errors import TransientError
from ledger.events import AttemptRef, JobState
from ledger.keys import FACTS, FactKey, claim_key, message_key, page_key
from ledger.names import JobId, NodeName, WorkerName, WriterName
from ledger.state import Attempt, Job
from ledger.stores.base import Entry, Lost, Store, Won
from ledger.timings import Timings
from roles.context import Context
from roles.devices import Reading
from roles.jobplan import JobBase
from roles.launcher import Plan, RunResult, State
from roles.processes import Identity, Killed
from roles.service import WorkerOptions, WorkerParts
from roles.status import WorkerStatus
from roles.worker import Worker
from roles.workspace import Notes
from simulation.memory import ManualClock, MemorySpools, MemoryStore
from tests.world import START_MS, World

WORKER = WorkerName("n1-cpu0")
NODE = NodeName("n1")
BOOT_ID = "boot"
TIMINGS = Timings()


class Death(BaseException):
    """kill -9: nothing handles it."""


class Effects:
    """Counts every effect of the worker; ``on_effect`` may raise, as the world does."""

    def __init__(self) -> None:
        self.count = 0
        self.on_effect: Callable[[int, str], None] = lambda number, what: None

    def happen(self, what: str) -> None:
        self.count += 1
        self.on_effect(self.count, what)


class RigStore(Store):
    """The bucket as the worker sees it: each request is an effect, before and after."""

    def __init__(self, bucket: MemoryStore, effects: Effects) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._effects = effects

    def put_new(self, key: str, body: bytes, *, patience_ms: int | None = None) -> Won | Lost:
        self._effects.happen(f"before put {key}")
        outcome = self._bucket.put_new(key, body)
        self._effects.happen(f"after put {key}")
        return outcome

    def put_once(self, key: str, body: bytes) -> None:
        self._effects.happen(f"before put {key}")
        self._bucket.put_once(key, body)
        self._effects.happen(f"after put {key}")

    def get(self, key: str) -> bytes | None:
        self._effects.happen(f"before get {key}")
        return self._bucket.get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self._effects.happen(f"before list {prefix}")
        return self._bucket.list(prefix, start_after)

    def clock_ms(self) -> int:
        return self._bucket.clock_ms()


class FakeAttempt:
    """An attempt whose job ends when the test says so, or ``runs_ms`` after its start."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk = disk
        self.name = name
        self.standing: State = "absent"
        self.log = b""
        self.stops: list[tuple[str, int]] = []
        self.bucket_seen: list[int] = []
        self._plan: Plan | None = None
        self._result: RunResult | None = None
        self._started_ms = 0

    @property
    def script_path(self) -> Path:
        return Path("/fake") / self.name / "script"

    @property
    def report_path(self) -> Path:
        return Path("/fake") / self.name / "report"

    @property
    def tree_path(self) -> Path:
        return Path("/fake") / self.name / "tree"

    def prepare(self, plan: Plan, script: bytes | None) -> None:
        self.disk.effects.happen(f"disk: before prepare {self.name}")
        self._plan, self.standing = plan, "prepared"
        self.disk.effects.happen(f"disk: after prepare {self.name}")

    def launch(self) -> Identity:
        self.disk.effects.happen(f"disk: before launch {self.name}")
        assert self.standing == "prepared"
        self.standing = "running"
        self._started_ms = self.disk.clock.boot_ms()
        self.disk.executed[self.name] += 1
        self.log += b"begin\n"
        self.disk.effects.happen(f"disk: after launch {self.name}")
        return Identity(4711, 1, BOOT_ID)

    def state(self) -> State:
        now_ms = self.disk.clock.boot_ms()
        if self.standing == "running" and now_ms - self._started_ms >= self.disk.runs_ms:
            self.finish(3)
        return self.standing

    def finish(self, rc: int | None, outcome: str = "exited", **more: Any) -> None:
        """The job ends now."""
        assert self._plan is not None
        now_ms = self.disk.clock.boot_ms()
        self.log += b"end"
        values: dict[str, Any] = {
            "outcome": outcome,
            "rc": rc,
            "signal": None,
            "started_at_ms": self._started_ms + self._plan.epoch_offset_ms,
            "ended_at_ms": now_ms + self._plan.epoch_offset_ms,
            "reason": "",
            "left_behind": 0,
            "unkillable": (),
            "log_bytes": len(self.log),
            "log_cut": False,
            "log_lost_bytes": 0,
            "log_problem": None,
            "oom": False,
        }
        self._result = RunResult(**values | more)
        self.standing = "ended"

    def plan(self) -> Plan | None:
        return self._plan

    def runner(self) -> Identity | None:
        return None

    def leader(self) -> Identity | None:
        return None

    def result(self) -> RunResult | None:
        return self._result

    def stop(self, reason: str, grace_ms: int) -> None:
        self.stops.append((reason, grace_ms))

    def reap_dead(self) -> Killed:
        assert self.standing == "dead"
        return Killed(set(), set())

    def note_bucket_seen(self, boot_ms: int) -> None:
        self.bucket_seen.append(boot_ms)

    def log_size(self) -> int:
        return len(self.log)

    def read_log(self, offset: int, limit: int) -> bytes:
        return self.log[offset : offset + limit]

    def final_log(self) -> bytes:
        return self.log

    def discard(self) -> None:
        self.disk.effects.happen(f"disk: before discard {self.name}")
        assert self.standing != "running"
        self.disk.attempts.pop(self.name, None)


class Disk:
    """One machine's disk and the jobs that run on it."""

    def __init__(self, clock: ManualClock, effects: Effects) -> None:
        self.clock = clock
        self.effects = effects
        self.spools = MemorySpools()
        self.notes: bytes | None = None
        self.status = WorkerStatus()
        self.attempts: dict[str, FakeAttempt] = {}
        self.executed: Counter[str] = Counter()
        self.runs_ms = 1 << 40
        self.followed = False
        self.beats = True
        """Whether its supervisor does; else it was heard last at ``silent_since_ms``."""
        self.silent_since_ms: int | None = None
        self.memory_before: dict[WorkerName, int] = {}
        self.unkillable: set[Identity] = set()

    # -- Launcher

    def attempt(self, job: str, attempt: int) -> FakeAttempt:
        return self.attempts.setdefault(f"{job}.{attempt}", FakeAttempt(self, f"{job}.{attempt}"))

    def known(self) -> Sequence[tuple[str, int]]:
        names = sorted(name for name, a in self.attempts.items() if a.standing != "absent")
        return [(job, int(number)) for job, number in (name.split(".") for name in names)]

    # -- Workspace

    def lock(self) -> None:
        pass

    def unlock(self) -> None:
        pass

    def read_notes(self) -> Notes:
        return Notes() if self.notes is None else msgspec.json.decode(self.notes, type=Notes)

    def write_notes(self, notes: Notes) -> None:
        self.effects.happen("disk: before notes")
        self.notes = msgspec.json.encode(notes)
        self.effects.happen("disk: after notes")

    def write_status(self, status: WorkerStatus) -> None:
        self.status = status

    def gpu_memory_before(self, worker: WorkerName) -> int | None:
        return self.memory_before.get(worker)

    def note_gpu_memory_before(self, worker: WorkerName, used_bytes: int | None) -> None:
        self.memory_before.pop(worker, None)
        if used_bytes is not None:
            self.memory_before[worker] = used_bytes

    def is_followed(self) -> bool:
        return self.followed

    def is_supervised(self) -> bool:
        return True

    def last_beat_ms(self) -> int | None:
        return self.clock.boot_ms() if self.beats else self.silent_since_ms

    def free_port(self) -> int:
        return 29_500

    def is_alive(self, identity: Identity) -> bool:
        return identity in self.unkillable


class PlayedLeader:
    """The real fold and scheduler over the bucket ``store``, whose pages the test turns."""

    def __init__(self, store: Store, machine: str, now_ms: Callable[[], int]) -> None:
        self.store = store
        self.machine = machine
        self.world = World()
        self._now_ms = now_ms
        self._published = 0
        self._publish()

    def turn(self) -> bool:
        """Read, decide, publish; False where there was nothing to say."""
        self._read_facts()
        for ref in self.world.state.revoking:
            owner = self.revoke(ref)
            self.world.see(e.ClaimSeen(job=ref.job, attempt=ref.attempt, owner=owner))
        if not (self.world.facts or self.world.seen):
            return False
        self.world.at = max(self.world.at, self._now_ms())
        self.world.turn()
        self._publish()
        return True

    def _read_facts(self) -> None:
        admitted = dict(self.world.state.writers)
        for posted in self.facts():
            fact = posted.fact
            if fact.n == admitted.get(fact.writer, 0):
                admitted[fact.writer] = fact.n + 1
                self.world.facts.append(posted)

    def _publish(self) -> None:
        for page in self.world.pages[self._published :]:
            self.store.put_once(page_key(page.seq), e.encode(page))
        self._published = len(self.world.pages)
        for worker in self.world.state.workers.values():
            for n, message in worker.messages.items():
                self.store.put_once(message_key(worker.name, n), e.encode(message))

    def revoke(self, ref: AttemptRef) -> str:
        """Try the claim; who owns it."""
        claim = self.claim(ref, "revoke", WriterName("dispatcher-n9~aaaaaaaa"))
        outcome = self.store.put_new(claim_key(ref.job, ref.attempt), e.encode(claim))
        return e.decode_claim(outcome.body).owner if isinstance(outcome, Lost) else "revoke"

    def claim(self, ref: AttemptRef, owner: str, writer: WriterName) -> e.Claim:
        return e.Claim(
            ledger="test",
            put_id=e.PutId(f"{owner}-{writer}"),
            job=ref.job,
            attempt=ref.attempt,
            owner=owner,
            writer=writer,
            at=self._now_ms(),
            machine=self.machine,
        )

    def facts(self) -> list[e.Posted]:
        """Everything below ``facts/``, in the order of its keys."""
        found = []
        for entry in self.store.list(FACTS):
            body = self.store.get(entry.key)
            assert body is not None
            assert FactKey.parse(entry.key)
            found.append(e.Posted(key=entry.key, fact=e.decode_fact(body)))
        return found

    def said(self, kind: type[e.Fact]) -> list[Any]:
        return [posted.fact for posted in self.facts() if isinstance(posted.fact, kind)]

    def job(self, job: JobId) -> Job:
        return self.world.state.jobs[job]

    def attempt(self, job: JobId, number: int = 1) -> Attempt:
        return self.world.attempt(job, number)


class Rig(PlayedLeader):
    """One worker, one leader, one bucket. What the leader does is no effect."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall_ms=START_MS, boot_ms=5_000_000)
        self.effects = Effects()
        self.bucket = MemoryStore(self.clock)
        self.disk = Disk(self.clock, self.effects)
        self.worker: Worker | None = None
        self.gpus: dict[WorkerName, Reading] = {}
        """What the GPUs of the node say now, by slot."""
        self.deaths = 0
        self._rng = random.Random(1)
        self.workers_view = RigStore(self.bucket, self.effects)
        super().__init__(self.bucket, "m1", self.clock.wall_ms)

    def start(self, *, leaving: bool = False) -> Worker:
        """A new incarnation begins on the same machine."""
        context = Context(
            store=self.workers_view,
            ledger="test",
            clock=self.clock,
            rng=self._rng,
            timings=TIMINGS,
            state_dir=Path("/fake"),
            host="host1",
            machine=self.machine,
        )
        options = WorkerOptions(
            worker=WORKER,
            node=NODE,
            pool="default",
            slot=e.Slot(kind="cpu", index=0),
            job_base=JobBase(
                boot_id=BOOT_ID,
                env={"PATH": "/bin", "HOME": "/root"},
                secrets_dir=Path("/fake/secrets"),
            ),
            leaving=leaving,
        )
        parts = WorkerParts(
            launcher=self.disk,
            spools=self.disk.spools,
            workspace=self.disk,
            read_gpus=lambda: self.gpus,
        )
        self.worker = Worker(context, options, parts)
        return self.worker

    @property
    def gpu(self) -> Reading | None:
        """What the slot's GPU says now."""
        return self.gpus.get(WORKER)

    @gpu.setter
    def gpu(self, reading: Reading | None) -> None:
        self.gpus.pop(WORKER, None)
        if reading is not None:
            self.gpus[WORKER] = reading

    def kill(self) -> None:
        """kill -9: the disk and the running jobs stay."""
        self.worker = None
        self.deaths += 1
        self.disk.spools.owned.clear()

    def step(self) -> int | None:
        """One step of the worker; where it dies in it, a new one begins next time."""
        worker = self.worker or self.start()
        try:
            return worker.step()
        except Death:
            self.kill()
            return 0

    def steps(self, count: int = 1, *, every_ms: int = 0) -> None:
        for _ in range(count):
            self.step()
            self.clock.advance_ms(every_ms)

    def settle(self, *, rounds: int = 200) -> None:
        """Worker and leader in turn until every job has ended and all is acknowledged."""
        for _ in range(rounds):
            wait_ms = self.step()
            if wait_ms is None:
                return
            if self.turn() and self.worker is not None:
                self.worker.hurry()
            elif not self._open_jobs() and not self.disk.attempts:
                return
            else:
                self.clock.advance_ms(wait_ms)
        raise AssertionError(f"not settled: {self._open_jobs()}, {sorted(self.disk.attempts)}")

    def _open_jobs(self) -> list[JobId]:
        return [job.id for job in self.world.state.jobs.values() if not job.state.ended]

    def submit(self, **spec: Any) -> JobId:
        """Submitted and, if the slot is free, assigned: its message is in the mailbox."""
        spec.setdefault("argv", ("true",))
        job = self.world.submit(**spec)
        self.turn()
        if self.worker is not None:
            self.worker.hurry()
        return job

    def local(self, job: JobId, number: int = 1) -> FakeAttempt:
        return self.disk.attempts[f"{job}.{number}"]

    def object(self, key: str) -> bytes | None:
        return self.store.get(key)


def a_running_job(rig: Rig, **spec: Any) -> JobId:
    """A started worker on which one job runs, as the leader knows."""
    rig.steps()
    rig.turn()
    job = rig.submit(**spec)
    rig.steps()
    rig.turn()
    assert rig.job(job).state is JobState.RUNNING
    return job


def outage(what: str) -> Callable[[int, str], None]:
    """The bucket gives no news of requests whose description begins with ``what``."""

    def refuse(_number: int, effect: str) -> None:
        if effect.startswith(what):
            raise TransientError("no news")

    return refuse


def mend(rig: Rig) -> None:
    rig.effects.on_effect = lambda number, what: None
    rig.clock.advance_ms(TIMINGS.retry_max_ms)
