"""The worst gap of charged service between two flows, as a fraction of its bound.

Owns the check of the fairness theorem on an outcome. While two flows of a pool both have jobs
waiting, what they are charged may differ by no more than ::

    cmax_f/w_f + cmax_g/w_g + 2 * (n_f*e_f/w_f + n_g*e_g/w_g)

``c/w`` is a charge in virtual time, ``cmax`` the largest of the flow, ``e`` the largest
difference between what a job was charged at dispatch and in the end, ``n`` the most jobs that
the flow had in flight at once (Goyal, Vin, Cheng, "Start-time Fair Queueing", 1996, doi
10.1145/248156.248171, with the correction for estimates). It is the bound of ``sfq``; the
others are measured against it. A fraction above 1 says that it was broken. Jobs started by
backfill are charged but pass on purpose, so they may break it. In a pool that owes classes
slots only flows of one class are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from ledger.fair_state import charge
from simulation.engine import Outcome, Run

_ENDS, _ARRIVES, _STARTS = range(3)
"""The order of what happens at one instant."""


class _Event(NamedTuple):
    at: int
    kind: int
    order: int
    run: Run


class _Standing(msgspec.Struct):
    """What is known of one flow so far."""

    waiting: int = 0
    in_flight: int = 0
    largest: int = 0
    error: int = 0
    most_in_flight: int = 0

    @property
    def allowance(self) -> int:
        """The flow's part of the bound, in virtual time."""
        return self.largest + 2 * self.most_in_flight * self.error


class _Window(msgspec.Struct):
    """The difference of service of two flows since both wait: by how much the first
    by name is ahead."""

    now: int = 0
    lowest: int = 0
    highest: int = 0

    def move(self, by: int) -> int:
        """Take over a charge; returns the widest gap within the window."""
        self.now += by
        self.lowest, self.highest = min(self.lowest, self.now), max(self.highest, self.now)
        return self.highest - self.lowest


def worst_gaps(outcome: Outcome, pool: str) -> dict[str, float]:
    """By flow: the worst fraction of the bound that it reached with any other flow.

    Flows that never waited at the same time as another are absent. O(events * flows that wait).
    """
    standings: dict[str, _Standing] = {}
    windows: _Windows = {}
    gaps: dict[tuple[str, str], int] = {}
    is_divided = outcome.policy.pool(pool).is_divided
    for event in sorted(_events(outcome, pool), key=lambda event: event[:3]):
        flow = event.run.job.flow
        standing = standings.setdefault(flow, _Standing())
        if event.kind == _ARRIVES:
            standing.waiting += 1
            if standing.waiting == 1:
                _open(flow, standings, windows, is_divided=is_divided)
            continue
        _charge(flow, _note(standing, event), windows, gaps)
        if event.kind == _STARTS and standing.waiting == 0:
            for other in windows.pop(flow, {}):
                del windows[other][flow]
    return _fractions(gaps, standings)


def _events(outcome: Outcome, pool: str) -> Iterator[_Event]:
    for order, run in enumerate(outcome.runs):
        if run.job.pool != pool or run.refused or run.job.arrival_ms > outcome.ended_at_ms:
            continue
        yield _Event(run.job.arrival_ms, _ARRIVES, order, run)
        if run.start_ms is not None:
            yield _Event(run.start_ms, _STARTS, run.dispatch, run)
        if run.end_ms is not None:
            yield _Event(run.end_ms, _ENDS, order, run)


_Windows = dict[str, dict[str, _Window]]
"""By flow and other flow; both orders lead to the same window."""


def _open(
    flow: str, standings: dict[str, _Standing], windows: _Windows, *, is_divided: bool
) -> None:
    for other, standing in standings.items():
        comparable = not is_divided or flow.split("/")[1] == other.split("/")[1]
        if other != flow and standing.waiting and comparable:
            window = _Window()
            windows.setdefault(flow, {})[other] = window
            windows.setdefault(other, {})[flow] = window


def _note(standing: _Standing, event: _Event) -> int:
    """The charge that the event books, in virtual time."""
    run = event.run
    expected = charge(run.cost_ms, run.weight)
    if event.kind == _STARTS:
        standing.waiting -= 1
        standing.in_flight += 1
        standing.most_in_flight = max(standing.most_in_flight, standing.in_flight)
        standing.largest = max(standing.largest, expected)
        return expected
    standing.in_flight -= 1
    actual = charge(run.job.slots * run.job.duration_ms, run.weight)
    standing.largest = max(standing.largest, actual)
    standing.error = max(standing.error, abs(actual - expected))
    return actual - expected


def _charge(flow: str, amount: int, windows: _Windows, gaps: dict[tuple[str, str], int]) -> None:
    for other, window in windows.get(flow, {}).items():
        gap = window.move(amount if flow < other else -amount)
        pair = min(flow, other), max(flow, other)
        gaps[pair] = max(gaps.get(pair, 0), gap)


def _fractions(
    gaps: dict[tuple[str, str], int], standings: dict[str, _Standing]
) -> dict[str, float]:
    worst: dict[str, float] = {}
    for pair, gap in gaps.items():
        bound = sum(standings[flow].allowance for flow in pair)
        for flow in pair:
            worst[flow] = max(worst.get(flow, 0.0), gap / bound)
    return worst
