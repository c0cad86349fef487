"""Facts and beats coming in: single rules, each with the schedule that breaks without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pytest

from ledger.errors import TransientError
from ledger.events import CancelRequested, FactRefused, Posted, encode
from ledger.keys import FactKey, format_stamp
from ledger.names import JobId, WriterName
from ledger.reader import FactTail
from ledger.stores.base import Entry
from ledger.timings import (
    DAY_MS,
    FACT_MAX_BYTES,
    HOUR_MS,
    MINUTE_MS,
    PAGE_MAX_BYTES,
    PAGE_MAX_FACTS,
    SECOND_MS,
    Timings,
)
from simulation.memory import ManualClock, MemoryStore

T0 = 1_796_058_780_000
TIMINGS = Timings()
A = WriterName("a-gpu0~aaaaaaaa")
B = WriterName("b-gpu0~bbbbbbbb")


class HidingStore(MemoryStore):
    """A LIST does not show ``hidden`` keys, a GET does not find ``unreadable`` ones."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.hidden: set[str] = set()
        self.unreadable: set[str] = set()
        self.lists_after: list[str] = []
        self.gets: list[str] = []

    def listing(self, prefix: str, entries: list[Entry]) -> Iterable[Entry]:
        return [entry for entry in entries if entry.key not in self.hidden]

    def get(self, key: str) -> bytes | None:
        self.gets.append(key)
        return None if key in self.unreadable else super().get(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.lists_after.append(start_after)
        return super().list(prefix, start_after)


class Reader:
    """A tail and the fold that it is polled with."""

    def __init__(self, store: HidingStore, *, journal_at_ms: int = T0) -> None:
        self.tail = FactTail(store, store.clock, TIMINGS)
        self.writers: dict[WriterName, int] = {}
        self.newest_ms: int | None = None
        self.journal_at_ms = journal_at_ms

    def poll(self) -> list[Posted | FactRefused]:
        return self.tail.poll(self.writers, self.newest_ms, self.journal_at_ms)

    def admit(self, page: Sequence[Posted | FactRefused], at_ms: int | None = None) -> None:
        for posted in page:
            key = FactKey.parse(posted.key)
            assert key.n == self.writers.get(key.writer, 0), "not in the order of numbers"
            self.writers[key.writer] = key.n + 1
            self.newest_ms = max(self.newest_ms or 0, key.stamp_ms)
        self.journal_at_ms = at_ms or self.journal_at_ms

    def numbers(self) -> list[tuple[WriterName, int]]:
        """What a poll gives out, by identity."""
        return [identity(posted) for posted in self.poll()]


def identity(posted: Posted | FactRefused) -> tuple[WriterName, int]:
    fact = posted.fact if isinstance(posted, Posted) else posted
    return fact.writer, fact.n


def make() -> tuple[HidingStore, Reader]:
    store = HidingStore(ManualClock(T0))
    return store, Reader(store)


def put(
    store: HidingStore,
    n: int,
    *,
    writer: WriterName = A,
    stamp_ms: int | None = None,
    prev: str = "",
    reason: str = "",
) -> str:
    """Put a cancel fact; its key."""
    stamp_ms = store.clock.wall_ms() if stamp_ms is None else stamp_ms
    fact = CancelRequested(
        writer=writer, n=n, at=T0, prev=prev, job=JobId("abcdefgh"), reason=reason
    )
    key = FactKey(stamp_ms=stamp_ms, writer=writer, n=n, kind="cancel").format()
    store.put_once(key, encode(fact))
    return key


def put_raw(store: HidingStore, body: bytes, kind: str = "cancel", n: int = 0) -> str:
    key = FactKey(stamp_ms=store.clock.wall_ms(), writer=A, n=n, kind=kind).format()
    store.put_once(key, body)
    return key


def test_facts_come_whole_with_their_keys_until_they_are_admitted() -> None:
    store, reader = make()
    key = put(store, 0, reason="why")
    page = reader.poll()
    fact = CancelRequested(writer=A, n=0, at=T0, job=JobId("abcdefgh"), reason="why")
    assert page == [Posted(key=key, fact=fact)]
    assert reader.poll() == page
    reader.admit(page)
    assert reader.poll() == []


def test_the_order_is_that_of_stamps_and_within_a_writer_that_of_numbers() -> None:
    store, reader = make()
    put(store, 0, writer=B, stamp_ms=T0 + 2)
    put(store, 0, writer=A, stamp_ms=T0 + 3)
    put(store, 1, writer=A, stamp_ms=T0 + 1)  # An unacknowledged copy that landed late.
    put(store, 1, writer=B, stamp_ms=T0 + 4)
    assert reader.numbers() == [(B, 0), (A, 0), (A, 1), (B, 1)]


def test_an_idle_poll_is_one_list_and_no_get() -> None:
    store, reader = make()
    put(store, 0)
    reader.admit(reader.poll())
    store.counts.clear()
    assert reader.poll() == []
    assert store.counts == {"list": 1}


def test_a_lost_page_costs_no_second_fetch() -> None:
    store, reader = make()
    put(store, 0)
    put(store, 1)
    page = reader.poll()
    assert reader.poll() == page
    assert store.counts["get"] == 2


def test_a_fact_put_twice_is_one_fact() -> None:
    store, reader = make()
    put(store, 0)
    put(store, 0, stamp_ms=T0 + 1)
    page = reader.poll()
    assert [identity(posted) for posted in page] == [(A, 0)]
    reader.admit(page)
    put(store, 0, stamp_ms=T0 + 2)
    assert reader.poll() == []


def test_a_listed_fact_that_is_not_there_yet_is_asked_for_again() -> None:
    store, reader = make()
    key = put(store, 0)
    put(store, 0, writer=B)
    store.unreadable = {key}
    page = reader.poll()
    assert [identity(posted) for posted in page] == [(B, 0)], "one fact holds up another writer"
    reader.admit(page)
    store.hidden, store.unreadable = {key}, set()
    assert reader.numbers() == [(A, 0)]


def test_a_gap_is_closed_by_the_names_of_predecessors() -> None:
    store, reader = make()
    keys: list[str] = []
    for n in range(5):
        keys.append(put(store, n, prev=keys[-1] if keys else ""))
    store.hidden = set(keys[:4])
    assert reader.numbers() == [(A, n) for n in range(5)]


def test_a_fact_after_a_gap_that_cannot_be_closed_waits() -> None:
    store, reader = make()
    put(store, 0)
    put(store, 2, prev="facts/no/key")
    put(store, 0, writer=B, prev="")
    assert reader.numbers() == [(A, 0), (B, 0)]
    put(store, 1)
    assert reader.numbers() == [(A, 0), (A, 1), (A, 2), (B, 0)]


@pytest.mark.parametrize("other", [(B, 0), (A, 7)], ids=["other writer", "other number"])
def test_a_name_that_is_not_the_predecessors_is_not_followed(other: tuple[WriterName, int]) -> None:
    store, reader = make()
    writer, n = other
    wrong = FactKey(stamp_ms=T0, writer=writer, n=n, kind="cancel").format()
    put(store, 1, prev=wrong)
    reader.poll()
    assert wrong not in store.gets


def test_a_gap_longer_than_one_walk_is_closed_over_several_polls() -> None:
    store, reader = make()
    keys: list[str] = []
    for n in range(100):
        keys.append(put(store, n, prev=keys[-1] if keys else ""))
    store.hidden = set(keys[:99])
    polls = 0
    while not reader.poll():
        polls += 1
        assert polls < 10
    assert reader.numbers() == [(A, n) for n in range(100)]


def test_a_fact_that_a_beat_names_is_fetched_with_all_before_it() -> None:
    store, reader = make()
    first = put(store, 0)
    second = put(store, 1, prev=first)
    store.hidden = {first, second}
    assert reader.poll() == []
    reader.tail.hint({A: second})
    page = reader.poll()
    assert [identity(posted) for posted in page] == [(A, 0), (A, 1)]
    reader.admit(page)
    store.gets.clear()
    reader.tail.hint({A: second})
    assert reader.poll() == []
    assert store.gets == []


def test_of_two_hints_the_newer_fact_counts() -> None:
    store, reader = make()
    first = put(store, 0)
    second = put(store, 1, prev=first)
    store.hidden = {first, second}
    reader.tail.hint({A: second})
    reader.tail.hint({A: first})
    assert reader.numbers() == [(A, 0), (A, 1)]


def test_hints_that_are_no_keys_of_their_writers_do_no_harm() -> None:
    store, reader = make()
    reader.tail.hint({A: "facts/nonsense", B: put(store, 0, writer=A)})
    store.hidden = {entry.key for entry in MemoryStore.list(store, "facts/")}
    assert reader.poll() == []
    assert reader.tail.take_strays() == ["facts/nonsense"]


def test_stray_keys_are_told_once_and_otherwise_passed_over() -> None:
    store, reader = make()
    store.put_once("facts/notes.txt", b"hello")
    put(store, 0)
    assert reader.numbers() == [(A, 0)]
    assert reader.tail.take_strays() == ["facts/notes.txt"]
    reader.poll()
    assert reader.tail.take_strays() == []


def test_the_overlap_is_long_first_then_short_and_now_and_then_longer() -> None:
    store, reader = make()
    reader.newest_ms = T0
    store.lists_after.clear()
    starts = []
    for _ in range(0, 11 * MINUTE_MS, 10 * SECOND_MS):
        reader.poll()
        starts.append(store.lists_after[-1].rpartition("/")[2])
        store.clock.advance_ms(10 * SECOND_MS)
    short, middle, long = (
        format_stamp(T0 - overlap) for overlap in (10 * SECOND_MS, 2 * MINUTE_MS, 2 * HOUR_MS)
    )
    assert starts == [long, short, short, *[middle, short, short] * 19, long, *[short, short],
                      *[middle, short, short]]  # fmt: skip


def test_with_nothing_admitted_a_tail_reads_from_the_beginning() -> None:
    store, reader = make()
    put(store, 0, stamp_ms=T0 - 365 * DAY_MS)
    assert reader.numbers() == [(A, 0)]


def test_a_stamp_from_the_future_hides_nothing_that_comes_after_it() -> None:
    store, reader = make()
    put(store, 0, writer=B, stamp_ms=T0 + DAY_MS)
    reader.admit(reader.poll())
    assert reader.newest_ms == T0 + DAY_MS
    store.clock.advance_ms(SECOND_MS)
    reader.poll()
    put(store, 0)
    assert reader.numbers() == [(A, 0)]


def test_a_stamp_from_the_future_hides_nothing_that_came_while_nobody_led() -> None:
    store, reader = make()
    put(store, 0, writer=B, stamp_ms=T0 + DAY_MS)
    reader.admit(reader.poll(), at_ms=T0)
    put(store, 0, stamp_ms=T0 + SECOND_MS)
    store.clock.advance_ms(3 * HOUR_MS)
    reader.tail = FactTail(store, store.clock, TIMINGS)
    assert reader.numbers() == [(A, 0)]


def test_an_older_fold_is_given_again_what_it_has_not_admitted() -> None:
    store, reader = make()
    old = put(store, 0, stamp_ms=T0 - HOUR_MS)
    put(store, 0, writer=B)
    reader.admit(reader.poll(), at_ms=T0 + 1)
    reader.poll()
    # Another page counts: it had B's fact, and A's, whose stamp is an hour behind, was not in it.
    reader.writers, reader.newest_ms, reader.journal_at_ms = {B: 1}, T0, T0
    assert [posted.key for posted in reader.poll()] == [old]


def test_a_fold_that_went_on_without_this_reader_gets_only_what_is_new() -> None:
    store, reader = make()
    for n in range(3):
        put(store, n)
    reader.poll()
    reader.writers[A] = 2
    assert reader.numbers() == [(A, 2)]


def test_a_page_takes_256_facts_and_a_held_page_costs_no_request() -> None:
    store, reader = make()
    for n in range(2 * PAGE_MAX_FACTS + 10):
        put(store, n)
    first = reader.poll()
    assert [identity(posted)[1] for posted in first] == list(range(256))
    reader.admit(first)
    second = reader.poll()
    store.counts.clear()
    assert reader.poll() == second
    assert store.counts["get"] == 10, "the rest is fetched ahead once"
    store.counts.clear()
    assert reader.poll() == second
    assert store.counts.total() == 0
    reader.admit(second)
    assert [identity(posted)[1] for posted in reader.poll()] == list(range(512, 522))


def test_a_backlog_is_listed_once() -> None:
    store, reader = make()
    for n in range(3 * PAGE_MAX_FACTS):
        put(store, n)
    for _ in range(2):
        reader.admit(reader.poll())
    assert store.counts == {"put": 768, "list": 1, "get": 512}


def test_a_page_takes_a_mebibyte() -> None:
    store, reader = make()
    for n in range(40):
        put(store, n, reason="x" * 60_000)
    pages = []
    while page := reader.poll():
        pages.append(page)
        reader.admit(page)
    assert [len(page) for page in pages] == [17, 17, 6]
    assert all(len(msgspec.json.encode(page)) <= PAGE_MAX_BYTES for page in pages)


def test_a_backlog_is_admitted_from_its_old_end_by_whoever_leads() -> None:
    """Nobody led for ten days. The first page says now, then its leader dies."""
    store, reader = make()
    start_ms = T0 - 10 * DAY_MS
    reader.newest_ms, reader.journal_at_ms = start_ms, start_ms
    expected = set()
    for number in range(300):
        first, second = divmod(number, 26)
        one_shot = WriterName(f"cli~{chr(97 + first)}{chr(97 + second)}aaaaaa")
        put(store, 0, writer=one_shot, stamp_ms=start_ms + number)
        expected.add((one_shot, 0))
    for n in range(100):
        newest = put(store, n, writer=B, stamp_ms=T0 - DAY_MS + n)
        expected.add((B, n))
    put(store, 0, stamp_ms=T0)
    expected.add((A, 0))
    reader.tail.hint({B: newest})
    admitted = []
    while page := reader.poll():
        assert all(isinstance(posted, Posted) for posted in page)
        admitted += page
        reader.admit(page, at_ms=T0)
        reader.tail = FactTail(store, store.clock, TIMINGS)
    assert {identity(posted) for posted in admitted} == expected
    assert len(admitted) == len(expected)


def test_a_store_without_news_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, reader = make()
    put(store, 0)
    for op in ("list", "get"):

        def fail(seen_op: str, key: str, failing: str = op) -> None:
            if seen_op == failing:
                raise TransientError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(store, "before", fail)
            with pytest.raises(TransientError):
                reader.poll()
    assert reader.numbers() == [(A, 0)]


# --- what is refused ---------------------------------------------------------------------

JOB = (
    b'{"id":"abcdefgh","name":"x","organization":"o","workload_class":"batch","pool":"p",'
    b'"user":"u"}'
)
OWN = b'"writer":"a-gpu0~aaaaaaaa","n":0,"at":1'


@pytest.mark.parametrize(
    ("kind", "body", "reason", "job"),
    [
        ("cancel", b"", "cannot be read", ""),
        ("cancel", b"\xff\xfe", "cannot be read", ""),
        ("cancel", b"[]", "cannot be read", ""),
        ("cancel", b'{"kind":"cancel","job":' + b"[" * 60_000, "cannot be read", ""),
        ("cancel", b'{"kind":"cancel",' + OWN + b"}", "missing required field `job`", ""),
        ("cancel", b'{"kind":"cancel",' + OWN + b',"job":7}', "Expected `str`", ""),
        ("preempt", b'{"kind":"preempt",' + OWN + b"}", "'preempt' is not known", ""),
        ("submit", b'{"kind":"submit","v":2,' + OWN + b',"job":{"id":"abcdefgh"}}',
         "version is 2 and this gpuq reads 1: upgrade", "abcdefgh"),
        ("submit", b'{"kind":"submit",' + OWN + b',"job":{"id":"abcdefgh"}}',
         "missing required field", "abcdefgh"),
        ("submit", b'{"kind":"submit",' + OWN + b',"job":{"id":"../../x"}}',
         "missing required field", ""),
        ("submit", b'{"kind":"submit",' + OWN.replace(b'"n":0', b'"n":1') + b',"job":' + JOB + b"}",
         "another writer, number or kind", "abcdefgh"),
        ("cancel", b'{"kind":"cancel",' + OWN.replace(b"a-", b"b-") + b',"job":"abcdefgh"}',
         "another writer, number or kind", ""),
        ("hold", b'{"kind":"cancel",' + OWN + b',"job":"abcdefgh"}',
         "another writer, number or kind", ""),
        ("cancel", b'{"kind":"' + b"k" * 60_000 + b'",' + OWN + b"}", "is not known", ""),
    ],
)  # fmt: skip
def test_what_no_page_may_hold_is_refused_and_its_writer_goes_on(
    kind: str, body: bytes, reason: str, job: str
) -> None:
    store, reader = make()
    key = put_raw(store, body, kind)
    put(store, 1, prev=key)
    refused, after = reader.poll()
    assert isinstance(refused, FactRefused)
    assert (refused.key, refused.writer, refused.n, refused.job) == (key, A, 0, job)
    assert reason in refused.reason
    assert len(refused.reason) <= 200
    assert identity(after) == (A, 1)


def test_a_whole_submit_is_admitted() -> None:
    store, reader = make()
    put_raw(store, b'{"kind":"submit","later":1,' + OWN + b',"job":' + JOB + b"}", "submit")
    [posted] = reader.poll()
    assert isinstance(posted, Posted)


def test_a_fact_that_is_too_large_is_refused_without_fetching_it() -> None:
    store, reader = make()
    put_raw(store, b"x" * (FACT_MAX_BYTES + 1))
    [refused] = reader.poll()
    assert isinstance(refused, FactRefused)
    assert refused.reason == "its body has 65537 bytes; at most 65536 are admitted"
    assert store.gets == []


def test_a_fact_that_is_too_large_is_refused_where_no_list_told_its_size() -> None:
    store, reader = make()
    key = put_raw(store, b"x" * (FACT_MAX_BYTES + 1))
    store.hidden = {key}
    reader.tail.hint({A: key})
    [refused] = reader.poll()
    assert isinstance(refused, FactRefused)
    assert "65537 bytes" in refused.reason


@pytest.mark.parametrize(("behind_ms", "admitted"), [(7 * DAY_MS, True), (7 * DAY_MS + 1, False)])
def test_a_fact_more_than_seven_days_behind_the_journal_is_refused(
    behind_ms: int, admitted: bool
) -> None:
    store, reader = make()
    reader.newest_ms = T0
    first = put(store, 0, stamp_ms=T0 - behind_ms)
    put(store, 1, prev=first)
    old, new = reader.poll()
    assert isinstance(old, Posted if admitted else FactRefused)
    assert isinstance(new, Posted)


def test_the_age_of_a_fact_is_that_at_its_first_sight() -> None:
    """It waits for a GET to find it while the journal goes on."""
    store, reader = make()
    reader.newest_ms = T0
    key = put(store, 0)
    store.unreadable = {key}
    assert reader.poll() == []
    reader.newest_ms = reader.journal_at_ms = T0 + 8 * DAY_MS
    store.clock.advance_ms(8 * DAY_MS)
    store.unreadable = set()
    [posted] = reader.poll()
    assert isinstance(posted, Posted)
    reader.newest_ms = reader.journal_at_ms = T0 + 9 * DAY_MS
    assert reader.poll() == [posted]


def test_what_came_in_a_long_pause_and_was_listed_late_is_found() -> None:
    """Nobody leads from Friday on; the first LIST on Monday skips a fact of Friday's."""
    store, reader = make()
    reader.newest_ms = held_ms = T0
    friday = put(store, 0, writer=B)
    store.hidden = {friday}
    store.clock.advance_ms(2 * DAY_MS)
    monday = put(store, 0)
    page = reader.poll()
    assert [posted.key for posted in page] == [monday]
    reader.admit(page)
    reader.journal_at_ms = store.clock.wall_ms()
    store.hidden = set()
    store.clock.advance_ms(TIMINGS.overlap_long_every_ms)
    assert reader.poll() == []
    store.clock.advance_ms(TIMINGS.overlap_long_every_ms)
    found = reader.tail.poll(reader.writers, reader.newest_ms, reader.journal_at_ms, held_ms)
    assert [item.key for item in found] == [friday]
