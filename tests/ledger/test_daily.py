"""Sums of what counts against limits a day: booked, let go, and when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.daily import DailyUse, Draw, Hours, Use, gpu_use_ms, money_micros, reported_micros
from ledger.events import Report
from ledger.names import FlowId
from ledger.policy import Price, Scope
from ledger.timings import DAY_MS, HOUR_MS

A, B = FlowId("a/batch/p"), FlowId("b/batch/p")
OF_A, OF_POOL = Scope("organization", "a"), Scope("pool", "p")


def test_a_booking_counts_until_the_full_hour_that_is_a_day_later() -> None:
    """Booked at 10:59:59.999 it counts until 11:00 the next day; at 11:00:00, until 12:00."""
    daily = DailyUse({})
    daily.book(A, Use(gpu_ms=5), 11 * HOUR_MS - 1)
    daily.book(B, Use(gpu_ms=7), 11 * HOUR_MS)
    assert daily.next_change_ms() == 35 * HOUR_MS
    assert daily.forget(35 * HOUR_MS - 1) == []
    assert daily.total(OF_POOL) == Use(gpu_ms=12)
    assert OF_A in daily.forget(35 * HOUR_MS)
    assert (daily.total(OF_A), daily.total(OF_POOL)) == (Use(), Use(gpu_ms=7))
    daily.forget(36 * HOUR_MS)
    assert (daily.total(OF_POOL), daily.next_change_ms()) == (Use(), None)


def test_there_is_room_when_enough_of_its_own_has_ceased_to_count() -> None:
    """``a`` used 5 in hour 0 and 5 in hour 3; ``b`` much more in hour 1, which is not its own."""
    daily = DailyUse({0: {A: Use(gpu_ms=5)}, 1: {B: Use(gpu_ms=99)}, 3: {A: Use(gpu_ms=5)}})
    assert daily.eases_at(OF_A, Use(gpu_ms=5)) == HOUR_MS + DAY_MS
    assert daily.eases_at(OF_A, Use(gpu_ms=6)) == 4 * HOUR_MS + DAY_MS
    assert daily.eases_at(OF_A, Use(gpu_ms=11)) is None
    assert daily.eases_at(OF_A, Use(gpu_ms=5, money_micros=1)) is None
    assert daily.eases_at(OF_POOL, Use(gpu_ms=11)) == 2 * HOUR_MS + DAY_MS


bookings = st.lists(
    st.tuples(
        st.sampled_from([A, B]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 3 * DAY_MS),
    ),
    max_size=12,
)


@given(bookings, st.integers(0, 5 * DAY_MS))
def test_sums_are_those_of_what_counts_also_after_a_start_from_what_is_saved(
    booked: list[tuple[FlowId, int, int, int]], later_ms: int
) -> None:
    """At any time all that was booked within 24 hours counts, nothing of 25 hours or more ago."""
    hours: Hours = {}
    daily, at = DailyUse(hours), 0
    for flow, gpu_ms, micros, after_ms in booked:
        at += after_ms
        daily.forget(at)
        daily.book(flow, Use(gpu_ms, micros), at)
    now = at + later_ms
    daily.forget(now)
    times, time = [], 0
    for *_, after_ms in booked:
        time += after_ms
        times.append(time)
    for scope, flows in ((OF_A, {A}), (OF_POOL, {A, B})):
        of_scope = [(t, b[1], b[2]) for t, b in zip(times, booked, strict=True) if b[0] in flows]
        recent = sum(gpu_ms for t, gpu_ms, _ in of_scope if now - t <= DAY_MS)
        known = sum(gpu_ms for t, gpu_ms, _ in of_scope if now - t < DAY_MS + HOUR_MS)
        assert recent <= daily.total(scope).gpu_ms <= known
        assert DailyUse(hours).total(scope) == daily.total(scope)


def test_at_most_a_day_of_a_run_counts() -> None:
    assert gpu_use_ms(4, 1_000) == 4_000
    assert gpu_use_ms(4, 3 * DAY_MS) == 4 * DAY_MS
    assert gpu_use_ms(4, -1) == 0


def test_a_call_costs_its_requests_and_its_tokens_by_the_thousand_rounded_up() -> None:
    """2 x 5,000 + (1,500 x 3,000 + 10 x 15,000) / 1,000 = 10,000 + 4,500 + 150; 1 token: 3."""
    price = Price(request_micros=5_000, input_micros=3_000, output_micros=15_000)
    assert money_micros(price, 2, 1_500, 10) == 14_650
    assert money_micros(Price(input_micros=2_001), 9, 1, 0) == 3
    assert money_micros(Price(), 9, 9, 9) == 0


def test_a_report_settles_the_money_and_without_one_the_reservation_stands() -> None:
    """3 requests were asked for; a report of tokens alone says nothing else of them."""
    draw = Draw(
        price=Price(request_micros=100, output_micros=1_000), reserved=Use(money_micros=777)
    )
    assert reported_micros(draw, 3, None) == 777
    assert reported_micros(draw, 3, Report(throttled=1)) == 777
    assert reported_micros(draw, 3, Report(output_tokens=50)) == 350
    assert reported_micros(draw, 3, Report(requests=2, output_tokens=50)) == 250
