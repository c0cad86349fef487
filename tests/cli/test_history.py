"""Where a look back begins: at the newest usable checkpoint before the time that is asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpuq.history import pages_after, parse_moment, state_before
from ledger.checkpoint import save_checkpoint
from ledger.clock import SystemClock
from ledger.errors import RequestError
from ledger.events import encode
from ledger.keys import checkpoint_key, page_key
from ledger.names import Seq
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore
from tests.world import START_MS, World

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> SettlingStore:
    """Six pages, a second apart, the first at ``START_MS``; checkpoints after pages 1 and 3."""
    store = open_store(str(tmp_path / "ledger"), clock=SystemClock(), rng=random.Random(7))
    world = World()
    for page in range(6):
        if page:
            world.submit()
            world.turn(after_ms=1_000)
        store.put_new(page_key(Seq(page)), encode(world.pages[page]))
        if page in (1, 3):
            save_checkpoint(store, world.state)
    return store


@pytest.mark.parametrize(
    ("after_ms", "seq"),
    [(0, -1), (1_000, -1), (1_001, 1), (3_000, 1), (3_001, 3), (HOUR_MS, 3)],
)
def test_the_newest_checkpoint_before_that_time_is_taken(
    store: SettlingStore, after_ms: int, seq: int
) -> None:
    assert state_before(store, "test", START_MS + after_ms).seq == seq


def test_a_checkpoint_that_cannot_be_used_is_passed_over(store: SettlingStore) -> None:
    store.put_once(checkpoint_key(Seq(4)), b"damaged")
    assert state_before(store, "test", START_MS + HOUR_MS).seq == 3
    assert state_before(store, "another", START_MS + HOUR_MS).seq == -1


def test_pages_end_with_the_last_that_was_posted_by_then(store: SettlingStore) -> None:
    assert [page.seq for page, _ in pages_after(store, 2)] == [3, 4, 5]
    assert [page.seq for page, _ in pages_after(store, 2, START_MS + 4_000)] == [3, 4]
    assert [page.seq for page, _ in pages_after(store, 2, START_MS + 3_999)] == [3]


def test_moments_are_so_long_ago_or_local_times() -> None:
    """1970-01-02 00:00 UTC is 86,400,000 ms after the epoch."""
    assert parse_moment("2h", 5 * HOUR_MS) == 3 * HOUR_MS
    assert parse_moment("1970-01-02T00:00:00+00:00", 100 * HOUR_MS) == 86_400_000
    for text in ("soon", "2100-01-01T00:00"):
        with pytest.raises(RequestError):
            parse_moment(text, 100 * HOUR_MS)
