"""Beats coming in: single rules, each with the schedule that breaks without it."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.events import Beat, encode
from ledger.keys import BeatKey
from ledger.names import NodeName, WriterName
from ledger.reader import BeatTail
from ledger.timings import DAY_MS, MINUTE_MS
from tests.ledger.test_reader import T0, TIMINGS, HidingStore, make


def put_beat(store: HidingStore, n: int, writer: str = "node1~aaaaaaaa", **fields: Any) -> str:
    key = BeatKey(stamp_ms=store.clock.wall_ms(), writer=WriterName(writer), n=n)
    beat = Beat(writer=key.writer, n=n, at=T0, node=NodeName("node1"), **fields)
    store.put_once(key.format(), encode(beat))
    return key.format()


def beats(tail: BeatTail) -> list[tuple[str, int]]:
    return [(beat.writer, beat.n) for beat in tail.poll()]


def test_beats_are_given_once_and_of_each_writer_the_newest() -> None:
    store, _ = make()
    tail = BeatTail(store, store.clock, TIMINGS)
    put_beat(store, 0)
    put_beat(store, 1)
    put_beat(store, 0, "node2~bbbbbbbb")
    assert beats(tail) == [("node1~aaaaaaaa", 1), ("node2~bbbbbbbb", 0)]
    assert beats(tail) == []
    store.clock.advance_ms(TIMINGS.beat_ms)
    put_beat(store, 2)
    assert beats(tail) == [("node1~aaaaaaaa", 2)]


def test_the_first_look_at_beats_goes_back_three_intervals() -> None:
    store, _ = make()
    put_beat(store, 0, "node1~aaaaaaaa")
    store.clock.advance_ms(1)
    put_beat(store, 0, "node2~bbbbbbbb")
    store.clock.advance_ms(3 * TIMINGS.beat_ms)
    tail = BeatTail(store, store.clock, TIMINGS)
    assert beats(tail) == [("node2~bbbbbbbb", 0)]
    assert beats(tail) == []


def test_a_beat_that_lands_late_or_is_listed_late_is_given() -> None:
    store, _ = make()
    tail = BeatTail(store, store.clock, TIMINGS)
    late = put_beat(store, 0, "node1~aaaaaaaa")
    store.hidden = {late}
    store.clock.advance_ms(MINUTE_MS)
    put_beat(store, 0, "node2~bbbbbbbb")
    assert beats(tail) == [("node2~bbbbbbbb", 0)]
    store.hidden, store.unreadable = set(), {late}
    assert beats(tail) == []
    store.unreadable = set()
    assert beats(tail) == [("node1~aaaaaaaa", 0)]


def test_a_node_whose_clock_is_minutes_behind_is_heard() -> None:
    store, _ = make()
    tail = BeatTail(store, store.clock, TIMINGS)
    heard = []
    for n in range(10):
        put_beat(store, n, "node2~bbbbbbbb")
        store.clock.step_wall_ms(-10 * MINUTE_MS)
        put_beat(store, n, "node1~aaaaaaaa")
        store.clock.step_wall_ms(10 * MINUTE_MS)
        heard.extend(beats(tail))
        store.clock.advance_ms(MINUTE_MS)
    late = [n for writer, n in heard if writer.startswith("node1")]
    assert late == list(range(late[0], 10))
    assert late[0] <= 3


def test_an_old_beat_of_a_dead_node_is_no_news_to_a_new_tail() -> None:
    store, _ = make()
    put_beat(store, 7, "node1~aaaaaaaa")
    store.clock.advance_ms(30 * MINUTE_MS)
    tail = BeatTail(store, store.clock, TIMINGS)
    heard = []
    for n in range(5):
        put_beat(store, n, "node2~bbbbbbbb")
        heard.extend(beats(tail))
        store.clock.advance_ms(MINUTE_MS)
    assert {writer for writer, _ in heard} == {"node2~bbbbbbbb"}


def test_a_beat_from_the_future_hides_no_other() -> None:
    store, _ = make()
    tail = BeatTail(store, store.clock, TIMINGS)
    store.clock.step_wall_ms(DAY_MS)
    put_beat(store, 0, "node1~aaaaaaaa")
    store.clock.step_wall_ms(-DAY_MS)
    assert beats(tail) == [("node1~aaaaaaaa", 0)]
    store.clock.advance_ms(MINUTE_MS)
    put_beat(store, 0, "node2~bbbbbbbb")
    assert beats(tail) == [("node2~bbbbbbbb", 0)]
    assert beats(tail) == []


@pytest.mark.parametrize(
    ("body", "node", "fmt"),
    [
        (b'{"v":2,"at":5,"node":"node1","format":2,"slots":[1],"newest":{"a":"b"}}', "node1", 2),
        (b'{"v":2,"node":"node1","writer":7,"slots":' + b"[" * 60_000, "", 1),
        (b"nonsense", "", 1),
        (b'["node1"]', "", 1),
    ],
    ids=["newer version", "too deep", "no JSON", "no object"],
)
def test_what_cannot_be_read_of_a_beat_is_left_out(body: bytes, node: str, fmt: int) -> None:
    store, _ = make()
    key = BeatKey(stamp_ms=T0, writer=WriterName("node1~aaaaaaaa"), n=3)
    store.put_once(key.format(), body)
    store.put_once("beats/stray", b"")
    [beat] = BeatTail(store, store.clock, TIMINGS).poll()
    assert (beat.writer, beat.n, beat.node, beat.format) == (key.writer, 3, node, fmt)
    assert beat.at == (5 if node else T0)
    assert beat.newest == ({"a": "b"} if node else {})
