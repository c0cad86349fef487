"""What a command works with: the store, its ledger, clocks, timings and the local folders.

Owns the opening of a ledger and the sending of facts from the command line. A command
first sends what an earlier gpuq on this machine left in its spool, and says so; what it
reports itself is only called done when the store has acknowledged it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer

from gpuq.config import Invocation, Settings, StoreChoice, read_settings
from gpuq.render import say
from gpuq.viewcache import load_journal
from ledger.clock import Clock, SystemClock
from ledger.errors import GpuqError, TransientError
from ledger.events import AnyFact
from ledger.journal import Journal, create_ledger, read_ledger
from ledger.keys import LEDGER
from ledger.spool import DirectorySpools
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore
from ledger.writer import FactWriter, drain_spools


@dataclass(frozen=True, kw_only=True)
class Client:
    """An opened ledger, and what is needed to read it and report to it."""

    settings: Settings
    store: SettlingStore
    ledger: str
    clock: Clock
    rng: random.Random

    @property
    def ledger_dir(self) -> Path:
        """What this machine keeps of this ledger."""
        return self.settings.state_dir / self.ledger

    @property
    def spools(self) -> DirectorySpools:
        return DirectorySpools(self.ledger_dir / "spools")

    def load_journal(self) -> Journal:
        """The journal as it is now, from what this machine keeps of it where that helps."""
        return load_journal(self.store, self.ledger, self.ledger_dir / "view")

    @contextmanager
    def writer(self) -> Iterator[FactWriter]:
        """A writer of this command's own; what it could not send stays in its spool."""
        name = f"cli-{self.settings.host}"
        writer = FactWriter(self.store, self.rng, self.settings.timings, self.spools, name)
        try:
            yield writer
        finally:
            writer.close()

    def send(self, fact: AnyFact, what: str) -> None:
        """Report one fact and wait until the store has acknowledged it.

        Raises TransientError where it gives no news: the fact, which the message calls
        ``what``, is kept on this machine.
        """
        with self.writer() as writer:
            writer.report(fact)
            try:
                writer.flush()
            except TransientError as error:
                raise TransientError(
                    f"{what} is not sent yet: {error}; it is kept on this machine and the next "
                    "gpuq command here sends it"
                ) from error


def invocation_of(context: typer.Context) -> Invocation:
    """What this call of gpuq was given."""
    invocation = context.obj
    assert isinstance(invocation, Invocation)
    return invocation


def settings_of(context: typer.Context) -> Settings:
    """The settings that this invocation was given."""
    invocation = invocation_of(context)
    return read_settings(invocation.flags, invocation.environ)


def open_client(context: typer.Context) -> Client:
    """Open the ledger that the settings name, and send what was left unsent here.

    Raises RequestError where there is no ledger, except in the default folder, where it
    is made.
    """
    client = connect(settings_of(context))
    _drain(client)
    return client


def connect(settings: Settings) -> Client:
    """The ledger that the settings name; nothing is sent. The default one is made."""
    clock, rng = SystemClock(), random.Random()
    store = store_of(settings, clock, rng)
    with first_contact():
        if settings.store.is_default and store.get(LEDGER) is None:
            info = create_ledger(store, rng)
        else:
            info = read_ledger(store)
    return Client(settings=settings, store=store, ledger=info.ledger, clock=clock, rng=rng)


@contextmanager
def first_contact() -> Iterator[None]:
    """No news at the first request is more often a wrong address than an outage."""
    try:
        yield
    except TransientError as error:
        raise TransientError(
            f"{error}; check the address and the network, then try again"
        ) from error


def store_of(settings: Settings, clock: Clock, rng: random.Random) -> SettlingStore:
    """The store that the settings name; nothing is asked of it yet."""
    return store_at(settings.store, clock, rng)


def store_at(choice: StoreChoice, clock: Clock, rng: random.Random) -> SettlingStore:
    """The store that was chosen; nothing is asked of it yet."""
    return open_store(
        choice.url,
        clock=clock,
        rng=rng,
        endpoint_url=choice.endpoint_url,
        region=choice.region,
        ca_bundle=choice.ca_bundle,
        login=choice.login,
    )


def _drain(client: Client) -> None:
    """A spool that cannot be sent now must not keep a command from what it was asked."""
    try:
        sent = drain_spools(client.store, client.settings.timings, client.spools)
    except GpuqError as error:
        say(f"gpuq: what an earlier gpuq left on this machine is not sent yet: {error}")
        return
    for writer, count in sent.items():
        facts = "1 fact" if count == 1 else f"{count} facts"
        say(f"gpuq: sent {facts} that an earlier gpuq ({writer}) left on this machine")
