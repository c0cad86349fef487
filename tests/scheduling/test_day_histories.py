"""Random days under limits a day: no day ever holds more, and all work runs in the end.

A Hypothesis machine submits jobs with time limits, lets time pass, and ends attempts in every
way; no attempt outlives its time limit. After every page, ``days.GpuDays`` reads from the pages
alone what was used in the last day and what was promised to what runs: at no instant more than
each limit. A leader that has just been restored finds nothing left to decide.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledger.checkpoint import decode_checkpoint, encode_checkpoint
from ledger.events import JobState
from ledger.names import JobId
from ledger.policy import Limits, Organization, Policy, Pool, Scope, WorkloadClass
from ledger.projection import Projection
from scheduling.decide import Scheduler
from tests.scheduling.days import GpuDays
from tests.world import World

DAY_MS, HOUR_MS = 20_000, 5_000
LIMITS_S = {
    Scope("organization", "a"): 10,
    Scope("class", "batch"): 15,
    Scope("pool", "default"): 25,
}
POLICY = Policy(
    organizations={"a": Organization(limits=Limits(gpu_seconds_per_day=10))},
    classes={
        "batch": WorkloadClass(limits=Limits(gpu_seconds_per_day=15)),
        "interactive": WorkloadClass(),
    },
    pools={"default": Pool(discipline="sfq", limits=Limits(gpu_seconds_per_day=25))},
)
RUNNING = (JobState.ASSIGNED, JobState.RUNNING, JobState.STOPPING)

indexes = st.integers(0, 7)


class Days(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(patch("ledger.daily.DAY_MS", DAY_MS))
        self.patches.enter_context(patch("ledger.daily.HOUR_MS", HOUR_MS))
        self.world = World(POLICY)
        self.days = GpuDays(DAY_MS)
        self.world.node_up("n1", 8, kind="gpu")
        self.post()

    def post(self, after_ms: int = 0) -> None:
        self.world.turn(after_ms=after_ms)
        self.days.note(self.world.pages[-1], self.world.state)

    @rule(
        organization=st.sampled_from(["a", "b"]),
        workload_class=st.sampled_from(["batch", "interactive"]),
        slots=st.sampled_from([1, 2, 4]),
        time_limit_ms=st.integers(1, 2_500),
        estimate_ms=st.sampled_from([0, 1, 9_000]),
        copies=st.integers(1, 3),
    )
    def jobs_are_submitted(self, copies: int, **spec: object) -> None:
        for _ in range(copies):
            self.world.submit(**spec)  # type: ignore[arg-type]
        self.post()

    @rule(after_ms=st.integers(0, 9_000))
    def time_passes(self, after_ms: int) -> None:
        """Not beyond the time limit of anything that runs: that ends it."""
        until = self.world.at + after_ms
        while self.world.at < until:
            due = min([until, *(self.kill_at(job) for job in self.running())])
            self.post(after_ms=max(0, due - self.world.at))
            for job in self.running():
                if self.kill_at(job) <= self.world.at:
                    self.world.finish(job, rc=143, outcome="timeout")
            self.post()

    def kill_at(self, job: JobId) -> int:
        began = self.world.attempt(job).started_at
        assert began is not None
        return began + self.world.job(job).spec.time_limit_ms

    def running(self) -> list[JobId]:
        """What its worker has begun."""
        return [job for job in self.open() if self.world.attempt(job).started_at is not None]

    def open(self) -> list[JobId]:
        jobs = self.world.state.jobs.values()
        return [job.id for job in jobs if job.state in RUNNING]

    @rule()
    def workers_look_into_their_mailboxes(self) -> None:
        """What is assigned starts; a message about what is over is passed over."""
        for worker in self.world.state.workers.values():
            if worker.occupant is None and worker.cursor < worker.next_message:
                self.world.skip(worker.name)
        for job in self.open():
            if self.world.job(job).state is JobState.ASSIGNED:
                self.world.start(job)
        self.post()

    @rule(index=indexes, rc=st.sampled_from([0, 1]))
    def a_job_ends(self, index: int, rc: int) -> None:
        if running := self.running():
            self.world.finish(running[index % len(running)], rc=rc)
            self.post()

    @rule(index=indexes, ran=st.booleans())
    def an_attempt_is_reported_lost(self, index: int, ran: bool) -> None:
        """Of one that began it is not said that it never ran."""
        if jobs := self.open():
            job = jobs[index % len(jobs)]
            self.world.lost(job, ran=ran or job in self.running())
            self.post()

    @rule(index=indexes)
    def a_job_is_cancelled(self, index: int) -> None:
        jobs = [job.id for job in self.world.state.jobs.values() if not job.state.ended]
        if jobs:
            self.world.cancel(jobs[index % len(jobs)])
            self.post()
            for ref in list(self.world.state.revoking):
                self.world.claim(ref.job, "revoke")
            self.post()

    @invariant()
    def no_limit_is_ever_exceeded(self) -> None:
        for scope, limit_s in LIMITS_S.items():
            assert self.days.used_ms(scope, self.world.at) <= 1_000 * limit_s, scope

    @invariant()
    def nothing_is_left_to_decide(self) -> None:
        checkpoint = decode_checkpoint(encode_checkpoint(self.world.state))
        assert checkpoint is not None
        projection = Projection(checkpoint.state)
        scheduler = Scheduler(projection)
        projection.touched.everything = True
        assert scheduler.decide(self.world.at) == []

    def teardown(self) -> None:
        """Time alone frees what waits for a limit a day: a leader that sleeps until then is due."""
        try:
            for _ in range(200):
                self.workers_look_into_their_mailboxes()
                due = self.world.scheduler.next_due_ms()
                waits = [due - self.world.at] if due is not None else []
                self.time_passes(min([2_500, *(max(1, wait) for wait in waits)]))
                self.no_limit_is_ever_exceeded()
            waiting = [job for job in self.world.state.jobs.values() if not job.state.ended]
            assert waiting == [], waiting
        finally:
            self.patches.close()


Days.TestCase.settings = settings(max_examples=30, stateful_step_count=25)
TestDays = Days.TestCase
