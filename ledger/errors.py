"""Errors, named for what the caller does next.

Owns the whole family: every module of gpuq raises one of these, and botocore, OS and
NVML errors are translated into them where they enter. Broken invariants are plain
``AssertionError`` and are never caught.

Each class has its own process exit code (``exit_code``), documented in docs/CLI.md.
"""

from __future__ import annotations


class GpuqError(Exception):
    """Base of all errors of gpuq. ``str()`` is one line that a user can read."""

    exit_code = 70


class RequestError(GpuqError):
    """The user must change something; the message names it and the mend."""

    exit_code = 64


class LedgerError(GpuqError):
    """The ledger is not what the protocol allows; stop, an operator is needed."""

    exit_code = 65


class UpgradeError(LedgerError):
    """The ledger holds a format or kind that this version does not know; upgrade."""

    exit_code = 66


class TransientError(GpuqError):
    """No news from the store (5xx, timeout, 429, connection loss); wait and retry."""

    exit_code = 69


class InDoubtError(TransientError):
    """A conditional write was sent and its outcome could not be settled in time."""


class ConflictError(GpuqError):
    """Somebody else decided; read again and decide again."""

    exit_code = 75


class FencedError(GpuqError):
    """This process no longer holds its role; stop the role."""

    exit_code = 76
