"""The promises of fair sharing, each with its expected value under start order.

The values are worked by hand in the docstrings of ``tests.scheduling.agreement``.
"""

from __future__ import annotations

import pytest

from tests.scheduling.agreement import CASES

Bounds = tuple[float, float]

EXPECTED: dict[str, dict[str, Bounds]] = {
    "weights 1:2:3:4, all backlogged, equal jobs, 8 slots": {
        "a": (99, 101), "b": (198, 202), "c": (297, 303), "d": (396, 404),
    },
    "estimates 10x too low and 10x too high, equal weights, 4 slots, 10 s jobs, 10,000 s": {
        "high": (1.96, 2.04), "low": (1.96, 2.04),
    },
    "flow idle for an hour, returns beside a busy one, 4 slots, 1 s jobs": {
        "first 10 s": (1.9, 2.1), "first 200 s": (1.98, 2.02),
    },
    "closed loop of 30 s jobs beside two flows of 1 s jobs, one slot": {
        "loop": (0.32, 0.35), "x": (0.32, 0.35), "y": (0.32, 0.35),
    },
    "cap of 1 lifted after 200 s, 3 slots, competitor uncapped, 1 s jobs": {
        "free, next 5 s": (1.2, 3),
    },
    "organization split over 4 flows beside an organization with 1": {
        "split": (1.96, 2.04), "whole": (1.96, 2.04),
    },
    "A batch only, B interactive only, equal weights, classes 6:1": {
        "a": (1.96, 2.04), "b": (1.96, 2.04),
    },
    "one organization with both classes, 6:1, 7 slots": {
        "batch": (99, 101), "interactive": (599, 601),
    },
    "99 of 100 queued jobs cancelled, beside a busy flow, one slot of 10 s jobs": {
        "as if": (10, 10), "cancelled": (10, 10),
    },
    "one slot, a new organization a second with a 1 s job, at 100 s a 1,000 s job": {
        "wait of the long job, s": (0, 2),
    },
    "6 slots, X capped at 1, weights Y 1, Z 2": {
        "x": (0.99, 1.0), "y": (1.65, 1.69), "z": (3.30, 3.37),
    },
    "8 slots, one busy for 100 s; an 8-slot job is chosen; 70 one-slot jobs of 10 s wait": {
        "start of the wide job, s": (100, 100), "over before it": (70, 70),
    },
    "6-slot job of 60 s every 200 s beside two flows of 1-slot jobs of 5 to 15 s, 8 slots": {
        "started": (20, 20), "longest wait, s": (0, 20),
    },
    "capped flow at the head": {
        "wait of the other, s": (0, 0), "wait at the cap, s": (99, 99),
    },
}  # fmt: skip

UNDER_WFQ = set(EXPECTED) - {
    # A newcomer's finish tag lies before that of a long job for as long as newcomers come.
    "one slot, a new organization a second with a 1 s job, at 100 s a 1,000 s job",
    # The same of a job of six slots: its charge is six times that of its neighbours' jobs.
    "6-slot job of 60 s every 200 s beside two flows of 1-slot jobs of 5 to 15 s, 8 slots",
    # The busy flow's next finish tag is as far as the newcomer's, and it came first.
    "99 of 100 queued jobs cancelled, beside a busy flow, one slot of 10 s jobs",
}


def check(name: str, discipline: str) -> None:
    measured = CASES[name](discipline)
    assert measured.keys() == EXPECTED[name].keys()
    for what, value in measured.items():
        low, high = EXPECTED[name][what]
        assert low <= value <= high, (what, value)


def test_every_case_has_an_expected_value() -> None:
    assert set(CASES) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_start_order_keeps_the_promise(name: str) -> None:
    check(name, "sfq")


@pytest.mark.parametrize("name", sorted(UNDER_WFQ))
def test_finish_order_keeps_it_too_where_length_does_not_count(name: str) -> None:
    check(name, "wfq")


@pytest.mark.parametrize("discipline", ["sfq", "wfq"])
def test_a_cancelled_queue_costs_nothing(discipline: str) -> None:
    measured = CASES["99 of 100 queued jobs cancelled, beside a busy flow, one slot of 10 s jobs"](
        discipline
    )
    assert measured["cancelled"] == measured["as if"]
