"""``gpuq drain``, ``undrain``, ``move`` and ``retry``: what an operator does with nodes and jobs.

Owns the checks before such a request is written, and what is said about its effect. Each is
a request: the leader's next page decides, and a job can begin or end before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from gpuq.cancel import Jobs, line_of, select_jobs, state_of
from gpuq.client import Client, open_client
from gpuq.render import printable, say
from gpuq.selectors import SELECTORS
from gpuq.view import View, read_view
from ledger.errors import RequestError
from ledger.events import (
    DrainRequested,
    JobState,
    MoveRequested,
    RetryRequested,
    UndrainRequested,
)
from ledger.names import WORKER, JobId, NodeName, WorkerName, check_name
from ledger.state import Job, Placement
from scheduling.admission import refusal

Node = Annotated[
    str, typer.Argument(metavar="NODE", help="The node's name, as 'gpuq nodes' shows it.")
]
OptionalJobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help=SELECTORS, show_default=False),
]


# --- nodes


def drain(
    context: typer.Context,
    node: Node,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Shown by nodes and status.")] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Stop what runs there; it runs again elsewhere.")
    ] = False,
) -> None:
    """Let a node finish what it runs (or stop it) and start nothing new."""
    client, view, name = _known_node(context, node)
    by = client.settings.user.value
    fact = DrainRequested(node=name, at=client.store.clock_ms(), by=by, reason=reason, now=now)
    client.send(fact, f"the drain of {name}")
    running = _running_on(view, name)
    listed = ", ".join(job.id for job in running)
    if not running:
        effect = "nothing runs there"
    elif now:
        effect = f"stops {listed}, to run again elsewhere"
    else:
        effect = f"what runs there goes on: {listed}"
    print(f"{name}: takes no new jobs; {effect}")
    bound = [job.id for job in _bound_to(view, name) if job in running or job.state.queued]
    if bound and (now or not running):
        say(
            f"pinned there, and waiting for it: {', '.join(bound)}; "
            f"'gpuq move --from {name}' sends those elsewhere that have not begun"
        )


def undrain(context: typer.Context, node: Node) -> None:
    """Let a drained node start jobs again."""
    client, _, name = _known_node(context, node)
    by = client.settings.user.value
    fact = UndrainRequested(node=name, at=client.store.clock_ms(), by=by)
    client.send(fact, f"the undrain of {name}")
    print(f"{name}: takes jobs again")


def _known_node(context: typer.Context, text: str) -> tuple[Client, View, NodeName]:
    name = NodeName(check_name("node", text))
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    _check_node(view, name)
    return client, view, name


def _check_node(view: View, name: NodeName) -> None:
    known = view.state.nodes
    if name not in known:
        there = ", ".join(sorted(known)) or "none has reported yet"
        raise RequestError(f"no node {name!r}; nodes are {there}")


def _running_on(view: View, node: NodeName) -> list[Job]:
    """In order of arrival, what has begun on a worker of the node."""
    began = (JobState.RUNNING, JobState.STOPPING)
    return [job for job in view.open_jobs() if job.state in began and _led_from(job, node)]


def _led_from(job: Job, node: NodeName) -> bool:
    return job.last is not None and _node_of(job.last.lead) == node


def _bound_to(view: View, node: NodeName) -> list[Job]:
    """In order of arrival, what is pinned to a worker of the node."""
    return [job for job in view.open_jobs() if _node_of(job.placed.worker) == node]


def _node_of(worker: str) -> str:
    match = WORKER.fullmatch(worker)
    return match[1] if match is not None else ""


# --- move


def move(
    context: typer.Context,
    jobs: OptionalJobs = None,
    *,
    source: Annotated[
        str, typer.Option("--from", help="All that waits for this node and has not begun.")
    ] = "",
    worker: Annotated[
        str, typer.Option("--worker", help="Pin them there, such as node1-gpu0.")
    ] = "",
    pool: Annotated[
        str, typer.Option("--pool", "-p", help="To this pool, and to no worker of it.")
    ] = "",
) -> None:
    """Have jobs that have not begun run elsewhere than was submitted."""
    if bool(jobs) == bool(source):
        raise RequestError("say which jobs: name them, or all of a node with --from NODE")
    if not worker and not pool:
        raise RequestError("say where to: --worker, --pool or both")
    if jobs:
        client, view, ids = select_jobs(context, list(jobs))
    else:
        client, view, node = _known_node(context, source)
        ids = _unstarted_of(view, node)
        if not ids:
            print(f"{node}: nothing that has not begun is pinned or assigned there")
    place = _place(view, worker, pool)
    for job_id in ids:
        _check_move(view, job_id, place)
    for job_id in ids:
        print(line_of(view, job_id, _move_one(client, view, job_id, place)))


def _unstarted_of(view: View, node: NodeName) -> list[JobId]:
    bound = {job.id for job in _bound_to(view, node) if job.state.queued}
    return [
        job.id
        for job in view.open_jobs()
        if job.id in bound or (job.state is JobState.ASSIGNED and _led_from(job, node))
    ]


def _place(view: View, worker: str, pool: str) -> Placement:
    if not worker:
        return Placement(check_name("pool", pool))
    known = view.state.workers.get(WorkerName(worker))
    if known is None:
        there = ", ".join(sorted(view.state.workers)) or "none has reported yet"
        raise RequestError(f"no worker {worker!r}; workers are {there}")
    return Placement(check_name("pool", pool) if pool else known.pool, worker)


def _check_move(view: View, job_id: JobId, place: Placement) -> None:
    """Raise RequestError where the job cannot move, or could never run there."""
    job = view.job(job_id)
    state = state_of(view, job_id)
    if job is None or state.ended:
        raise RequestError(f"{job_id} ended as {state.value}: only a job that waits can move")
    if job.last is not None and state in (JobState.RUNNING, JobState.STOPPING):
        raise RequestError(
            f"{job_id} runs on {job.last.lead}: only a job that waits can move; 'gpuq cancel "
            f"{job_id}' ends it, 'gpuq drain {_node_of(job.last.lead)} --now' runs it elsewhere"
        )
    spec = msgspec.structs.replace(job.spec, pool=place.pool, worker=place.worker)
    reason = refusal(view.state, spec)
    if reason:
        raise RequestError(f"{job_id} cannot move there: {reason}")


def _move_one(client: Client, view: View, job_id: JobId, place: Placement) -> str:
    job = view.job(job_id)
    assert job is not None
    where = f"{place.worker} in pool {place.pool}" if place.worker else f"pool {place.pool}"
    if job.state.queued and (job.placed.pool, job.placed.worker) == (place.pool, place.worker):
        return f"waits for {where} already"
    fact = MoveRequested(
        job=job.id,
        at=client.store.clock_ms(),
        by=client.settings.user.value,
        pool=place.pool,
        worker=place.worker,
    )
    client.send(fact, f"the move of {job.id}")
    if job.state.queued or job.last is None:
        return f"waits for {where}"
    return f"moves to {where}, unless {job.last.lead} has begun it by now"


# --- retry


def retry(context: typer.Context, jobs: Jobs) -> None:
    """Give ended jobs a further attempt; they wait again, behind all others of their flow."""
    client, view, ids = select_jobs(context, jobs)
    retried = [_check_retry(view, job_id) for job_id in ids]
    for job in retried:
        fact = RetryRequested(job=job.id, at=client.store.clock_ms(), by=client.settings.user.value)
        client.send(fact, f"the retry of {job.id}")
        print(line_of(view, job.id, f"waits again, for attempt {len(job.attempts) + 1}"))
    _warn_of_lost(retried)


def _check_retry(view: View, job_id: JobId) -> Job:
    """The job, or RequestError where it cannot have a further attempt."""
    job, state = view.state.jobs.get(job_id), state_of(view, job_id)
    if not state.ended:
        raise RequestError(f"{job_id} is {state.value}: only an ended job can be retried")
    if not state.retryable:
        raise RequestError(f"{job_id} ended as {state.value}: submit it again to run it again")
    if job is None:
        raise RequestError(
            f"{job_id} ended as {state.value} so long ago that no more is kept of it: "
            "submit it again"
        )
    return job


def _warn_of_lost(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.last is not None and job.last_is_lost:
            say(
                printable(
                    f"gpuq: {job.id} may still run on {job.last.lead}, which is silent: "
                    "should it come back first, the job goes on there"
                )
            )
