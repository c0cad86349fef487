"""What this machine can say of a ledger within a moment, for who cannot wait.

Owns the limit in time. The ledger itself is asked first, which from the cached view takes a
few requests; where it does not answer in time, what was cached last counts. No ledger is
made, and no fact is sent.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gpuq.client import store_of
from gpuq.config import Settings
from gpuq.viewcache import find_kept_state, load_journal
from ledger.clock import SystemClock
from ledger.errors import GpuqError
from ledger.journal import read_ledger
from ledger.state import State

PATIENCE_S = 1.0


class _TooSlowError(BaseException):
    """Time is up; no error of the store, so nothing on the way takes it for one."""


def find_known_state(settings: Settings) -> State | None:
    """The state of the ledger that the settings name, as well as it is known; main thread only."""
    try:
        with _at_most(PATIENCE_S):
            return _ask(settings)
    except (_TooSlowError, GpuqError):
        return find_kept_state(settings.state_dir, settings.store.url)


def _ask(settings: Settings) -> State:
    store = store_of(settings, SystemClock(), random.Random())
    ledger = read_ledger(store).ledger
    return load_journal(store, ledger, settings.state_dir / ledger / "view").projection.state


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TooSlowError

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
