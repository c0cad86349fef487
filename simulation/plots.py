"""Pictures of a comparison: one row of panels for each policy, on common scales.

Owns the drawing; matplotlib is imported only here. Panels, from left to right: waits by class
(cumulative), service over time against what was owed, how many jobs wait, and which slots were
busy for whom. Time is in the unit that suits the run, from the first arrival on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from simulation.engine import Outcome
from simulation.metrics import seconds
from simulation.sharing import Entitlement, intervals

_UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds"))
_POINTS_MAX = 2_000
_BARS_MAX = 20_000
_SLOTS_MAX = 256
_NAMES_MAX = 10
"""More organizations than this are not told apart."""

_SHORTEST_S = 1.0
"""An axis of logarithms has no 0."""

_CLASS_COLOURS = {"interactive": "tab:red", "batch": "tab:blue", "system": "tab:green"}
_OTHERS = "0.6"


def draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Draw all outcomes into ``path``, whose suffix says how (.png, .svg)."""
    matplotlib.rcParams["svg.hashsalt"] = "gpuq"  # the same figures give the same bytes
    rows = len(outcomes)
    figure = Figure(figsize=(19, 0.8 + 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, 4, squeeze=False)
    begin, end = _span(outcomes)
    unit_ms, unit = next((u for u in _UNITS if end - begin >= 2 * u[0]), _UNITS[-1])
    colours = _colours(outcomes)
    for row, (name, outcome) in zip(axes, outcomes.items(), strict=True):
        scale = _Scale(begin, unit_ms)
        _draw_waits(row[0], outcome)
        _draw_service(row[1], outcome, scale, colours)
        _draw_queue(row[2], outcome, scale)
        _draw_slots(row[3], outcome, scale, colours)
        row[0].set_ylabel("share of jobs")
        row[0].annotate(
            name, (-0.2, 0.5), xycoords="axes fraction", rotation=90, va="center", fontsize=15
        )
        for axis in row[1:]:
            axis.set_xlim(0, (end - begin) / unit_ms)
    for axis in axes[-1][1:]:
        axis.set_xlabel(unit)
    axes[-1][0].set_xlabel("wait, seconds (1: that or less)")
    for axis, title in zip(axes[0], _TITLES, strict=True):
        axis.set_title(title)
    _share_limits(axes)
    figure.suptitle(next(iter(outcomes.values())).workload.title)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


_TITLES = (
    "waits by class (cumulative)",
    "service by organization (dashed: owed)",
    "jobs that wait, by class",
    "slots, by organization",
)


class _Scale:
    """From the source's clock to what an axis shows."""

    def __init__(self, begin_ms: int, unit_ms: int) -> None:
        self._begin_ms = begin_ms
        self._unit_ms = unit_ms

    def at(self, at_ms: float) -> float:
        return (at_ms - self._begin_ms) / self._unit_ms


def _span(outcomes: Mapping[str, Outcome]) -> tuple[int, int]:
    begin = min((run.job.arrival_ms for made in outcomes.values() for run in made.runs), default=0)
    return begin, max((made.ended_at_ms for made in outcomes.values()), default=begin)


def _colours(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    names = sorted({run.job.organization for made in outcomes.values() for run in made.runs})
    cycle = matplotlib.colormaps["tab10"]
    return {name: cycle(n) if n < _NAMES_MAX else _OTHERS for n, name in enumerate(names)}


def _draw_waits(axis: Any, outcome: Outcome) -> None:
    """What never started waits to the end of the run, and longer: its line ends below 1."""
    waits: dict[str, list[float]] = {}
    jobs: dict[str, int] = {}
    for run in outcome.runs:
        if run.refused:
            continue
        name = run.job.workload_class
        jobs[name] = jobs.get(name, 0) + 1
        waits.setdefault(name, [])
        if run.wait_ms is not None:
            waits[name].append(max(_SHORTEST_S, seconds(run.wait_ms)))
    for name in sorted(waits):
        ordered = sorted(waits[name])
        shares = [(place + 1) / jobs[name] for place in range(len(ordered))]
        points = _thinned([(0.5, 0.0), *zip(ordered, shares, strict=True)])
        axis.step(*_columns(points), where="post", label=name, color=_CLASS_COLOURS[name])
    axis.set_xscale("log")
    axis.set_xlim(left=0.8)
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)


def _draw_service(axis: Any, outcome: Outcome, scale: _Scale, colours: dict[str, Any]) -> None:
    """Slot-hours that each organization had, and what it was owed, since the beginning."""
    had: dict[str, list[tuple[float, float]]] = {}
    owed: dict[str, list[tuple[float, float]]] = {}
    for pool in outcome.workload.pools:
        entitlement = Entitlement(outcome.policy, pool)
        for interval in intervals(outcome, pool):
            at = scale.at(interval.end_ms)
            for (name, _), slot_ms in entitlement.of(interval).items():
                _grow(owed, name, at, slot_ms)
            for (name, _), slots in interval.running.items():
                _grow(had, name, at, slots * interval.span_ms)
    for name in sorted({*had, *owed}):
        _grow(had, name, scale.at(outcome.ended_at_ms), 0)
        axis.plot(*_columns(_thinned(had[name])), label=name, color=colours[name])
    for name, points in sorted(owed.items()):
        axis.plot(*_columns(_thinned(points)), "--", color=colours[name], linewidth=1)
    axis.set_ylabel("slot-hours")
    axis.grid(alpha=0.3)
    if len(had) <= _NAMES_MAX:
        axis.legend(loc="upper left", fontsize=8)


def _grow(lines: dict[str, list[tuple[float, float]]], name: str, at: float, by_ms: float) -> None:
    line = lines.setdefault(name, [(0.0, 0.0)])
    line.append((at, line[-1][1] + by_ms / 3_600_000))


def _draw_queue(axis: Any, outcome: Outcome, scale: _Scale) -> None:
    steps: dict[str, list[tuple[int, int]]] = {}
    for run in outcome.runs:
        if run.refused:
            continue
        line = steps.setdefault(run.job.workload_class, [])
        line.append((run.job.arrival_ms, 1))
        if run.start_ms is not None:
            line.append((run.start_ms, -1))
    for name in sorted(steps):
        waiting, points = 0, [(0.0, 0.0)]
        for at, step in sorted(steps[name]):
            waiting += step
            if points[-1][0] == scale.at(at):
                points.pop()
            points.append((scale.at(at), float(waiting)))
        points.append((scale.at(outcome.ended_at_ms), float(waiting)))
        axis.step(*_columns(_thinned(points)), where="post", label=name, color=_CLASS_COLOURS[name])
    axis.set_ylabel("jobs")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left", fontsize=8)


def _draw_slots(axis: Any, outcome: Outcome, scale: _Scale, colours: dict[str, Any]) -> None:
    """A bar for each run on each of its slots; of many slots an even sample."""
    names = list(dict.fromkeys(slot.worker for slot in outcome.workload.slots))
    used = sum(len(run.workers) for run in outcome.runs)
    most = min(_SLOTS_MAX, _BARS_MAX * len(names) // max(1, used))
    shown = names[:: -(-len(names) // max(1, most)) or 1]
    place = {name: number for number, name in enumerate(shown)}
    bars: dict[str, list[tuple[float, float, int]]] = {}
    for run in outcome.runs:
        if run.start_ms is None:
            continue
        end = outcome.ended_at_ms if run.end_ms is None else run.end_ms
        begun = scale.at(run.start_ms)
        for worker in run.workers:
            if worker in place:
                bar = (begun, scale.at(end) - begun, place[worker])
                bars.setdefault(run.job.organization, []).append(bar)
    for name, of_one in sorted(bars.items()):
        lefts, widths, rows = zip(*of_one, strict=True)
        axis.barh(rows, widths, left=lefts, height=1.0, color=colours[name], linewidth=0)
    axis.set_ylim(-0.5, len(shown) - 0.5)
    axis.set_ylabel("slot" if len(shown) == len(names) else f"{len(shown)} of {len(names)} slots")


def _share_limits(axes: Any) -> None:
    """The same scale for all policies, or pictures would compare nothing."""
    for column in range(3):
        left = min(row[column].get_xlim()[0] for row in axes)
        right = max(row[column].get_xlim()[1] for row in axes)
        top = max(row[column].get_ylim()[1] for row in axes)
        for row in axes:
            row[column].set_xlim(left, right)
            row[column].set_ylim(top=top)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most so many points as can be seen; the last is kept."""
    every = -(-len(points) // _POINTS_MAX) or 1
    return points if every == 1 else [*points[::every], points[-1]]


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
