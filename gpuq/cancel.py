"""``gpuq cancel``, ``hold`` and ``release``: asking for a job to end, to wait, to go on.

Owns what is said about the effect. Each is a request: the leader's next page decides, and
a job can start or end between the look and that page.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from gpuq.client import Client, open_client
from gpuq.parse import parse_grace
from gpuq.render import long_duration, printable
from gpuq.selectors import SELECTORS, select_many
from gpuq.view import View, read_view
from ledger.errors import RequestError
from ledger.events import CancelRequested, HoldRequested, JobState, ReleaseRequested
from ledger.names import JobId

Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB", help=SELECTORS, show_default=False),
]
Reason = Annotated[str, typer.Option("--reason", help="Kept in the ledger.")]


def cancel(
    context: typer.Context,
    jobs: Jobs,
    *,
    reason: Reason = "",
    grace: Annotated[
        str, typer.Option("--grace", help="Between TERM and KILL: 30s, 2m; 0: at once.")
    ] = "",
) -> None:
    """End jobs: those that wait at once, those that run by TERM, then KILL."""
    grace_ms = parse_grace(grace) if grace else 0
    client, view, ids = select_jobs(context, jobs)
    for job_id in ids:
        fact = CancelRequested(
            job=job_id,
            at=client.store.clock_ms(),
            by=client.settings.user.value,
            reason=reason,
            grace_ms=grace_ms,
        )
        print(line_of(view, job_id, _cancel_one(client, view, fact)))


def cancelled() -> None:
    """Exit with 0 if this job is to end (cancel, deadline, yield), else with 1.

    For programs that look between two batches or calls, inside a job.
    """
    flag = os.environ.get("GPUQ_CANCEL")
    if not flag:
        raise RequestError("GPUQ_CANCEL is not set: this asks from inside a job")
    if not os.path.exists(flag):
        raise typer.Exit(1)


def hold(context: typer.Context, jobs: Jobs, *, reason: Reason = "") -> None:
    """Keep waiting jobs from starting until 'gpuq release'."""
    client, view, ids = select_jobs(context, jobs)
    for job_id in ids:
        state = state_of(view, job_id)
        if not state.queued:
            raise RequestError(f"{job_id} is {state.value}: only a job that waits can be held")
        if state is JobState.PENDING:
            by = client.settings.user.value
            fact = HoldRequested(job=job_id, at=client.store.clock_ms(), by=by, reason=reason)
            client.send(fact, f"the hold of {job_id}")
        print(line_of(view, job_id, "held" if state is JobState.PENDING else "already held"))


def release(context: typer.Context, jobs: Jobs) -> None:
    """Let held jobs go on."""
    client, view, ids = select_jobs(context, jobs)
    for job_id in ids:
        state = state_of(view, job_id)
        if state is not JobState.HELD:
            raise RequestError(f"{job_id} is {state.value}: only a held job can be released")
        by = client.settings.user.value
        fact = ReleaseRequested(job=job_id, at=client.store.clock_ms(), by=by)
        client.send(fact, f"the release of {job_id}")
        print(line_of(view, job_id, "released"))


def select_jobs(context: typer.Context, texts: list[str]) -> tuple[Client, View, list[JobId]]:
    """All selectors are read before anything is written; each job once."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    return client, view, select_many(client, view, texts, asks_for_all=True)


def _cancel_one(client: Client, view: View, fact: CancelRequested) -> str:
    """Ask for it where that changes anything; what comes of it, in words."""
    job = view.job(fact.job)
    state = state_of(view, fact.job)
    may_return = job is not None and state is JobState.NODE_FAIL and job.last_is_lost
    if state.ended and not may_return:
        return f"already ended as {state.value}"
    hastens = job is not None and job.is_hastened_by(fact)
    if job is not None and job.cancel is not None and not hastens:
        return f"stop already requested by {job.cancel.by}; a shorter --grace stops it sooner"
    client.send(fact, f"the cancel of {fact.job}")
    if hastens:
        return f"stopping sooner: KILL after {long_duration(fact.grace_ms)}"
    if may_return:
        return "cancelled: it does not go on when its node is back"
    if job is not None and job.array is not None and job.array.open:
        return f"cancelled: what is left, and {len(job.array.open)} that had begun are stopped"
    if job is None or job.last is None or state.queued:
        return "cancelled"
    if state is JobState.ASSIGNED:
        return f"cancelled, and stopped if {job.last.lead} has begun it by now"
    if state is JobState.STOPPING:
        return f"cancelled: what stops it now ({job.last.stop_reason}) ends it"
    grace_ms = fact.grace_ms or job.spec.grace_ms or client.settings.timings.grace_ms
    return f"stop requested: TERM on {job.last.lead}, KILL after {long_duration(grace_ms)}"


def state_of(view: View, job_id: JobId) -> JobState:
    """Where it stands; also of a job that ended long ago, or was refused."""
    job = view.job(job_id)
    if job is not None:
        return job.state
    archived = view.state.archive.get(job_id)
    return archived.state if archived is not None else JobState.REJECTED


def line_of(view: View, job_id: JobId, effect: str) -> str:
    """What is said of a request about one job."""
    job = view.job(job_id)
    return printable(f"{job_id} {job.spec.name if job is not None else ''}: {effect}")
