"""``gpuq audit``: who used how much of which slots, what it cost, and how fair it was.

Owns the options and the four ways of showing. The sums are ``ledger.bill``'s, made of the
journal alone, so that whoever can read the ledger comes to the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from gpuq.billtext import bill_json, csv_text, has_money, markdown_text, table
from gpuq.client import Client, connect, settings_of
from gpuq.fairness import HEADER as FAIRNESS_HEADER
from gpuq.fairness import fairness_json, fairness_rows
from gpuq.history import pages_after, parse_moment
from gpuq.prices import Prices, read_prices
from gpuq.progress import Progress
from gpuq.receipt import Receipt, Story
from gpuq.receipttext import show_receipt
from gpuq.render import Cut, epilog, iso_utc, print_clauses, print_json, print_table, times
from gpuq.selectors import select
from gpuq.view import read_view
from ledger.bill import ATTEMPT, DIMENSIONS, Bill, bill
from ledger.errors import RequestError
from ledger.events import Page
from ledger.names import JobId
from ledger.projection import Projection
from ledger.state import State
from ledger.usage import UsageLog
from scheduling.contest import Contest
from scheduling.followed import Followed

audit_app = typer.Typer(invoke_without_command=True)

BY_DEFAULT = "org"

From = Annotated[
    str | None,
    typer.Option("--from", help="7d (ago), or a local time; else the beginning."),
]
To = Annotated[str | None, typer.Option("--to", help="The same, exclusive; else the newest page.")]
Json = Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")]

PricesOption = Annotated[
    str | None, typer.Option("--prices", metavar="FILE", help="Prices of nodes an hour.")
]


class Format(StrEnum):
    """How the sums are shown; a person's table without any."""

    CSV = "--csv"
    JSON = "--json"
    MARKDOWN = "--markdown"


class Period:
    """What ``--from`` and ``--to`` say, in ms since the epoch; None where they say nothing."""

    def __init__(self, client: Client, begin: str | None, end: str | None) -> None:
        now_ms = client.store.clock_ms()
        self.begin = None if begin is None else parse_moment(begin, now_ms)
        self.end = None if end is None else parse_moment(end, now_ms)
        if self.begin is not None and self.end is not None and self.begin >= self.end:
            raise RequestError(f"--from {begin!r} is not before --to {end!r}")


@audit_app.callback(
    epilog=epilog(
        "gpuq audit --from 7d",
        "gpuq audit --by org,day --csv > usage.csv",
        "gpuq audit --by node --prices prices.toml",
    )
)
def audit(
    context: typer.Context,
    *,
    begin: From = None,
    end: To = None,
    by: Annotated[
        str, typer.Option("--by", help=f"Any of {', '.join(DIMENSIONS)}, with commas.")
    ] = BY_DEFAULT,
    csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets.")] = False,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table for a report.")] = False,
    prices: PricesOption = None,
) -> None:
    """Who used how much slot time in a period, and what it cost."""
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    chosen = _format(csv=csv, json=json, markdown=markdown)
    dimensions = _dimensions(by)
    price_of = read_prices(prices)
    client = connect(settings_of(context))
    period = Period(client, begin, end)
    log, state = read_usage(client)
    made = bill_of(log, state, period, dimensions, price_of)
    if chosen is Format.JSON:
        print_json({**_head(client, state), **bill_json(made)})
    elif chosen is Format.CSV:
        print(csv_text(made), end="")
    elif chosen is Format.MARKDOWN:
        print(markdown_text(made), end="")
    else:
        _show(made, state)


@audit_app.command("job", epilog=epilog("gpuq audit job train", "gpuq audit job last --json"))
def audit_job(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="An id, the beginning of one, a name, or 'last'.")
    ],
    *,
    json: Json = False,
    prices: PricesOption = None,
) -> None:
    """The receipt of one job: its events with their objects, its attempts, hashes and cost."""
    price_of = read_prices(prices)
    client = connect(settings_of(context))
    story = Story(_select(client, job))
    log, state = read_usage(client, lambda page, _: story.page(page))
    if story.spec is None:
        raise RequestError(f"no page holds the submit of {story.job} yet: try again shortly")
    made = bill_of(log, state, Period(client, None, None), ("job", ATTEMPT), price_of)
    uses = [use for use in log.uses() if use.job == story.job]
    receipt = Receipt(client.store, state, story, uses, made)
    if json:
        print_json({**_head(client, state), **receipt.json()})
    else:
        show_receipt(receipt, has_price=has_money(made))


@audit_app.command("fairness", epilog=epilog("gpuq audit fairness --from 30d"))
def audit_fairness(
    context: typer.Context, *, begin: From = None, end: To = None, json: Json = False
) -> None:
    """What each organization was owed while pools were contested, what it got, and why."""
    client = connect(settings_of(context))
    period = Period(client, begin, end)
    followed = Followed(State(ledger=client.ledger))
    contest = Contest(followed, begin=period.begin or 0, end=period.end or client.store.clock_ms())
    with Progress(client.clock, client.store) as progress:
        for page, sha256 in pages_after(client.store, -1):
            followed.fold(page, sha256)
            progress.show(page.seq + 1, "read")
    state = followed.state
    if json:
        moments = times(**{"from": period.begin, "to": period.end})
        print_json({**_head(client, state), **moments, "pools": fairness_json(contest)})
    elif contest.parts:
        print_table(FAIRNESS_HEADER, fairness_rows(contest), [Cut("WHY", 30)])
    else:
        print(f"no pool was contested, as of page {state.seq}")


def _select(client: Client, text: str) -> JobId:
    view = read_view(client.load_journal(), client.settings.timings)
    job = select(client, view, text)
    if job in view.state.refused and job not in view.state.jobs:
        raise RequestError(f"the submit of {job} was refused: {view.state.refused[job]}")
    return job


def read_usage(
    client: Client, watch: Callable[[Page, State], None] = lambda page, state: None
) -> tuple[UsageLog, State]:
    """All usage of the ledger, and the state after its last page.

    ``watch`` is called with each page that counts, and the state after it.
    """
    projection = Projection(State(ledger=client.ledger))
    log = UsageLog(projection)
    with Progress(client.clock, client.store) as progress:
        for page, sha256 in pages_after(client.store, -1):
            if projection.apply(page, sha256):
                log.page(page)
                watch(page, projection.state)
            progress.show(page.seq + 1, "read")
    return log, projection.state


def bill_of(
    log: UsageLog, state: State, period: Period, by: tuple[str, ...], prices: Prices
) -> Bill:
    """The bill of a period; an open end is the last page, an open beginning the first use."""
    uses, slots = list(log.uses()), log.slots()
    starts = [use.started_at for use in uses] + [up.up_at for up in slots]
    return bill(
        uses,
        slots,
        begin=min(starts, default=0) if period.begin is None else period.begin,
        end=state.at if period.end is None else period.end,
        by=by,
        price_of=prices.of,
    )


def _refuse_options_before(context: typer.Context) -> None:
    """What is said before a subcommand would be ignored in silence."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            command = f"gpuq audit {context.invoked_subcommand}"
            raise RequestError(f"{parameter.opts[0]} must stand behind {command!r}, if it has it")


def _format(*, csv: bool, json: bool, markdown: bool) -> Format | None:
    said = [
        name
        for name, is_said in (
            (Format.CSV, csv),
            (Format.JSON, json),
            (Format.MARKDOWN, markdown),
        )
        if is_said
    ]
    if len(said) > 1:
        raise RequestError(f"{' and '.join(said)} exclude each other: name one")
    return said[0] if said else None


def _dimensions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in DIMENSIONS:
            raise RequestError(f"--by {name!r}: say one or more of {', '.join(DIMENSIONS)}")
    if len(set(names)) < len(names):
        raise RequestError(f"--by {text!r} names something twice")
    return names


def _head(client: Client, state: State) -> dict[str, Any]:
    return {"store": client.store.url, "ledger": state.ledger, "page": state.seq}


def _show(made: Bill, state: State) -> None:
    print_clauses([f"{iso_utc(made.begin)} to {iso_utc(made.end)}", f"as of page {state.seq}"])
    print()
    header, rows = table(made)
    print_table(header, rows)
