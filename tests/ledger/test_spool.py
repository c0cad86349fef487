"""The spool on the disk: torn appends, full disks, and who may take over what."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.errors import LedgerError, RequestError
from ledger.events import AnyFact, CancelRequested
from ledger.names import JobId, WriterName
from ledger.spool import DirectorySpool, DirectorySpools

WRITER = WriterName("node1-gpu0~aaaaaaaa")
OTHER = WriterName("node1-gpu0~bbbbbbbb")


def fact(n: int, writer: WriterName = WRITER) -> CancelRequested:
    return CancelRequested(writer=writer, n=n, at=1000 + n, job=JobId("abcdefgh"), by="ü\n")


def only(spools: DirectorySpools) -> DirectorySpool:
    [spool] = spools.abandoned()
    return spool


def write_spool(folder: Path) -> Path:
    """The closed spool of a writer that reported three facts; the first is acknowledged."""
    spool = DirectorySpools(folder).create(WRITER)
    spool.append_fact(fact(0))
    spool.append_fact(fact(1))
    spool.append_acknowledged(0, "key-of-0")
    spool.append_fact(fact(2))
    spool.close()
    return folder / f"{WRITER}.spool"


def test_what_was_appended_is_there_for_the_next_owner(tmp_path: Path) -> None:
    write_spool(tmp_path / "a" / "b")
    spool = only(DirectorySpools(tmp_path / "a" / "b"))
    content = spool.content()
    spool.close()
    assert spool.writer == WRITER
    assert (content.pending, content.newest_key) == ((fact(1), fact(2)), "key-of-0")


def test_a_crash_at_any_byte_keeps_all_whole_lines(tmp_path: Path) -> None:
    file = write_spool(tmp_path)
    data = file.read_bytes()
    after_lines: list[tuple[list[AnyFact], str]] = [
        ([], ""),
        ([fact(0)], ""),
        ([fact(0), fact(1)], ""),
        ([fact(1)], "key-of-0"),
        ([fact(1), fact(2)], "key-of-0"),
    ]
    for cut in range(len(data) + 1):
        file.write_bytes(data[:cut])
        lines = data[:cut].count(b"\n")
        pending, newest_key = after_lines[lines]
        spool = only(DirectorySpools(tmp_path))
        content = spool.content()
        assert (list(content.pending), content.newest_key) == (pending, newest_key), cut
        assert file.read_bytes() == b"".join(data[:cut].splitlines(keepends=True)[:lines]), cut
        if pending:
            spool.append_acknowledged(pending[0].n, "key-of-first")
            assert list(spool.content().pending) == pending[1:], cut
        spool.close()


def test_a_last_line_of_blocks_that_were_never_written_is_a_torn_append(tmp_path: Path) -> None:
    file = write_spool(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data + b"\0" * 100 + b"\n")
    spool = only(DirectorySpools(tmp_path))
    assert len(spool.content().pending) == 2
    spool.close()
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], b'{"line":"fa', *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [lines[2], *lines],
        lambda lines: [*lines, lines[0]],
    ],
    ids=["unreadable line", "first fact missing", "acknowledged too early", "fact twice"],
)
def test_a_damaged_spool_is_refused_by_name_and_left(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    file = write_spool(tmp_path)
    damaged = b"\n".join(damage(file.read_bytes().splitlines())) + b"\n"
    file.write_bytes(damaged)
    for _ in range(2):  # The first refusal must not keep the lock.
        with pytest.raises(LedgerError, match=str(WRITER)):
            read_all(DirectorySpools(tmp_path))
    assert file.read_bytes() == damaged


def read_all(spools: DirectorySpools) -> None:
    for spool in spools.abandoned():
        try:
            spool.content()
        finally:
            spool.close()


def test_the_spool_of_a_living_owner_is_not_abandoned(tmp_path: Path) -> None:
    spools = DirectorySpools(tmp_path)
    spool = spools.create(WRITER)
    assert list(DirectorySpools(tmp_path).abandoned()) == []
    spool.append_fact(fact(0))
    spool.close()
    [taken] = DirectorySpools(tmp_path).abandoned()
    assert list(spools.abandoned()) == [], "two drainers took the same spool"
    taken.close()


def test_kill_9_abandons_the_spool_with_all_that_was_reported(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.ledger.test_spool import *\n"
        "spool = DirectorySpools(pathlib.Path(sys.argv[1])).create(WRITER)\n"
        "spool.append_fact(fact(0)); print('reported', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"reported\n"
            assert list(DirectorySpools(tmp_path).abandoned()) == []
        finally:
            owner.send_signal(signal.SIGKILL)
    spool = only(DirectorySpools(tmp_path))
    assert spool.content().pending == (fact(0),)
    spool.close()


def test_spools_are_taken_in_the_order_of_names_and_removed_when_done(tmp_path: Path) -> None:
    spools = DirectorySpools(tmp_path)
    for writer in (OTHER, WRITER):
        spool = spools.create(writer)
        spool.append_fact(fact(0, writer))
        spool.close()
    (tmp_path / "notes.spool").write_text("not a writer's")
    taken = []
    for spool in spools.abandoned():
        taken.append(spool.writer)
        spool.append_acknowledged(0, "key")
        spool.remove()
    assert taken == [WRITER, OTHER]
    assert [file.name for file in tmp_path.iterdir()] == ["notes.spool"]


def test_no_folder_means_no_spools(tmp_path: Path) -> None:
    assert list(DirectorySpools(tmp_path / "none").abandoned()) == []
    assert not (tmp_path / "none").exists()


def test_a_new_spool_that_a_drainer_removed_at_once_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{WRITER}.spool"
    drainers = iter([file.unlink])
    lock = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        for drain in drainers:
            drain()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    spool = DirectorySpools(tmp_path).create(WRITER)
    spool.append_fact(fact(0))
    spool.close()
    monkeypatch.undo()
    taken = only(DirectorySpools(tmp_path))
    assert taken.content().pending == (fact(0),)
    taken.close()


def test_a_full_disk_refuses_the_fact_with_the_mend_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = DirectorySpools(tmp_path).create(WRITER)
    spool.append_fact(fact(0))
    before = (tmp_path / f"{WRITER}.spool").read_bytes()
    room = [10]
    write = os.write

    def full_disk(fd: int, data: bytes) -> int:
        """Takes ten bytes more and then nothing."""
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(RequestError, match=r"No space left on device; free some space"):
        spool.append_fact(fact(1))
    monkeypatch.undo()
    assert (tmp_path / f"{WRITER}.spool").read_bytes() == before
    spool.append_fact(fact(1))
    assert spool.content().pending == (fact(0), fact(1))
    spool.close()


def test_a_fact_that_could_not_be_made_durable_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = DirectorySpools(tmp_path).create(WRITER)

    def failing_disk(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing_disk)
    with pytest.raises(RequestError, match="check the disk"):
        spool.append_fact(fact(0))
    assert spool.content().pending == ()
    # A disk that fails altogether: what it took is cut off as soon as it lets us.
    monkeypatch.setattr(os, "ftruncate", lambda fd, length: failing_disk(fd))
    with pytest.raises(RequestError, match="check the disk"):
        spool.append_fact(fact(0))
    monkeypatch.undo()
    retried = CancelRequested(writer=WRITER, n=0, at=7, job=JobId("abcdefgh"))
    spool.append_fact(retried)
    assert spool.content().pending == (retried,)
    spool.close()


def test_each_fact_is_synced_and_so_is_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    spool = DirectorySpools(tmp_path / "new").create(WRITER)
    assert synced == [str(tmp_path), str(tmp_path / "new")]
    synced.clear()
    spool.append_fact(fact(0))
    spool.append_fact(fact(1))
    spool.close()
    assert synced == [str(tmp_path / "new" / f"{WRITER}.spool")] * 2


def test_a_folder_that_cannot_be_made_is_a_request_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot write"):
        DirectorySpools(tmp_path / "file" / "spools").create(WRITER)
