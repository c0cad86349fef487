"""Everything beside the journal that was tampered with is named, with its page.

The ledger is a recorded run of real processes, to which the tests add what the recording left
out: a log with its pieces, a checkpoint and a script.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.archive import Manifest
from ledger.artifacts import ArtifactFile, ArtifactManifest
from ledger.checkpoint import encode_checkpoint
from ledger.clock import SystemClock
from ledger.events import Snapshot, Submitted, decode_page, encode
from ledger.journal import read_ledger
from ledger.keys import artifact_key, checkpoint_key, page_key
from ledger.names import JobId
from ledger.pieces import pieces_of, put_pieces
from ledger.projection import Projection
from ledger.state import State
from ledger.stores import open_store
from ledger.stores.base import Store
from ledger.writer import put_blob
from simulation.difference import Difference
from simulation.verify import Period, Verification, verify, verify_all
from tests.simulation.ledgers import eventful_world, write_ledger, write_objects
from tests.world import World

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"
CHECKPOINT_SEQ = 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy that can be tampered with."""
    folder = tmp_path / "ledger"
    shutil.copytree(GOLDEN, folder)
    job = failed_job()
    (folder / "logs" / f"{job}.1").mkdir(parents=True)
    (folder / "logs" / f"{job}.1" / "000000").write_bytes(b"it ")
    (folder / "logs" / f"{job}.1.log").write_bytes(b"it failed\nrc=3\n")
    checkpoint = folder / checkpoint_key(CHECKPOINT_SEQ)
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(encode_checkpoint(state_after(CHECKPOINT_SEQ)))
    return folder


def failed_job() -> str:
    """The job that exited with 3, says the recording."""
    jobs = json.loads((GOLDEN / "expected.json").read_bytes())["jobs"]
    (job,) = (job for job, end in jobs.items() if end["rc"] == 3)
    return job


def state_after(seq: int) -> State:
    projection = Projection(State(ledger=read_ledger(store_of(GOLDEN)).ledger))
    for number in range(seq + 1):
        body = (GOLDEN / page_key(number)).read_bytes()
        projection.apply(decode_page(body), hashlib.sha256(body).hexdigest())
    return projection.state


def store_of(folder: Path) -> Store:
    return open_store(str(folder), clock=SystemClock(), rng=random.Random())


def verdict(folder: Path, period: Period | None = None) -> Verification:
    store = store_of(folder)
    return verify_all(store, read_ledger(store).ledger, period=period or Period())


def only(report: Verification) -> Difference:
    assert report.difference is None
    (difference,) = report.differences
    return difference


def page_that_holds(text: str) -> int:
    """The first page in which ``text`` stands."""
    return next(
        number
        for number, path in enumerate(sorted((GOLDEN / "journal").iterdir()))
        if text in path.read_text()
    )


def fact(root: Path, kind: str) -> Path:
    return sorted((root / "facts").rglob(f"*.{kind}"))[0]


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """Change one object; its key."""
    body = json.loads(path.read_bytes())
    change(body)
    path.write_text(json.dumps(body, separators=(",", ":")))
    return str(path)[str(path).index("/ledger/") + len("/ledger/") :]


def test_a_recorded_ledger_agrees_with_its_journal(root: Path) -> None:
    report = verdict(root)
    assert report.differences == []
    counts = report.objects
    assert counts is not None
    files = {
        name: sum(path.is_file() for path in (root / name).rglob("*"))
        for name in ("facts", "mailbox", "claims", "blobs")
    }
    assert files == {
        "facts": counts.facts,
        "mailbox": counts.messages,
        "claims": counts.claims,
        "blobs": counts.blobs,
    }
    assert (counts.logs, counts.checkpoints) == (1, 1)
    assert (counts.unposted_facts, counts.undelivered_messages, counts.strays) == (0, 0, 0)


# -- facts


@pytest.mark.parametrize("kind", ["submit", "ready", "start", "finish", "cancel", "policy"])
def test_a_changed_fact_is_named_with_the_page_that_holds_it(root: Path, kind: str) -> None:
    path = fact(root, kind)
    original = json.loads(path.read_bytes())
    key = edit(path, lambda body: body.update(at=body["at"] + 1))
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (key, "body")
    assert difference.page == page_that_holds(key)
    assert difference.derived == original
    assert difference.recorded == {**original, "at": original["at"] + 1}


def test_a_missing_fact_is_named(root: Path) -> None:
    path = fact(root, "finish")
    path.unlink()
    difference = only(verdict(root))
    assert path.as_posix().endswith(difference.key)
    assert difference.recorded is None
    assert difference.derived["kind"] == "finish"


def test_a_fact_that_cannot_be_read_is_named(root: Path) -> None:
    path = fact(root, "start")
    path.write_bytes(b"{")
    assert only(verdict(root)).recorded == "1 bytes that cannot be read"


def test_a_fact_slipped_in_long_ago_is_named_and_a_new_one_is_only_counted(root: Path) -> None:
    """Its stamp is before the first page by a day; the other's is after the last."""
    body = fact(root, "cancel").read_text()
    for stamp, writer in (
        ("20261130T000000000Z", "cli-forged~aaaaaaaa"),
        ("20261201T090000000Z", "cli-forged~bbbbbbbb"),
    ):
        folder = root / "facts" / stamp[:11]
        folder.mkdir()
        forged = re.sub(r'"writer":"[^"]*"', f'"writer":"{writer}"', body)
        (folder / f"{stamp}.{writer}.0.cancel").write_text(forged)
    report = verdict(root)
    assert only(report).key.startswith("facts/20261130T00/")
    assert (only(report).page, only(report).field) == (None, "page")
    assert report.objects is not None
    assert report.objects.unposted_facts == 1


def test_a_second_copy_of_a_fact_must_say_the_same(root: Path) -> None:
    """A fact whose acknowledgement was lost is put again under another stamp."""
    path = fact(root, "cancel")
    copy = path.with_name(re.sub(r"^(\d{8}T\d{6})\d{3}Z", r"\g<1>999Z", path.name))
    assert copy != path
    shutil.copy(path, copy)
    assert verdict(root).differences == []
    edit(copy, lambda body: body.update(reason="forged"))
    assert only(verdict(root)).key.endswith(copy.name)


# -- mailboxes


def test_a_changed_message_is_named(root: Path) -> None:
    path = root / "mailbox" / "n1-cpu0" / "00000003"
    key = edit(path, lambda body: body["job"].update(argv=["rm", "-rf"]))
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (key, "body")
    assert difference.page == json.loads(path.read_bytes())["seq"]


def test_a_message_that_nobody_decided_is_named(root: Path) -> None:
    last = sorted((root / "mailbox" / "n2-cpu0").iterdir())[-1]
    extra = last.with_name(f"{int(last.name) + 1:08d}")
    shutil.copy(last, extra)
    difference = only(verdict(root))
    assert (difference.key, difference.page) == (f"mailbox/n2-cpu0/{extra.name}", None)


def test_a_missing_message_is_named_if_it_was_handled(root: Path) -> None:
    (root / "mailbox" / "n2-cpu1" / "00000002").unlink()
    difference = only(verdict(root))
    assert (difference.key, difference.recorded) == ("mailbox/n2-cpu1/00000002", None)


def test_a_missing_last_message_is_named_if_it_was_handled(root: Path) -> None:
    last = sorted((root / "mailbox" / "n2-cpu1").iterdir())[-1]
    last.unlink()
    assert only(verdict(root)).key == f"mailbox/n2-cpu1/{last.name}"


def test_a_missing_message_is_named_if_a_later_one_was_put(tmp_path: Path) -> None:
    """A run and a stop, of which the worker has handled neither."""
    world = World()
    world.node_up("n1", 1)
    world.turn()
    job = world.submit()
    world.turn()
    world.claim(job, "start")
    world.cancel(job)
    world.turn()
    store = store_of(tmp_path)
    write_ledger(store, [encode(page) for page in world.pages])
    write_objects(store, world.pages)
    assert verify_all(store, "test").differences == []
    (tmp_path / "mailbox" / "n1-cpu0" / "00000000").unlink()
    (difference,) = verify_all(store, "test").differences
    assert difference.key == "mailbox/n1-cpu0/00000000"


def test_a_message_that_is_not_put_yet_is_counted(tmp_path: Path) -> None:
    world = World()
    world.node_up("n1", 1)
    world.turn()
    world.submit()
    world.turn()
    store = store_of(tmp_path)
    write_ledger(store, [encode(page) for page in world.pages])
    for page in world.pages:
        for posted in page.facts:
            store.put_once(posted.key, encode(posted.fact))
    report = verify_all(store, "test")
    assert report.differences == []
    assert report.objects is not None
    assert report.objects.undelivered_messages == 1


# -- claims


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"owner": "revoke"}, "owner"),
        ({"writer": "n9-cpu0~aaaaaaaa"}, "writer"),
        ({"attempt": 2}, "body"),
        ({"owner": "nobody"}, "body"),
    ],
)
def test_a_changed_claim_is_named(root: Path, change: dict[str, Any], field: str) -> None:
    job = failed_job()
    key = edit(root / "claims" / f"{job}.1", lambda body: body.update(change))
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (key, field)
    assert difference.page == page_that_holds(f'"kind":"assign","job":"{job}"')


def test_a_claim_of_no_attempt_is_named(root: Path) -> None:
    job = failed_job()
    shutil.copy(root / "claims" / f"{job}.1", root / "claims" / f"{job}.2")
    difference = only(verdict(root))
    assert (difference.key, difference.page) == (f"claims/{job}.2", None)


def test_a_missing_claim_of_an_attempt_that_started_is_named(root: Path) -> None:
    job = failed_job()
    (root / "claims" / f"{job}.1").unlink()
    difference = only(verdict(root))
    assert (difference.key, difference.recorded) == (f"claims/{job}.1", None)
    assert "start" in difference.derived


# -- logs, blobs, checkpoints, and all that is not of the ledger


@pytest.mark.parametrize(
    ("body", "recorded", "derived"),
    [
        (b"it failed\nrc=0\n", 0, 3),
        (b"it failed\n", None, "a last line rc=N"),
        (b"it failed rc=3\n", None, "a last line rc=N"),
        (b"", None, "a last line rc=N"),
    ],
)
def test_a_log_that_ends_otherwise_is_named(
    root: Path, body: bytes, recorded: object, derived: object
) -> None:
    key = f"logs/{failed_job()}.1.log"
    (root / key).write_bytes(body)
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (key, "rc")
    assert (difference.recorded, difference.derived) == (recorded, derived)


def test_a_blob_under_another_name_is_named(root: Path) -> None:
    path = sorted((root / "blobs").iterdir())[0]
    path.write_bytes(path.read_bytes() + b"\n")
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (f"blobs/{path.name}", "sha256")
    assert difference.derived == path.name
    assert difference.page == page_that_holds(f'"source":"{path.name}"')


def test_a_missing_blob_is_named_by_the_page_that_needs_it(root: Path) -> None:
    path = sorted((root / "blobs").iterdir())[0]
    path.unlink()
    difference = only(verdict(root))
    assert (difference.key, difference.recorded) == (f"blobs/{path.name}", None)
    assert difference.page == page_that_holds(f'"source":"{path.name}"')


def test_a_blob_that_no_page_names_is_only_held_against_its_own_name(root: Path) -> None:
    body = b"#!/bin/sh\n"
    name = hashlib.sha256(body).hexdigest()
    (root / "blobs" / name).write_bytes(body)
    assert verdict(root).differences == []
    (root / "blobs" / name).write_bytes(b"#!/bin/bash\n")
    difference = only(verdict(root))
    assert (difference.key, difference.page) == (f"blobs/{name}", None)


def snapshot_ledger(root: Path) -> Store:
    """A ledger whose job runs in a snapshot of one piece; its manifest is whole."""
    store = store_of(root)
    pieces = pieces_of(b"an archive")
    put_pieces(store, b"an archive")
    manifest = put_blob(store, encode(Manifest(archive=pieces, files=1, size=1)))
    world = World()
    world.submit(snapshot=Snapshot(manifest=manifest))
    world.turn()
    write_ledger(store, [encode(page) for page in world.pages])
    write_objects(store, world.pages)
    return store


def test_a_piece_that_a_snapshot_needs_is_named_if_it_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    snapshot_ledger(root)
    report = verdict(root)
    assert report.differences == []
    assert report.objects is not None
    assert report.objects.blobs == 2
    piece = f"blobs/{hashlib.sha256(b'an archive').hexdigest()}"
    (root / piece).unlink()
    difference = only(verdict(root))
    assert (difference.page, difference.key, difference.recorded) == (1, piece, None)
    assert difference.derived == "a piece of the snapshot that this page names"


def artifacts_of(root: Path, job: str, body: bytes) -> bytes:
    """A manifest of one file of one piece, which is put."""
    store = store_of(root)
    put_pieces(store, body)
    file = ArtifactFile(path="a", mode=0o644, content=pieces_of(body))
    ledger = read_ledger(store).ledger
    return encode(
        ArtifactManifest(ledger=ledger, job=JobId(job), attempt=1, files=(file,), notes=())
    )


def test_artifacts_and_their_pieces_are_looked_at(root: Path) -> None:
    job = failed_job()
    path = root / artifact_key(job, 1)
    path.parent.mkdir()
    path.write_bytes(artifacts_of(root, job, b"model"))
    report = verdict(root)
    assert report.differences == []
    assert report.objects is not None
    assert report.objects.artifacts == 1
    piece = root / "blobs" / hashlib.sha256(b"model").hexdigest()
    piece.unlink()
    difference = only(verdict(root))
    assert (difference.key, difference.recorded) == (f"blobs/{piece.name}", None)
    assert difference.derived == f"a piece that artifacts/{job}.1 names"


def test_artifacts_that_are_not_of_their_attempt_are_named(root: Path) -> None:
    job = failed_job()
    path = root / artifact_key(job, 1)
    path.parent.mkdir()
    path.write_bytes(artifacts_of(root, "aaaaaaaa", b"model"))
    difference = only(verdict(root))
    assert (difference.key, difference.field) == (f"artifacts/{job}.1", "body")
    assert "name another attempt" in difference.recorded
    path.rename(root / artifact_key("aaaaaaaa", 1))
    difference = only(verdict(root))
    assert (difference.key, difference.field) == ("artifacts/aaaaaaaa.1", "page")


def test_a_checkpoint_of_another_state_is_named(root: Path) -> None:
    path = root / checkpoint_key(CHECKPOINT_SEQ)
    state = state_after(CHECKPOINT_SEQ)
    job = next(iter(state.jobs.values()))
    job.requeues += 1
    path.write_bytes(encode_checkpoint(state))
    difference = only(verdict(root))
    assert (difference.key, difference.page) == (checkpoint_key(CHECKPOINT_SEQ), CHECKPOINT_SEQ)
    assert difference.derived == f"the state after page {CHECKPOINT_SEQ}: another jobs"


def test_a_checkpoint_with_one_changed_byte_is_named(root: Path) -> None:
    path = root / checkpoint_key(CHECKPOINT_SEQ)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    assert only(verdict(root)).derived == "a state that can be read"


def test_what_is_not_of_the_ledger_is_counted_and_passed_over(root: Path) -> None:
    for name in ("facts/notes", "claims/notes", "mailbox/notes", "blobs/notes"):
        (root / name).write_text("somebody's own")
    report = verdict(root)
    assert report.differences == []
    assert report.objects is not None
    assert report.objects.strays == 4


# -- the whole


def test_every_difference_is_listed(root: Path) -> None:
    job = failed_job()
    edit(root / "claims" / f"{job}.1", lambda body: body.update(owner="revoke"))
    fact(root, "submit").unlink()
    (root / "logs" / f"{job}.1.log").write_bytes(b"")
    assert len(verdict(root).differences) == 3


def test_a_changed_page_is_told_alone_because_all_else_rests_on_it(root: Path) -> None:
    fact(root, "submit").unlink()
    path = root / page_key(5)
    path.write_bytes(path.read_bytes().replace(b'"put_id":"', b'"put_id":"x', 1))
    report = verdict(root)
    assert report.differences == [report.difference]
    assert report.objects is None
    assert report.difference is not None
    assert report.difference.page == 5


def test_a_period_checks_what_its_pages_say_and_nothing_else(root: Path) -> None:
    """A submit of the first pages and a blob that a later one names, both changed."""
    early = edit(fact(root, "submit"), lambda body: body.update(at=1))
    edited = [early]
    pages = [decode_page(path.read_bytes()) for path in sorted((root / "journal").iterdir())]
    late = next(
        posted.key
        for page in reversed(pages)
        for posted in page.facts
        if isinstance(posted.fact, Submitted)
    )
    edited.append(edit(root / late, lambda body: body.update(at=1)))
    first, last = page_that_holds(early), page_that_holds(late)
    assert first < last
    middle = pages[last].at
    assert [one.key for one in verdict(root).differences] == edited
    from_then = verdict(root, Period(from_ms=middle))
    assert [one.key for one in from_then.differences] == [late]
    assert from_then.earlier_pages == sum(page.at < middle for page in pages)
    up_to_then = verdict(root, Period(until_ms=middle - 1))
    assert [one.key for one in up_to_then.differences] == [early]
    assert up_to_then.pages == sum(page.at < middle for page in pages)


def test_verification_of_decisions_looks_at_the_journal_alone(root: Path) -> None:
    for name in ("facts", "claims", "mailbox", "blobs"):
        shutil.rmtree(root / name)
    store = store_of(root)
    report = verify(store, read_ledger(store).ledger)
    assert (report.differences, report.objects) == ([], None)


def test_a_ledger_with_revokes_and_two_epochs_agrees(tmp_path: Path) -> None:
    world = eventful_world()
    store = store_of(tmp_path)
    write_ledger(store, [encode(page) for page in world.pages])
    write_objects(store, world.pages)
    report = verify_all(store, "test")
    assert report.differences == []
    revoked = next(
        path.name
        for path in (tmp_path / "claims").iterdir()
        if json.loads(path.read_bytes())["owner"] == "revoke"
    )
    owners = {json.loads(path.read_bytes())["owner"] for path in (tmp_path / "claims").iterdir()}
    assert owners == {"start", "revoke"}
    store.put_once(f"logs/{revoked}.log", b"rc=0\n")
    (difference,) = verify_all(store, "test").differences
    assert difference.derived == "no log: the attempt was revoked"


# -- copies


def test_a_plain_copy_of_the_objects_verifies_the_same(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            target = copy / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert verdict(copy) == verdict(root)


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_a_copy_made_by_rclone_verifies_the_same(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(
        ["rclone", "--config", "", "copy", str(root), str(copy)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert verdict(copy) == verdict(root)
