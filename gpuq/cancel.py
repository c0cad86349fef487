"""``gpuq cancel``, ``hold`` and ``release``: asking for a job to end, to wait, to go on.

Owns what is said about the effect. Each is a request: the leader's next page decides, and
a job can start or end between the look and that page.
"""

from __future__ import annotations

from typing import Annotated

import typer

from gpuq.client import Client, open_client
from gpuq.parse import parse_duration
from gpuq.render import printable
from gpuq.selectors import select
from gpuq.view import View, read_view
from ledger.errors import RequestError
from ledger.events import CancelRequested, HoldRequested, JobState, ReleaseRequested
from ledger.names import JobId
from ledger.state import Job

Jobs = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB", help="Ids, beginnings of ids, names, or 'last'.", show_default=False
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Kept in the ledger.")]


def cancel(
    context: typer.Context,
    jobs: Jobs,
    *,
    reason: Reason = "",
    grace: Annotated[str, typer.Option("--grace", help="Between TERM and KILL: 30s.")] = "",
) -> None:
    """End jobs: those that wait at once, those that run by TERM, then KILL."""
    grace_ms = parse_duration(grace) if grace else 0
    client, view, ids = _select(context, jobs)
    for job_id in ids:
        effect = _effect_of_cancel(view, job_id)
        if not _has_ended(view, job_id):
            fact = CancelRequested(
                job=job_id,
                at=client.store.clock_ms(),
                by=client.settings.user.value,
                reason=reason,
                grace_ms=grace_ms,
            )
            client.send(fact, f"the cancel of {job_id}")
        print(_line(view, job_id, effect))


def hold(context: typer.Context, jobs: Jobs, *, reason: Reason = "") -> None:
    """Keep waiting jobs from starting until 'gpuq release'."""
    client, view, ids = _select(context, jobs)
    for job_id in ids:
        state = _state(view, job_id)
        if not state.queued:
            raise RequestError(f"{job_id} is {state.value}: only a job that waits can be held")
        if state is JobState.PENDING:
            by = client.settings.user.value
            fact = HoldRequested(job=job_id, at=client.store.clock_ms(), by=by, reason=reason)
            client.send(fact, f"the hold of {job_id}")
        print(_line(view, job_id, "held" if state is JobState.PENDING else "already held"))


def release(context: typer.Context, jobs: Jobs) -> None:
    """Let held jobs go on."""
    client, view, ids = _select(context, jobs)
    for job_id in ids:
        state = _state(view, job_id)
        if state is not JobState.HELD:
            raise RequestError(f"{job_id} is {state.value}: only a held job can be released")
        by = client.settings.user.value
        fact = ReleaseRequested(job=job_id, at=client.store.clock_ms(), by=by)
        client.send(fact, f"the release of {job_id}")
        print(_line(view, job_id, "released"))


def _select(context: typer.Context, texts: list[str]) -> tuple[Client, View, list[JobId]]:
    """All selectors are read before anything is written; each job once."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    ids = dict.fromkeys(select(client, view, text) for text in texts)
    return client, view, list(ids)


def _effect_of_cancel(view: View, job_id: JobId) -> str:
    job = _find_job(view, job_id)
    state = _state(view, job_id)
    if state.ended:
        return f"already ended as {state.value}"
    if state.queued:
        return "cancelled"
    if job is not None and job.cancel is not None:
        return "stop already requested"
    return "stop requested" if state is not JobState.ASSIGNED else "cancel requested"


def _has_ended(view: View, job_id: JobId) -> bool:
    return _state(view, job_id).ended


def _state(view: View, job_id: JobId) -> JobState:
    job = _find_job(view, job_id)
    if job is not None:
        return job.state
    archived = view.state.archive.get(job_id)
    return archived.state if archived is not None else JobState.REJECTED


def _find_job(view: View, job_id: JobId) -> Job | None:
    return view.state.jobs.get(job_id)


def _line(view: View, job_id: JobId, effect: str) -> str:
    job = _find_job(view, job_id)
    return printable(f"{job_id} {job.spec.name if job is not None else ''}: {effect}")
