"""Back-off, request budget and server clock, by a clock that takes no time."""

from __future__ import annotations

import random

import pytest

from ledger.stores.pacing import Backoff, RequestBudget, ServerClock
from tests.stores.clocks import SteppedClock


def test_waits_double_to_five_seconds_and_are_jittered_within_half() -> None:
    clock = SteppedClock()
    backoff = Backoff(clock, random.Random(5), None)
    for _ in range(50):
        assert backoff.wait()
    full_ms = [100, 200, 400, 800, 1_600, 3_200, *[5_000] * 44]
    assert all(
        full // 2 <= slept <= full for full, slept in zip(full_ms, clock.slept_ms, strict=True)
    )
    assert len(set(clock.slept_ms[6:])) > 30


@pytest.mark.parametrize("patience_ms", [0, 1, 250, 12_345])
def test_waits_end_exactly_with_the_patience(patience_ms: int) -> None:
    clock = SteppedClock()
    backoff = Backoff(clock, random.Random(5), patience_ms)
    while backoff.wait():
        pass
    assert sum(clock.slept_ms) == patience_ms


def test_time_spent_between_waits_counts_against_the_patience() -> None:
    clock = SteppedClock()
    backoff = Backoff(clock, random.Random(5), 1_000)
    clock.boot += 1_000
    assert not backoff.wait()
    assert clock.slept_ms == []


def test_a_budget_gives_one_second_at_once_and_then_its_rate() -> None:
    clock = SteppedClock()
    budget = RequestBudget(clock, 200)
    for _ in range(201):
        budget.take()
    assert clock.slept_ms == []
    for _ in range(400):
        budget.take()
    assert sum(clock.slept_ms) == 2_000


def test_an_idle_budget_saves_no_more_than_one_second() -> None:
    clock = SteppedClock()
    budget = RequestBudget(clock, 10)
    for _ in range(11):
        budget.take()
    clock.boot += 3_600_000
    for _ in range(11):
        budget.take()
    assert clock.slept_ms == []
    budget.take()
    assert clock.slept_ms == [100]


def test_no_answer_no_clock() -> None:
    assert ServerClock(SteppedClock()).find_now_ms() is None


def test_the_server_clock_runs_with_the_boot_clock_and_ignores_the_local_wall() -> None:
    clock = SteppedClock(wall_ms=0, boot_ms=1_000)
    server = ServerClock(clock)
    server.observe(1_900_000_000_000)
    clock.wall = 999_999
    clock.boot += 250
    # Half a second is added because Date is cut to whole seconds.
    assert server.find_now_ms() == 1_900_000_000_750


def test_answers_that_took_long_do_not_move_the_median() -> None:
    clock = SteppedClock(boot_ms=0)
    server = ServerClock(clock)
    for late_ms in (0, 0, 9_000, 0, 30_000, 0, 0):
        server.observe(1_900_000_000_000 - late_ms)
    assert server.find_now_ms() == 1_900_000_000_500


def test_a_server_that_steps_back_is_followed_but_a_reading_never_falls() -> None:
    clock = SteppedClock(boot_ms=0)
    server = ServerClock(clock)
    server.observe(1_900_000_060_000)
    assert server.find_now_ms() == 1_900_000_060_500
    for _ in range(15):
        server.observe(1_900_000_000_000)
    assert server.find_now_ms() == 1_900_000_060_500
    clock.boot += 61_000
    assert server.find_now_ms() == 1_900_000_061_500
