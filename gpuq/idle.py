"""The end of a machine that is only kept while it has work: ``gpuq supervisor --idle-exit``.

Owns what happens before its supervisor could begin (a bucket that cannot be reached must
not keep the machine for ever) and after it has ended.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import typer

from gpuq.client import Client, connect
from gpuq.config import Settings
from gpuq.render import say
from ledger.clock import SystemClock
from ledger.errors import TransientError

if TYPE_CHECKING:
    from roles.idle import Idleness


def connect_unless_idle(settings: Settings, idleness: Idleness | None) -> Client | None:
    """The ledger; None where this machine was idle for too long before it could be read.

    Raises TransientError where the store gives no news and there is no idle limit.
    """
    clock, said = SystemClock(), False
    while True:
        try:
            return connect(settings)
        except TransientError as error:
            if idleness is None:
                raise
            if idleness.is_over():
                return None
            if not said:
                say(f"gpuq: {error}; tries again until the idle limit")
            said = True
            clock.sleep_ms(settings.timings.retry_max_ms)


def run_on_idle(command: str) -> None:
    """Run what is to follow the idle end, if anything; exits with its code if that is not 0."""
    if not command:
        return
    say(f"gpuq: had no work for the idle limit; runs {command!r}")
    rc = subprocess.run(["bash", "-c", command]).returncode
    if rc:
        say(f"gpuq: {command!r} ended with {rc}")
        raise typer.Exit(rc if rc > 0 else 128 - rc)
