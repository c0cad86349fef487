"""The factor between what calls may take and what they take: slow, bounded, remembered by day."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.calibration import LEAST, MOST, ONE, Calibration
from ledger.timings import DAY_MS


def test_each_call_moves_it_a_sixteenth_of_the_way_within_the_bounds() -> None:
    """1 - (1 - 0.25) / 16 = 0.953125; from there 0.0625 counts as 0.25: - 0.043945 (3125 / 16
    rounded down), 0.909179; 10 counts as 4: 0.909179 + 3.090821 / 16 = 1.102355."""
    known = Calibration()
    factors = []
    for actual in (40, 10, 1_600):
        known = known.moved(actual=actual, estimated=160, at=0)
        factors.append(known.factor_ppm)
    assert factors == [953_125, 909_179, 1_102_355]
    assert known.calls == 3


def test_an_estimate_is_charged_in_proportion_rounded_up() -> None:
    """160 x 0.953125 = 152.5; nothing stays nothing."""
    known = Calibration(factor_ppm=953_125)
    assert (known.applied(160), known.applied(0)) == (153, 0)
    assert Calibration().applied(7) == 7


def test_of_each_day_the_last_factor_is_remembered_for_fourteen_days() -> None:
    known = Calibration()
    for day in range(20):
        for _ in range(2):
            known = known.moved(actual=1, estimated=1, at=day * DAY_MS + 1)
    assert known.history == tuple((day, ONE) for day in range(6, 20))


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), max_size=30))
def test_it_never_leaves_its_bounds(calls: list[tuple[int, int]]) -> None:
    known = Calibration()
    for actual, estimated in calls:
        known = known.moved(actual=actual, estimated=estimated, at=0)
        assert LEAST <= known.factor_ppm <= MOST


def test_it_comes_to_what_calls_take() -> None:
    """Half of each estimate, 300 times: (15 / 16)^300 of the way is left, less than one part."""
    known = Calibration()
    for _ in range(300):
        known = known.moved(actual=50, estimated=100, at=0)
    assert abs(known.factor_ppm - ONE // 2) < 16
