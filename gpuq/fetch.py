"""``gpuq fetch``: the files that a job left, as they were when it ended.

Owns what may be written where: nothing outside of the folder that was named, also not through
links in it; nothing over a file that says something else, unless ``--force`` asks for that; and
nothing under its name that is not whole. All clashes are told before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gpuq.client import Client, open_client
from gpuq.render import print_json, printable, say, size
from gpuq.selectors import select
from gpuq.view import View, read_view
from ledger.artifacts import ArtifactFile, ArtifactManifest, is_safe, read_artifacts
from ledger.errors import LedgerError, RequestError
from ledger.keys import ARTIFACTS, artifact_key, parse_artifact_key
from ledger.names import JobId
from ledger.pieces import DamagedError, get_pieces


def parse_output(pattern: str) -> str:
    """A value of ``--output``. Raises RequestError for what could match nothing safely."""
    if not is_safe(pattern.rstrip("/")):
        raise RequestError(
            f"--output {printable(pattern)}: say a pattern below the job's working directory, "
            "such as 'results/*.json' or 'out/**/*.pt'"
        )
    if any("**" in part and part != "**" for part in pattern.split("/")):
        raise RequestError(f"--output {printable(pattern)}: ** stands alone between slashes")
    return pattern


def fetch(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="An id, the beginning of one, a name, or 'last'.")
    ],
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="A folder; it is made where it is not there.")
    ] = ".",
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Else the last that left any.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Get the files that a job left, and check their hashes."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    job_id = select(client, view, job)
    manifest = _manifest(client, view, job_id, attempt)
    root = Path(destination).expanduser()
    present = _present(root, manifest, force=force)
    for note in manifest.notes:
        say(f"left out by the node: {note}")
    rows = []
    for file in manifest.files:
        outcome = "already there" if file.path in present else "fetched"
        if outcome == "fetched":
            _write(client, root, file, force=force)
        if not json:
            print(printable(f"{outcome} {file.path} ({size(file.content.size)})"), flush=True)
        rows.append(
            {
                "path": file.path,
                "bytes": file.content.size,
                "sha256": file.content.sha256,
                "outcome": outcome,
            }
        )
    if json:
        print_json(
            {"id": job_id, "attempt": manifest.attempt, "files": rows, "notes": manifest.notes}
        )


def _manifest(client: Client, view: View, job: JobId, attempt: int | None) -> ArtifactManifest:
    numbers = []
    for entry in client.store.list(f"{ARTIFACTS}{job}."):
        with suppress(ValueError):  # a stray object is no manifest
            numbers.append(parse_artifact_key(entry.key)[1])
    number = max(numbers, default=0) if attempt is None else attempt
    body = client.store.get(artifact_key(job, number)) if number in numbers else None
    if body is not None:
        return read_artifacts(body, client.ledger, job, number)
    known = view.state.jobs.get(job)
    of_attempt = "" if attempt is None else f" in attempt {attempt}"
    if known is not None and not known.state.ended:
        raise RequestError(f"{job} is {known.state.value}: its files come when it has ended")
    if known is not None and not known.spec.outputs:
        raise RequestError(f"{job} left no files: it was submitted without --output")
    raise RequestError(
        f"{job} left no files{of_attempt}: they are kept where it ends with rc 0 (or always with "
        "--output-on-failure); 'gpuq status' says how it ended, and whether they are to follow"
    )


def _present(root: Path, manifest: ArtifactManifest, *, force: bool) -> set[str]:
    """The paths that have the right content already. Raises RequestError for all others."""
    present = set()
    for file in manifest.files:
        path = root / file.path
        _check_way(root, file.path)
        if path.is_symlink() or path.exists():
            if path.is_dir():
                raise RequestError(f"{printable(str(path))} is a folder: fetch into another one")
            if not path.is_symlink() and _has(path, file):
                present.add(file.path)
            elif not force:
                raise RequestError(
                    f"{printable(str(path))} is there and differs: say --force to replace it, or "
                    f"fetch into another folder; nothing was fetched"
                )
    return present


def _check_way(root: Path, path: str) -> None:
    """Refuse a way that leads through a link: it could end anywhere."""
    folder = root
    for part in path.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink():
            raise RequestError(
                f"{printable(str(folder))} is a link: fetch into another folder, or remove it"
            )


def _has(path: Path, file: ArtifactFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.content.size:
        return False
    try:
        with path.open("rb") as there:
            return hashlib.file_digest(there, "sha256").hexdigest() == file.content.sha256
    except OSError as error:
        raise RequestError(f"cannot read {printable(str(path))}: {error.strerror}") from error


def _write(client: Client, root: Path, file: ArtifactFile, *, force: bool) -> None:
    """Write beside the place, then put it there whole. Raises LedgerError for other bytes."""
    path = root / file.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, beside = tempfile.mkstemp(dir=path.parent, prefix=".gpuq-")
        try:
            with open(fd, "wb") as whole:
                for piece in get_pieces(client.store, file.content):
                    whole.write(piece)
                os.fchmod(fd, file.mode)
            if force:
                os.replace(beside, path)
            else:
                os.link(beside, path)
        finally:
            Path(beside).unlink(missing_ok=True)
    except DamagedError as error:
        raise LedgerError(f"{printable(file.path)} cannot be fetched: {error}") from error
    except OSError as error:
        raise RequestError(f"cannot write {printable(str(path))}: {error.strerror}") from error
