"""The manifest of what an attempt left for its user: ``artifacts/<job>.<attempt>``.

Owns its form and what a path in it may be. It is put after all pieces that it names, and says
also what was left out and why, so that everybody who reads it says the same.
"""

from __future__ import annotations

import msgspec

from ledger.errors import LedgerError
from ledger.events import SCHEMA
from ledger.names import JobId
from ledger.pieces import Pieces


class ArtifactFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, as it was when the attempt had ended."""

    path: str
    """Relative to the job's working directory, with slashes."""
    mode: int
    """Permission bits."""
    content: Pieces


class ArtifactManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``--output`` took."""

    v: int = SCHEMA
    ledger: str
    job: JobId
    attempt: int
    files: tuple[ArtifactFile, ...]
    """In order of their paths."""
    notes: tuple[str, ...]
    """What was left out and why, one line each."""


_decode = msgspec.json.Decoder(ArtifactManifest).decode


def read_artifacts(body: bytes, ledger: str, job: str, attempt: int) -> ArtifactManifest:
    """The manifest of that attempt. Raises LedgerError where it is none."""
    try:
        manifest = _decode(body)
    except msgspec.DecodeError as error:
        raise LedgerError(f"the artifacts of {job}.{attempt} cannot be read: {error}") from error
    if manifest.v > SCHEMA:
        raise LedgerError(
            f"the artifacts of {job}.{attempt} have format {manifest.v}: upgrade gpuq"
        )
    if (manifest.ledger, manifest.job, manifest.attempt) != (ledger, job, attempt):
        raise LedgerError(f"the artifacts of {job}.{attempt} name another attempt")
    unsafe = [file.path for file in manifest.files if not is_safe(file.path)]
    if unsafe:
        raise LedgerError(f"the artifacts of {job}.{attempt} have the unsafe path {unsafe[0]!r}")
    return manifest


def is_safe(path: str) -> bool:
    """Whether it stays below the folder that it is relative to, links apart."""
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
