"""What a person touches: the commands and how they are shown, and gpuq from Python.

Owns the names that ``import gpuq`` offers (docs/PYTHON.md). They are imported at their first
use, because the command line, which begins here as well, needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuq.api import Job as Job
    from gpuq.api import JobFailedError as JobFailedError
    from gpuq.api import Queue as Queue
    from gpuq.api import submit as submit
    from gpuq.calls import RemoteError as RemoteError
    from gpuq.executor import Executor as Executor
    from gpuq.executor import JobFuture as JobFuture
    from ledger.errors import ConflictError as ConflictError
    from ledger.errors import GpuqError as GpuqError
    from ledger.errors import LedgerError as LedgerError
    from ledger.errors import RequestError as RequestError
    from ledger.errors import TransientError as TransientError
    from ledger.errors import UpgradeError as UpgradeError
    from ledger.events import JobState as JobState

_HOMES = {
    "gpuq.api": ("Job", "JobFailedError", "Queue", "submit"),
    "gpuq.calls": ("RemoteError",),
    "gpuq.executor": ("Executor", "JobFuture"),
    "ledger.errors": (
        "ConflictError", "GpuqError", "LedgerError", "RequestError", "TransientError",
        "UpgradeError",
    ),
    "ledger.events": ("JobState",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gpuq' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
