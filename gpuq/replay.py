"""``gpuq replay``: what a ledger's own pages prove, without trust in whoever wrote them.

Owns the showing of a verification.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from gpuq.client import Client, connect, settings_of
from gpuq.compare import compare, whatif
from gpuq.history import parse_moment
from gpuq.progress import Progress
from gpuq.render import epilog, print_json, printable
from ledger.errors import RequestError
from simulation.difference import Difference
from simulation.objects import ObjectCounts
from simulation.verify import Period, Verification, verify_all

replay_app = typer.Typer(help="Prove what happened, ask what would have happened.")

DIFFERENT = 1
"""Exit code of ``verify`` where the ledger is not what its decisions derive to."""

_VALUE_MAX_CHARACTERS = 300


@replay_app.callback()
def replay() -> None:
    """Prove what happened, ask what would have happened."""


@replay_app.command(
    "verify",
    epilog=epilog(
        "gpuq replay verify",
        "gpuq replay verify --from 7d",
        "gpuq replay verify --store /copy/of/ledger --json",
    ),
)
def verify_command(
    context: typer.Context,
    *,
    begin: Annotated[
        str | None,
        typer.Option("--from", help="Only from then on: 7d (ago), or a local time."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Only up to then.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
) -> None:
    """Derive every decision again, and hold all other objects against the journal."""
    client = connect(settings_of(context))
    period = _period(client, begin, end)
    with Progress(client.clock, client.store) as progress:
        report = verify_all(
            client.store,
            client.ledger,
            lambda report: progress.show(report.pages, "derived again"),
            period,
        )
    if json:
        print_json({"store": client.store.url, **msgspec.to_builtins(report)})
    else:
        print("\n".join(_lines(client.store.url, report)))
    if report.differences:
        raise typer.Exit(DIFFERENT)


replay_app.command(
    "compare",
    epilog=epilog(
        "gpuq replay compare abc",
        "gpuq replay compare --policies fifo,wfq --slots 640 philly_4vc_jobs.csv.gz",
        "gpuq replay compare --plot week.png s3://bucket/prefix",
    ),
)(compare)
replay_app.command(
    "whatif",
    epilog=epilog("gpuq replay whatif --weights vision=8 --add-node 8xh100 --drop-org nlp"),
)(whatif)


def _period(client: Client, begin: str | None, end: str | None) -> Period:
    now_ms = client.store.clock_ms()
    period = Period(
        from_ms=0 if begin is None else parse_moment(begin, now_ms),
        until_ms=None if end is None else parse_moment(end, now_ms),
    )
    if period.until_ms is not None and period.from_ms > period.until_ms:
        raise RequestError(f"--from {begin!r} is not before --to {end!r}")
    return period


def _lines(url: str, report: Verification) -> list[str]:
    lines = [
        f"ledger     {report.ledger} at {printable(url)}",
        f"pages      {report.pages}{_remarks(report)}",
        f"epochs     {report.epochs}",
        f"facts      {report.facts}",
        f"decisions  {report.decisions}",
        f"jobs       {report.jobs}, of which {report.ended_jobs} ended",
        f"head       {report.head or '-'}",
    ]
    if report.objects is not None:
        lines.append(f"objects    {_objects(report.objects)}")
    if report.difference is not None:
        page = report.difference.page
        lines.append(f"result     DIFFERENT at page {page}; the counts end before it")
    elif report.differences:
        count = len(report.differences)
        lines.append(f"result     DIFFERENT: {count} object{'' if count == 1 else 's'}")
    else:
        lines.append(
            "result     identical: every decision was derived again, and every other object agrees"
        )
    return [*lines, *(line for one in report.differences for line in _difference_lines(one))]


def _objects(counts: ObjectCounts) -> str:
    """What was held against the journal, and what was left out."""
    looked_at = [
        f"{counts.facts} facts",
        f"{counts.messages} messages",
        f"{counts.claims} claims",
        f"{counts.logs} logs",
        f"{counts.blobs} blobs",
        f"{counts.artifacts} manifests of artifacts",
        f"{counts.checkpoints} checkpoints",
    ]
    left_out = [
        f"{count} {what}"
        for count, what in (
            (counts.unposted_facts, "facts not yet posted"),
            (counts.undelivered_messages, "messages not yet put"),
            (counts.strays, "not of the ledger"),
        )
        if count
    ]
    return ", ".join(looked_at) + (f" ({', '.join(left_out)})" if left_out else "")


def _remarks(report: Verification) -> str:
    """Pages of which the count alone would say too much."""
    remarks = []
    if report.void_pages:
        remarks.append(f"{report.void_pages} void, of a leader that was none any more")
    if report.earlier_pages:
        remarks.append(f"{report.earlier_pages} before the period, folded but not derived again")
    if report.skipped_pages:
        remarks.append(f"{report.skipped_pages} of other rules, folded but not derived again")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _difference_lines(difference: Difference) -> list[str]:
    page = "no page tells of it" if difference.page is None else f"page {difference.page}"
    return [
        "",
        f"object     {printable(difference.key)} ({page})",
        f"field      {difference.field}",
        f"recorded   {_short(difference.recorded)}",
        f"derived    {_short(difference.derived)}",
    ]


def _short(value: Any) -> str:
    """``value`` on one line; what is cut stands whole in the JSON."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _VALUE_MAX_CHARACTERS:
        text = f"{text[:_VALUE_MAX_CHARACTERS]}... ({len(text)} characters, whole with --json)"
    return printable(text)
