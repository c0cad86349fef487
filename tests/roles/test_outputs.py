"""An attempt's outputs: which files go up, what is said of the others, and going on again."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from ledger.artifacts import ArtifactManifest, read_artifacts
from ledger.errors import TransientError
from ledger.events import AttemptRef
from ledger.keys import ARTIFACTS, BLOBS, artifact_key, blob_key, log_key
from ledger.names import JobId
from ledger.pieces import get_pieces
from ledger.timings import DAY_MS, PIECE_BYTES, Timings
from roles import outputs
from roles.context import Context
from roles.outputs import OutputShipper
from simulation.memory import ManualClock, MemoryStore

REF = AttemptRef(JobId("aaaa2222"), 1)


class AwayStore(MemoryStore):
    """Gives no news of puts while ``away``."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.away = False

    def before(self, op: str, key: str) -> None:
        if self.away and op == "put":
            raise TransientError("no news")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> AwayStore:
    return AwayStore(clock)


@pytest.fixture
def context(store: AwayStore, clock: ManualClock, tmp_path: Path) -> Context:
    return Context(
        store=store,
        ledger="test",
        clock=clock,
        rng=random.Random(1),
        timings=Timings(),
        state_dir=tmp_path / "state",
        host="h",
        machine="m",
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The job's working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def shipper_of(context: Context, work: Path, *patterns: str) -> OutputShipper:
    return OutputShipper(context, REF, str(work), patterns)


def ship(shipper: OutputShipper) -> None:
    for _ in range(100):
        if shipper.is_over:
            return
        shipper.step()
    raise AssertionError("it does not end")


def manifest_in(store: AwayStore) -> ArtifactManifest:
    body = store.get(artifact_key(REF.job, REF.attempt))
    assert body is not None
    return read_artifacts(body, "test", REF.job, REF.attempt)


def kept(store: AwayStore) -> dict[str, bytes]:
    return {
        file.path: b"".join(get_pieces(store, file.content)) for file in manifest_in(store).files
    }


def test_what_the_patterns_match_is_kept_whole(
    context: Context, store: AwayStore, work: Path
) -> None:
    large = bytes(range(256)) * (PIECE_BYTES // 256) + b"end"
    contents = {"a.txt": b"a", ".hidden.txt": b"h", "out/x/1.pt": large, "out/2.pt": b"", "b": b"b"}
    for name, content in contents.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    (work / "out" / "x" / "1.pt").chmod(0o750)
    (work / "out" / "link.pt").symlink_to("../b")
    shipper = shipper_of(context, work, "*.txt", "out/**/*.pt", "out")
    ship(shipper)
    assert kept(store) == {
        ".hidden.txt": b"h", "a.txt": b"a", "out/2.pt": b"", "out/link.pt": b"b",
        "out/x/1.pt": large,
    }  # fmt: skip
    assert (shipper.notes, shipper.reason) == ((), "")
    (file,) = (file for file in manifest_in(store).files if file.path == "out/x/1.pt")
    assert (file.mode, len(file.content.pieces)) == (0o750, 2)


def test_what_cannot_be_kept_is_left_out_with_a_line_each(
    context: Context, store: AwayStore, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (work / "good").touch()
    (work / "out").symlink_to(tmp_path / "secret")
    (work / "up").symlink_to("..")
    (work / "dangling").symlink_to("nothing")
    (work / "loop").symlink_to("loop")
    os.mkfifo(work / "pipe")
    (work / os.fsdecode(b"\xff")).touch()
    shipper = shipper_of(context, work, "*", "*.csv")
    ship(shipper)
    assert kept(store) == {"good": b""}
    assert sorted(shipper.notes) == [
        "'\\udcff' has a name that is not UTF-8",
        "'dangling' cannot be read: No such file or directory",
        "'loop' cannot be read: Too many levels of symbolic links",
        "'out' leads out of the working directory",
        "'pipe' is no file",
        "'up' leads out of the working directory",
        "--output '*.csv' matched nothing",
    ]
    assert shipper.reason == "some outputs were left out: the end of its log says why"
    assert manifest_in(store).notes == shipper.notes


def test_a_file_that_changes_while_it_is_read_is_left_out(
    context: Context, store: AwayStore, work: Path
) -> None:
    (work / "a").write_bytes(b"1")
    (work / "b").write_bytes(b"2")
    shipper = shipper_of(context, work, "*")
    shipper.step()
    shipper.step()
    shipper.step()
    with (work / "a").open("ab") as file:
        file.write(b"more")
    ship(shipper)
    assert kept(store) == {"b": b"2"}
    assert shipper.notes == ("'a' changed while it was read",)


def test_a_file_that_vanished_meanwhile_is_left_out(
    context: Context, store: AwayStore, work: Path
) -> None:
    (work / "a").touch()
    shipper = shipper_of(context, work, "*")
    shipper.step()
    (work / "a").unlink()
    ship(shipper)
    assert shipper.notes == ("'a' cannot be read: No such file or directory",)


def test_a_directory_that_is_gone_has_nothing(
    context: Context, store: AwayStore, work: Path
) -> None:
    shipper = shipper_of(context, work / "gone", "*")
    ship(shipper)
    assert shipper.notes == ("--output '*' matched nothing",)


def test_what_is_too_much_is_left_out(
    context: Context, store: AwayStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (work / name).write_bytes(b"12345")
    (work / "aa").write_bytes(b"1234567")
    monkeypatch.setattr(outputs, "OUTPUTS_MAX_FILES", 2)
    monkeypatch.setattr(outputs, "OUTPUTS_MAX_BYTES", 10)
    shipper = shipper_of(context, work, "*")
    ship(shipper)
    assert list(kept(store)) == ["a", "b"]
    assert shipper.notes[0].startswith(
        "3 files are more than one attempt may have: at most 2 files"
    )


def test_of_many_lines_the_first_are_kept(context: Context, store: AwayStore, work: Path) -> None:
    for n in range(23):
        (work / f"{n:02}").symlink_to("/etc")
    shipper = shipper_of(context, work, "*")
    ship(shipper)
    assert len(shipper.notes) == 21
    assert shipper.notes[-1] == "3 further lines"


def test_after_an_outage_it_goes_on_and_after_a_crash_only_what_is_missing_is_sent(
    context: Context, store: AwayStore, work: Path
) -> None:
    (work / "a").write_bytes(b"1" * PIECE_BYTES + b"2" * PIECE_BYTES)
    (work / "b").write_bytes(b"3")
    first = shipper_of(context, work, "*")
    while not list(store.list(BLOBS)):
        first.step()
    store.away = True
    for _ in range(2):
        with pytest.raises(TransientError):
            first.step()
    assert list(store.list(ARTIFACTS)) == []
    store.away = False
    first.step()
    assert len(list(store.list(BLOBS))) == 2
    puts = store.counts["put"]
    ship(shipper_of(context, work, "*"))  # of the worker that came after
    assert store.counts["put"] - puts == 2, "the piece of b, and the manifest"
    assert list(kept(store)) == ["a", "b"]
    assert blob_key(hashlib.sha256(b"3").hexdigest()) in {e.key for e in store.list(BLOBS)}


def test_a_manifest_is_final(context: Context, store: AwayStore, work: Path) -> None:
    ship(shipper_of(context, work, "*.csv"))
    (work / "late.csv").touch()
    puts = store.counts["put"]
    second = shipper_of(context, work, "*.csv")
    second.step()
    assert second.is_over
    assert second.notes == ("--output '*.csv' matched nothing",)
    assert store.counts["put"] == puts


def test_where_the_store_takes_nothing_for_a_day_it_is_given_up_for_good(
    context: Context, store: AwayStore, work: Path, clock: ManualClock
) -> None:
    (work / "a").write_bytes(b"1")
    shipper = shipper_of(context, work, "*")
    shipper.step()
    shipper.step()
    store.away = True
    clock.advance_ms(DAY_MS)
    with pytest.raises(TransientError):
        shipper.step()
    shipper.give_up_if_stalled()
    assert not shipper.is_over
    assert shipper.reason == "its outputs follow when the store can be reached"
    clock.advance_ms(1)
    shipper.give_up_if_stalled()
    assert shipper.is_over
    assert shipper.reason.startswith("its outputs were not uploaded")
    store.away = False
    # The log that was put without their lines cannot be put again with them.
    store.put_once(log_key(REF.job, REF.attempt), b"rc=0\n")
    second = shipper_of(context, work, "*")
    ship(second)
    assert second.notes == ()
    assert list(store.list(ARTIFACTS)) == []
