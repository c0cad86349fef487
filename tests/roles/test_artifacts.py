"""The look for objects that jobs wait for: what is found, and with how many requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.stores.base import Entry
from ledger.timings import Timings
from roles.artifacts import LOOKS_MAX, ArtifactWatch
from simulation.memory import ManualClock, MemoryStore

PAUSE_MS = Timings().leader_beat_ms


class CountingStore(MemoryStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.listed: list[str] = []

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        self.listed.append(prefix)
        return super().list(prefix, start_after)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_ms=1_796_058_793_123)


@pytest.fixture
def store(clock: ManualClock) -> CountingStore:
    return CountingStore(clock)


@pytest.fixture
def watch(store: CountingStore, clock: ManualClock) -> ArtifactWatch:
    return ArtifactWatch(store, clock, Timings())


def test_only_the_object_itself_counts_not_one_below_or_beside_it(
    watch: ArtifactWatch, store: CountingStore
) -> None:
    for key in ("data/a/part", "data/b-2", "data/c"):
        store.put_once(key, b"x")
    assert watch.look(["data/a", "data/b", "data/c", "data/d"]) == ["data/c"]


def test_it_looks_again_only_after_a_while(
    watch: ArtifactWatch, store: CountingStore, clock: ManualClock
) -> None:
    assert watch.look(["x"]) == []
    store.put_once("x", b"x")
    clock.sleep_ms(PAUSE_MS - 1)
    assert watch.look(["x"]) == []
    clock.sleep_ms(1)
    assert watch.look(["x"]) == ["x"]
    assert store.listed == ["x", "x"]


def test_what_nobody_wants_costs_nothing_and_no_time(
    watch: ArtifactWatch, store: CountingStore
) -> None:
    store.put_once("x", b"x")
    assert watch.look([]) == []
    assert watch.look(["x"]) == ["x"]


def test_more_than_fit_into_a_look_take_turns(
    watch: ArtifactWatch, store: CountingStore, clock: ManualClock
) -> None:
    """50 of which none is there, 20 at a time: after three looks each was asked for, ten twice."""
    wanted = [f"x{number:02d}" for number in range(50)]
    for _ in range(3):
        before = len(store.listed)
        watch.look(wanted)
        assert len(store.listed) - before == LOOKS_MAX == 20
        clock.sleep_ms(PAUSE_MS)
    assert set(store.listed) == set(wanted)
    assert len(store.listed) == 60
