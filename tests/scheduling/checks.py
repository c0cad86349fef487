"""What must be true after every page, computed from the state and the pages alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ledger import events as e
from ledger.arrays import member_id, member_of, size_of
from ledger.daily import Use
from ledger.estimates import may_use
from ledger.events import AttemptRef, JobState, Liveness
from ledger.names import FlowId, JobId, WorkerName, flow_parts
from ledger.policy import ClassSlots, Limits, Pool, WorkloadClass
from ledger.projection import Projection
from ledger.state import Attempt, Job, Phase, State, Worker
from ledger.timings import DAY_MS
from tests.scheduling.days import GpuDays
from tests.world import World

Bank = tuple[str, str, int, str]


class History:
    """Checks a world page by page; remembers what may not be taken back."""

    def __init__(self, world: World, day_ms: int = DAY_MS) -> None:
        self.world = world
        self.submitted: set[JobId] = set()
        self.retried: set[JobId] = set()
        """Asked for again since the last page: their ends were not final."""
        self._arrays: set[JobId] = set()
        self._final: dict[JobId, JobState] = {}
        self._virtual_times: dict[str, int] = {}
        self._numbers: Counter[WorkerName] = Counter()
        self._days = GpuDays(day_ms)

    def check(self) -> None:
        state = self.world.state
        self._check_virtual_time(state)
        self._check_ends(state)
        self._check_mailboxes(state)
        self._check_jobs(state)
        check_flows(state)
        check_slots(state)
        for pool in state.pools:
            check_no_slot_is_left_idle(state, pool)
        check_blocked_flows(state)
        self._days.note(self.world.pages[-1], state)
        self._check_limits(state)
        self._check_own_order(state)

    def _check_virtual_time(self, state: State) -> None:
        for name, clock in state.pools.items():
            assert clock.virtual_time >= self._virtual_times.get(name, 0)
            self._virtual_times[name] = clock.virtual_time

    def _check_ends(self, state: State) -> None:
        """Ends are final, but that a loss is provisional and that a user may retry."""
        for posted in self.world.pages[-1].facts:
            if isinstance(posted.fact, e.RetryRequested):
                for job in [job for job in self._final if job.startswith(posted.fact.job)]:
                    del self._final[job]
        standing = {job.id: job.state for job in state.jobs.values()}
        standing |= {job: archived.state for job, archived in state.archive.items()}
        for job, final in self._final.items():
            assert standing[job] is final or job in self.retried, job
        self.retried.clear()
        self._arrays |= {job.id for job in state.jobs.values() if job.spec.array is not None}
        for job, is_at in standing.items():
            if job in self._arrays:
                continue  # it ends as its members do, and with a member it is open again
            if is_at.ended and is_at is not JobState.NODE_FAIL:
                self._final[job] = is_at
            else:
                self._final.pop(job, None)
        assert sorted(state.ended) == sorted(j.id for j in state.jobs.values() if j.state.ended)

    def _check_own_order(self, state: State) -> None:
        """In a flow nothing starts before what needs the same and has more priority, or came first.

        But for the one for which slots were kept.
        """
        kept: set[JobId] = set()
        for decision in self.world.pages[-1].decisions:
            if isinstance(decision, e.ReservationEnded):
                kept.add(decision.job)
            if not isinstance(decision, e.AttemptAssigned):
                continue
            if kept & {decision.job, (member_of(decision.job) or ("",))[0]}:
                continue
            job = state.jobs[decision.job]
            for other in state.jobs.values():
                if other.in_queue and needs(other) == needs(job):
                    assert (other.priority, -other.arrival) < (job.priority, -job.arrival)

    def _check_mailboxes(self, state: State) -> None:
        """Numbers are dense, and every message that may be unread is kept."""
        for decision in self.world.pages[-1].decisions:
            match decision:
                case e.AttemptAssigned():
                    name = decision.slots[0]
                case e.StopOrdered():
                    name = decision.worker
                case _:
                    continue
            assert decision.message == self._numbers[name]
            self._numbers[name] += 1
        for name, worker in state.workers.items():
            assert worker.next_message == self._numbers[name]
            assert list(worker.messages) == list(range(worker.cursor, worker.next_message))

    def _check_limits(self, state: State) -> None:
        """What this page started breaks no limit."""
        for decision in self.world.pages[-1].decisions:
            if isinstance(decision, e.AttemptAssigned):
                job = state.jobs[decision.job]
                assert not own_limits_broken(state, job, more=0), job.id
                assert not pool_limits_broken(state, job, more=0), job.id
                if self._days.gpus(decision):
                    self._check_days(state, job)

    def _check_days(self, state: State, job: Job) -> None:
        """What was used within a day, and what was promised to what runs, keep the limit."""
        for scope, limits in state.policy.limits_of(job.placed.flow):
            if limits.gpu_seconds_per_day:
                used_ms = self._days.used_ms(scope, state.at)
                assert used_ms <= 1_000 * limits.gpu_seconds_per_day, (job.id, scope)

    def _check_jobs(self, state: State) -> None:
        known = state.jobs.keys() | state.archive.keys()
        assert {job for job in known if member_of(job) is None} == self.submitted
        assert not state.jobs.keys() & state.archive.keys()
        for job in state.jobs.values():
            assert [a.number for a in job.attempts] == list(range(1, len(job.attempts) + 1))
            if job.array is None:
                check_standing(job)
            else:
                check_array(state, job)
        revoking = [
            AttemptRef(job.id, attempt.number)
            for job in state.jobs.values()
            for attempt in job.attempts
            if attempt.phase is Phase.REVOKING
        ]
        assert Counter(state.revoking) == Counter(revoking)


def needs(job: Job) -> tuple[object, ...]:
    """Jobs of which this is the same compete for the same slots in the same flow."""
    spec = job.placed
    name = spec.name if spec.worker else ""
    return (
        spec.flow, spec.slots, spec.gpu_type, spec.gpu_memory_bytes, spec.worker, name,
        set(spec.exclude),
    )  # fmt: skip


def check_standing(job: Job) -> None:
    """The state of a job is that of its last attempt, and the others are over."""
    for attempt in job.attempts[:-1]:
        assert attempt.phase in (Phase.LOST, Phase.ENDED)
    phase = job.last.phase if job.last is not None else None
    expected = {
        JobState.ASSIGNED: {Phase.ASSIGNED, Phase.REVOKING},
        JobState.RUNNING: {Phase.STARTED},
        JobState.STOPPING: {Phase.STOPPING},
    }.get(job.state, {None, Phase.LOST, Phase.ENDED})
    assert phase in expected, (job.state, phase)
    assert job.state.ended == (job.ended_at is not None)
    assert job.cancel is None or not job.state.queued
    assert job.moving is None or (job.state, phase) == (JobState.ASSIGNED, Phase.REVOKING)
    for attempt in job.attempts:
        assert attempt.settled == (attempt.phase >= Phase.LOST or attempt.settled)
        if attempt.phase in (Phase.ASSIGNED, Phase.REVOKING):
            assert not attempt.settled


def check_array(state: State, whole: Job) -> None:
    """Each member is left, open or ended, once; the array stands as they do."""
    array, spec = whole.array, whole.spec.array
    assert array is not None
    assert spec is not None
    own = {n: job for n, job in state.jobs.items() if (member_of(n) or [""])[0] == whole.id}
    still = {member_id(whole.id, index) for index in array.open}
    assert still == {name for name, job in own.items() if not job.state.ended}
    ended = Counter(job.state for job in own.values() if job.state.ended)
    ended += Counter(a.state for n, a in state.archive.items() if n[:9] == f"{whole.id}_")
    assert +Counter(array.ended) == +ended
    assert array.left + len(array.open) + sum(array.ended.values()) == size_of(spec)
    assert array.begun == sum(bool(own[name].attempts) for name in still)
    assert array.suspended == (whole.state is JobState.PENDING and 0 < spec.at_once <= array.begun)
    assert whole.state.ended == (not still and (array.closed is not None or not array.left))
    assert whole.state.ended == (whole.ended_at is not None)
    assert array.left or not whole.state.queued


def check_flows(state: State) -> None:
    """Counters are what they count; every charge is open or settled, and settled once."""
    waiting: Counter[FlowId] = Counter()
    suspended: Counter[str] = Counter()
    running: Counter[FlowId] = Counter()
    for job in state.jobs.values():
        waiting[job.placed.flow] += job.waiting if job.in_queue else 0
        suspended[job.placed.pool] += job.waiting if job.is_waiting and not job.in_queue else 0
        running[job.placed.flow] += sum(not attempt.settled for attempt in job.attempts)
    by_pool: Counter[tuple[str, str]] = Counter()
    for name, flow in state.flows.items():
        assert (flow.waiting, flow.running) == (waiting[name], running[name]), name
        by_pool[flow.pool, "waiting"] += flow.waiting
        by_pool[flow.pool, "running"] += flow.running
    for pool, clock in state.pools.items():
        assert clock.waiting == by_pool[pool, "waiting"] + suspended[pool]
        assert clock.running == by_pool[pool, "running"]


def check_slots(state: State) -> None:
    """A slot has the occupant that has the slot; what is not claimed has all its slots."""
    for name, worker in state.workers.items():
        if worker.occupant is not None:
            attempt = state.jobs[worker.occupant.job].attempt(worker.occupant.attempt)
            assert attempt is not None
            assert name in attempt.slots
            assert attempt.phase is not Phase.ENDED
    for job in state.jobs.values():
        for attempt in job.attempts:
            if attempt.phase in (Phase.ASSIGNED, Phase.REVOKING):
                ref = AttemptRef(job.id, attempt.number)
                assert {state.workers[name].occupant for name in attempt.slots} == {ref}


# --- who could run, computed the slow way -----------------------------------------------


def serves(state: State, worker: Worker) -> bool:
    node = state.nodes[worker.node]
    return (
        worker.ready
        and not worker.retired
        and not worker.problem
        and node.liveness is Liveness.FRESH
        and not node.drained
        and not (node.health.blocked and (not node.health.probing or node.health.probe))
    )


def banks(state: State, pool: str, *, only_free: bool) -> dict[Bank, set[WorkerName]]:
    """Slots that a job could take together."""
    found: dict[Bank, set[WorkerName]] = defaultdict(set)
    for worker in state.workers.values():
        is_free = worker.occupant is None and worker.cursor == worker.next_message
        if worker.pool == pool and serves(state, worker) and (is_free or not only_free):
            slot = worker.slot
            bank = (worker.node, slot.gpu_name, slot.gpu_memory_bytes, slot.kind)
            found[bank].add(worker.name)
    return found


def fits(state: State, job: Job, *, only_free: bool) -> bool:
    spec = job.placed
    return any(
        len(names) >= spec.slots
        and spec.gpu_type.lower() in gpu_name.lower()
        and memory_bytes >= spec.gpu_memory_bytes
        and (not spec.worker or spec.worker in names)
        and node not in spec.exclude
        for (node, gpu_name, memory_bytes, _), names in banks(
            state, spec.pool, only_free=only_free
        ).items()
    )


def check_no_slot_is_left_idle(state: State, pool: str) -> None:
    """No job waits beside slots that would do, unless they are kept for another, or a limit
    holds it, one before it in its flow, or (a limit of the pool) the one whose turn it is."""
    waiting = [j for j in state.jobs.values() if j.in_queue]
    if any(j.placed.pool == pool and pool_limits_broken(state, j, more=1) for j in waiting):
        return
    held = {j.placed.flow for j in waiting if own_limits_broken(state, j, more=1)}
    if state.policy.discipline(pool) == "fifo":
        return
    if pool in state.reservations:
        check_what_is_kept_is_taken(state, waiting, pool)
        return
    for job in state.jobs.values():
        if (
            job.in_queue
            and job.placed.pool == pool
            and job.placed.flow not in held
            and not takes_what_is_kept(state, job)
            and not long_limit_broken(state, job)
            and is_first_by_name(state, job)
        ):
            assert not fits(state, job, only_free=True), job.id


def is_first_by_name(state: State, job: Job) -> bool:
    """Whether no job of its flow that is pinned to the same worker goes before it."""
    return not job.placed.worker or not any(
        (-other.priority, other.spec.name, other.arrival)
        < (-job.priority, job.spec.name, job.arrival)
        for other in state.jobs.values()
        if other.in_queue
        and (other.placed.worker, other.placed.flow) == (job.placed.worker, job.placed.flow)
    )


def check_blocked_flows(state: State) -> None:
    """A flow is blocked if it has waiting jobs and nothing serves any, or by its own limit."""
    served: dict[FlowId, list[bool]] = defaultdict(list)
    held: set[FlowId] = set()
    for job in state.jobs.values():
        if job.in_queue:
            served[job.placed.flow].append(fits(state, job, only_free=False))
            if own_limits_broken(state, job, more=1) or long_limit_broken(state, job):
                held.add(job.placed.flow)
    for name, flow in state.flows.items():
        if flow.limit:
            assert flow.blocked
            assert name in held
            continue
        assert bool(flow.blocked) == (bool(served[name]) and not any(served[name])), name


# --- limits, computed the slow way --------------------------------------------------------


def slots_of(state: State, organization: str = "", workload_class: str = "", pool: str = "") -> int:
    """Slots that attempts hold of whom these name; empty: of all."""
    return sum(
        len(attempt.slots)
        for job in state.jobs.values()
        for attempt in job.attempts
        if attempt.phase not in (Phase.LOST, Phase.ENDED)
        and organization in ("", job.placed.organization)
        and workload_class in ("", job.placed.workload_class)
        and pool in ("", job.placed.pool)
    )


def own_limits_broken(state: State, job: Job, *, more: int) -> bool:
    """Whether its organization, class or flow has too much, with ``more`` times the job."""
    spec, policy = job.placed, state.policy
    added = more * spec.slots
    organization, flow = policy.organizations.get(spec.organization), policy.flows.get(spec.flow)
    kinds = [
        (flow, {"organization": spec.organization, "workload_class": spec.workload_class}, True),
        (organization, {"organization": spec.organization}, False),
        (policy.classes.get(spec.workload_class), {"workload_class": spec.workload_class}, False),
    ]
    for agreed, whose, of_one_pool in kinds:
        if agreed is None:
            continue
        here = slots_of(state, **whose, pool=spec.pool) + added
        used = here if of_one_pool else slots_of(state, **whose) + added
        if agreed.limits.slots and used > agreed.limits.slots:
            return True
        if agreed.limits.slots_percent and here > share(state, spec.pool, agreed.limits):
            return True
        own_pool = {"pool": spec.pool} if of_one_pool else {}
        if amounts_broken(state, job, agreed.limits, {**whose, **own_pool}, more=more):
            return True
    return shares_broken(state, job, more=more)


Whose = dict[str, str]
"""Organization, class and pool, as far as they matter."""


def is_of(flow: FlowId, whose: Whose) -> bool:
    names = zip(("organization", "workload_class", "pool"), flow_parts(flow), strict=True)
    return whose.items() <= dict(names).items()


def amounts_broken(state: State, job: Job, limits: Limits, whose: Whose, *, more: int) -> bool:
    """Whether those have too much GPU memory, or of what a day allows, that the job needs too."""
    spec = job.placed
    memory_bytes = more * spec.slots * spec.gpu_memory_bytes
    needs = may_use(state, spec, spec.slots if has_gpus(state, spec.pool) else 0)
    total = needs if more else Use()
    if not more:
        assert job.last is not None
        needs = job.last.draw.reserved
    for attempt_job, attempt in running(state):
        if is_of(attempt_job.placed.flow, whose):
            memory_bytes += len(attempt.slots) * attempt_job.spec.gpu_memory_bytes
            total = total.plus(attempt.draw.reserved.beyond(attempt.draw.booked))
    for flows in state.used_by_hour.values():
        for flow, used in flows.items():
            total = total.plus(used) if is_of(flow, whose) else total
    most_ms, most_micros = 1_000 * limits.gpu_seconds_per_day, limits.money_per_day_micros
    return (
        (bool(spec.gpu_memory_bytes) and 0 < limits.gpu_memory_bytes < memory_bytes)
        or (bool(needs.gpu_ms) and 0 < most_ms < total.gpu_ms)
        or (bool(needs.money_micros) and 0 < most_micros < total.money_micros)
    )


def running(state: State) -> Iterator[tuple[Job, Attempt]]:
    """What holds slots that somebody else could have."""
    for job in state.jobs.values():
        for attempt in job.attempts:
            if attempt.phase not in (Phase.LOST, Phase.ENDED):
                yield job, attempt


def has_gpus(state: State, pool: str) -> bool:
    return any(
        w.pool == pool and w.slot.kind == "gpu" and serves(state, w) for w in state.workers.values()
    )


def share(state: State, pool: str, limits: Limits) -> int:
    serving = sum(w.pool == pool and serves(state, w) for w in state.workers.values())
    return max(1, serving * limits.slots_percent // 100)


# --- long jobs, computed the slow way -------------------------------------------------------


def long_limit_broken(state: State, job: Job) -> bool:
    """Whether too many long ones run already for this one, which is long."""
    pool = state.policy.pools.get(job.placed.pool, Pool())
    known = state.policy.classes.get(job.placed.workload_class, WorkloadClass())
    for rule, whose in (
        (pool.long_jobs, {"pool": job.placed.pool}),
        (known.long_jobs, {"workload_class": job.placed.workload_class}),
    ):
        if rule is not None and _is_long(state, job, rule.above_ms):
            running = [
                other
                for other in state.jobs.values()
                if any(attempt.phase not in (Phase.LOST, Phase.ENDED) for attempt in other.attempts)
                and all(getattr(other.placed, key) == value for key, value in whose.items())
                and _is_long(state, other, rule.above_ms)
            ]
            if len(running) >= rule.max_running:
                return True
    return False


def _is_long(state: State, job: Job, above_ms: int) -> bool:
    known = state.policy.classes.get(job.placed.workload_class, WorkloadClass())
    yields = job.spec.resumable and known.quantum_ms
    is_call = state.policy.pools.get(job.placed.pool, Pool()).api is not None
    return job.size > above_ms and not yields and not is_call


# --- shares of classes, computed the slow way ----------------------------------------------


def slots_of_classes(state: State, pool: str) -> dict[str, ClassSlots]:
    return state.policy.pools.get(pool, Pool()).class_slots


def used_by(state: State, workload_class: str, pool: str) -> int:
    return slots_of(state, workload_class=workload_class, pool=pool)


def shares_broken(state: State, job: Job, *, more: int) -> bool:
    """Whether its class has more than its most, or could not have it of what others keep."""
    spec = job.placed
    own = slots_of_classes(state, spec.pool).get(spec.workload_class, ClassSlots())
    if own.max and used_by(state, spec.workload_class, spec.pool) + more * spec.slots > own.max:
        return True
    if not more or not takes_what_is_kept(state, job):
        return False
    serving = sum(len(names) for names in banks(state, spec.pool, only_free=False).values())
    return spec.slots == 1 or serving - spec.slots < kept(state, job, used=False)


def kept(state: State, job: Job, *, used: bool = True) -> int:
    """Slots that other classes keep beyond what they have (``used``), or in all."""
    spec = job.placed
    if state.policy.discipline(spec.pool) == "fifo":
        return 0
    return sum(
        max(0, own.min - (used_by(state, name, spec.pool) if used else 0))
        for name, own in slots_of_classes(state, spec.pool).items()
        if name != spec.workload_class
    )


def within_min(state: State, job: Job) -> bool:
    spec = job.placed
    own = slots_of_classes(state, spec.pool).get(spec.workload_class, ClassSlots())
    return used_by(state, spec.workload_class, spec.pool) + spec.slots <= own.min


def takes_what_is_kept(state: State, job: Job) -> bool:
    """Whether it would leave other classes less than is kept for them."""
    others = kept(state, job)
    free = sum(len(names) for names in banks(state, job.placed.pool, only_free=True).values())
    return bool(others) and not within_min(state, job) and free - job.spec.slots < others


def check_what_is_kept_is_taken(state: State, waiting: list[Job], pool: str) -> None:
    """No reservation keeps a class from what is kept for it (of flows with narrow jobs only)."""
    flows = {job.placed.flow for job in waiting if job.placed.pool == pool}
    for flow in flows:
        jobs = [job for job in waiting if job.placed.flow == flow]
        if all(
            job.spec.slots == 1
            and not job.placed.worker
            and within_min(state, job)
            and not own_limits_broken(state, job, more=1)
            for job in jobs
        ):
            assert not any(fits(state, job, only_free=True) for job in jobs), flow


def check_each_assignment(projection: Projection, page: e.Page) -> None:
    """At the instant of each assignment of the page: no limit is broken, nothing that is kept
    is taken, and who has what his class is owed passes nobody who has not."""
    projection.begin(page.at, page.epoch, page.leader, page.facts, page.seen)
    before: e.AnyDecision | None = None
    for decision in page.decisions:
        if isinstance(decision, e.AttemptAssigned):
            state = projection.state
            job = state.jobs.get(decision.job) or projection.member_left(decision.job)
            assert job is not None, decision.job
            assert not own_limits_broken(state, job, more=1), job.id
            assert not pool_limits_broken(state, job, more=1), job.id
            assert not takes_what_is_kept(state, job), job.id
            assert not long_limit_broken(state, job), job.id
            if not decision.backfill and not isinstance(before, e.ReservationEnded):
                check_nobody_is_owed(state, job)
        projection.apply_decision(decision)
        before = decision


def check_nobody_is_owed(state: State, job: Job) -> None:
    """A job whose class has what it is owed goes: none waits whose class has less, and fits."""
    spec = job.placed
    shares = slots_of_classes(state, spec.pool)
    owed = {name: own.nominal - used_by(state, name, spec.pool) for name, own in shares.items()}
    is_strict = state.policy.is_strict(spec.workload_class)
    is_owed = owed.get(spec.workload_class, 0) > 0
    if is_strict or is_owed or state.policy.discipline(spec.pool) == "fifo":
        return
    waiting = [other for other in state.jobs.values() if other.in_queue]
    waiting = [other for other in waiting if other.placed.pool == spec.pool]
    held = {other.placed.flow for other in waiting if own_limits_broken(state, other, more=1)}
    for other in waiting:
        is_owed = owed.get(other.placed.workload_class, 0) > 0
        if is_owed and other.placed.flow not in held and not long_limit_broken(state, other):
            assert not fits(state, other, only_free=True) or not is_first_by_name(state, other)


def pool_limits_broken(state: State, job: Job, *, more: int) -> bool:
    """Whether its pool, or the service that it stands for, has too much."""
    spec = job.placed
    pool = state.policy.pools.get(spec.pool, Pool())
    used = slots_of(state, pool=spec.pool) + more * spec.slots
    if pool.limits.slots and used > pool.limits.slots:
        return True
    if pool.limits.slots_percent and used > share(state, spec.pool, pool.limits):
        return True
    if amounts_broken(state, job, pool.limits, {"pool": spec.pool}, more=more):
        return True
    if pool.api is None:
        return False
    window = state.windows.get(spec.pool)
    tokens = (window.tokens if window else 0) + more * (spec.input_tokens + spec.max_output_tokens)
    in_flight = more + sum(
        attempt.phase not in (Phase.LOST, Phase.ENDED)
        for other in state.jobs.values()
        for attempt in other.attempts
        if other.placed.pool == spec.pool
    )
    return (0 < pool.api.tokens_per_minute < tokens) or (0 < pool.api.in_flight < in_flight)
