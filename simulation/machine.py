"""A simulated machine: its clocks, its disk, the jobs that run on it, its processes.

Owns what survives what: a killed process leaves the disk and the running jobs, a reboot
leaves the disk, a lost disk leaves nothing. Jobs are played: they run for a planned time
and end with a planned rc. It implements the seams at which the roles meet their machine
(``Workspace``, ``Launcher``, ``Host``), so that the roles themselves are the product's own.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from ledger.errors import ConflictError, RequestError
from ledger.events import Slot
from ledger.names import WorkerName
from roles.launcher import Plan, RunResult, State
from roles.processes import Identity, Killed
from roles.status import WorkerStatus
from roles.workspace import Notes
from simulation.hub import Hub, Process
from simulation.memory import MemorySpools


class Truth(Protocol):
    """Who is told of what really happens on a machine: the checkers."""

    def executed(self, machine: Machine, worker: str, plan: Plan) -> None:
        """The job's command begins to run now."""

    def ended(self, machine: Machine, worker: str, plan: Plan, rc: int | None) -> None:
        """It no longer runs; ``rc`` is None where the machine took it away."""


class Work(msgspec.Struct, frozen=True):
    """What a job does when it runs undisturbed."""

    duration_ms: int
    rc: int


class MachineClock:
    """Wall clock off by the machine's error; boot clock from the last boot."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def wall_ms(self) -> int:
        return self._machine.hub.now_ms + self._machine.wall_error_ms

    def boot_ms(self) -> int:
        return self._machine.hub.now_ms - self._machine.booted_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self._machine.hub.sleep_ms(duration_ms)


class Machine:
    """One host. ``start`` is given by the world and starts a role's process by its name."""

    def __init__(
        self,
        hub: Hub,
        name: str,
        rng: random.Random,
        truth: Truth,
        work_of: Callable[[str], Work],
        *,
        wall_error_ms: int = 0,
    ) -> None:
        self.hub = hub
        self.name = name
        self.rng = rng
        self.truth = truth
        self.work_of = work_of
        self.wall_error_ms = wall_error_ms
        self.booted_ms = hub.now_ms - rng.randint(60_000, 600_000)
        self.boots = 0
        self.processes: dict[str, Process] = {}
        self.cut = False
        """Its route to the bucket is gone."""
        self.store_error_ms = 0
        """How far this machine's reckoning of the store's clock is off."""
        self.asleep_until_ms = 0
        """Until then its jobs do nothing either."""
        self.start: Callable[[str], Process] | None = None
        self.leaving: set[str] = set()
        """Workers that are started only to end what is underway."""
        self.retire: dict[str, Callable[[str], None]] = {}
        """By worker, how the one that runs is told to retire."""
        self._wipe()

    def _wipe(self) -> None:
        self.spools = MemorySpools(lambda: self.hub.running)
        self.notes: dict[str, bytes] = {}
        self.statuses: dict[str, WorkerStatus] = {}
        self.attempts: dict[tuple[str, str, int], Attempt] = {}
        self.last_beat_ms: int | None = None
        self.generation = self.rng.getrandbits(32)

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot{self.boots}"

    @property
    def machine_id(self) -> str:
        return f"{self.name}-{self.generation:08x}"

    @property
    def is_asleep(self) -> bool:
        return self.hub.now_ms < self.asleep_until_ms

    def runs(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and not process.ended

    def kill(self, name: str) -> None:
        """SIGKILL one process."""
        if self.runs(name):
            process = self.processes[name]
            process.kill()
            self.spools.release(process)

    def go_down(self, *, lose_disk: bool) -> None:
        """Power cut: all processes and jobs end at once."""
        for name in list(self.processes):
            self.kill(name)
        for attempt in self.attempts.values():
            attempt.power_cut()
        if lose_disk:
            self._wipe()
        self.asleep_until_ms = 0
        self.last_beat_ms = None  # it was of another boot
        self.boots += 1
        self.booted_ms = self.hub.now_ms


class Attempt:
    """One attempt on one machine: disk state, and the process if it runs."""

    claim_expires = True
    """The runner does not execute under a claim that is too old."""

    def __init__(self, machine: Machine, worker: str, job: str, number: int) -> None:
        self._machine = machine
        self._worker = worker
        self._plan: Plan | None = None
        self._launched = False
        self._runs_since_ms: int | None = None
        self._runner_alive = False
        self._result: RunResult | None = None
        self._ends: object = None
        self.identity = Identity(machine.rng.randint(2, 1 << 22), 1, machine.boot_id)

    @property
    def script_path(self) -> Path:
        return Path("/sim/script")

    @property
    def report_path(self) -> Path:
        return Path("/sim/report")

    @property
    def tree_path(self) -> Path:
        return Path("/sim/tree")

    def prepare(self, plan: Plan, script: bytes | None) -> None:
        self._plan = plan

    def launch(self) -> Identity:
        if self._launched:
            raise ConflictError("launched before")
        assert self._plan is not None
        self._launched = True
        self._runner_alive = True
        delay_ms = self._machine.rng.choice((5, 50, 500, 40_000 if self._slow() else 50))
        self._machine.hub.call_at(self._machine.hub.now_ms + delay_ms, self._execute)
        return self.identity

    def _slow(self) -> bool:
        return self._machine.rng.random() < 0.02

    def _execute(self) -> None:
        """The runner's last act before exec: is the claim still fresh?"""
        plan = self._plan
        if not self._runner_alive or plan is None or self._result is not None:
            return
        if self._machine.is_asleep:
            self._machine.hub.call_at(self._machine.asleep_until_ms, self._execute)
            return
        clock = MachineClock(self._machine)
        age_ms = clock.boot_ms() - plan.claim_boot_ms
        late = self.claim_expires and age_ms > plan.start_within_ms
        if late or plan.boot_id != self._machine.boot_id:
            self._runner_alive = False
            self._result = self._make_result("not_started", None, "the claim is too old")
            return
        self._runs_since_ms = self._machine.hub.now_ms
        self._machine.truth.executed(self._machine, self._worker, plan)
        work = self._machine.work_of(plan.job)
        self._end_at(work.duration_ms, "exited", work.rc)

    def _end_at(self, after_ms: int, outcome: str, rc: int) -> None:
        token = object()
        self._ends = token

        def end() -> None:
            if self._ends is not token or not self._runner_alive:
                return
            if self._machine.is_asleep:
                self._machine.hub.call_at(self._machine.asleep_until_ms, end)
                return
            self._end(outcome, rc)

        self._machine.hub.call_at(self._machine.hub.now_ms + after_ms, end)

    def _end(self, outcome: str, rc: int) -> None:
        assert self._plan is not None
        self._runner_alive = False
        self._result = self._make_result(outcome, rc, "")
        self._machine.truth.ended(self._machine, self._worker, self._plan, rc)

    def _make_result(self, outcome: str, rc: int | None, reason: str) -> RunResult:
        assert self._plan is not None
        clock = MachineClock(self._machine)
        now_ms = clock.boot_ms() + self._plan.epoch_offset_ms
        ran_ms = 0
        if self._runs_since_ms is not None:
            ran_ms = self._machine.hub.now_ms - self._runs_since_ms
        return RunResult(
            outcome=outcome,  # type: ignore[arg-type]
            rc=rc,
            signal=None,
            started_at_ms=now_ms - ran_ms,
            ended_at_ms=now_ms,
            reason=reason,
            left_behind=0,
            unkillable=(),
            log_bytes=0,
            log_cut=False,
            log_lost_bytes=0,
            log_problem=None,
            oom=False,
        )

    def power_cut(self) -> None:
        """The machine went down under it."""
        if self._runner_alive:
            self._runner_alive = False
            if self._runs_since_ms is not None and self._plan is not None:
                self._machine.truth.ended(self._machine, self._worker, self._plan, None)

    def state(self) -> State:
        if self._result is not None:
            return "ended"
        if self._runner_alive:
            return "running"
        if self._runs_since_ms is not None:
            return "dead"
        return "prepared" if self._plan is not None else "absent"

    def plan(self) -> Plan | None:
        return self._plan

    def runner(self) -> Identity | None:
        return self.identity if self._launched else None

    def leader(self) -> Identity | None:
        return self.identity if self._runs_since_ms is not None else None

    def result(self) -> RunResult | None:
        return self._result

    def stop(self, reason: str, grace_ms: int) -> None:
        if self._result is not None or self._plan is None:
            return
        if self._runs_since_ms is None:
            if self.state() in ("prepared", "running"):
                self._runner_alive = False
                self._launched = True
                self._result = self._make_result("not_started", None, reason)
            return
        if self._runner_alive:
            self._end_at(self._machine.rng.randint(0, grace_ms), "stopped", 143)

    def reap_dead(self) -> Killed:
        return Killed(set(), set())

    def note_bucket_seen(self, boot_ms: int) -> None:
        pass

    def log_size(self) -> int:
        return 0

    def read_log(self, offset: int, limit: int) -> bytes:
        return b""

    def final_log(self) -> bytes:
        return b""

    def discard(self) -> None:
        plan = self._plan
        if plan is not None:
            self._machine.attempts.pop((self._worker, plan.job, plan.attempt), None)


class SimLauncher:
    """The attempts of one worker on one machine."""

    def __init__(self, machine: Machine, worker: str) -> None:
        self._machine = machine
        self._worker = worker

    def attempt(self, job: str, attempt: int) -> Attempt:
        key = (self._worker, job, attempt)
        if key not in self._machine.attempts:
            self._machine.attempts[key] = Attempt(self._machine, self._worker, job, attempt)
        return self._machine.attempts[key]

    def known(self) -> Sequence[tuple[str, int]]:
        return sorted(
            (job, number)
            for (worker, job, number), attempt in self._machine.attempts.items()
            if worker == self._worker and attempt.state() != "absent"
        )


class SimWorkspace:
    """One worker's files on a simulated disk."""

    def __init__(self, machine: Machine, worker: str) -> None:
        self._machine = machine
        self._worker = worker

    def lock(self) -> None:
        running = self._machine.hub.running
        holder = self._machine.processes.get(self._worker)
        if holder is not None and holder is not running and not holder.ended:
            raise RequestError(f"worker {self._worker} already runs on this machine")

    def unlock(self) -> None:
        pass

    def read_notes(self) -> Notes:
        data = self._machine.notes.get(self._worker)
        return Notes() if data is None else msgspec.json.decode(data, type=Notes)

    def write_notes(self, notes: Notes) -> None:
        self._machine.notes[self._worker] = msgspec.json.encode(notes)

    def write_status(self, status: WorkerStatus) -> None:
        self._machine.statuses[self._worker] = status

    def gpu_memory_before(self, worker: WorkerName) -> int | None:
        return None

    def note_gpu_memory_before(self, worker: WorkerName, used_bytes: int | None) -> None:
        pass

    def is_followed(self) -> bool:
        return False

    def is_supervised(self) -> bool:
        return self._machine.runs(f"node-{self._machine.name}")

    def last_beat_ms(self) -> int | None:
        return self._machine.last_beat_ms

    def free_port(self) -> int:
        return 29_500

    def is_alive(self, identity: Identity) -> bool:
        return False


class SimHost:
    """A node's processes on a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started_to_leave: set[str] = set()

    def take(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def start(self, name: str, leaving: Slot | None = None) -> None:
        assert self._machine.start is not None
        (self._machine.leaving.discard if leaving is None else self._machine.leaving.add)(name)
        self._machine.processes[name] = self._machine.start(name)
        if leaving is not None:
            self._started_to_leave.add(name)

    def runs(self, name: str) -> bool:
        return self._machine.runs(name)

    def ended(self, name: str) -> int | str | None:
        """Told of those that leave; the others are started again at once in any case."""
        if name not in self._started_to_leave or self._machine.runs(name):
            return None
        self._started_to_leave.remove(name)
        process = self._machine.processes[name]
        return 1 if process.dead or process.failure is not None else 0

    def process_of(self, worker: WorkerName) -> str:
        return worker

    def signal(self, name: str, signum: signal.Signals) -> None:
        raise AssertionError("the simulation drains by facts")

    def dismiss(self, worker: WorkerName) -> None:
        if self.runs(worker):
            self._machine.retire[worker]("not offered")

    def status(self, worker: str) -> WorkerStatus | None:
        return self._machine.statuses.get(worker)

    def note_beat(self, boot_ms: int) -> None:
        self._machine.last_beat_ms = boot_ms

    def free_bytes(self) -> dict[str, int]:
        return {}
