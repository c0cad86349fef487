"""Jobs that stand aside, in no queue yet: for the ends of which others, and what comes of it.

Owns the conditions of ``after``, ``after_artifacts`` and ``begin_at``. A job enters its queue
once all of them hold at the same time; it ends (``never``) as soon as one cannot come to hold.
What has ended may be retried by a user; what has entered its queue stays there, whatever
becomes of the jobs that it waited for. A dependency that no page has is waited for in case its
submit is still on its way, but not for ever. Jobs that wait for each other are no use to
anybody: the one that closes such a circle ends. Pure; derived from the projection alone and
rebuilt from it at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

from ledger import events as e
from ledger.events import Dependency, JobState
from ledger.names import JobId
from ledger.projection import Projection
from ledger.state import Job, State

UNKNOWN_WITHIN_MS = 900_000
"""Until a job that no page has counts as one that does not exist.

Longer than between two listings of facts that look back for two hours.
"""


class How(Enum):
    """How a job stands for those who wait for its end."""

    UNKNOWN = "unknown"
    OPEN = "open"
    OK = "ok"
    NOTOK = "notok"

    def meets(self, end: str) -> bool:
        """Whether an end of the kind ``end`` (one of ``ENDS``) is there."""
        return self.is_end and end in ("any", self.value)

    @property
    def is_end(self) -> bool:
        return self in (How.OK, How.NOTOK)


def how_it_stands(state: State, job_id: JobId) -> How:
    """As of the state; a refused submit never ran, so it is an end that is not ok."""
    known = state.jobs.get(job_id) or state.archive.get(job_id)
    if known is None:
        return How.NOTOK if job_id in state.refused else How.UNKNOWN
    if not known.state.ended:
        return How.OPEN
    return How.OK if known.state is JobState.COMPLETED else How.NOTOK


def state_word(state: State, job_id: JobId) -> str:
    """The state of a job as people are shown it, also of one that has none."""
    known = state.jobs.get(job_id) or state.archive.get(job_id)
    if known is not None:
        return known.state.value
    return "refused" if job_id in state.refused else "unknown"


def waited_for(state: State, job: Job) -> list[Dependency]:
    """Of a job that stands aside, the dependencies that have not ended as they should."""
    return [each for each in job.spec.after if not how_it_stands(state, each.job).meets(each.end)]


class Aside:
    """Index from each job to those that stand aside for its end.

    ``update`` is O(conditions of the job), or O(dependents) where its end has come or was
    taken back; ``decide`` O(dependents of what has ended).
    """

    def __init__(self, projection: Projection) -> None:
        self._state = projection.state
        self._ends: dict[JobId, dict[JobId, set[str]]] = {}
        """By job aside and dependency: how that must end."""
        self._open: dict[JobId, dict[JobId, None]] = {}
        """By job aside: those that have not ended as they should, but may."""
        self._missed: dict[JobId, dict[JobId, None]] = {}
        """The same that have ended otherwise."""
        self._dependents: dict[JobId, dict[JobId, None]] = {}
        self._stood: dict[JobId, How] = {}
        """By dependency."""
        self._absent: dict[JobId, set[str]] = {}
        """By job aside: objects that are not there yet."""
        self._paths: dict[str, dict[JobId, None]] = {}
        """By object that is not there yet: those that stand aside for it."""
        self._changed: set[JobId] = set()
        self._entered: set[JobId] = set()
        """Of which a circle has to be looked for."""
        for job in self._state.jobs.values():
            if job.aside_since is not None:
                self._add(job)

    def update(self, job: Job) -> None:
        """Take over whether ``job`` stands aside, and how it stands for its dependents."""
        if job.aside_since is None:
            self._remove(job.id)
        else:
            if job.id not in self._ends:
                self._add(job)
            self._changed.add(job.id)
            self._entered.add(job.id)
        if job.id in self._dependents:
            self._follow(job.id)

    def update_artifact(self, path: str) -> None:
        """Take over that the object is there. O(those that wait for it)."""
        for name in self._paths.pop(path, ()):
            self._absent[name].discard(path)
            self._changed.add(name)

    @property
    def artifacts(self) -> Collection[str]:
        """Objects that somebody stands aside for, and that are not there as far as is known."""
        return self._paths.keys()

    @property
    def has_changed(self) -> bool:
        """Whether there is something to decide."""
        return bool(self._changed)

    def decide(self, at: int, emit: Callable[[e.AnyDecision], None]) -> None:
        """Queue or end what may no longer stand aside, but for what follows from that."""
        circular = self._closing_circles()
        jobs = [self._state.jobs[name] for name in self._changed | circular.keys()]
        self._changed.clear()
        for job in sorted(jobs, key=lambda job: job.arrival):
            decision = self.verdict(job, at)
            if job.id in circular:
                reason = f"it waits for itself, through {circular[job.id]}"
                decision = e.DependencyMissed(job=job.id, reason=reason)
            if decision is not None:
                emit(decision)

    def verdict(self, job: Job, at: int) -> e.DependencyMissed | e.JobResumed | None:
        """What becomes of a job that stands aside; None where it goes on to."""
        if job.id not in self._ends:
            return None
        missed: Collection[JobId] = self._missed[job.id]
        if not missed and at >= self._unknown_until(job):
            missed = self._unknown(job.id)
        if missed:
            return e.DependencyMissed(job=job.id, reason=self._why_missed(job, missed))
        if self._open[job.id] or self._absent[job.id] or at < job.wakes_at:
            return None
        return e.JobResumed(job=job.id)

    def due_at(self, job: Job) -> int | None:
        """When time alone makes something of a job that stands aside (ms), or None."""
        dues = [job.wakes_at] if job.wakes_at > self._state.at else []
        if self._unknown(job.id):
            dues.append(self._unknown_until(job))
        return min(dues, default=None)

    # -- the index

    def _add(self, job: Job) -> None:
        ends: dict[JobId, set[str]] = {}
        for each in job.spec.after:
            ends.setdefault(each.job, set()).add(each.end)
        self._ends[job.id], self._open[job.id], self._missed[job.id] = ends, {}, {}
        for dependency in ends:
            self._dependents.setdefault(dependency, {})[job.id] = None
            if dependency not in self._stood:
                self._stood[dependency] = how_it_stands(self._state, dependency)
            self._weigh(job.id, dependency)
        absent = set(job.spec.after_artifacts) - self._state.artifacts.keys()
        self._absent[job.id] = absent
        for path in absent:
            self._paths.setdefault(path, {})[job.id] = None

    def _remove(self, job_id: JobId) -> None:
        self._changed.discard(job_id)
        self._entered.discard(job_id)
        for dependency in self._ends.pop(job_id, ()):
            dependents = self._dependents[dependency]
            del dependents[job_id]
            if not dependents:
                del self._dependents[dependency], self._stood[dependency]
        for path in self._absent.pop(job_id, ()):
            del self._paths[path][job_id]
            if not self._paths[path]:
                del self._paths[path]
        self._open.pop(job_id, None)
        self._missed.pop(job_id, None)

    def _follow(self, dependency: JobId) -> None:
        how = how_it_stands(self._state, dependency)
        if self._stood[dependency] is not how:
            self._stood[dependency] = how
            for dependent in self._dependents[dependency]:
                self._weigh(dependent, dependency)
                self._changed.add(dependent)

    def _weigh(self, job_id: JobId, dependency: JobId) -> None:
        how = self._stood[dependency]
        self._open[job_id].pop(dependency, None)
        self._missed[job_id].pop(dependency, None)
        if not how.is_end:
            self._open[job_id][dependency] = None
        elif not all(map(how.meets, self._ends[job_id][dependency])):
            self._missed[job_id][dependency] = None

    # -- what is not to be waited for

    def _unknown(self, job_id: JobId) -> set[JobId]:
        """Dependencies that no page has. O(open)."""
        return {name for name in self._open[job_id] if self._stood[name] is How.UNKNOWN}

    def _unknown_until(self, job: Job) -> int:
        assert job.aside_since is not None
        return job.aside_since + UNKNOWN_WITHIN_MS

    def _why_missed(self, job: Job, missed: Collection[JobId]) -> str:
        first = next(
            each
            for each in job.spec.after
            if each.job in missed and not self._stood[each.job].meets(each.end)
        )
        return f"it waits for {first}, {self._what_became_of(first.job)}"

    def _what_became_of(self, job_id: JobId) -> str:
        state = self._state
        if job_id in state.jobs:
            job = state.jobs[job_id]
            ended, rc = job.state, job.last.rc if job.last is not None else None
        elif job_id in state.archive:
            ended, rc = state.archive[job_id].state, state.archive[job_id].rc
        elif job_id in state.refused:
            return "whose submit was refused"
        else:
            return "which no page of the ledger has"
        return f"which ended {ended.value}" + ("" if rc is None else f" (rc {rc})")

    # -- circles

    def _closing_circles(self) -> dict[JobId, JobId]:
        """Jobs of which each wait for itself, and through which other; one of each circle.

        Only where somebody waits for a job when it begins to stand aside can it close one.
        O(what these wait for, in turn).
        """
        starts = [self._state.jobs[name] for name in self._entered if name in self._dependents]
        self._entered.clear()
        found: dict[JobId, JobId] = {}
        done: set[JobId] = set()
        for job in sorted(starts, key=lambda job: job.arrival):
            if job.id not in done:
                self._search(job.id, done, found)
        return found

    def _search(self, start: JobId, done: set[JobId], found: dict[JobId, JobId]) -> None:
        """Depth first along what is waited for; from ``done`` no other circle is reached."""
        path = {start: iter(sorted(self._open[start]))}
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                del path[name]
                done.add(name)
            elif following in path:
                found.setdefault(following, name)
            elif following in self._open and following not in done:
                path[following] = iter(sorted(self._open[following]))
