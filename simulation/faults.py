"""One seeded run of the whole protocol under faults, and its verdict.

Owns the scenario: a few machines with a supervisor, a dispatcher and workers each (the
product's own roles), users who submit and cancel, and a plan of faults drawn from the
seed: bad networks, kills at any step, freezes, reboots with or without the disk, outages,
wrong clocks. After the faults stop everything must drain within a bound. A seed gives the
same bytes each time.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec

from ledger import events as e
from ledger import state as ledger_state
from ledger.arrays import member_id, member_of
from ledger.errors import GpuqError, LedgerError, TransientError
from ledger.names import JobId, NodeName, WorkerName, new_job_id, worker_name
from ledger.state import Placement, State
from ledger.timings import SECOND_MS, Timings
from ledger.writer import FactWriter, drain_spools
from roles import leader as leader_module
from roles.context import Context
from roles.dispatcher import Dispatcher
from roles.host import DISPATCHER
from roles.jobplan import JobBase
from roles.service import WorkerOptions, WorkerParts
from roles.supervisor import Supervisor, SupervisorOptions
from roles.worker import Worker
from scheduling import health
from simulation.bucket import Bucket, Connection, Faults
from simulation.checkers import Breach, Truth, fold, frozen, parked_jobs
from simulation.hub import Hub, Process
from simulation.machine import Machine, MachineClock, SimHost, SimLauncher, SimWorkspace, Work

START_MS = 1_800_000_000_000
LEDGER = "simulated"
FAULTS_MS = 400 * SECOND_MS
"""How long faults are played."""
DRAIN_MS = 3_000 * SECOND_MS
"""How long everything may take to end after them."""
WITHDRAWN_MS = 600 * SECOND_MS
"""How long after them a node may still lack the slot that it was restarted without."""
TOLD_MS = 200 * SECOND_MS
"""How long after a job's end the ledger must know of it, once nobody sleeps any more."""
BLOCK_MS = 100 * SECOND_MS
"""How long a bad node is blocked at first; at most twice as long."""
GAP_MS, GAP_HELD_MS = 100 * SECOND_MS, 300 * SECOND_MS
CHECKPOINT_EVERY_PAGES = 20

TIMINGS = msgspec.structs.replace(
    Timings().scaled(3),
    leader_tick_ms=1_000,
    follow_min_ms=1_000,
    follow_max_ms=1_500,
    mailbox_alone_ms=2_000,
    overlap_long_ms=300_000,
    overlap_long_every_ms=30_000,
    worker_tick_ms=1_000,
    respawn_ms=2_000,
)
"""A third of the defaults, with polls kept coarse: a request is what a run costs."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is of all that stands in the bucket: equal seeds, equal digests."""

    seed: int
    breach: str
    digest: str
    faults: dict[str, int]
    pages: int
    jobs: int
    attempts: int
    epochs: int


class Quiet:
    """Nobody to mark or wake: workers of the simulation poll."""

    def mark_following(self) -> None:
        pass

    def wake(self, worker: WorkerName) -> None:
        pass


class Sleeper:
    """A worker that nobody wakes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def wait_ms(self, timeout_ms: int) -> bool:
        self._hub.sleep_ms(timeout_ms)
        return False


class World:
    """Everything of one run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.hub = Hub(START_MS)
        self.bucket = Bucket(self.hub)
        self.truth = Truth(self.bucket, TIMINGS)
        self.faults = self._draw_faults()
        self.work: dict[str, Work] = {}
        self.machines: list[Machine] = []
        self.healed = False
        self.played: Counter[str] = Counter()
        self._strike_rate = self.rng.choice((0.0, 0.0, 0.02, 0.1))
        self._strikes = random.Random(self.rng.getrandbits(64))
        self._operators = random.Random(f"operators {seed}")
        self._arrays = random.Random(f"arrays {seed}")
        self._dependencies = random.Random(f"dependencies {seed}")
        self._dependent_rate = self._dependencies.choice((0, 0, 0.6))
        self._refits = random.Random(f"refits {seed}")
        self._dispatchers: dict[str, Dispatcher] = {}
        """By machine, the newest."""
        self._withdrawn: dict[str, WorkerName] = {}
        """By machine, the slot that it was restarted without."""
        self.bucket.watchers.append(self._strike)
        for number in range(self.rng.randint(2, 3)):
            self._add_machine(f"n{number}", self.rng.randint(1, 2))

    # -- what there is

    def _draw_faults(self) -> Faults:
        """Each seed plays some kinds of faults, and some of these often."""

        def sometimes(*rates: float) -> float:
            return self.rng.choice((0.0, 0.0, *rates))

        return Faults(
            lost_reply=sometimes(0.02, 0.2),
            late_landing=sometimes(0.02, 0.1),
            conflict=sometimes(0.02, 0.2),
            own_412=sometimes(0.02, 0.2),
            error=sometimes(0.02, 0.2),
            list_skips=sometimes(0.02, 0.2),
            list_repeats=sometimes(0.05),
            list_delay_ms=self.rng.choice((0, 0, 2_000, 30_000)),
        )

    def _add_machine(self, name: str, slots: int) -> None:
        error_ms = self.rng.choice((0, 0, 600_000, -600_000, 20_000))
        machine = Machine(
            self.hub,
            name,
            random.Random(self.rng.getrandbits(64)),
            self.truth,
            lambda job: self.work[job],
            wall_error_ms=error_ms,
        )
        slots_of = {
            worker_name(NodeName(name), "cpu", i): e.Slot(kind="cpu", index=i) for i in range(slots)
        }

        def start(role: str) -> Process:
            bodies: dict[str, Callable[[], None]] = {
                DISPATCHER: lambda: self._dispatch(machine),
                f"node-{name}": lambda: self._supervise(machine, slots_of),
            }
            body = bodies.get(role, lambda: self._work(machine, WorkerName(role), slots_of))
            return self.hub.spawn(f"{name}/{role}", body)

        machine.start = start
        self.machines.append(machine)
        self._keep_supervised(machine)

    def context(self, machine: Machine) -> Context:
        """What a new process on that machine is given."""
        rng = random.Random(self.rng.getrandbits(64))
        clock = MachineClock(machine)
        store = Connection(
            self.bucket,
            clock=clock,
            rng=random.Random(self.rng.getrandbits(64)),
            faults=self.faults,
            is_cut=lambda: machine.cut,
            error_ms=lambda: machine.store_error_ms,
        )
        return Context(
            store=store,
            ledger=LEDGER,
            clock=clock,
            rng=rng,
            timings=TIMINGS,
            state_dir=Path("/nonexistent"),
            host=machine.name,
            machine=machine.machine_id,
        )

    def _dispatch(self, machine: Machine) -> None:
        dispatcher = Dispatcher(self.context(machine), NodeName(machine.name), Quiet())
        self._dispatchers[machine.name] = dispatcher
        dispatcher.run()

    def _supervise(self, machine: Machine, slots: dict[WorkerName, e.Slot]) -> None:
        withdrawn = self._withdrawn.get(machine.name)
        options = SupervisorOptions(
            node=NodeName(machine.name),
            pool="default",
            slots={name: slot for name, slot in slots.items() if name != withdrawn},
            dispatches=True,
            read_gpus=lambda: (),
        )
        host = SimHost(machine)
        Supervisor(self.context(machine), options, host).run()

    def _work(self, machine: Machine, name: WorkerName, slots: dict[WorkerName, e.Slot]) -> None:
        options = WorkerOptions(
            worker=name,
            node=NodeName(machine.name),
            pool="default",
            slot=slots[name],
            job_base=JobBase(boot_id=machine.boot_id, env={}, secrets_dir=Path("/sim/secrets")),
            leaving=name in machine.leaving,
        )
        parts = WorkerParts(
            launcher=SimLauncher(machine, name),
            spools=machine.spools,
            workspace=SimWorkspace(machine, name),
        )
        worker = Worker(self.context(machine), options, parts)
        machine.retire[name] = worker.retire
        worker.run(Sleeper(self.hub))

    def _keep_supervised(self, machine: Machine) -> None:
        """What an init system does: start the supervisor where there is none."""
        name = f"node-{machine.name}"
        if not machine.runs(name):
            assert machine.start is not None
            machine.processes[name] = machine.start(name)
        pause_ms = self.rng.randint(5_000, 20_000)
        self.hub.call_at(self.hub.now_ms + pause_ms, lambda: self._keep_supervised(machine))

    # -- users

    def plan_users(self) -> None:
        for number in range(self.rng.randint(4, 12)):
            at_ms = START_MS + self.rng.randint(1_000, FAULTS_MS * 3 // 4)
            self.hub.call_at(at_ms, lambda number=number: self._submit(number))  # type: ignore[misc]
        for _ in range(self._operators.choice((0, 4, 8))):
            at_ms = START_MS + self._operators.randint(1_000, FAULTS_MS)
            self.hub.call_at(at_ms, self._operate)

    def _submit(self, number: int) -> None:
        machine = self.rng.choice(self.machines)
        job = new_job_id(self.rng)
        widest = max(
            sum(1 for name in m.processes if name.startswith(f"{m.name}-")) for m in self.machines
        )
        spec = e.JobSpec(
            id=job,
            name=f"job{number}",
            organization=self.rng.choice("ab"),
            workload_class="batch",
            pool="default",
            user="u",
            argv=("work", str(number)),
            cwd="/",
            slots=self.rng.choice((1, 1, 1, max(1, widest))),
            idempotent=self.rng.random() < 0.5,
            estimate_ms=self.rng.choice((0, 1_000, 60_000)),
            after=self._after(),
            begin_at=self._begin_at(),
        )
        work = Work(self.rng.choice((500, 5_000, 40_000, 150_000, 400_000)), number % 4)
        submitted: e.Submitted = e.Submitted(at=self.hub.now_ms, job=spec)
        self.work[job] = work
        if self._arrays.random() < 0.2:
            array = e.ArraySpec(ranges=((0, 2, 1),), at_once=self._arrays.choice((0, 0, 1)))
            spec = msgspec.structs.replace(spec, array=array)
            submitted = e.ArraySubmitted(at=self.hub.now_ms, job=spec)
            self.work |= dict.fromkeys((member_id(job, index) for index in range(3)), work)
        self._command(machine, submitted, lambda: self.truth.acknowledged.add(job))
        if self.rng.random() < 0.25:
            at_ms = self.hub.now_ms + self.rng.choice((0, 3_000, 20_000, 100_000))
            cancel = e.CancelRequested(at=at_ms, job=job, by="u", grace_ms=5_000)
            where = self.rng.choice(self.machines)

            def acknowledged() -> None:
                self.truth.cancelled[job] = self.hub.now_ms

            self.hub.call_at(at_ms, lambda: self._command(where, cancel, acknowledged))

    def _after(self) -> tuple[e.Dependency, ...]:
        """At times one or two that were submitted before, perhaps where nobody knows of it yet."""
        rng, jobs = self._dependencies, [job for job in sorted(self.work) if member_of(job) is None]
        if not jobs or rng.random() >= self._dependent_rate:
            return ()
        self.played["dependencies"] += 1
        chosen = rng.sample(jobs, min(len(jobs), rng.choice((1, 1, 2))))
        return tuple(e.Dependency(job=JobId(job), end=rng.choice(e.ENDS)) for job in chosen)

    def _begin_at(self) -> int:
        """At times soon, or when the faults are over."""
        rng = self._dependencies
        if rng.random() >= self._dependent_rate / 3:
            return 0
        self.played["begins later"] += 1
        return self.hub.now_ms + rng.choice((1_000, 30_000, FAULTS_MS))

    def _operate(self) -> None:
        """Somebody drains a node, moves a job or retries one, wherever it stands."""
        rng, at_ms = self._operators, self.hub.now_ms
        if not self.work:
            return
        job = JobId(rng.choice(sorted(self.work)))
        node = rng.choice(self.machines).name
        fact: e.AnyFact
        match rng.choice(("drain", "undrain", "move", "move", "retry", "retry")):
            case "drain":
                fact = e.DrainRequested(at=at_ms, node=NodeName(node), now=rng.random() < 0.5)
            case "undrain":
                fact = e.UndrainRequested(at=at_ms, node=NodeName(node))
            case "move":
                pool, worker = rng.choice((("default", f"{node}-cpu0"), ("other", "")))
                fact = e.MoveRequested(at=at_ms, job=job, pool=pool, worker=worker)
            case _:
                fact = e.RetryRequested(at=at_ms, job=job)
                self.truth.retried.add(job)
        self.played[f"operator: {e.kind_of(fact)}"] += 1
        self._command(rng.choice(self.machines), fact, lambda: None)

    def _undo(self, state: State) -> None:
        """What operators did must not keep anything from ending."""
        at_ms, facts = self.hub.now_ms, list[e.AnyFact]()
        for node in state.nodes.values():
            if node.drained:
                facts.append(e.UndrainRequested(at=at_ms, node=node.name))
        for job in state.jobs.values():
            if job.state.queued and job.moved not in (None, Placement("default")):
                facts.append(e.MoveRequested(at=at_ms, job=job.id, pool="default"))
        for fact in facts:
            self._command(self.machines[0], fact, lambda: None)

    def _command(self, machine: Machine, fact: e.AnyFact, acknowledged: Callable[[], None]) -> None:
        """One command line: drain what a killed one left, report, wait for the answer."""
        name = f"cli{self.rng.randint(0, 1 << 30)}"

        def body() -> None:
            context = self.context(machine)
            writer: FactWriter | None = None
            while True:
                try:
                    if writer is None:
                        drain_spools(context.store, context.timings, machine.spools)
                        writer = FactWriter(
                            context.store, context.rng, context.timings, machine.spools, name
                        )
                        writer.report(fact)
                    writer.flush()
                except TransientError:
                    context.clock.sleep_ms(2_000)
                    continue
                acknowledged()
                writer.close()
                return

        process = self.hub.spawn(f"{machine.name}/{name}", body)
        machine.processes[name] = process
        if self.rng.random() < 0.1:
            at_ms = self.hub.now_ms + self.rng.randint(0, 100)
            self.hub.call_at(at_ms, lambda: self._unless_healed(lambda: process.freeze(450_000)))

    # -- faults

    def _strike(self, key: str, body: bytes) -> None:
        """Right after something landed, its writer is killed, or its machine sleeps."""
        process = self.hub.running
        if self.healed or process is None or self._strikes.random() >= self._strike_rate:
            return
        name, _, role = process.name.partition("/")
        machine = next(m for m in self.machines if m.name == name)
        at_ms = self.hub.now_ms + self._strikes.randint(0, 60)
        if self._strikes.random() < 0.8:
            self.played["kill after a write"] += 1
            self.hub.call_at(at_ms, lambda: machine.kill(role))
        else:
            self.hub.call_at(at_ms, lambda: self._sleep(machine, 250_000))

    def _unless_healed(self, fault: Callable[[], None]) -> None:
        if not self.healed:
            fault()

    def plan_faults(self) -> None:
        kinds = (
            self._kill,
            self._kill,
            self._freeze,
            self._suspend,
            self._cut,
            self._reboot,
        )
        for _ in range(self.rng.randint(0, 10)):
            at_ms = START_MS + self.rng.randint(0, FAULTS_MS)
            fault = self.rng.choice(kinds)
            self.hub.call_at(at_ms, fault)
        for _ in range(self._refits.choice((0, 0, 1, 3))):
            at_ms = START_MS + self._refits.randint(0, FAULTS_MS)
            self.hub.call_at(at_ms, lambda: self._unless_healed(self._refit))
        if self.rng.random() < 0.1:
            self.hub.call_at(START_MS + self.rng.randint(0, FAULTS_MS), self._freeze_all)
        if self.rng.random() < 0.3:
            self.hub.call_at(START_MS + self.rng.randint(0, FAULTS_MS), self._step_clock)

    def _refit(self) -> None:
        """A node's supervisor is restarted with a slot less, or with all of them again."""
        machine = self._refits.choice(self.machines)
        slots = sorted(name for name in machine.processes if name.startswith(f"{machine.name}-"))
        if len(slots) < 2:
            return
        self.played["refit"] += 1
        if machine.name in self._withdrawn:
            del self._withdrawn[machine.name]
        else:
            self._withdrawn[machine.name] = WorkerName(self._refits.choice(slots))
            if self._refits.random() < 0.7:
                machine.kill(self._withdrawn[machine.name])
        machine.kill(f"node-{machine.name}")

    def _kill(self) -> None:
        machine = self.rng.choice(self.machines)
        alive = sorted(name for name in machine.processes if machine.runs(name))
        if alive:
            self.played["kill"] += 1
            machine.kill(self.rng.choice(alive))

    def _freeze(self) -> None:
        machine = self.rng.choice(self.machines)
        alive = sorted(name for name in machine.processes if machine.runs(name))
        if alive:
            self.played["freeze"] += 1
            duration_ms = self.rng.choice((2_000, 15_000, 60_000, 250_000))
            machine.processes[self.rng.choice(alive)].freeze(duration_ms)

    def _suspend(self) -> None:
        """A whole machine sleeps: its processes, and its jobs with them."""
        machine = self.rng.choice(self.machines)
        self._sleep(machine, self.rng.choice((15_000, 60_000, 250_000)))

    def _sleep(self, machine: Machine, duration_ms: int) -> None:
        self.played["suspend"] += 1
        for process in machine.processes.values():
            process.freeze(duration_ms)
        machine.asleep_until_ms = self.hub.now_ms + duration_ms

    def _step_clock(self) -> None:
        """One machine's idea of the store's time is suddenly wrong (a folder's clock)."""
        machine = self.rng.choice(self.machines)
        self.played["clock step"] += 1
        machine.store_error_ms = self.rng.choice((85_000, -85_000))
        for name, process in machine.processes.items():
            known = self._dispatchers.get(machine.name)
            if name == DISPATCHER and not process.ended and known is not None and known.has_read:
                self.truth.knows_better.add(process)

    def _freeze_all(self) -> None:
        self.played["freeze everyone"] += 1
        for machine in self.machines:
            for process in machine.processes.values():
                process.freeze(300_000)
            machine.asleep_until_ms = self.hub.now_ms + 300_000

    def _cut(self) -> None:
        machine = self.rng.choice(self.machines)
        self.played["cut"] += 1
        machine.cut = True
        duration_ms = self.rng.choice((5_000, 40_000, 100_000, 300_000))

        def mend() -> None:
            machine.cut = False

        self.hub.call_at(self.hub.now_ms + duration_ms, mend)

    def _reboot(self) -> None:
        machine = self.rng.choice(self.machines)
        lose_disk = self.rng.random() < 0.3
        self.played["reboot, disk lost" if lose_disk else "reboot"] += 1
        if lose_disk:
            self.truth.wiped.add(machine.name)
        machine.go_down(lose_disk=lose_disk)

    def heal(self) -> None:
        """From here on nothing bad happens any more."""
        self.healed = True
        for field in self.faults.__struct_fields__:
            if field not in ("latency_ms", "late_ms", "sdk_retries"):
                setattr(self.faults, field, 0)
        for machine in self.machines:
            machine.cut, machine.store_error_ms = False, 0
        if self._withdrawn:
            self.hub.call_at(self.hub.now_ms + WITHDRAWN_MS, self._give_slots_back)

    def _give_slots_back(self) -> None:
        """All nodes have all their slots again; what was underway there did not wait for that."""
        state = fold(frozen(self.bucket), LEDGER).state
        self.truth.check_told(state, self._disks(), self.hub.now_ms - TOLD_MS)
        for name in self._withdrawn:
            next(m for m in self.machines if m.name == name).kill(f"node-{name}")
        self._withdrawn.clear()

    def _disks(self) -> dict[str, int]:
        return {machine.name: machine.generation for machine in self.machines}

    # -- the run

    def run(self) -> Verdict:
        with (
            patch.object(ledger_state, "GAP_MS", GAP_MS),
            patch.object(ledger_state, "GAP_HELD_MS", GAP_HELD_MS),
            patch.object(health, "PAUSE_MS", BLOCK_MS),
            patch.object(health, "PAUSE_MAX_MS", 2 * BLOCK_MS),
            patch.object(leader_module, "CHECKPOINT_EVERY_PAGES", CHECKPOINT_EVERY_PAGES),
        ):
            return self._run()

    def _run(self) -> Verdict:
        breach = ""
        self.plan_users()
        self.plan_faults()
        try:
            self.hub.run(START_MS + FAULTS_MS)
            self.heal()
            state = self._drain()
        except Breach as error:
            breach = str(error)
            state = None
        digest = hashlib.sha256()
        for key in self.bucket.keys(""):
            digest.update(key.encode() + self.bucket.bodies[key])
        return Verdict(
            seed=self.seed,
            breach=breach,
            digest=digest.hexdigest()[:16],
            faults=dict(sorted((self.played + self.bucket.played).items())),
            pages=state.seq + 1 if state else 0,
            jobs=len(self.work),
            attempts=len(self.truth.runs),
            epochs=state.epoch if state else 0,
        )

    def _drain(self) -> State:
        """Run until all has ended and every late result is in, or the bound is reached."""
        end_ms = self.hub.now_ms + DRAIN_MS
        while True:
            self.hub.run(self.hub.now_ms + 20_000)
            self._check_processes()
            self.truth.check_now()
            over = self.hub.now_ms > end_ms
            state = fold(frozen(self.bucket), LEDGER).state
            open_jobs = self._open_jobs(state)
            if open_jobs and over:
                raise Breach(f"not drained: {', '.join(sorted(open_jobs.values()))}")
            if open_jobs:
                self._undo(state)
            else:
                try:
                    return self.truth.check_end(LEDGER, self._disks())
                except Breach:
                    if over:
                        raise

    def _open_jobs(self, state: State) -> dict[JobId, str]:
        """Acknowledged jobs that have not ended, and wait for no user."""
        still: dict[JobId, str] = {}
        parked = parked_jobs(state)
        for job_id in self.truth.acknowledged:
            job = state.jobs.get(job_id)
            if job is None:
                if job_id not in state.archive:
                    still[job_id] = f"{job_id} not posted"
            elif not job.state.ended and job_id not in parked:
                still[job_id] = f"{job_id} {job.state}"
        return still

    def _check_processes(self) -> None:
        """No process may end by a broken invariant or a broken ledger."""
        for process in self.hub.processes:
            failure = process.failure
            if failure is not None and not isinstance(failure, GpuqError):
                raise Breach(f"{process.name} failed: {failure!r}") from failure
            if isinstance(failure, LedgerError):
                raise Breach(f"{process.name} stopped: {failure}") from failure
