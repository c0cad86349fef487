"""Sums of slot time and money: each millisecond of a slot is counted once, and once only.

The properties compare with a table of single milliseconds, which knows nothing of lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ledger.bill import Bill, bill, slot_lines
from ledger.names import JobId, NodeName, WorkerName
from ledger.timings import DAY_MS, HOUR_MS
from ledger.usage import Became, SlotUp, SlotUsed, Use
from tests.world import job_id

SLOTS = ("n1-gpu0", "n1-gpu1", "n2-gpu0")
LAST_MS = 40


def use(
    number: int,
    slots: Sequence[str],
    begin: int,
    end: int,
    *,
    organization: str = "a",
    became: Became = Became.DONE,
    asked_ms: int = 0,
) -> Use:
    return Use(
        job=job_id(number),
        attempt=1,
        name="job",
        organization=organization,
        user=f"u-{organization}",
        workload_class="batch",
        pool="default",
        slots=tuple(
            SlotUsed(worker=WorkerName(slot), node=NodeName(slot[:2]), gpu=f"GPU-{slot}")
            for slot in slots
        ),
        assigned_at=begin,
        started_at=begin,
        ended_at=end,
        became=became,
        asked_ms=asked_ms,
        outcome="exited",
        rc=0,
        reason="",
    )


def up(slot: str, begin: int, end: int, price_micros: int = 0) -> SlotUp:
    return SlotUp(
        worker=WorkerName(slot),
        node=NodeName(slot[:2]),
        gpu=f"GPU-{slot}",
        pool="default",
        up_at=begin,
        down_at=end,
        price_micros=price_micros,
    )


def used_ms(made: Bill) -> dict[tuple[str, ...], int]:
    return {key: group.occupied_slot_ms for key, group in made.used.items()}


def test_a_job_is_cut_at_both_edges_of_the_period() -> None:
    """Of [100, 900) the period [300, 700) holds 400 ms, on each of two slots."""
    made = bill([use(0, SLOTS[:2], 100, 900)], [], begin=300, end=700, by=["org"])
    assert used_ms(made) == {("a",): 800}
    assert made.total.occupied_slot_ms == 800


def test_periods_that_follow_each_other_add_up_to_the_whole() -> None:
    uses = [use(n, [SLOTS[n % 3]], 7 * n, 7 * n + 19, asked_ms=10) for n in range(6)]
    ups = [up(slot, 0, 60) for slot in SLOTS]

    def total(begin: int, end: int) -> tuple[int, int, int]:
        made = bill(uses, ups, begin=begin, end=end, by=["org"]).total
        return made.occupied_slot_ms, made.idle_slot_ms, made.asked_slot_ms

    parts = [total(0, 11), total(11, 30), total(30, 60)]
    assert tuple(map(sum, zip(*parts, strict=True))) == total(0, 60)


def test_what_became_of_the_work_is_kept_apart() -> None:
    uses = [
        use(number, ["n1-gpu0"], 100 * number, 100 * number + 10 + number, became=became)
        for number, became in enumerate(Became)
    ]
    total = bill(uses, [], begin=0, end=10_000, by=["org"]).total
    assert list(total.slot_ms.values()) == [10, 11, 12, 13, 14]
    assert total.occupied_slot_ms == 60


def test_each_dimension_groups_by_what_it_names() -> None:
    uses = [use(0, SLOTS[:2], 0, 10), use(1, ["n2-gpu0"], 0, 5, organization="b")]

    def keys(*by: str) -> dict[tuple[str, ...], int]:
        return used_ms(bill(uses, [], begin=0, end=100, by=by))

    assert keys("org") == {("a",): 20, ("b",): 5}
    assert keys("user") == {("u-a",): 20, ("u-b",): 5}
    assert keys("node") == {("n1",): 20, ("n2",): 5}
    assert keys("gpu") == {("GPU-n1-gpu0",): 10, ("GPU-n1-gpu1",): 10, ("GPU-n2-gpu0",): 5}
    assert keys("job", "class") == {(job_id(0), "batch"): 20, (job_id(1), "batch"): 5}
    assert keys("pool") == {("default",): 25}


def test_days_end_at_midnight_utc() -> None:
    """1970-01-01 is day 0: a job over two midnights has part of a day, a day, and a part."""
    made = bill(
        [use(0, ["n1-gpu0"], DAY_MS - 1, 2 * DAY_MS + 2)], [], begin=0, end=9 * DAY_MS, by=["day"]
    )
    assert used_ms(made) == {("1970-01-01",): 1, ("1970-01-02",): DAY_MS, ("1970-01-03",): 2}


def test_what_was_asked_for_counts_where_the_attempt_began() -> None:
    """7 over two slots is 4 for the lead worker's and 3."""
    uses = [use(0, SLOTS[:2], 50, 200, asked_ms=7)]
    first = bill(uses, [], begin=0, end=100, by=["gpu"])
    assert [group.asked_slot_ms for group in first.used.values()] == [4, 3]
    assert bill(uses, [], begin=100, end=300, by=["gpu"]).total.asked_slot_ms == 0


def test_where_two_records_overlap_the_later_one_has_the_time() -> None:
    uses = [use(0, ["n1-gpu0"], 0, 10), use(1, ["n1-gpu0"], 8, 20)]
    made = bill(uses, [], begin=0, end=100, by=["job"])
    assert used_ms(made) == {(job_id(0),): 8, (job_id(1),): 12}


def test_the_price_of_a_node_is_shared_by_the_slots_that_it_has_at_the_moment() -> None:
    """3.6 an hour is 1 micro a millisecond. [0, 10) is shared by two slots, [10, 20) by one.

    The job on gpu0 ran [4, 14): 6 halves and 4 wholes are 7. Idle on gpu0: 2 and 6, on gpu1: 5.
    """
    ups = [up("n1-gpu0", 0, 20, 3_600_000), up("n1-gpu1", 0, 10, 3_600_000)]
    made = bill([use(0, ["n1-gpu0"], 4, 14)], ups, begin=0, end=100, by=["gpu"])
    assert [group.money for group in made.used.values()] == [7]
    assert [group.idle_money for group in made.idle.values()] == [8, 5]
    assert [group.idle_slot_ms for group in made.idle.values()] == [10, 10]
    assert made.total.money + made.total.idle_money == 20


def test_a_price_from_elsewhere_stands_above_what_the_node_said() -> None:
    ups = [up("n1-gpu0", 0, HOUR_MS, 1_000_000), up("n2-gpu0", 0, HOUR_MS, 1_000_000)]
    made = bill(
        [], ups, begin=0, end=HOUR_MS, by=["node"],
        price_of=lambda node, told: 5_000_000 if node == "n2" else told,
    )  # fmt: skip
    assert {key: group.idle_money for key, group in made.idle.items()} == {
        ("n1",): 1_000_000,
        ("n2",): 5_000_000,
    }


spans = st.tuples(st.integers(0, LAST_MS), st.integers(0, LAST_MS)).map(sorted)
used = st.lists(
    st.tuples(st.sets(st.sampled_from(SLOTS), min_size=1).map(sorted), spans), max_size=8
)
there = st.lists(st.tuples(st.sampled_from(SLOTS), spans), max_size=6)


@given(used=used, there=there, period=spans)
def test_each_millisecond_of_each_slot_is_counted_once(
    used: list[tuple[list[str], list[int]]],
    there: list[tuple[str, list[int]]],
    period: list[int],
) -> None:
    uses = [use(n, slots, begin, end) for n, (slots, (begin, end)) in enumerate(used)]
    ups = [up(slot, begin, end) for slot, (begin, end) in there]
    begin, end = period
    owner: dict[tuple[str, int], JobId] = {}
    for one in uses:
        for slot in one.slots:
            owner.update({(slot.worker, ms): one.job for ms in range(one.started_at, one.ended_at)})
    present = {(one.worker, ms) for one in ups for ms in range(one.up_at, one.down_at)}
    in_period = {(slot, ms) for slot in SLOTS for ms in range(begin, end)}
    wanted = Counter(job for place, job in owner.items() if place in in_period)

    for lines in slot_lines(uses, ups).values():
        lasting = [line for line in lines if line.end > line.begin]
        assert all(before.end <= after.begin for before, after in pairwise(lasting))
    made = bill(uses, ups, begin=begin, end=end, by=["job"])
    assert {key: ms for (key,), ms in used_ms(made).items() if ms} == wanted
    assert made.total.occupied_slot_ms == wanted.total()
    assert made.total.idle_slot_ms == len((present - owner.keys()) & in_period)


@given(used=used, there=there, period=spans)
def test_the_money_of_all_lines_is_the_price_of_the_time_in_which_nodes_were_there(
    used: list[tuple[list[str], list[int]]],
    there: list[tuple[str, list[int]]],
    period: list[int],
) -> None:
    uses = [use(n, slots, begin, end) for n, (slots, (begin, end)) in enumerate(used)]
    ups = [up(slot, begin, end) for slot, (begin, end) in there]
    begin, end = period
    times = {
        (slot.node, ms)
        for one in uses
        for slot in one.slots
        for ms in range(one.started_at, one.ended_at)
    } | {(one.node, ms) for one in ups for ms in range(one.up_at, one.down_at)}
    prices = {"n1": 7, "n2": 1_000}
    total = bill(
        uses, ups, begin=begin, end=end, by=["org", "day"], price_of=lambda node, _: prices[node]
    ).total
    wanted = sum(Fraction(prices[node], HOUR_MS) for node, ms in times if begin <= ms < end)
    assert total.money + total.idle_money == wanted
