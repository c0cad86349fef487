"""Where a look back begins: at the newest usable checkpoint before the time that is asked for."""

from __future__ import annotations

import pytest

from gpuq.history import pages_after, parse_moment, state_before
from ledger.checkpoint import save_checkpoint
from ledger.errors import RequestError
from ledger.keys import checkpoint_key
from ledger.names import Seq
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

HOUR_MS = 3_600_000


@pytest.fixture
def page_times(fleet: Fleet) -> list[int]:
    """Six pages with a job each, in six different milliseconds; their times."""
    times = []
    fleet.ready("n1-cpu0")
    for number in range(6):
        fleet.submit(f"aaaaaaa{'abcdef'[number]}")
        fleet.post()
        while fleet.store.clock_ms() <= fleet.state.at:
            pass
        times.append(fleet.state.at)
        if number in (1, 3):
            save_checkpoint(fleet.store, fleet.state)
    return times


def test_the_newest_checkpoint_before_that_time_is_taken(
    fleet: Fleet, page_times: list[int]
) -> None:
    """Checkpoints stand after pages 1 and 3."""
    ledger = fleet.state.ledger
    found = [state_before(fleet.store, ledger, at_ms).seq for at_ms in page_times]
    assert found == [-1, -1, 1, 1, 3, 3]
    assert state_before(fleet.store, ledger, page_times[-1] + HOUR_MS).seq == 3
    assert state_before(fleet.store, "another", page_times[-1]).seq == -1


def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    fleet: Fleet, page_times: list[int]
) -> None:
    fleet.store.put_once(checkpoint_key(Seq(4)), b"damaged")
    assert state_before(fleet.store, fleet.state.ledger, page_times[-1]).seq == 3


def test_pages_end_with_the_last_that_was_posted_by_then(
    fleet: Fleet, page_times: list[int]
) -> None:
    store = fleet.store
    assert [page.seq for page, _ in pages_after(store, 2)] == [3, 4, 5]
    assert [page.seq for page, _ in pages_after(store, 2, page_times[4])] == [3, 4]
    assert [page.seq for page, _ in pages_after(store, 2, page_times[4] - 1)] == [3]


def test_an_answer_does_not_depend_on_where_the_reading_began(
    gpuq: Gpuq, fleet: Fleet, page_times: list[int]
) -> None:
    """The fourth job was submitted after page 1, so that the reading begins there."""
    now = gpuq("why", "aaaaaaad", "--json").json
    assert now["standing"]["earlier_jobs"] == 2
    assert sum(part["part_ms"] for part in now["wait"]) == now["wait_ms"]


def test_moments_are_so_long_ago_or_local_times() -> None:
    """1970-01-02 00:00 UTC is 86,400,000 ms after the epoch."""
    assert parse_moment("2h", 5 * HOUR_MS) == 3 * HOUR_MS
    assert parse_moment("1970-01-02T00:00:00+00:00", 100 * HOUR_MS) == 86_400_000
    for text in ("soon", "2100-01-01T00:00"):
        with pytest.raises(RequestError):
            parse_moment(text, 100 * HOUR_MS)
