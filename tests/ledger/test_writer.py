"""Facts going out: numbers, order, stamps, acknowledgement, and what a crash leaves."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import RequestError, TransientError
from ledger.events import AnyFact, Beat, CancelRequested, decode_beat, decode_fact
from ledger.keys import FactKey
from ledger.names import WRITER, JobId, NodeName, WriterName
from ledger.spool import DirectorySpools
from ledger.timings import BLOB_MAX_BYTES, FACT_MAX_BYTES, Timings
from ledger.writer import BeatWriter, FactWriter, drain_spools, put_blob
from simulation.memory import ManualClock, MemorySpools, MemoryStore

T0 = 1_796_058_780_000
TIMINGS = Timings()


def cancel(reason: str = "") -> CancelRequested:
    return CancelRequested(at=T0, job=JobId("abcdefgh"), reason=reason)


class HookedStore(MemoryStore):
    """Runs a script at each PUT: before its effect and after it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.landed: list[FactKey] = []
        self.before_put: Callable[[], None] = lambda: None
        self.after_put: Callable[[], None] = lambda: None

    def before(self, op: str, key: str) -> None:
        if op == "put":
            self.before_put()

    def after(self, op: str, key: str) -> None:
        if op == "put":
            if key.startswith("facts/"):
                self.landed.append(FactKey.parse(key))
            self.after_put()


def make() -> tuple[HookedStore, MemorySpools, FactWriter]:
    store = HookedStore(ManualClock(T0))
    spools = MemorySpools()
    return store, spools, writer_on(store, spools)


def writer_on(store: HookedStore, spools: MemorySpools, seed: int = 1) -> FactWriter:
    return FactWriter(store, random.Random(seed), TIMINGS, spools, "node1-gpu0")


def kill(spools: MemorySpools, writer: FactWriter) -> None:
    spools.owned.pop(writer.writer, None)


def stored(store: HookedStore) -> list[tuple[FactKey, AnyFact]]:
    """All facts in the store by key, each checked against its key."""
    facts = []
    for entry in store.list("facts/"):
        key, body = FactKey.parse(entry.key), store.get(entry.key)
        assert body is not None
        fact = decode_fact(body)
        assert (fact.writer, fact.n) == (key.writer, key.n)
        facts.append((key, fact))
    return facts


def fail() -> None:
    raise TransientError("no answer")


def once(action: Callable[[], None]) -> Callable[[], None]:
    actions = iter([action])
    return lambda: next(actions, lambda: None)()


def test_a_writer_is_a_new_incarnation_of_its_name() -> None:
    store, spools, first = make()
    second = writer_on(store, spools, seed=2)
    assert first.writer != second.writer
    for writer in (first, second):
        match = WRITER.fullmatch(writer.writer)
        assert match is not None
        assert match[1] == "node1-gpu0"


def test_a_report_is_durable_and_makes_no_request() -> None:
    store, spools, writer = make()
    assert [writer.report(cancel()), writer.report(cancel())] == [0, 1]
    assert store.counts.total() == 0
    assert writer.pending == 2
    assert writer.newest_key == ""
    assert len(spools.records[writer.writer]) == 2


def test_a_flush_puts_each_fact_once_and_names_its_predecessor() -> None:
    store, _, writer = make()
    for reason in ("a", "b", "c"):
        writer.report(cancel(reason))
    writer.flush()
    facts = stored(store)
    assert [(key.n, fact.prev) for key, fact in facts] == [
        (0, ""),
        (1, facts[0][0].format()),
        (2, facts[1][0].format()),
    ]
    assert [fact.reason for _, fact in facts if isinstance(fact, CancelRequested)] == [*"abc"]
    assert all(fact.at == T0 for _, fact in facts)
    assert store.counts["put"] == 3
    assert writer.pending == 0
    assert writer.newest_key == facts[2][0].format()


def test_the_stamp_is_of_the_put_and_not_of_the_report() -> None:
    store, _, writer = make()
    writer.report(cancel())
    store.clock.advance_ms(7 * 3_600_000)
    writer.flush()
    [(key, fact)] = stored(store)
    assert (key.stamp_ms, fact.at) == (T0 + 7 * 3_600_000, T0)


def test_an_outage_loses_and_reorders_nothing() -> None:
    store, _, writer = make()
    writer.report(cancel())
    writer.report(cancel())
    store.before_put = fail
    for _ in range(3):
        with pytest.raises(TransientError):
            writer.flush()
    assert (writer.pending, stored(store)) == (2, [])
    store.before_put = lambda: None
    writer.flush()
    assert [key.n for key, _ in stored(store)] == [0, 1]


def test_a_lost_answer_means_a_second_copy_before_the_next_fact() -> None:
    store, _, writer = make()
    writer.report(cancel())
    writer.report(cancel())
    store.after_put = once(fail)
    with pytest.raises(TransientError):
        writer.flush()
    assert writer.pending == 2
    store.clock.advance_ms(5)
    writer.flush()
    facts = stored(store)
    assert [(key.stamp_ms, key.n) for key, _ in facts] == [(T0, 0), (T0 + 5, 0), (T0 + 5, 1)]
    assert facts[2][1].prev == facts[1][0].format()


@pytest.mark.parametrize(("answer_ms", "copies"), [(59_999, 1), (60_000, 2)])
def test_an_answer_a_minute_after_the_stamp_is_no_acknowledgement(
    answer_ms: int, copies: int
) -> None:
    store, _, writer = make()
    writer.report(cancel())
    store.after_put = once(lambda: store.clock.advance_ms(answer_ms))
    writer.flush()
    facts = stored(store)
    assert len(facts) == copies
    assert writer.newest_key == facts[-1][0].format()
    assert facts[-1][0].stamp_ms == T0 + (answer_ms if copies == 2 else 0)


def test_a_store_that_is_always_too_slow_is_no_news() -> None:
    store, _, writer = make()
    writer.report(cancel())
    store.after_put = lambda: store.clock.advance_ms(61_000)
    with pytest.raises(TransientError, match="60000 ms"):
        writer.flush()
    assert (writer.pending, store.counts["put"]) == (1, 3)
    store.after_put = lambda: None
    writer.flush()
    assert writer.pending == 0


@given(st.lists(st.sampled_from(["report", "flush", "before", "after", "slow", "back", "crash"])))
def test_whatever_happens_facts_land_in_order_and_stamps_do_not_go_back(steps: list[str]) -> None:
    """``crash`` kills the process; the drainer goes on under the same name."""
    store, spools, writer = make()
    hook = {
        "before": lambda: setattr(store, "before_put", once(fail)),
        "after": lambda: setattr(store, "after_put", once(fail)),
        "slow": lambda: setattr(store, "after_put", once(lambda: store.clock.advance_ms(90_000))),
        "back": lambda: store.clock.step_wall_ms(-5_000),
    }
    reported: list[tuple[WriterName, int]] = []
    seed = 1
    for step in [*steps, "crash"]:
        if step == "report":
            reported.append((writer.writer, writer.report(cancel())))
        elif step == "flush":
            with contextlib.suppress(TransientError):
                writer.flush()
        elif step == "crash":
            kill(spools, writer)
            seed += 1
            writer = writer_on(store, spools, seed)
            for _ in range(3):  # At most one failing hook of each kind is pending.
                with contextlib.suppress(TransientError):
                    drain_spools(store, TIMINGS, spools)
        else:
            hook[step]()
    assert {(key.writer, key.n) for key in store.landed} == set(reported)
    for name in {key.writer for key in store.landed}:
        own = [key for key in store.landed if key.writer == name]
        assert [key.n for key in own] == sorted(key.n for key in own)
        assert [key.stamp_ms for key in own] == sorted(key.stamp_ms for key in own)
    for key, fact in stored(store):
        if key.n:
            prev = FactKey.parse(fact.prev)
            assert (prev.writer, prev.n) == (key.writer, key.n - 1)
            assert prev in store.landed
    assert set(spools.records) == {writer.writer}


def test_a_fact_of_64_kib_is_reported_and_a_larger_one_is_refused() -> None:
    store, _, writer = make()
    with pytest.raises(RequestError, match=r"this cancel takes \d+ bytes of the 65536"):
        writer.report(cancel("x" * FACT_MAX_BYTES))
    assert writer.report(cancel("x" * (FACT_MAX_BYTES - 1000))) == 0
    assert writer.report(cancel("x" * (FACT_MAX_BYTES - 1000))) == 1
    writer.flush()
    assert max(entry.size for entry in store.list("facts/")) <= FACT_MAX_BYTES


def test_the_limit_counts_the_name_of_the_predecessor() -> None:
    store, _, writer = make()
    size = FACT_MAX_BYTES - 400
    while True:
        try:
            writer.report(cancel("x" * size))
        except RequestError:
            break
        size += 1
    writer.flush()
    sizes = [entry.size for entry in store.list("facts/")]
    assert FACT_MAX_BYTES - 100 < max(sizes) <= FACT_MAX_BYTES


def test_a_clean_end_leaves_a_spool_only_if_something_is_pending() -> None:
    store, spools, writer = make()
    writer.report(cancel())
    writer.flush()
    writer.close()
    assert spools.records == {}
    writer = writer_on(store, spools, seed=2)
    writer.report(cancel())
    writer.close()
    assert drain_spools(store, TIMINGS, spools) == {writer.writer: 1}
    assert spools.records == {}


def test_a_drain_sends_what_the_dead_left_and_leaves_the_living_alone() -> None:
    store, spools, dead = make()
    alive = writer_on(store, spools, seed=2)
    idle = writer_on(store, spools, seed=3)
    dead.report(cancel("sent"))
    dead.flush()
    dead.report(cancel("left"))
    dead.report(cancel("left too"))
    alive.report(cancel("its own business"))
    kill(spools, dead)
    kill(spools, idle)
    assert drain_spools(store, TIMINGS, spools) == {dead.writer: 2}
    facts = stored(store)
    assert [(key.writer, key.n) for key, _ in facts] == [(dead.writer, n) for n in range(3)]
    assert [fact.prev for _, fact in facts] == ["", *(key.format() for key, _ in facts[:2])]
    assert set(spools.records) == {alive.writer}
    assert drain_spools(store, TIMINGS, spools) == {}


def test_a_drain_that_is_cut_short_goes_on_where_it_was() -> None:
    store, spools, dead = make()
    for _ in range(3):
        dead.report(cancel())
    kill(spools, dead)
    failing = iter([False, True])
    store.before_put = lambda: fail() if next(failing, False) else None
    with pytest.raises(TransientError):
        drain_spools(store, TIMINGS, spools)
    assert drain_spools(store, TIMINGS, spools) == {dead.writer: 2}
    assert [key.n for key, _ in stored(store)] == [0, 1, 2]


def test_a_drainer_with_a_slower_clock_does_not_go_back_behind_the_dead() -> None:
    _, spools, dead = make()
    dead.report(cancel())
    dead.flush()
    dead.report(cancel())
    kill(spools, dead)
    late = HookedStore(ManualClock(T0 - 5_000))
    drain_spools(late, TIMINGS, spools)
    [(key, _)] = stored(late)
    assert (key.n, key.stamp_ms) == (1, T0)


def test_a_full_disk_stops_reports_but_not_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HookedStore(ManualClock(T0))
    spools = DirectorySpools(tmp_path)
    writer = FactWriter(store, random.Random(1), TIMINGS, spools, "cli")
    writer.report(cancel())
    writer.report(cancel())

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        writer.flush()
        assert (writer.pending, store.counts["put"]) == (0, 2)
        with pytest.raises(RequestError, match="free some space"):
            writer.report(cancel())
    assert writer.report(cancel()) == 2
    writer.flush()
    writer.close()
    assert list(tmp_path.iterdir()) == []
    assert [key.n for key, _ in stored(store)] == [0, 1, 2]


def test_acknowledgements_that_the_disk_lost_make_copies_and_no_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, spools, writer = make()
    for _ in range(3):
        writer.report(cancel())
    records = spools.records[writer.writer]
    writer.flush()
    del records[3:5]  # The acknowledgements of facts 0 and 1.
    writer.report(cancel())
    kill(spools, writer)
    assert drain_spools(store, TIMINGS, spools) == {writer.writer: 1}
    assert [key.n for key, _ in stored(store)] == [0, 1, 2, 3]


def test_beats_are_numbered_and_readable_under_their_keys() -> None:
    store = HookedStore(ManualClock(T0))
    beats = BeatWriter(store, WriterName("node1~aaaaaaaa"))
    beat = Beat(writer=WriterName(""), n=-1, at=T0, node=NodeName("node1"))
    beats.put(beat)
    store.before_put = once(fail)
    with pytest.raises(TransientError):
        beats.put(beat)
    store.clock.advance_ms(1000)
    beats.put(beat)
    bodies = {entry.key: store.get(entry.key) for entry in store.list("beats/")}
    assert list(bodies) == [
        "beats/20261130T17/20261130T171300000Z.node1~aaaaaaaa.0",
        "beats/20261130T17/20261130T171301000Z.node1~aaaaaaaa.2",
    ]
    assert [decode_beat(body or b"").n for body in bodies.values()] == [0, 2]


def test_a_blob_is_named_by_its_sha256_and_put_freely() -> None:
    store = HookedStore(ManualClock(T0))
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    assert put_blob(store, b"abc") == sha256
    assert put_blob(store, b"abc") == sha256
    assert store.get(f"blobs/{sha256}") == b"abc"


def test_a_blob_that_is_too_large_is_refused() -> None:
    store = HookedStore(ManualClock(T0))
    with pytest.raises(RequestError, match="too large"):
        put_blob(store, bytes(BLOB_MAX_BYTES + 1))
