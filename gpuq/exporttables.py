"""The tables of ``gpuq export``: their columns, and the rows that a ledger has.

Every job and attempt of the ledger is held in memory while its journal is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from gpuq.audit import Period
from ledger import events as e
from ledger.bill import slot_lines
from ledger.health import command_of
from ledger.names import JobId
from ledger.state import Attempt, Job, State
from ledger.usage import UsageLog, Use

Row = tuple[Any, ...]


class Table(StrEnum):
    JOBS = "jobs"
    ATTEMPTS = "attempts"
    USAGE = "usage"


COLUMNS: dict[Table, dict[str, type]] = {
    Table.JOBS: {
        "id": str, "name": str, "organization": str, "class": str, "pool": str, "user": str,
        "host": str, "state": str, "reason": str, "rc": int, "slots": int, "gpu_type": str,
        "estimate_ms": int, "time_limit_ms": int, "idempotent": bool, "script_sha256": str,
        "command_fingerprint": str, "attempts": int, "submitted_at_ms": int, "started_at_ms": int,
        "ended_at_ms": int, "occupied_slot_ms": int,
    },
    Table.ATTEMPTS: {
        "job": str, "attempt": int, "organization": str, "class": str, "pool": str, "user": str,
        "node": str, "workers": str, "gpus": str, "slots": int, "assigned_at_ms": int,
        "started_at_ms": int, "ended_at_ms": int, "became": str, "outcome": str, "rc": int,
        "reason": str, "occupied_slot_ms": int, "asked_slot_ms": int, "charged_cost": int,
        "log_bytes": int,
    },
    Table.USAGE: {
        "worker": str, "node": str, "gpu": str, "pool": str, "begin_ms": int, "end_ms": int,
        "job": str, "attempt": int, "organization": str, "class": str, "user": str, "became": str,
        "price_micros": int,
    },
}  # fmt: skip


class JobLog:
    """Every job: the fold's own objects, kept beyond their archiving."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}

    def page(self, page: e.Page, state: State) -> None:
        for posted in page.facts:
            fact = posted.fact
            if isinstance(fact, e.Submitted) and fact.job.id in state.jobs:
                self.jobs.setdefault(fact.job.id, state.jobs[fact.job.id])


def rows_of(
    table: Table, jobs: JobLog, usage: UsageLog, state: State, period: Period
) -> Iterator[Row]:
    """Jobs submitted, attempts assigned in the period; slot time is cut at its edges."""
    begin = 0 if period.begin is None else period.begin
    end = state.at + 1 if period.end is None else period.end
    uses = list(usage.uses())
    if table is Table.USAGE:
        yield from _usage_rows(usage, uses, begin, end)
        return
    by_attempt = {(use.job, use.attempt): use for use in uses}
    for job in jobs.jobs.values():
        if table is Table.JOBS:
            if begin <= job.submitted_at < end:
                yield _job_row(job, by_attempt)
            continue
        for attempt in job.attempts:
            if begin <= attempt.assigned_at < end:
                yield _attempt_row(job, attempt, by_attempt.get((job.id, attempt.number)))


def _job_row(job: Job, uses: dict[tuple[JobId, int], Use]) -> Row:
    spec = job.placed
    of_job = [use for a in job.attempts if (use := uses.get((job.id, a.number))) is not None]
    return (
        job.id, spec.name, spec.organization, spec.workload_class, spec.pool, spec.user, spec.host,
        job.state.value, job.reason or None, job.last.rc if job.last else None, spec.slots,
        spec.gpu_type or None, spec.estimate_ms or None, spec.time_limit_ms or None,
        spec.idempotent, spec.script or None, command_of(spec), len(job.attempts), job.submitted_at,
        min((use.started_at for use in of_job), default=None), job.ended_at,
        sum(_occupied_ms(use) for use in of_job),
    )  # fmt: skip


def _attempt_row(job: Job, attempt: Attempt, use: Use | None) -> Row:
    """An attempt that never ran held no slot, and has no times of its own."""
    spec = job.placed
    return (
        job.id, attempt.number,
        use.organization if use else spec.organization,
        use.workload_class if use else spec.workload_class,
        use.pool if use else spec.pool,
        spec.user,
        use.slots[0].node if use else None,
        " ".join(attempt.slots),
        " ".join(slot.gpu for slot in use.slots) if use else None,
        len(attempt.slots), attempt.assigned_at,
        use.started_at if use else None,
        use.ended_at if use else None,
        use.became.value if use else None,
        attempt.outcome or None, attempt.rc, attempt.reason or None,
        _occupied_ms(use) if use else 0,
        use.asked_ms if use else None,
        attempt.cost_ms, attempt.log_bytes,
    )  # fmt: skip


def _occupied_ms(use: Use) -> int:
    """As reported; ``usage`` gives what overlaps on a slot to one attempt only."""
    return len(use.slots) * (use.ended_at - use.started_at)


def _usage_rows(usage: UsageLog, uses: list[Use], begin: int, end: int) -> Iterator[Row]:
    for lines in slot_lines(uses, usage.slots()).values():
        for line in lines:
            first, last = max(line.begin, begin), min(line.end, end)
            use = line.use
            if first < last:
                yield (
                    line.worker, line.node, line.gpu, line.pool, first, last,
                    use.job if use else None,
                    use.attempt if use else None,
                    use.organization if use else None,
                    use.workload_class if use else None,
                    use.user if use else None,
                    use.became.value if use else "idle",
                    line.price_micros or None,
                )  # fmt: skip
