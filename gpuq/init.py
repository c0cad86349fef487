"""``gpuq init`` and ``gpuq doctor``: choosing a store, and asking whether it is fit for one.

Owns the writing of the configuration file. A store that breaks a promise of the protocol
is refused with the reason before a ledger is made in it.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

import msgspec
import typer

from gpuq.client import first_contact, invocation_of, settings_of, store_of
from gpuq.config import (
    Settings,
    choose_store,
    write_config,
)
from gpuq.render import Cut, print_json, print_table, printable, say
from ledger.clock import SystemClock
from ledger.errors import RequestError, TransientError
from ledger.journal import create_ledger
from ledger.keys import LEDGER
from ledger.stores.settling import SettlingStore


def init(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL", help="s3://bucket/prefix or a folder; else what the settings name."
        ),
    ] = None,
) -> None:
    """Make a ledger (or adopt the one that is there) and use it from now on."""
    from ledger.stores.probe import probe

    settings = settings_of(context)
    if url is not None:
        chosen = choose_store(settings, url, invocation_of(context))
        settings = msgspec.structs.replace(settings, store=chosen)
    clock, rng = SystemClock(), random.Random()
    store = store_of(settings, clock, rng)
    with first_contact():
        adopted = store.get(LEDGER) is not None
    probe(store, clock=clock, rng=rng).require()
    info = create_ledger(store, rng)
    print(f"{'adopted' if adopted else 'made'} ledger {info.ledger} at {store.url}")
    if url is not None:
        _remember(settings)


def doctor(
    context: typer.Context,
    *,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="More racers and longer lists: some 2000 requests.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
) -> None:
    """Ask the store whether it keeps the promises that a ledger rests on."""
    from ledger.stores.probe import Verdict, probe

    settings = settings_of(context)
    clock, rng = SystemClock(), random.Random()
    store = store_of(settings, clock, rng)
    with first_contact():
        store.get(LEDGER)
    report = probe(store, clock=clock, rng=rng, thorough=thorough)
    offset_ms = store.clock_ms() - clock.wall_ms()
    if json:
        print_json(_doctor_json(settings, store, offset_ms, report.checks))
    else:
        rows = [(check.name, check.verdict.value, check.reason) for check in report.checks]
        print(f"{store.url} (from {settings.store.source})")
        print_table(("CHECK", "VERDICT", "REASON"), rows, (Cut("REASON", 20),))
        print(f"this machine's clock is {_offset(offset_ms)} the store's")
    failed = [check for check in report.checks if check.verdict is Verdict.FAILED]
    open_ = [check for check in report.checks if check.verdict is Verdict.NO_VERDICT]
    if failed:
        raise RequestError(f"{store.url} cannot hold a ledger: {failed[0].reason}")
    if open_:
        raise TransientError(f"{store.url} gave no verdict on {open_[0].name}: try again")


def _remember(settings: Settings) -> None:
    """Name the store in the configuration file; what else stands there is kept."""
    choice, before = settings.store, settings.file
    store = choice.name or choice.url
    if before.store and before.store != store:
        say(f"gpuq: {settings.config_path} named {printable(before.store)} until now")
    file = msgspec.structs.replace(
        before,
        store=store,
        endpoint_url="" if choice.name else choice.endpoint_url or "",
        region="" if choice.name else choice.region or "",
        ca_bundle=choice.ca_bundle or "",
    )
    write_config(settings.config_path, file)
    print(f"{settings.config_path} names it from now on")


def _offset(offset_ms: int) -> str:
    if abs(offset_ms) <= 1_000:
        return "within 1 s of"
    return f"{abs(offset_ms) / 1000:.0f} s {'behind' if offset_ms > 0 else 'ahead of'}"


def _doctor_json(
    settings: Settings, store: SettlingStore, offset_ms: int, checks: tuple[Any, ...]
) -> dict[str, Any]:
    return {
        "store": store.url,
        "from": settings.store.source,
        "clock_offset_ms": offset_ms,
        "checks": [
            {"name": check.name, "verdict": check.verdict.value, "reason": check.reason}
            for check in checks
        ],
    }
