"""Random histories: every page is folded, derived and resumed alike, and nothing is lost.

A Hypothesis machine lets users, workers, nodes and leaders do anything that the protocol
allows, in any order. After every page: a reader that never saw a scheduler, one that began
at a checkpoint and one that is restored before each page agree with the leader on state and
decisions; ``checks.History`` holds; a new look decides nothing. At the end all faults are
over, and all work drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ledger import events as e
from ledger.arrays import member_id, member_of
from ledger.checkpoint import decode_checkpoint, encode_checkpoint
from ledger.events import JobState, Liveness
from ledger.names import FlowId, JobId, NodeName
from ledger.policy import (
    DISCIPLINES,
    SHARES,
    AllowRule,
    ApiLimits,
    ClassSlots,
    FlowAgreement,
    Limits,
    Organization,
    Policy,
    Pool,
    Price,
    WorkloadClass,
)
from ledger.projection import Projection
from ledger.state import Job, State
from scheduling.decide import Scheduler
from scheduling.placement import Fleet, Shape
from scheduling.turn import take_turn
from tests.scheduling.checks import History, check_each_assignment
from tests.scheduling.processes import Process, Processes
from tests.world import World, job_id, sha256_of

NODES = ("n1", "n2", "n3")
SLOTS = {
    "n1": [e.Slot(kind="gpu", index=i, gpu_name="T4", gpu_memory_bytes=16) for i in range(3)],
    "n2": [
        e.Slot(kind="gpu", index=0, gpu_name="T4", gpu_memory_bytes=16),
        e.Slot(kind="gpu", index=1, gpu_name="H100", gpu_memory_bytes=80),
    ],
    "n3": [e.Slot(kind="cpu", index=0)],
}
"""n3 is in a pool of its own where a policy says so."""

DAY_MS = 20_000

SMALL = {
    "ledger.transitions.RECENT_ENDED_MAX": 4,
    "ledger.transitions.RECENT_STEMS_MAX": 3,
    "ledger.daily.DAY_MS": DAY_MS,
    "ledger.daily.HOUR_MS": 2_000,
    "ledger.health.COMMANDS_MAX": 3,
    "ledger.health.NODES_MAX": 2,
    "ledger.health.ROW": 2,
    "scheduling.health.PAUSE_MS": 3_000,
    "scheduling.aside.UNKNOWN_WITHIN_MS": 4_000,
}
"""Limits that short histories reach."""

indexes = st.integers(0, 63)
limits = st.builds(
    Limits,
    slots=st.sampled_from([0, 0, 1, 2]),
    slots_percent=st.sampled_from([0, 0, 40]),
    submissions_per_minute=st.sampled_from([0, 0, 0, 6]),
    queue_length=st.sampled_from([0, 0, 0, 3]),
    queue_age_ms=st.sampled_from([0, 0, 3_000]),
    gpu_memory_bytes=st.sampled_from([0, 0, 0, 30]),
    gpu_seconds_per_day=st.sampled_from([0, 0, 0, 5, 12]),
    money_per_day_micros=st.sampled_from([0, 0, 0, 150]),
)
class_slots = st.builds(
    ClassSlots,
    min=st.sampled_from([0, 0, 1, 2]),
    nominal=st.sampled_from([0, 1, 2]),
    max=st.sampled_from([0, 0, 2, 3]),
)
shares_of_classes = st.fixed_dictionaries(
    {}, optional={"batch": class_slots, "interactive": class_slots}
)
nodes = st.sampled_from(NODES)


def restored(state: State) -> tuple[Projection, Scheduler]:
    """What a process makes of the state's checkpoint."""
    checkpoint = decode_checkpoint(encode_checkpoint(state))
    assert checkpoint is not None
    projection = Projection(checkpoint.state)
    return projection, Scheduler(projection)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        for name, value in SMALL.items():
            self.patches.enter_context(patch(name, value))
        self.world = World()
        self.history = History(self.world, DAY_MS)
        self.processes = Processes(self.world)
        self.reader = self.world.fold()
        self.late_reader, self.second = restored(self.world.state)
        self.jobs = 0

    @initialize()
    def nodes_come_up(self) -> None:
        for node, slots in SLOTS.items():
            self.processes.add_node(node, slots)
        self.post()

    # -- pages

    def post(self, *, elected: bool = False, after_ms: int = 0) -> None:
        """The leader posts a page, and everybody who follows agrees with it."""
        world = self.world
        restarted, fresh = restored(world.state)
        stepwise = restored(world.state)[0]
        world.turn(elected=elected, after_ms=after_ms)
        page = world.pages[-1]
        for projection, scheduler in ((restarted, fresh), (self.late_reader, self.second)):
            decisions, fair = take_turn(
                projection,
                scheduler,
                at=page.at,
                epoch=page.epoch,
                leader=page.leader,
                facts=page.facts,
                seen=page.seen,
                elected=elected,
            )
            assert (decisions, fair) == (page.decisions, page.fair)
            projection.finish(page.seq, sha256_of(page))
            assert projection.state == world.state
        check_each_assignment(stepwise, page)
        assert self.reader.apply(page, sha256_of(page))
        assert encode_checkpoint(self.reader.state) == encode_checkpoint(world.state)
        assert self.reader.fair.digest() == page.fair
        self.history.check()
        self.check_nothing_is_left_to_decide()

    def check_nothing_is_left_to_decide(self) -> None:
        projection, scheduler = restored(self.world.state)
        projection.touched.everything = True
        assert scheduler.decide(self.world.state.at) == []

    @rule(after_ms=st.integers(0, 5_000))
    def time_passes(self, after_ms: int) -> None:
        self.post(after_ms=after_ms)

    @rule(after_ms=st.integers(0, 2_000), rounds=st.integers(1, 4), rc=st.sampled_from([0, 1]))
    def work_goes_on(self, after_ms: int, rounds: int, rc: int) -> None:
        """Every worker that can takes its messages; each round one job ends."""
        for _ in range(rounds):
            self.post(after_ms=after_ms)
            self.workers_look_into_their_mailboxes(dies="")
            self.the_leader_tries_its_claims()
            self.post(after_ms=after_ms)
            self.a_job_ends(index=after_ms, outcome="exited", rc=rc)

    @rule()
    def a_leader_is_elected(self) -> None:
        self.post(elected=True)

    @rule()
    def the_second_reader_begins_anew(self) -> None:
        self.late_reader, self.second = restored(self.world.state)

    # -- users

    @rule(
        organization=st.sampled_from(["a", "b", "c"]),
        workload_class=st.sampled_from(["batch", "interactive"]),
        pool=st.sampled_from(["default", "default", "cpus"]),
        name=st.sampled_from(["00_x", "01_y", "train"]),
        argv=st.sampled_from([("a",), ("b",), ("c",), ("d",)]),
        slots=st.sampled_from([1, 1, 1, 2, 3]),
        worker=st.sampled_from(["", "", "", "n1-gpu0", "n2-gpu1"]),
        gpu_type=st.sampled_from(["", "", "", "H100"]),
        exclude=st.sampled_from([(), (), ("n1",), ("n2", "n9"), ("n3", "n1")]),
        priority=st.sampled_from([0, 0, 0, 5, -100, 100]),
        gpu_memory_bytes=st.sampled_from([0, 0, 10, 20]),
        estimate_ms=st.integers(0, 4_000),
        time_limit_ms=st.sampled_from([0, 500, 3_000]),
        idempotent=st.booleans(),
        held=st.booleans(),
        copies=st.integers(1, 3),
        retries=st.sampled_from([0, 0, 1, 3]),
        patience_ms=st.sampled_from([0, 0, 0, 4_000]),
        input_tokens=st.sampled_from([0, 20, 60, 120]),
        resumable=st.booleans(),
        after_artifacts=st.sampled_from([(), (), (), ("artifacts/x",), ("x/y", "artifacts/x")]),
        begins_in_ms=st.sampled_from([0, 0, 0, 0, 2_500]),
        after=st.lists(st.tuples(indexes, st.sampled_from(e.ENDS)), max_size=3),
    )
    def a_job_is_submitted(
        self,
        copies: int,
        held: bool,
        patience_ms: int = 0,
        begins_in_ms: int = 0,
        after: Sequence[tuple[int, str]] = (),
        **spec: object,
    ) -> None:
        """At times after others, which may not be there yet."""
        known = len(self.history.submitted)
        spec["after"] = tuple(
            e.Dependency(job=job_id(index % (known + 2)), end=end)
            for index, end in after
            if index % 3 == 0
        )
        if begins_in_ms:
            spec["begin_at"] = self.world.at + begins_in_ms
        deadline_at = self.world.at + patience_ms if patience_ms else 0
        for _ in range(copies):
            self.history.submitted.add(
                self.world.submit(held=held and copies == 1, deadline_at=deadline_at, **spec)  # type: ignore[arg-type]
            )

    @rule(
        organization=st.sampled_from(["a", "b"]),
        ranges=st.sampled_from([((0, 2, 1),), ((1, 1, 1), (3, 7, 2)), ((0, 0, 1),)]),
        at_once=st.sampled_from([0, 0, 1, 2]),
        slots=st.sampled_from([1, 1, 2]),
        idempotent=st.booleans(),
        held=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 5, -100]),
        retries=st.sampled_from([0, 0, 1]),
        patience_ms=st.sampled_from([0, 0, 0, 4_000]),
        after_artifacts=st.sampled_from([(), (), (), ("artifacts/x",)]),
        begins_in_ms=st.sampled_from([0, 0, 0, 2_500]),
        after=st.lists(st.tuples(indexes, st.sampled_from(e.ENDS)), max_size=2),
    )
    def an_array_is_submitted(
        self, ranges: tuple[tuple[int, int, int], ...], at_once: int, **spec: object
    ) -> None:
        array = e.ArraySpec(ranges=ranges, at_once=at_once)
        self.a_job_is_submitted(copies=1, array=array, **spec)

    @rule(
        index=indexes,
        member=st.integers(0, 7),
        act=st.sampled_from(["cancel", "hold", "release", "retry", "move"]),
    )
    def a_member_is_named(self, index: int, member: int, act: str) -> None:
        """Begun or not, and also of what is no array, or not submitted yet."""
        job = member_id(job_id(index % (len(self.history.submitted) + 1)), member)
        getattr(self.world, act)(job)

    @rule(path=st.sampled_from(["artifacts/x", "x/y"]))
    def an_artifact_is_found(self, path: str) -> None:
        self.world.see(e.ArtifactSeen(path=path))

    @rule(index=indexes)
    def a_job_is_cancelled(self, index: int) -> None:
        """Also one that nobody has submitted yet."""
        self.world.cancel(job_id(index % (len(self.history.submitted) + 2)))

    @rule(index=indexes, is_hold=st.booleans())
    def a_job_is_held_or_released(self, index: int, is_hold: bool) -> None:
        job = job_id(index % (len(self.history.submitted) + 1))
        (self.world.hold if is_hold else self.world.release)(job)

    @rule(
        discipline=st.sampled_from(DISCIPLINES),
        weight=st.integers(0, 9_000),
        has_cpus=st.booleans(),
    )
    def a_policy_is_applied(self, discipline: str, weight: int, has_cpus: bool) -> None:
        pools = {"default": Pool(discipline=discipline)}
        if has_cpus:
            pools["cpus"] = Pool(workers=("n3",), discipline=discipline)
        self.world.apply_policy(
            Policy(organizations={"a": Organization(weight=weight)}, pools=pools)
        )

    @rule(
        discipline=st.sampled_from(DISCIPLINES),
        share=st.sampled_from(SHARES),
        api=st.sampled_from([None, None, ApiLimits(tokens_per_minute=100, in_flight=2)]),
        price=st.sampled_from([Price(), Price(request_micros=10, input_micros=1_000)]),
        threshold_bytes=st.sampled_from([0, 7]),
        of_pool=limits,
        of_organization=limits,
        of_class=limits,
        of_flow=limits,
        shares=shares_of_classes,
        strict=st.booleans(),
        demote=st.booleans(),
    )
    def a_policy_with_limits_is_applied(
        self,
        discipline: str,
        share: str,
        api: ApiLimits | None,
        price: Price,
        threshold_bytes: int,
        of_pool: Limits,
        of_organization: Limits,
        of_class: Limits,
        of_flow: Limits,
        shares: dict[str, ClassSlots],
        strict: bool,
        demote: bool,
    ) -> None:
        pool = Pool(
            discipline=discipline,
            share=share,
            limits=of_pool,
            class_slots=shares,
            api=api,
            price=price,
            memory_threshold_bytes=threshold_bytes,
        )
        interactive = WorkloadClass(
            strict=strict,
            allow=(AllowRule(organizations=("a", "b")),),
            demote_to="batch" if demote else "",
        )
        self.world.apply_policy(
            Policy(
                organizations={
                    "a": Organization(limits=of_organization),
                    "c": Organization(weight=2_000, members=("u",) if demote else ()),
                },
                classes={
                    "batch": WorkloadClass(limits=of_class, quantum_ms=1_500),
                    "interactive": interactive,
                },
                pools={"default": pool, "cpus": Pool()},
                flows={FlowId("b/batch/default"): FlowAgreement(limits=of_flow)},
            )
        )

    @rule(node=nodes, how=st.sampled_from(["drain", "drain now", "undrain"]))
    def a_node_is_drained_or_not(self, node: str, how: str) -> None:
        if how == "undrain":
            self.world.undrain(node)
        else:
            self.world.drain(node, now=how == "drain now")

    @rule(
        index=indexes,
        pool=st.sampled_from(["default", "default", "cpus"]),
        worker=st.sampled_from(["", "", "n1-gpu1", "n3-cpu0"]),
    )
    def a_job_is_moved(self, index: int, pool: str, worker: str) -> None:
        self.world.move(job_id(index % (len(self.history.submitted) + 1)), pool, worker)

    @rule(index=indexes)
    def a_job_is_retried(self, index: int) -> None:
        self.world.retry(job_id(index % (len(self.history.submitted) + 1)))

    # -- workers

    def process(self, index: int) -> Process:
        return list(self.processes.workers.values())[index % len(self.processes.workers)]

    @rule(dies=st.sampled_from(["", "", "", "", "before exec", "after exec"]))
    def workers_look_into_their_mailboxes(self, dies: str) -> None:
        for process in self.processes.workers.values():
            self.processes.handle(process, dies=dies)

    @rule(index=indexes)
    def a_worker_looks_into_its_mailbox(self, index: int) -> None:
        self.processes.handle(self.process(index))

    @rule(
        index=indexes,
        outcome=st.sampled_from(["exited", "exited", "timeout", "oom", "exclusive"]),
        rc=st.sampled_from([0, 0, 1]),
        tokens=st.sampled_from([0, 1, 500]),
    )
    def a_job_ends(self, index: int, outcome: str, rc: int, tokens: int = 0) -> None:
        running = [p for p in self.processes.workers.values() if p.running is not None]
        if running:
            report = e.Report(input_tokens=tokens) if tokens else None
            process = running[index % len(running)]
            self.processes.end(process, outcome=outcome, rc=rc, report=report)

    @rule(index=indexes, forgets=st.booleans())
    def a_worker_starts_again(self, index: int, forgets: bool) -> None:
        self.processes.restart(self.process(index), forgets=forgets)

    @rule(index=indexes)
    def a_worker_retires(self, index: int) -> None:
        self.processes.retire(self.process(index))

    @rule(index=indexes, problem=st.sampled_from(["", "hung"]))
    def a_slot_is_in_trouble_or_not(self, index: int, problem: str) -> None:
        self.world.see(e.SlotSeen(worker=self.process(index).name, problem=problem))

    # -- nodes and claims

    @rule(node=nodes)
    def a_node_is_cut_off(self, node: str) -> None:
        self.processes.cut_off(NodeName(node))

    @rule(node=nodes)
    def a_node_is_back(self, node: str) -> None:
        self.processes.reconnect(NodeName(node))

    @rule(node=nodes, liveness=st.sampled_from(list(Liveness)))
    def the_leader_judges_a_node(self, node: str, liveness: Liveness) -> None:
        """Rightly or not: whether something runs twice does not rest on it."""
        self.world.node_is(node, liveness)

    @rule()
    def the_leader_tries_its_claims(self) -> None:
        for ref in self.world.state.revoking:
            self.processes.settle_claim(ref)

    # -- the end

    def teardown(self) -> None:
        try:
            if self.processes.workers:
                self.drain()
        finally:
            self.patches.close()

    def with_a_reason_to_be_open(self, jobs: list[Job]) -> set[JobId]:
        """Those that are held, that nothing serves, or that wait for such a one, in turn.

        An array is for as long as one of its members is.
        """
        fleet = Fleet(self.world.state)
        reason = {
            job.id
            for job in jobs
            if job.state is JobState.HELD
            or (job.in_queue and not fleet.serves(job.placed.pool, Shape.of(job.placed)))
        }
        for _ in jobs:
            reason |= {
                job.id
                for job in jobs
                if job.aside_since is not None
                and any(each.job in reason for each in job.spec.after)
            }
            reason |= {array[0] for job in reason if (array := member_of(job)) is not None}
        return reason

    def drain(self) -> None:
        """All faults are over: everything that can run ends."""
        world, processes = self.world, self.processes
        for node in NODES:
            processes.reconnect(NodeName(node))
        self.post()
        for node in NODES:
            world.undrain(node)
            world.node_is(node, Liveness.FRESH)
        for process in processes.workers.values():
            processes.restart(process, forgets=False)
        world.apply_policy(Policy())
        self.post()
        for job in world.state.jobs.values():
            world.release(job.id)
        for path in ("artifacts/x", "x/y"):
            self.an_artifact_is_found(path)
        self.post()
        self.post(after_ms=SMALL["scheduling.aside.UNKNOWN_WITHIN_MS"])
        for _ in range(6 * 5 * len(self.history.submitted) + 6):
            self.post(after_ms=1)
            for process in processes.workers.values():
                while processes.message_for(process) is not None and process.running is None:
                    processes.handle(process)
                if process.running is not None:
                    processes.end(process, outcome="exited", rc=0)
            for ref in world.state.revoking:
                processes.settle_claim(ref)
        jobs = [job for job in world.state.jobs.values() if not job.state.ended]
        assert {job.id for job in jobs} == self.with_a_reason_to_be_open(jobs)
        assert all(clock.running == 0 for clock in world.state.pools.values())


Histories.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHistories = Histories.TestCase
