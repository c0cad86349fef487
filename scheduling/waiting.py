"""What time alone does to a job that waits: it expires, or the time comes for which it was put off.

Owns deadlines and queue ages of waiting jobs. Pure.
"""

from __future__ import annotations

from ledger import events as e
from ledger.events import JobState
from ledger.policy import Policy
from ledger.state import Job

DEADLINE = "its deadline has passed"


def next_waiting_due(policy: Policy, job: Job) -> int | None:
    """When something becomes of a PENDING or HELD job if nothing else happens (ms), or None."""
    dues = (job.spec.deadline_at, _wakes_at(job), _too_old_at(policy, job)[0])
    return min((due for due in dues if due), default=None)


def waiting_due(policy: Policy, job: Job, at: int) -> e.JobExpired | e.JobResumed | None:
    """What time makes of it at ``at``; None where it waits on."""
    if 0 < job.spec.deadline_at <= at:
        return e.JobExpired(job=job.id, reason=DEADLINE)
    too_old_at, reason = _too_old_at(policy, job)
    if 0 < too_old_at <= at:
        return e.JobExpired(job=job.id, reason=reason)
    return e.JobResumed(job=job.id) if 0 < _wakes_at(job) <= at else None


def _wakes_at(job: Job) -> int:
    return job.wakes_at if job.state is JobState.HELD else 0


def _too_old_at(policy: Policy, job: Job) -> tuple[int, str]:
    """When a job that never was assigned has waited for too long (0: never), and the rule."""
    if job.attempts or not job.is_waiting:
        return 0, ""
    age_ms, whose = policy.queue_age_ms(job.placed.flow)
    if not age_ms:
        return 0, ""
    return job.queued_since + age_ms, f"{whose} lets no job wait longer than {age_ms // 1000} s"
