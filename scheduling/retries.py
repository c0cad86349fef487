"""Which failed jobs are tried again, and when.

Owns the conditions: what the job allows, how often its pool lets it, and its flow's budget,
so that work which always fails cannot multiply the load. A lost attempt is no failure: it is
followed by another where the job is idempotent, and that is decided elsewhere. A failure for
which a blocked node is to blame uses up no retry and costs the flow nothing. Pure: the jitter
comes from the job's id.
"""

from __future__ import annotations

import hashlib
import re

from ledger import events as e
from ledger.events import JobSpec, JobState
from ledger.names import JobId
from ledger.projection import Projection
from ledger.state import Attempt, Job
from scheduling.health import EXCUSES_MAX

BACKOFF_MS = 5_000
"""Before the second attempt; doubled with each further one."""

BACKOFF_MAX_MS = 600_000

RETRY_WORDS = "failed, rc=N, oom, timeout, lost"

_RC = re.compile(r"rc=(\d{1,3})")

_STATES = {
    JobState.FAILED: "failed",
    JobState.OUT_OF_MEMORY: "oom",
    JobState.TIMEOUT: "timeout",
}


def is_retry_rule(text: str) -> bool:
    """Whether it can stand in ``retry_on``."""
    return text in ("failed", "oom", "timeout", "lost") or _RC.fullmatch(text) is not None


def retry_of(projection: Projection, job: Job, at: int) -> e.JobRetried | e.RetryDenied | None:
    """The further attempt that a job gets whose last one has just ended, or None.

    That its flow's budget is used up is said, as neither the job nor its pool shows it.
    """
    last = job.last
    if last is None or job.cancel is not None or not _is_wanted(job.spec, job.state, last):
        return None
    excused = min(sum(attempt.excused for attempt in job.attempts), EXCUSES_MAX)
    ended = sum(1 for attempt in job.attempts if attempt.ran) - excused
    spec, state = job.placed, projection.state
    rule = state.policy.pool(spec.pool).retry
    most = 1 + spec.retries
    if ended >= (min(most, rule.attempts_max) if rule.attempts_max else most):
        return None
    until = at + _backoff_ms(job.id, ended)
    if spec.deadline_at and until >= spec.deadline_at:
        return None
    if projection.retry_budget(spec.flow) < 1_000:
        reason = (
            f"not tried again: the retry budget of its flow is used up, {rule.budget_percent} % of "
            "its first attempts"
        )
        return e.RetryDenied(job=job.id, reason=reason)
    what = f"attempt {last.number} ended {job.state.value} (rc {last.rc})"
    return e.JobRetried(job=job.id, reason=f"{what}; tried again", until=until)


def _is_wanted(spec: JobSpec, state: JobState, last: Attempt) -> bool:
    """Whether the job says that such an end is followed by another attempt."""
    word = _STATES.get(state)
    if not spec.retries or word is None or (word == "timeout" and not spec.idempotent):
        return False
    rules = spec.retry_on or ("failed",)
    return word in rules or (word == "failed" and f"rc={last.rc}" in rules)


def _backoff_ms(job: JobId, ended: int) -> int:
    """Half to the whole of a delay that doubles with each attempt."""
    longest_ms = min(BACKOFF_MAX_MS, BACKOFF_MS << min(max(ended - 1, 0), 16))
    digest = hashlib.sha256(f"{job}.{ended}".encode()).digest()
    return longest_ms // 2 + int.from_bytes(digest[:4]) % (longest_ms // 2 + 1)
