"""The kept view: it saves requests, and never shows what the bucket does not say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuq.viewcache import KEPT_AFTER_PAGES, load_journal
from ledger.checkpoint import decode_checkpoint, save_checkpoint
from ledger.errors import LedgerError
from ledger.events import encode
from ledger.journal import Journal
from ledger.keys import page_key
from ledger.names import JobId
from ledger.state import State
from simulation.memory import ManualClock, MemoryStore
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.world import World, world_of_one_node

PAGES = 3 * KEPT_AFTER_PAGES


class Ledger:
    """A world whose pages stand in a store in memory as they are posted."""

    def __init__(self, pages: int = PAGES) -> None:
        self.world: World = world_of_one_node()
        self.store = MemoryStore(ManualClock())
        self.jobs: list[JobId] = []
        self.post(pages - len(self.world.pages))

    def post(self, pages: int) -> None:
        """So many pages more, each with a submit."""
        for _ in range(pages):
            self.jobs.append(self.world.submit())
            self.world.turn()
        for page in self.world.pages:
            self.store.put_once(page_key(page.seq), encode(page))

    def read(self, path: Path) -> State:
        """As a command reads it; the requests of that alone are counted."""
        self.store.counts.clear()
        return load_journal(self.store, "test", path).projection.state

    def truth(self) -> State:
        """As a role reads it."""
        journal = Journal(self.store, "test")
        journal.load()
        return journal.projection.state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger" / "view"


def test_the_second_look_reads_one_page_and_the_missing_next_one(path: Path) -> None:
    ledger = Ledger()
    first = ledger.read(path)
    # Batches of 1, 2, 4, 8, 16, 16 and 16 names, of which the last holds one page.
    assert ledger.store.counts == {"list": 1, "get": 63}
    again = ledger.read(path)
    assert ledger.store.counts == {"list": 1, "get": 2}
    assert again == first == ledger.truth()


def test_what_was_posted_since_is_read_on_top(path: Path) -> None:
    ledger = Ledger()
    ledger.read(path)
    ledger.post(2)
    assert ledger.jobs[-1] in ledger.read(path).jobs
    # The kept page, then batches of 1 and 2, of which the last is not there.
    assert ledger.store.counts == {"list": 1, "get": 4}
    assert ledger.read(path) == ledger.truth()


def test_a_look_that_read_few_pages_does_not_write(path: Path) -> None:
    ledger = Ledger()
    ledger.read(path)
    kept = path.read_bytes()
    ledger.post(KEPT_AFTER_PAGES - 1)
    ledger.read(path)
    assert path.read_bytes() == kept
    ledger.post(1)
    ledger.read(path)
    assert path.read_bytes() != kept
    assert sorted(file.name for file in path.parent.iterdir()) == ["store", "view"]


def test_a_newer_checkpoint_is_preferred(path: Path) -> None:
    ledger = Ledger()
    ledger.read(path)
    ledger.post(10)
    save_checkpoint(ledger.store, ledger.truth())
    shown = ledger.read(path)
    # Two LISTs find it; then come the checkpoint, its page, and the missing next one.
    assert ledger.store.counts == {"list": 2, "get": 3}
    assert shown == ledger.truth()


def flip_a_byte(body: bytes) -> bytes:
    return body[:40] + bytes([body[40] ^ 1]) + body[41:]


@pytest.mark.parametrize(
    "damage",
    [flip_a_byte, lambda body: body[:-9], lambda body: b"", lambda body: b"{}"],
    ids=["a byte", "cut short", "empty", "no checkpoint"],
)
def test_a_damaged_view_is_passed_over_and_replaced(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    ledger = Ledger()
    ledger.read(path)
    kept = path.read_bytes()
    path.write_bytes(damage(kept))
    assert ledger.read(path) == ledger.truth()
    assert ledger.store.counts["get"] > PAGES
    assert path.read_bytes() == kept


def test_a_view_of_another_journal_under_the_same_name_is_passed_over(path: Path) -> None:
    """Say a bucket that was emptied and filled again from a copy."""
    Ledger().read(path)
    replaced = Ledger(2)
    replaced.world.hold(replaced.world.submit())
    replaced.post(PAGES - 2)
    assert replaced.read(path) == replaced.truth()


def test_a_view_ahead_of_its_journal_is_passed_over(path: Path) -> None:
    Ledger().read(path)
    shorter = Ledger(5)
    assert shorter.read(path) == shorter.truth()


def test_a_view_of_another_ledger_is_passed_over(path: Path) -> None:
    """So that a page of a foreign ledger is still found to be one."""
    ledger = Ledger()
    ledger.read(path)
    with pytest.raises(LedgerError, match="test"):
        load_journal(ledger.store, "other", path)


def test_a_folder_that_cannot_be_written_is_no_error(path: Path) -> None:
    path.parent.parent.joinpath("ledger").write_text("a file where the folder should be")
    ledger = Ledger()
    assert ledger.read(path) == ledger.truth()
    ledger.read(path)
    assert ledger.store.counts["get"] > PAGES


def test_the_view_is_for_its_user_alone(path: Path) -> None:
    Ledger().read(path)
    assert path.stat().st_mode & 0o077 == 0


def test_commands_keep_and_use_it(gpuq: Gpuq, fleet: Fleet, tmp_path: Path) -> None:
    for _ in range(KEPT_AFTER_PAGES):
        fleet.submit("".join(["aaaaaa", chr(ord("a") + len(fleet.state.jobs)), "a"]))
        fleet.post()
    assert gpuq("status").rc == 0
    (kept,) = (tmp_path / "home" / ".local" / "state" / "gpuq").glob("*/view")
    saved = decode_checkpoint(kept.read_bytes())
    assert saved is not None
    assert saved.seq == fleet.state.seq
    fleet.ready("n1-cpu0")
    fleet.post()
    shown = gpuq("status", "--json").json
    assert shown["page"] == fleet.state.seq
    assert [job["state"] for job in shown["jobs"]].count("ASSIGNED") == 1
