"""How many long jobs run at once, by whose limit: a job that cannot yield keeps its slots.

Owns which jobs are long (``LongJobs`` of their class or pool, by what they were expected to cost
when they came) and the answer whether one more may start. Jobs that can be asked to yield are not
counted, nor are calls of external services. Derived from the state alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ledger.names import JobId
from ledger.policy import LongJobs, Scope, WorkloadClass
from ledger.state import Job, Phase, State
from scheduling.duration import format_units
from scheduling.hold import Hold

LONG = "long jobs"
"""How the limit begins that holds a job because others like it run."""


class LongRuns:
    """``update`` and ``hold`` are O(1); the first one after a policy change is O(jobs)."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._policy = state.policy
        self._counted: dict[JobId, tuple[Scope, ...]] = {}
        self._running: Counter[Scope] = Counter()
        for job in state.jobs.values():
            self._count(job)

    def update(self, job: Job) -> None:
        """Take over whether the job runs."""
        if self._policy is not self._state.policy:
            self._policy = self._state.policy
            for known in list(self._counted):
                self._forget(known)
            for each in self._state.jobs.values():
                self._count(each)
        self._count(job)

    def is_long(self, job: Job) -> bool:
        """Whether some limit on long jobs counts it."""
        return any(True for _ in self._rules(job))

    def hold(self, job: Job) -> Hold | None:
        """The limit that lets no further long job start, where it is one."""
        for scope, rule in self._rules(job):
            running = self._running[scope]
            if running >= rule.max_running:
                above = format_units(rule.above_ms)
                reason = (
                    f"{scope} runs {running} of at most {rule.max_running} jobs of more than "
                    f"{above} of slot time"
                )
                return Hold(f"{LONG} of {scope}", reason, of_pool=False)
        return None

    def _rules(self, job: Job) -> Iterator[tuple[Scope, LongJobs]]:
        spec, policy = job.placed, self._state.policy
        pool = policy.pool(spec.pool)
        known = policy.classes.get(spec.workload_class, _NO_CLASS)
        if pool.api is not None or (spec.resumable and known.quantum_ms):
            return
        for scope, rule in (
            (Scope("class", spec.workload_class), known.long_jobs),
            (Scope("pool", spec.pool), pool.long_jobs),
        ):
            if rule is not None and job.size > rule.above_ms:
                yield scope, rule

    def _count(self, job: Job) -> None:
        self._forget(job.id)
        if any(attempt.phase not in (Phase.ENDED, Phase.LOST) for attempt in job.attempts):
            scopes = tuple(scope for scope, _ in self._rules(job))
            if scopes:
                self._counted[job.id] = scopes
                self._running.update(scopes)

    def _forget(self, job: JobId) -> None:
        self._running.subtract(self._counted.pop(job, ()))


_NO_CLASS = WorkloadClass()
