"""``gpuq status``: what runs, what waits and why, what ended; or one job whole.

Owns the summary line and the two tables of the overview. Every view is some seconds old,
and says so.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Annotated, Any

import typer

from gpuq.client import open_client
from gpuq.job import (
    ATTEMPT_CUTS,
    ATTEMPT_HEADER,
    ENDED_CUTS,
    ENDED_HEADER,
    OPEN_CUTS,
    OPEN_HEADER,
    Shown,
    archived_json,
)
from gpuq.jobfilter import JobFilter, parse_filter
from gpuq.render import (
    local_time,
    print_clauses,
    print_json,
    print_table,
    printable,
    short_duration,
    times,
)
from gpuq.selectors import select
from gpuq.view import View, read_view
from ledger.errors import RequestError
from ledger.events import JobState, Liveness
from ledger.names import JobId
from ledger.state import Job, Node, State

ENDED_SHOWN = 20
WAITING_ON_A_TERMINAL = 40
"""A terminal shows so many waiting jobs; a pipe gets all."""

WATCH_MS = 2_000

_CLEAR = "\x1b[H\x1b[2J"
_ORDER = (JobState.RUNNING, JobState.STOPPING, JobState.ASSIGNED, JobState.PENDING, JobState.HELD)


def status(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="An id, the beginning of one, a name, or 'last'."),
    ] = None,
    *,
    state: Annotated[
        str, typer.Option("--state", help="Only jobs in these states: running,failed.")
    ] = "",
    org: Annotated[str, typer.Option("--org", help="Only jobs of this organization.")] = "",
    since: Annotated[
        str, typer.Option("--since", help="Of those that ended, only since: 2h (ago).")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help="At most so many that wait or ended.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every 2 seconds.")
    ] = False,
) -> None:
    """Show what runs, waits and ended; with an ID that job and all its attempts."""
    if job is not None and (state or org or since or limit is not None):
        raise RequestError("--state, --org, --since and --limit choose among all: name no job")
    client = open_client(context)
    asked = parse_filter(state, org, since, client.store.clock_ms())
    journal = client.load_journal()
    while True:
        view = read_view(journal, client.settings.timings)
        if watch and sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        if job is None:
            _show_all(view, asked, limit, json=json)
        else:
            _show_one(view, select(client, view, job), json=json)
        if not watch:
            return
        sys.stdout.flush()
        client.clock.sleep_ms(WATCH_MS)
        journal.follow()


def _show_all(view: View, asked: JobFilter, limit: int | None, *, json: bool) -> None:
    shown = Shown(view)
    still = _lines(view, view.open_jobs(), asked)
    by_state = sorted(still, key=lambda job: _ORDER.index(job.state))
    open_jobs = [job for job in by_state if asked.passes(job)]
    ended_jobs = _ended(view, asked, limit)
    if json:
        listed = _first(open_jobs, limit)
        print_json(_overview_json(view, shown, listed, ended_jobs))
        return
    print_clauses(summary(view))
    listed = _first(open_jobs, WAITING_ON_A_TERMINAL if _is_cut(asked, limit) else limit)
    if listed:
        print()
        print_table(OPEN_HEADER, [shown.open_row(job) for job in listed], OPEN_CUTS)
    if len(listed) < len(open_jobs):
        mend = "" if limit is not None else "; '--limit N' shows more, and piped, all are listed"
        print(f"... and {len(open_jobs) - len(listed)} more that wait{mend}")
    if ended_jobs:
        print("\nended last:")
        print_table(ENDED_HEADER, [shown.ended_row(job) for job in ended_jobs], ENDED_CUTS)
    for job, reason in list(view.state.refused.items())[-ENDED_SHOWN:]:
        print(printable(f"refused: {job}: {reason}"))


def _ended(view: View, asked: JobFilter, limit: int | None) -> list[Job]:
    """The newest first; all that were asked for, where a time or a state was."""
    ended = _lines(view, view.ended_jobs(len(view.state.ended)), asked)
    chosen = [job for job in ended if asked.passes(job)]
    if limit is None and (asked.since_at or asked.states):
        return chosen
    return chosen[: ENDED_SHOWN if limit is None else limit]


def _lines(view: View, jobs: list[Job], asked: JobFilter) -> list[Job]:
    """One line an array; its members only where states were asked for."""
    return jobs if asked.states else [job for job in jobs if view.array_of(job) is None]


def _is_cut(asked: JobFilter, limit: int | None) -> bool:
    """Whether a long queue is shown by its beginning only."""
    return limit is None and not asked.states and sys.stdout.isatty()


def _first(jobs: list[Job], limit: int | None) -> list[Job]:
    """All that run, and the first ``limit`` of those that wait."""
    if limit is None:
        return jobs
    return jobs[: sum(not job.state.queued for job in jobs) + limit]


def summary(view: View) -> list[str]:
    """Clauses of one line: how many run and wait, the nodes; the view's age; the leader."""
    counts = _counts(view)
    parts = [f"{counts['running']} running", f"{counts['waiting']} waiting"]
    if counts["held"]:
        parts.append(f"{counts['held']} held")
    nodes = _node_counts(view.state)
    parts.append(f"{nodes['up']} node{_s(nodes['up'])} up")
    parts.extend(f"{nodes[what]} {what}" for what in ("draining", "silent") if nodes[what])
    if price := price_micros(view.state):
        parts.append(f"{Decimal(price) / 1_000_000:.2f} an hour")
    if view.unposted_facts:
        parts.append(f"{view.unposted_facts} report{_s(view.unposted_facts)} not yet posted")
    return [", ".join(parts), _as_of(view), _leader(view)]


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _as_of(view: View) -> str:
    if not view.page_at:
        return f"no page yet at {view.url}"
    age = short_duration(view.now_ms - view.page_at)
    return f"as of {local_time(view.now_ms, view.now_ms)}, newest page {age} old"


def _leader(view: View) -> str:
    leadership = view.leadership
    if leadership.alive:
        name = leadership.leader.partition("~")[0].removeprefix("dispatcher-")
        return f"leader {name} (epoch {leadership.epoch})" if leadership.leader else "electing"
    if leadership.silent_ms is None:
        return "no leader: start one with 'gpuq up'"
    silence = short_duration(leadership.silent_ms)
    return f"no leader for {silence}: start one with 'gpuq up'"


def _counts(view: View) -> dict[str, int]:
    counts = dict.fromkeys(("running", "waiting", "held"), 0)
    for job in view.state.jobs.values():
        match job.state:
            case JobState.RUNNING | JobState.STOPPING:
                counts["running"] += job.array is None
            case JobState.PENDING | JobState.ASSIGNED:
                counts["waiting"] += job.waiting
            case JobState.HELD:
                counts["held"] += job.waiting
    return counts


def _node_counts(state: State) -> dict[str, int]:
    counts = {"up": 0, "draining": 0, "silent": 0}
    for node in state.nodes.values():
        if not _serves(state, node):
            continue
        if node.liveness is not Liveness.FRESH:
            counts["silent"] += 1
        elif node.drained:
            counts["draining"] += 1
        else:
            counts["up"] += 1
    return counts


def _serves(state: State, node: Node) -> bool:
    """Whether some worker of the node has not said good-bye."""
    workers = [state.workers[name] for name in node.workers]
    return any(worker.ready and not worker.retired for worker in workers)


def price_micros(state: State) -> int:
    """What the nodes that serve cost an hour, in millionths; each told its own price."""
    return sum(
        max(state.workers[name].price_micros for name in node.workers)
        for node in state.nodes.values()
        if _serves(state, node)
    )


def _overview_json(view: View, shown: Shown, jobs: list[Job], ended: list[Job]) -> dict[str, Any]:
    leadership = view.leadership
    return {
        "store": view.url,
        "ledger": view.state.ledger,
        "page": view.state.seq,
        **times(as_of=view.now_ms, page_at=view.page_at or None),
        "unposted_facts": view.unposted_facts,
        "leader": {
            "writer": leadership.leader,
            "epoch": leadership.epoch,
            "alive": leadership.alive,
            "silent_ms": leadership.silent_ms,
        },
        "counts": _counts(view),
        "nodes": _node_counts(view.state),
        "price_micros_per_hour": price_micros(view.state) or None,
        "jobs": [shown.json(job) for job in jobs],
        "ended": [shown.json(job) for job in ended],
        "refused": [{"id": job, "reason": reason} for job, reason in view.state.refused.items()],
    }


def _show_one(view: View, job_id: JobId, *, json: bool) -> None:
    job = view.job(job_id)
    if job is None:
        _show_remembered(view, job_id, json=json)
        return
    shown = Shown(view)
    if json:
        print_json(shown.whole_json(job))
        return
    for name, value in shown.lines(job):
        print(f"{name + ':':<15}{printable(value)}")
    if job.attempts:
        print()
        rows = [shown.attempt_row(attempt) for attempt in job.attempts]
        print_table(ATTEMPT_HEADER, rows, ATTEMPT_CUTS)


def _show_remembered(view: View, job_id: JobId, *, json: bool) -> None:
    """A job of which the projection keeps only how it ended."""
    refused = view.state.refused.get(job_id)
    if job_id not in view.state.archive:
        raise RequestError(f"the submit of {job_id} was refused: {refused}")
    remembered = archived_json(view, job_id)
    if json:
        print_json(remembered)
        return
    for name, value in remembered.items():
        print(f"{name + ':':<15}{'-' if value is None else value}")
