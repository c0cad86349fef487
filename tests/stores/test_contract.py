"""The store contract: one suite, on a folder, on moto's server and on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import TypeVar

import pytest

from ledger import keys
from ledger.clock import SystemClock
from ledger.errors import LedgerError
from ledger.names import WriterName
from ledger.stores.base import Entry, Lost, Won
from ledger.stores.settling import SettlingStore
from tests.stores.conftest import ALL, ATOMIC, ORDERED, Opener, page

on_all = pytest.mark.parametrize("opener", ALL, indirect=True)
on_atomic = pytest.mark.parametrize("opener", ATOMIC, indirect=True)
on_ordered = pytest.mark.parametrize("opener", ORDERED, indirect=True)

RACERS = 4
T = TypeVar("T")


@on_all
def test_a_key_that_was_never_written_reads_as_missing(store: SettlingStore) -> None:
    assert store.get("journal/000000000000") is None
    assert list(store.list("journal/")) == []


@on_all
def test_the_first_put_new_wins_and_a_second_learns_what_stands_there(opener: Opener) -> None:
    mine, theirs = page("mine"), page("theirs")
    assert opener().put_new("journal/000000000000", mine) == Won()
    assert opener().put_new("journal/000000000000", theirs) == Lost(mine)
    assert opener().get("journal/000000000000") == mine


@on_all
def test_put_new_again_with_ones_own_put_id_is_still_won(store: SettlingStore) -> None:
    assert store.put_new("claims/a2b3c4d5.1", page("mine")) == Won()
    assert store.put_new("claims/a2b3c4d5.1", page("mine")) == Won()


@on_all
def test_who_wins_is_decided_by_put_id_and_not_by_the_other_bytes(store: SettlingStore) -> None:
    mine = page("mine", kind="revoke")
    store.put_new("claims/a2b3c4d5.1", mine)
    assert store.put_new("claims/a2b3c4d5.1", page("theirs", kind="revoke")) == Lost(mine)


@on_all
def test_put_new_over_a_body_without_put_id_is_lost(store: SettlingStore) -> None:
    store.put_once("claims/a2b3c4d5.1", b"\xff not json")
    assert store.put_new("claims/a2b3c4d5.1", page("mine")) == Lost(b"\xff not json")


@on_all
def test_put_new_refuses_a_body_without_put_id(store: SettlingStore) -> None:
    with pytest.raises(ValueError, match="put_id"):
        store.put_new("claims/a2b3c4d5.1", b"{}")
    assert store.get("claims/a2b3c4d5.1") is None


@on_all
def test_put_once_may_be_repeated_and_stops_at_another_body(store: SettlingStore) -> None:
    store.put_once("blobs/00", b"body")
    store.put_once("blobs/00", b"body")
    with pytest.raises(LedgerError, match="blobs/00"):
        store.put_once("blobs/00", b"BODY")
    assert store.get("blobs/00") == b"body"


BODIES = [b"", bytes(range(256)), b"\r\n" * 3, b"\x1f\x8b not gzip", b"x" * 1_500_000]


@on_all
def test_a_body_reads_as_it_was_written(store: SettlingStore) -> None:
    for n, body in enumerate(BODIES):
        store.put_once(f"logs/a2b3c4d5.1/{n:06d}", body)
        assert store.get(f"logs/a2b3c4d5.1/{n:06d}") == body


@on_all
def test_get_many_answers_in_the_order_asked(store: SettlingStore) -> None:
    bodies = {keys.page_key(seq): b"%d" % seq for seq in range(20)}
    for key, body in bodies.items():
        store.put_once(key, body)
    asked = ["journal/000000000099", *reversed(bodies), "journal/000000000098"]
    assert list(store.get_many(asked)) == [None, *reversed(bodies.values()), None]
    assert list(store.get_many([])) == []


@on_all
def test_list_gives_sizes_and_obeys_prefix_and_start_after(store: SettlingStore) -> None:
    hours = (1_796_058_793_000, 1_796_058_793_001, 1_796_062_393_000)
    written = [
        keys.FactKey(
            stamp_ms=stamp_ms, writer=WriterName(f"{writer}~a2b3c4d5"), n=n, kind="start"
        ).format()
        for stamp_ms, writer, n in product(hours, ("n-gpu1", "n-gpu10", "n"), (9, 10))
    ]
    for size, key in enumerate(written):
        store.put_once(key, b"x" * size)
    store.put_once("beats/20261130T17/x", b"")
    store.put_once("journal/000000000000", b"")
    expected = sorted((Entry(key, size) for size, key in enumerate(written)), key=by_key)
    middle = expected[len(expected) // 2].key

    assert list(store.list("facts/")) == expected
    for prefix in ("facts/", "facts/20261130T17/", middle[:-3], middle, "fac", "facts/2027"):
        for start_after in ("", middle, middle[:-2], keys.after_stamp("facts/", hours[1]), "zzz"):
            assert list(store.list(prefix, start_after)) == [
                entry
                for entry in expected
                if entry.key.startswith(prefix) and entry.key > start_after
            ], (prefix, start_after)


@on_all
def test_a_listing_in_small_pages_is_the_whole_listing(store: SettlingStore) -> None:
    written = [keys.page_key(seq) for seq in range(10)]
    for key in written:
        store.put_once(key, b"{}")
    found = [entry.key for entry in store.list_raw("journal/", written[2], 3)]
    assert found == written[3:]


@on_ordered
def test_a_key_is_listed_under_itself_as_a_prefix(store: SettlingStore) -> None:
    for key in ("a", "b/x", "b/x-y"):
        store.put_once(key, b"")
    assert [entry.key for entry in store.list("a")] == ["a"]
    assert [entry.key for entry in store.list("b/x")] == ["b/x", "b/x-y"]
    assert [entry.key for entry in store.list("b/x", "b/x")] == ["b/x-y"]


@on_ordered
def test_list_is_in_byte_order_of_the_whole_key(store: SettlingStore) -> None:
    written = ["a/x", "a-x", "a.b", "a0", "a/-", "a/y/z", "a/y-", "a~", "A", "_", "a-/q", "b"]
    for key in written:
        store.put_once(key, b"")
    in_order = sorted(written, key=str.encode)
    assert [entry.key for entry in store.list("")] == in_order
    for n, key in enumerate(in_order):
        assert [entry.key for entry in store.list("", key)] == in_order[n + 1 :]


NO_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.h", "a b", "a\\b", "ä", "x" * 256]


@on_all
def test_what_is_no_key_is_refused(store: SettlingStore) -> None:
    for key in NO_KEYS:
        with pytest.raises(ValueError, match="not a key"):
            store.get(key)
        with pytest.raises(ValueError, match="not a key"):
            store.put_once(key, b"")
        with pytest.raises(ValueError, match="not a key"):
            store.put_new(key, page("mine"))


@on_all
def test_a_segment_of_255_bytes_is_a_key(store: SettlingStore) -> None:
    store.put_once(f"facts/{'x' * 255}", b"long")
    assert list(store.list("facts/")) == [Entry(f"facts/{'x' * 255}", 4)]


@on_all
def test_the_clock_is_the_stores_and_never_steps_back(store: SettlingStore) -> None:
    readings = [store.clock_ms()]
    for _ in range(5):
        store.get("gpuq.json")
        readings.append(store.clock_ms())
    assert readings == sorted(readings)
    # The server is this machine, so its clock is ours, to the second that Date is cut to.
    assert abs(readings[-1] - SystemClock().wall_ms()) <= 2_000


@on_all
def test_requests_are_counted_by_kind(store: SettlingStore) -> None:
    store.put_once("blobs/00", b"body")
    store.get("blobs/00")
    store.get("blobs/01")
    list(store.list("blobs/"))
    assert store.counts == {"PUT": 1, "GET": 2, "LIST": 1}


@on_atomic
def test_of_many_racing_put_new_exactly_one_wins(opener: Opener) -> None:
    stores = [opener() for _ in range(RACERS)]
    bodies = [page(f"racer {n}") for n in range(RACERS)]
    for key in ("journal/000000000000", "journal/000000000001", "claims/a2b3c4d5.1"):
        outcomes = race([partial(s.put_new, key, b) for s, b in zip(stores, bodies, strict=True)])
        standing = stores[0].get(key)
        assert standing in bodies
        assert outcomes == [Won() if body == standing else Lost(standing) for body in bodies]


@on_atomic
def test_racing_put_once_of_one_body_all_succeed(opener: Opener) -> None:
    stores = [opener() for _ in range(RACERS)]
    race([partial(s.put_once, "blobs/00", b"body") for s in stores])
    assert stores[0].get("blobs/00") == b"body"


def race(runs: Sequence[Callable[[], T]]) -> list[T]:
    """All of ``runs`` at once; what they returned, in order."""
    gate = threading.Barrier(len(runs))

    def run(one: Callable[[], T]) -> T:
        gate.wait(30)
        return one()

    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(run, runs))


def by_key(entry: Entry) -> str:
    return entry.key
