"""A node's snapshots: unpacked once, copied for each job, bounded, and never half of one."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

from ledger.archive import Entry, Manifest, pack, unpack
from ledger.clock import SystemClock
from ledger.errors import RequestError, TransientError
from ledger.events import Snapshot, encode
from ledger.keys import BLOBS, blob_key
from ledger.pieces import pieces_of, put_pieces
from ledger.stores.base import Store
from ledger.timings import SNAPSHOT_MAX_BYTES, SNAPSHOTS_KEPT, Timings
from ledger.writer import put_blob
from roles.context import Context
from roles.locks import FileLock
from roles.snapshots import place_snapshot, remove_tree
from simulation.memory import ManualClock, MemoryStore

BOOT = "boot-1"


class DamagingStore(MemoryStore):
    """Gives other bytes for some keys, as a disk that rots does."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.damaged: dict[str, bytes | None] = {}

    def get(self, key: str) -> bytes | None:
        body = super().get(key)
        return self.damaged.get(key, body)


@pytest.fixture
def store() -> DamagingStore:
    return DamagingStore()


@pytest.fixture
def context(store: DamagingStore, tmp_path: Path) -> Context:
    return Context(
        store=store,
        ledger="test",
        clock=SystemClock(),
        rng=random.Random(1),
        timings=Timings(),
        state_dir=tmp_path / "state",
        host="h",
        machine="m",
    )


def a_snapshot(store: Store, folder: Path, text: str = "one") -> Snapshot:
    folder.mkdir(exist_ok=True)
    (folder / "f").write_text(text)
    out = io.BytesIO()
    size = pack(folder, [Entry(name="f", kind="file", mode=0o644)], out, 100)
    pieces = pieces_of(out.getvalue())
    put_pieces(store, out.getvalue())
    manifest = encode(Manifest(archive=pieces, files=1, size=size))
    return Snapshot(manifest=put_blob(store, manifest))


def trees(context: Context) -> list[str]:
    return sorted(os.listdir(context.ledger_dir / "snapshots" / BOOT))


def test_it_is_fetched_once_and_copied_for_each_job(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    first, second = tmp_path / "jobs" / "a.1" / "tree", tmp_path / "jobs" / "b.1" / "tree"
    assert place_snapshot(context, BOOT, snapshot, first) == ""
    fetched = store.counts["get"]
    (first / "f").write_text("overwritten by the first job")
    assert place_snapshot(context, BOOT, snapshot, second) == ""
    assert store.counts["get"] == fetched == 2, "the manifest and the one piece"
    assert (second / "f").read_text() == "one"
    assert trees(context) == [snapshot.manifest]


def test_a_copy_that_was_begun_is_made_anew(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    target = tmp_path / "tree"
    target.mkdir()
    (target / "half").touch()
    assert place_snapshot(context, BOOT, snapshot, target) == ""
    assert os.listdir(target) == ["f"]


def test_what_is_missing_or_damaged_is_said_and_leaves_no_tree(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    keys = {entry.key for entry in store.list(BLOBS)}
    manifest = blob_key(snapshot.manifest)
    (piece,) = keys - {manifest}
    for key, body, said in (
        (manifest, None, "is not in the store"),
        (manifest, b"{}", "is not what its name says"),
        (piece, None, "is not in the store"),
        (piece, b"x", "is not what its name says"),
    ):
        store.damaged = {key: body}
        reason = place_snapshot(context, BOOT, snapshot, tmp_path / "tree")
        assert reason == f"its snapshot is unusable: {key} {said}; submit it again"
    assert trees(context) == []
    store.damaged = {}
    assert place_snapshot(context, BOOT, snapshot, tmp_path / "tree") == ""


def test_a_manifest_of_something_else_is_refused(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    huge = Manifest(archive=pieces_of(b""), files=1, size=SNAPSHOT_MAX_BYTES + 1)
    newer = Manifest(v=2, archive=pieces_of(b""), files=0, size=0)
    for body, said in (
        (b"echo hello", "cannot be read"),
        (encode(huge), "larger than 268435456 bytes"),
        (encode(newer), "has format 2"),
    ):
        snapshot = Snapshot(manifest=put_blob(store, body))
        assert said in place_snapshot(context, BOOT, snapshot, tmp_path / "tree")


def test_a_worker_killed_while_unpacking_leaves_nothing_that_is_taken_for_whole(
    store: DamagingStore, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    status = 42

    def die_at_the_end(*args: object) -> None:
        unpack(*args)  # type: ignore[arg-type]
        os._exit(status)

    monkeypatch.setattr("roles.snapshots.unpack", die_at_the_end)
    child = os.fork()
    if child == 0:
        place_snapshot(context, BOOT, snapshot, tmp_path / "tree")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
    assert trees(context) == [f"{snapshot.manifest}.new"]
    monkeypatch.undo()
    assert place_snapshot(context, BOOT, snapshot, tmp_path / "tree") == ""
    assert trees(context) == [snapshot.manifest]


def test_two_workers_do_not_unpack_at_once(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    other = FileLock.try_take(context.ledger_dir / "snapshots" / "lock")
    assert other is not None
    with pytest.raises(TransientError, match="another worker"):
        place_snapshot(context, BOOT, snapshot, tmp_path / "tree")
    other.release()
    assert place_snapshot(context, BOOT, snapshot, tmp_path / "tree") == ""


def test_those_used_last_are_kept_and_those_of_former_boots_are_not(
    store: DamagingStore, context: Context, tmp_path: Path
) -> None:
    former = context.ledger_dir / "snapshots" / "boot-0" / ("0" * 64)
    former.mkdir(parents=True)
    target = tmp_path / "tree"
    made = [a_snapshot(store, tmp_path / "source", str(n)) for n in range(SNAPSHOTS_KEPT + 1)]
    for age, snapshot in enumerate(made[:-1]):
        assert place_snapshot(context, BOOT, snapshot, target) == ""
        used = 1_000_000_000 + age
        os.utime(context.ledger_dir / "snapshots" / BOOT / snapshot.manifest, (used, used))
    assert place_snapshot(context, BOOT, made[0], target) == ""
    assert place_snapshot(context, BOOT, made[-1], target) == ""
    kept = {snapshot.manifest for snapshot in made} - {made[1].manifest}
    assert set(trees(context)) == kept
    assert not former.exists()


def test_a_disk_that_does_not_take_it_is_a_matter_for_a_person(
    store: DamagingStore, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("roles.snapshots.unpack", full)
    with pytest.raises(RequestError, match="No space left on device; free some disk"):
        place_snapshot(context, BOOT, snapshot, tmp_path / "tree")


def test_a_name_that_the_disk_cannot_hold_fails_that_job_alone(
    store: DamagingStore, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")
    deep = tmp_path.joinpath(*["x" * 250] * 17)  # more than the 4096 bytes of a path

    def too_deep(archive: object, target: Path, manifest: object) -> None:
        (deep / "f").touch()

    monkeypatch.setattr("roles.snapshots.unpack", too_deep)
    reason = place_snapshot(context, BOOT, snapshot, tmp_path / "tree")
    assert reason == "its snapshot cannot be unpacked on this node: File name too long"


def test_a_copy_that_fails_says_why(
    store: DamagingStore, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = a_snapshot(store, tmp_path / "source")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(RequestError, match="No space left on device; free some disk"):
        place_snapshot(context, BOOT, snapshot, tmp_path / "tree")


def test_a_tree_is_removed_whatever_its_job_made_of_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "closed" / "deeper").mkdir(parents=True)
    (tree / "closed" / "deeper" / "f").touch()
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (tree / "closed" / "link").symlink_to(outside)
    (tree / "closed" / "deeper").chmod(0)
    (tree / "closed").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert outside.stat().st_mode & 0o777 == 0o500
    remove_tree(tree)
