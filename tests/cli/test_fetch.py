"""``gpuq fetch``: whole files, never over others, never out of the folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledger.artifacts import ArtifactFile, ArtifactManifest, is_safe
from ledger.events import encode
from ledger.journal import read_ledger
from ledger.keys import artifact_key
from ledger.names import JobId
from ledger.pieces import pieces_of, put_pieces
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

CONTENTS = {"a.txt": b"hello", "out/model.pt": b"weights", "zero": b""}


def leave(
    fleet: Fleet,
    job: str,
    contents: dict[str, bytes],
    *,
    attempt: int = 1,
    notes: Sequence[str] = (),
) -> None:
    """What a worker puts when the job has ended."""
    files = []
    for path, content in contents.items():
        put_pieces(fleet.store, content)
        files.append(ArtifactFile(path=path, mode=0o640, content=pieces_of(content)))
    manifest = ArtifactManifest(
        ledger=read_ledger(fleet.store).ledger,
        job=JobId(job),
        attempt=attempt,
        files=tuple(files),
        notes=tuple(notes),
    )
    fleet.store.put_once(artifact_key(job, attempt), encode(manifest))


@pytest.fixture
def job(gpuq: Gpuq, fleet: Fleet) -> str:
    """A job that has ended and left its files."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--output", "**/*", "--", "true").ids
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 0)
    fleet.post()
    leave(fleet, job, CONTENTS, notes=["'x' is no file"])
    return job


def files_in(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_files_are_fetched_and_a_second_time_left_alone(gpuq: Gpuq, job: str, here: Path) -> None:
    first = gpuq("fetch", job, "into/it")
    assert first.rc == 0
    assert first.out.splitlines() == [
        "fetched a.txt (5 B)", "fetched out/model.pt (7 B)", "fetched zero (0 B)",
    ]  # fmt: skip
    assert "left out by the node: 'x' is no file" in first.err
    assert files_in(here / "into" / "it") == CONTENTS
    assert (here / "into" / "it" / "a.txt").stat().st_mode & 0o777 == 0o640
    again = gpuq("fetch", "--json", "last", "into/it").json
    assert {file["outcome"] for file in again["files"]} == {"already there"}
    assert again["files"][0]["sha256"] == hashlib.sha256(b"hello").hexdigest()
    assert (again["id"], again["attempt"], again["notes"]) == (job, 1, ["'x' is no file"])


def test_without_a_folder_they_go_into_the_current_one(gpuq: Gpuq, job: str, here: Path) -> None:
    assert gpuq("fetch", job).rc == 0
    assert files_in(here) == CONTENTS


def test_a_file_that_differs_stops_all_unless_it_may_be_replaced(
    gpuq: Gpuq, job: str, here: Path
) -> None:
    (here / "zero").write_text("mine")
    refused = gpuq("fetch", job)
    assert refused.rc == 64
    assert "zero is there and differs: say --force to replace it" in refused.err
    assert files_in(here) == {"zero": b"mine"}
    assert gpuq("fetch", "--force", job).rc == 0
    assert files_in(here) == CONTENTS


def test_links_in_the_folder_are_neither_followed_nor_written_through(
    gpuq: Gpuq, job: str, here: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (here / "out").symlink_to(outside)
    refused = gpuq("fetch", "--force", job)
    assert refused.rc == 64
    assert "out is a link" in refused.err
    (here / "out").unlink()
    (outside / "secret").write_text("hello")
    (here / "a.txt").symlink_to(outside / "secret")
    assert gpuq("fetch", job).rc == 64
    assert gpuq("fetch", "--force", job).rc == 0
    assert (here / "a.txt").read_bytes() == b"hello"
    assert not (here / "a.txt").is_symlink()
    assert os.listdir(outside) == ["secret"]


def test_a_folder_in_the_way_of_a_file_is_refused(gpuq: Gpuq, job: str, here: Path) -> None:
    (here / "zero").mkdir()
    refused = gpuq("fetch", "--force", job)
    assert refused.rc == 64
    assert "zero is a folder" in refused.err


@pytest.mark.parametrize("damage", [None, b"h3llo"])
def test_a_damaged_piece_is_told_and_nothing_stands_under_its_name(
    gpuq: Gpuq, job: str, here: Path, tmp_path: Path, damage: bytes | None
) -> None:
    root = tmp_path / "home" / ".local" / "share" / "gpuq" / "ledger"
    piece = root / "blobs" / hashlib.sha256(b"weights").hexdigest()
    piece.unlink()
    if damage is not None:
        piece.write_bytes(damage)
    refused = gpuq("fetch", job)
    assert refused.rc == 65
    assert "out/model.pt cannot be fetched: blobs/" in refused.err
    assert files_in(here) == {"a.txt": b"hello"}


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a//x", ".", "", "a/", "x\0"])
def test_a_manifest_with_a_path_out_of_the_folder_is_refused(
    gpuq: Gpuq, job: str, fleet: Fleet, here: Path, path: str
) -> None:
    assert not is_safe(path)
    leave(fleet, job, {path: b"x"}, attempt=2)
    refused = gpuq("fetch", job)
    assert refused.rc == 65
    assert "unsafe path" in refused.err
    assert gpuq("fetch", "--attempt", "1", job).rc == 0


def test_why_there_is_nothing_to_fetch(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--output", "*", "--", "true").ids
    fleet.post()
    assert "its files come when it has ended" in gpuq("fetch", job).err
    fleet.start(job)
    fleet.finish(job, 1)
    fleet.post()
    refused = gpuq("fetch", job)
    assert refused.rc == 64
    assert "they are kept where it ends with rc 0" in refused.err
    (job,) = gpuq("submit", "-q", "--", "true").ids
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 0)
    fleet.post()
    assert "it was submitted without --output" in gpuq("fetch", job).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--output", "/tmp/x"), "a pattern below the job's working directory"),
        (("--output", "../x"), "a pattern below"),
        (("--output", ""), "a pattern below"),
        (("--output", "a/**.pt"), "** stands alone between slashes"),
        (("--output-on-failure",), "needs --output"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(
    gpuq: Gpuq, words: tuple[str, ...], said: str
) -> None:
    refused = gpuq("submit", *words, "--", "true")
    assert refused.rc == 64
    assert said in refused.err


def test_status_tells_what_is_kept(gpuq: Gpuq, job: str) -> None:
    shown = gpuq("status", "--json", job).json
    assert (shown["outputs"], shown["outputs_on_failure"]) == (["**/*"], False)
    assert "**/*" in gpuq("status", job).out


def test_the_receipt_names_the_manifest(gpuq: Gpuq, job: str, fleet: Fleet) -> None:
    body = fleet.store.get(artifact_key(job, 1))
    assert body is not None
    digest = hashlib.sha256(body).hexdigest()
    (attempt,) = gpuq("audit", "job", job, "--json").json["attempts"]
    told = [attempt[f"artifacts_{name}"] for name in ("key", "sha256", "files", "bytes")]
    assert told == [f"artifacts/{job}.1", digest, 3, 12]
    assert f"artifacts/{job}.1, 3 files, 12 bytes, sha256 {digest}" in gpuq("audit", "job", job).out
