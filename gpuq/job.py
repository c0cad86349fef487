"""What is shown of one job: its cells in a table, its block of lines, its JSON.

Owns the words for where a job runs or why it does not, and the keys of a job's JSON
(docs/CLI.md). Times in JSON are UTC, on screen local.
"""

from __future__ import annotations

import shlex
from typing import Any

from gpuq.after import texts_of
from gpuq.arrays import array_json, progress_of
from gpuq.render import Cut, local_time, long_duration, short_duration, size, times
from gpuq.view import View
from ledger.events import JobSpec, JobState
from ledger.names import JobId
from ledger.state import Attempt, Job
from scheduling.explain import Explainer

OPEN_HEADER = (
    "ID", "NAME", "ORG/CLASS", "POOL", "SLOTS", "STATE", "RAN/LIMIT", "WHERE-OR-WHY",
)  # fmt: skip
OPEN_CUTS = (
    Cut("NAME", 12), Cut("POOL", 0), Cut("WHERE-OR-WHY", 20), Cut("ORG/CLASS", 12),
    Cut("NAME", 8), Cut("WHERE-OR-WHY", 12), Cut("ORG/CLASS", 8), Cut("SLOTS", 0),
    Cut("RAN/LIMIT", 0), Cut("ORG/CLASS", 0), Cut("NAME", 0),
)  # fmt: skip
ENDED_HEADER = ("ID", "NAME", "ORG/CLASS", "STATE", "RC", "RAN", "ENDED", "WHERE-OR-WHY")
ENDED_CUTS = (
    Cut("NAME", 12), Cut("WHERE-OR-WHY", 12), Cut("ORG/CLASS", 12), Cut("NAME", 8),
    Cut("ORG/CLASS", 8), Cut("RAN", 0), Cut("ENDED", 0), Cut("ORG/CLASS", 0), Cut("NAME", 0),
)  # fmt: skip

NOT_POSTED = "not yet posted"


class Shown:
    """Presents the jobs of one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._explainer = Explainer(view.projection, view.now_ms)

    def why(self, job: Job) -> str:
        """Why the job waits, stops or ended as it did; empty where nothing needs saying."""
        if job.id in self._view.unposted and job.state is JobState.PENDING:
            return NOT_POSTED
        if job.state.queued:
            return self._explainer.why(job)
        if job.state is JobState.STOPPING:
            return job.last.stop_reason if job.last is not None else ""
        if job.state.ended:
            return job.reason
        return "cancel requested" if job.cancel is not None else ""

    def is_overdue(self, job: Job) -> bool:
        """Whether it waits for longer than the policy finds right."""
        return self._explainer.is_overdue(job)

    def where_or_why(self, job: Job) -> str:
        """The last column: the lead worker of its attempt, then the reason."""
        where = workers_of(job)
        parts = [
            where[0] if where else "",
            f"+{len(where) - 1}" if len(where) > 1 else "",
            f"(attempt {len(job.attempts)})" if where and len(job.attempts) > 1 else "",
        ]
        if job.array is not None:
            parts = [progress_of(job)]
        place, why = " ".join(part for part in parts if part), self.why(job)
        if self.is_overdue(job):
            why = f"overdue; {why}"
        return f"{place}: {why}" if place and why else place or why

    def open_row(self, job: Job) -> tuple[str, ...]:
        spec = job.spec
        slots = f"{spec.slots} {spec.gpu_type}" if spec.gpu_type else str(spec.slots)
        run_ms = self.run_ms(job)
        elapsed = "-" if run_ms is None else short_duration(run_ms)
        limit = short_duration(spec.time_limit_ms) if spec.time_limit_ms else "-"
        return (
            job.id,
            spec.name,
            f"{spec.organization}/{spec.workload_class}",
            job.placed.pool,
            slots,
            job.state.value,
            f"{elapsed}/{limit}",
            self.where_or_why(job),
        )

    def ended_row(self, job: Job) -> tuple[str, ...]:
        spec, rc, run_ms = job.spec, rc_of(job), self.run_ms(job)
        return (
            job.id,
            spec.name,
            f"{spec.organization}/{spec.workload_class}",
            job.state.value,
            "" if rc is None else str(rc),
            "" if run_ms is None else short_duration(run_ms),
            "" if job.ended_at is None else local_time(job.ended_at, self._view.now_ms),
            self.where_or_why(job),
        )

    def run_ms(self, job: Job) -> int | None:
        """How long its last attempt ran (so far); None where it never started."""
        last = job.last
        if job.state.queued or last is None or last.started_at is None:
            return None
        ended_at = last.ended_at
        if ended_at is None:
            ended_at = job.ended_at if job.state.ended else None
        return max(0, (self._view.now_ms if ended_at is None else ended_at) - last.started_at)

    def lines(self, job: Job) -> list[tuple[str, str]]:
        """One job whole: what was asked for, where it stands."""
        spec = job.spec
        now_ms = self._view.now_ms
        facts = [
            ("id", job.id),
            ("name", spec.name),
            ("state", job.state.value),
            ("why", self.why(job)),
            ("overdue", self._overdue(job)),
            ("array", progress_of(job) if job.array is not None else ""),
            ("flow", job.placed.flow),
            ("slots", f"{spec.slots} {spec.gpu_type}".strip()),
            ("gpu memory", size(spec.gpu_memory_bytes) if spec.gpu_memory_bytes else ""),
            ("pinned to", job.placed.worker),
            ("after", ", ".join(texts_of(spec.after))),
            ("after objects", ", ".join(spec.after_artifacts)),
            ("begin", local_time(spec.begin_at, now_ms) if spec.begin_at else ""),
            ("exclude", ", ".join(spec.exclude)),
            ("priority", str(spec.priority) if spec.priority else ""),
            ("submitted to", _submitted_to(job)),
            ("time limit", long_duration(spec.time_limit_ms) if spec.time_limit_ms else ""),
            ("signal", _lead(spec)),
            ("command", shlex.join(spec.argv) if not spec.script else ""),
            ("script", spec.script),
            ("arguments", shlex.join(spec.argv) if spec.script else ""),
            ("long words", spec.words),
            ("directory", spec.cwd if spec.snapshot is None else ""),
            *snapshot_lines(spec),
            ("outputs", ", ".join(spec.outputs)),
            ("variables", ", ".join(f"{name}={value}" for name, value in spec.env.items())),
            ("secrets", ", ".join(spec.secrets)),
            ("key", spec.key),
            ("submitted", f"{local_time(job.submitted_at, now_ms)} by {spec.user}"),
            ("ended", "" if job.ended_at is None else local_time(job.ended_at, now_ms)),
            ("cancelled by", job.cancel.by if job.cancel is not None else ""),
            ("other submits", self._conflicts(job)),
        ]
        return [(name, value) for name, value in facts if value]

    def _overdue(self, job: Job) -> str:
        if not self.is_overdue(job):
            return ""
        target_ms = self._view.state.policy.wait_target_ms(job.placed.flow)
        waited_ms = self._view.now_ms - job.queued_since
        return f"{short_duration(waited_ms)} of at most {short_duration(target_ms)}"

    def _conflicts(self, job: Job) -> str:
        count = job.conflicting_submits
        return f"{count} with this key and another body, refused" if count else ""

    def attempt_row(self, attempt: Attempt) -> tuple[str, ...]:
        now_ms = self._view.now_ms
        started_at, ended_at = attempt.started_at, attempt.ended_at
        until = now_ms if ended_at is None else ended_at
        return (
            str(attempt.number),
            ",".join(attempt.slots),
            attempt.outcome or attempt.phase.name.lower(),
            "" if attempt.rc is None else str(attempt.rc),
            local_time(attempt.assigned_at, now_ms),
            "" if started_at is None else local_time(started_at, now_ms),
            "" if started_at is None else short_duration(until - started_at),
            "superseded" if attempt.superseded else attempt.reason or attempt.stop_reason,
        )

    def json(self, job: Job) -> dict[str, Any]:
        """The stable keys of a job in every ``--json``."""
        spec, last = job.spec, job.last
        return {
            "id": job.id,
            "name": spec.name,
            "organization": spec.organization,
            "class": spec.workload_class,
            "pool": job.placed.pool,
            "slots": spec.slots,
            "gpu_type": spec.gpu_type,
            "gpu_memory_bytes": spec.gpu_memory_bytes,
            "state": job.state.value,
            "why": self.why(job),
            "overdue": self.is_overdue(job),
            "posted": job.id not in self._view.unposted,
            "workers": list(workers_of(job)),
            "attempt": len(job.attempts),
            "rc": rc_of(job),
            "user": spec.user,
            "host": spec.host,
            "pinned_to": job.placed.worker,
            "key": spec.key,
            "time_limit_ms": spec.time_limit_ms or None,
            "run_ms": self.run_ms(job),
            "array": array_json(job),
            **times(
                submitted_at=job.submitted_at,
                started_at=None if last is None else last.started_at,
                ended_at=job.ended_at,
            ),
        }

    def whole_json(self, job: Job) -> dict[str, Any]:
        """``json`` and all else that the ledger says of the job."""
        spec = job.spec
        return {
            **self.json(job),
            "command": list(spec.argv),
            "script_sha256": spec.script or None,
            "words_sha256": spec.words or None,
            "directory": spec.cwd,
            "snapshot": snapshot_json(spec),
            "outputs": list(spec.outputs),
            "outputs_on_failure": spec.outputs_on_failure,
            "variables": spec.env,
            "secrets": list(spec.secrets),
            "submitted_pool": spec.pool,
            "submitted_pinned_to": spec.worker,
            "after": texts_of(spec.after),
            "after_artifacts": list(spec.after_artifacts),
            **times(begin_at=spec.begin_at or None),
            "exclude": list(spec.exclude),
            "priority": spec.priority,
            "signal": spec.signal or None,
            "lead_ms": spec.lead_ms or None,
            "grace_ms": spec.grace_ms or None,
            "estimate_ms": spec.estimate_ms or None,
            "idempotent": spec.idempotent,
            "exclusive": spec.exclusive,
            "requeues": job.requeues,
            "conflicting_submits": job.conflicting_submits,
            "attempts": [_attempt_json(attempt) for attempt in job.attempts],
        }


def snapshot_lines(spec: JobSpec) -> list[tuple[str, str]]:
    """What it runs in a copy of, for people; nothing where it was submitted without."""
    if spec.snapshot is None:
        return []
    snapshot = spec.snapshot
    branch = f" on {snapshot.branch}" if snapshot.branch else ""
    state = ", with changes" if snapshot.dirty else ""
    return [
        ("snapshot", f"sha256 {snapshot.manifest}"),
        ("begins in", f"{snapshot.directory or '.'} of it"),
        ("commit", f"{snapshot.commit}{branch}{state}" if snapshot.commit else ""),
    ]


def snapshot_json(spec: JobSpec) -> dict[str, Any] | None:
    """The same for programs."""
    if spec.snapshot is None:
        return None
    return {
        "manifest_sha256": spec.snapshot.manifest,
        "directory": spec.snapshot.directory,
        "commit": spec.snapshot.commit or None,
        "branch": spec.snapshot.branch or None,
        "dirty": spec.snapshot.dirty,
    }


def _submitted_to(job: Job) -> str:
    """Of a job that was moved: what was asked for."""
    if job.moved is None:
        return ""
    return f"pool {job.spec.pool}{f', {job.spec.worker}' if job.spec.worker else ''}"


def _lead(spec: JobSpec) -> str:
    if not spec.lead_ms:
        return ""
    return f"{spec.signal or 'TERM'} {long_duration(spec.lead_ms)} before the limit"


ATTEMPT_HEADER = (
    "ATTEMPT", "WORKERS", "OUTCOME", "RC", "ASSIGNED", "STARTED", "RAN", "REASON",
)  # fmt: skip
ATTEMPT_CUTS = (
    Cut("REASON", 12), Cut("WORKERS", 16), Cut("ASSIGNED", 0), Cut("STARTED", 0), Cut("RAN", 0),
)  # fmt: skip


def workers_of(job: Job) -> tuple[str, ...]:
    """The slots of the attempt that counts; empty for a job that waits."""
    if job.state.queued or job.last is None:
        return ()
    return job.last.slots


def rc_of(job: Job) -> int | None:
    """The exit code of an ended job, as a shell shows it; None where it has none."""
    return job.last.rc if job.state.ended and job.last is not None else None


def archived_json(view: View, job: JobId) -> dict[str, Any]:
    """What is remembered of a job that ended long ago."""
    archived = view.state.archive[job]
    return {"id": job, "state": archived.state.value, "rc": archived.rc, "page": archived.seq}


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "workers": list(attempt.slots),
        "phase": attempt.phase.name,
        "outcome": attempt.outcome,
        "rc": attempt.rc,
        "reason": attempt.reason,
        "stop_reason": attempt.stop_reason,
        "superseded": attempt.superseded,
        "log_bytes": attempt.log_bytes,
        "cost_slot_ms": attempt.cost_ms,
        **times(
            assigned_at=attempt.assigned_at,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
        ),
    }
