"""A worker's own files on a real disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ledger.errors import LedgerError, RequestError
from ledger.names import WorkerName
from ledger.timings import Timings
from roles.processes import Identity
from roles.status import WorkerStatus, read_status
from roles.workspace import LocalWorkspace, LogNote, Notes
from tests.roles.worker_main import context_of
from tests.roles.worker_rig import NODE, WORKER


def workspace(folder: Path) -> LocalWorkspace:
    return LocalWorkspace(context_of(folder / "store", folder, Timings()), NODE, WORKER)


def worker_dir(folder: Path) -> Path:
    return folder / "test" / "workers" / WORKER


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    files = workspace(tmp_path)
    files.lock()
    assert files.read_notes() == Notes()
    notes = Notes(cursor=3, reported=["aaaaaaaa.1"], logs={"aaaaaaab.1": LogNote(2, 5, 9)})
    files.write_notes(notes)
    assert workspace(tmp_path).read_notes() == notes


def test_what_a_gpu_has_to_give_back_is_known_to_all_workers_of_the_machine(tmp_path: Path) -> None:
    other = WorkerName("n1-gpu1")
    ours, theirs = (
        workspace(tmp_path),
        LocalWorkspace(context_of(tmp_path / "store", tmp_path, Timings()), NODE, other),
    )
    assert theirs.gpu_memory_before(other) is None
    ours.note_gpu_memory_before(other, 1 << 30)
    assert theirs.gpu_memory_before(other) == 1 << 30
    theirs.note_gpu_memory_before(other, None)
    assert ours.gpu_memory_before(other) is None
    theirs.note_gpu_memory_before(other, None)


def test_damaged_notes_are_refused(tmp_path: Path) -> None:
    files = workspace(tmp_path)
    files.lock()
    (worker_dir(tmp_path) / "notes.json").write_text('{"cursor":')
    with pytest.raises(LedgerError, match=r"notes\.json"):
        files.read_notes()


def test_one_slot_has_one_worker_at_a_time(tmp_path: Path) -> None:
    first, second = workspace(tmp_path), workspace(tmp_path)
    first.lock()
    with pytest.raises(RequestError, match="already runs"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_status_is_read_as_it_was_written_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    files = workspace(tmp_path)
    files.lock()
    assert read_status(worker_dir(tmp_path)) is None
    status = WorkerStatus(process=Identity(1, 2, "b"), running=("aaaaaaaa.1",), problem="p")
    files.write_status(status)
    assert read_status(worker_dir(tmp_path)) == status
    (worker_dir(tmp_path) / "status.json").write_bytes(msgspec.json.encode({"cursor": "x"}))
    assert read_status(worker_dir(tmp_path)) is None
