"""The folder store's own promises: durability, hidden files, cheap listings, clear errors."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger import keys
from ledger.errors import GpuqError, InDoubtError, RequestError, TransientError
from ledger.names import WriterName
from ledger.stores.base import Lost, Won
from ledger.stores.directory import DirectoryStore
from tests.stores.clocks import SteppedClock
from tests.stores.conftest import page

PAGE = "journal/000000000000"
MINE, THEIRS = page("mine"), page("theirs")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "not yet" / "there"


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(root: Path, clock: SteppedClock) -> DirectoryStore:
    return DirectoryStore(root, clock=clock, rng=random.Random(3))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, after: bool = False
) -> Callable[[], None]:
    """Let ``os.<name>`` fail with ``code``, before or after its effect; returns the mend."""
    plain = getattr(os, name)

    def fail(*args: object) -> object:
        if after:
            plain(*args)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, fail)
    return lambda: monkeypatch.setattr(os, name, plain)


def test_the_first_put_makes_the_folder_and_a_read_does_not(
    store: DirectoryStore, root: Path
) -> None:
    assert store.get(PAGE) is None
    assert list(store.list("")) == []
    assert not root.exists()
    store.put_once(PAGE, b"body")
    assert files(root) == [PAGE]


def test_a_body_is_durable_before_its_name_and_the_name_before_the_answer(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_once("journal/000000000001", b"{}")
    done: list[tuple[str, str]] = []
    plain_fsync, plain_link = os.fsync, os.link

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("fsync", "hidden" if path.name.startswith(".") else path.name))
        plain_fsync(descriptor)

    def link(source: Path, target: Path) -> None:
        done.append(("link", target.name))
        plain_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    store.put_new(PAGE, MINE)
    assert done == [("fsync", "hidden"), ("link", "000000000000"), ("fsync", "journal")]

    done.clear()
    store.put_new("claims/a2b3c4d5.1", MINE)
    assert done == [
        ("fsync", root.name),
        ("fsync", "hidden"),
        ("link", "a2b3c4d5.1"),
        ("fsync", "claims"),
    ]

    # A reader does not know whether the writer lived to do the same.
    done.clear()
    reader = DirectoryStore(root, clock=SteppedClock(), rng=random.Random(4))
    reader.sync(PAGE)
    assert done == [("fsync", root.name), ("fsync", "journal")]


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_link_that_took_effect_and_reported_failure_is_won(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, "link", code, after=True)
    assert store.put_new(PAGE, MINE) == Won()
    assert files(root) == [PAGE]


def test_a_link_that_fails_for_ever_is_in_doubt_after_the_patience(
    store: DirectoryStore, root: Path, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend = failing(monkeypatch, "link", errno.EIO)
    with pytest.raises(InDoubtError):
        store.put_new(PAGE, MINE, patience_ms=2_000)
    assert sum(clock.slept_ms) == 2_000
    assert files(root) == []
    mend()
    assert store.put_new(PAGE, MINE) == Won()


def test_a_full_disk_is_waited_out_and_leaves_no_file_and_no_doubt(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_once("blobs/00", b"body")
    mend = failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(TransientError, match="No space left") as raised:
        store.put_new("blobs/01", MINE)
    assert not isinstance(raised.value, InDoubtError)
    assert files(root) == ["blobs/00"]
    mend()
    assert store.put_new("blobs/01", THEIRS) == Won()


@pytest.mark.parametrize(
    ("code", "mend"),
    [
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EPERM, "no hard links"),
        (errno.EOPNOTSUPP, "no hard links"),
    ],
)
def test_what_a_person_must_change_is_said_at_once(
    store: DirectoryStore,
    root: Path,
    clock: SteppedClock,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    mend: str,
) -> None:
    failing(monkeypatch, "link", code)
    for put in (lambda: store.put_new(PAGE, MINE), lambda: store.put_once(PAGE, MINE)):
        with pytest.raises(RequestError, match=mend) as raised:
            put()
        assert "\n" not in str(raised.value)
    assert clock.slept_ms == []
    assert files(root) == []


def test_a_file_where_a_folder_should_be_is_named(store: DirectoryStore) -> None:
    store.put_once("journal", b"")
    with pytest.raises(RequestError, match="a file is in the way"):
        store.put_once(PAGE, b"")
    assert store.get(PAGE) is None


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(tmp_path / "file", clock=SteppedClock(), rng=random.Random(3))
    for ask in (lambda: store.get(PAGE), lambda: list(store.list("")), lambda: put(store)):
        with pytest.raises(RequestError, match="is a file"):
            ask()


def test_a_root_that_vanishes_is_no_empty_ledger(store: DirectoryStore, root: Path) -> None:
    put(store)
    shutil.rmtree(root)
    for ask in (lambda: store.get(PAGE), lambda: list(store.list("")), lambda: put(store)):
        with pytest.raises(RequestError, match="is gone"):
            ask()
    assert not root.exists()


def test_what_a_killed_writer_left_and_what_others_put_there_is_not_listed(
    store: DirectoryStore, root: Path
) -> None:
    store.put_once(PAGE, b"body")
    (root / "journal" / ".123-abc.tmp").write_bytes(b"half")
    (root / "journal" / "read me.txt").write_bytes(b"")
    (root / ".DS_Store").write_bytes(b"")
    (root / "journal" / "empty folder").mkdir()
    assert [entry.key for entry in store.list("")] == [PAGE]


def test_two_stores_of_one_seed_do_not_disturb_each_other(root: Path) -> None:
    twins = [DirectoryStore(root, clock=SteppedClock(), rng=random.Random(3)) for _ in range(2)]
    assert twins[0].put_new(PAGE, MINE) == Won()
    assert twins[1].put_new(PAGE, THEIRS) == Lost(MINE)
    assert files(root) == [PAGE]


def test_a_listing_after_a_recent_key_reads_no_hour_before_it(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_ms = 3_600_000
    first_ms = 1_796_058_793_123
    for hour in range(30):
        store.put_once(fact(first_ms + hour * hour_ms), b"{}")
    scanned: list[str] = []
    plain = os.scandir

    def scandir(path: Path) -> object:
        scanned.append(str(path.relative_to(root)))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scandir)
    recent = keys.after_stamp("facts/", first_ms + 28 * hour_ms - 10_000)
    assert len(list(store.list("facts/", recent))) == 2
    # 10 s before the 28th fact is still in its hour, so two of the thirty are read.
    assert scanned == ["facts", "facts/20261201T21", "facts/20261201T22"]


def test_the_clock_is_this_machines_and_does_not_follow_it_backwards(
    store: DirectoryStore, clock: SteppedClock
) -> None:
    clock.wall = 1_800_000_000_500
    assert store.clock_ms() == 1_800_000_000_500
    clock.wall = 1_800_000_000_000
    assert store.clock_ms() == 1_800_000_000_500
    clock.wall = 1_800_000_000_501
    assert store.clock_ms() == 1_800_000_000_501


def fact(stamp_ms: int) -> str:
    writer = WriterName("node1~a2b3c4d5")
    return keys.FactKey(stamp_ms=stamp_ms, writer=writer, n=0, kind="start").format()


def put(store: DirectoryStore) -> GpuqError | None:
    store.put_once(PAGE, b"body")
    return None
