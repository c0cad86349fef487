"""What every role is given: the store, the ledger, clocks, chance, timings, local folders.

Owns the layout of a machine's local state::

    <state>/machine-id
    <state>/<ledger>/spools/<writer>.spool
    <state>/<ledger>/nodes/<node>/{supervisor.lock,last-beat,following,...}
    <state>/<ledger>/workers/<worker>/{slot.lock,wake,status.json,jobs/<job>.<attempt>/...}

No role reads the environment or a configuration file: the command line builds this.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from ledger.clock import Clock
from ledger.stores.base import Store
from ledger.timings import Timings


@dataclass(frozen=True, kw_only=True)
class Context:
    """Shared by the roles of one process; ``state_dir`` is the machine's, for all ledgers."""

    store: Store
    ledger: str
    clock: Clock
    rng: random.Random
    timings: Timings
    state_dir: Path
    host: str
    machine: str

    @property
    def ledger_dir(self) -> Path:
        return self.state_dir / self.ledger

    @property
    def spools_dir(self) -> Path:
        return self.ledger_dir / "spools"

    def node_dir(self, node: str) -> Path:
        return self.ledger_dir / "nodes" / node

    def worker_dir(self, worker: str) -> Path:
        return self.ledger_dir / "workers" / worker
