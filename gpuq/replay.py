"""``gpuq replay``: what a ledger's own pages prove, without trust in whoever wrote them.

Owns the showing of a verification. Of the ledger its journal alone is read.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from gpuq.client import Client, connect, settings_of
from gpuq.compare import compare, whatif
from gpuq.render import epilog, print_json, printable
from ledger.clock import Clock
from simulation.verify import Difference, Verification, verify

replay_app = typer.Typer(help="Prove what happened, ask what would have happened.")

DIFFERENT = 1
"""Exit code of ``verify`` where the ledger is not what its decisions derive to."""

PATIENCE_MS = 2_000
"""A verification that takes no longer shows no progress."""

REDRAW_MS = 200
_VALUE_MAX_CHARACTERS = 300


@replay_app.callback()
def replay() -> None:
    """Prove what happened, ask what would have happened."""


@replay_app.command(
    "verify",
    epilog=epilog("gpuq replay verify", "gpuq replay verify --store /copy/of/ledger --json"),
)
def verify_command(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
) -> None:
    """Derive every decision of the ledger again; exit 1 at the first difference."""
    client = connect(settings_of(context))
    report = _verified(client)
    if json:
        print_json({"store": client.store.url, **msgspec.to_builtins(report)})
    else:
        print("\n".join(_lines(client.store.url, report)))
    if report.difference is not None:
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


def _verified(client: Client) -> Verification:
    if not sys.stderr.isatty():
        return verify(client.store, client.ledger)
    progress = _Progress(client.clock)
    try:
        return verify(client.store, client.ledger, progress.show)
    finally:
        progress.wipe()


class _Progress:
    """One line on a terminal, from the moment at which a person begins to wonder."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_ms = clock.boot_ms() + PATIENCE_MS
        self._drawn = False

    def show(self, report: Verification) -> None:
        now_ms = self._clock.boot_ms()
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + REDRAW_MS
            self._drawn = True
            sys.stderr.write(f"\r{report.pages} pages, {report.decisions} decisions derived again")
            sys.stderr.flush()

    def wipe(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")


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
    if report.difference is None:
        return [*lines, "result     identical: every decision was derived again from the pages"]
    return [*lines, *_difference_lines(report.difference)]


def _remarks(report: Verification) -> str:
    """Pages of which the count alone would say too much."""
    remarks = []
    if report.void_pages:
        remarks.append(f"{report.void_pages} void, of a leader that was none any more")
    if report.skipped_pages:
        remarks.append(f"{report.skipped_pages} of other rules, folded but not derived again")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _difference_lines(difference: Difference) -> list[str]:
    return [
        f"result     DIFFERENT at page {difference.page}; the counts end before it",
        f"page       {difference.key}",
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
