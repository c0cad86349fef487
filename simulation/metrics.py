"""The figures of an outcome: waits, shares, service gaps, slowdown, work left, utilisation.

Owns what each figure means (docs/REPLAY.md says it for users). Times of figures are seconds,
integers where they are whole. A job that has not begun when the run ends counts with the time
it has waited so far, so that starving somebody never looks good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from simulation.engine import Outcome, Run
from simulation.service_gap import worst_gaps
from simulation.sharing import Entitlement, Flow, flow_weights, intervals

Seconds = int | float

Number = TypeVar("Number", int, float)


class Figures(msgspec.Struct, kw_only=True):
    """Of one flow, class or pool. None where there is nothing to reckon from."""

    name: str
    jobs: int
    started: int
    finished: int
    total_wait_s: Seconds
    zero_wait_jobs: int
    wait_p50_s: Seconds | None
    wait_p95_s: Seconds | None
    wait_p99_s: Seconds | None
    max_wait_s: Seconds | None
    served_slot_s: Seconds
    """Slot time that really ran."""
    unfinished_slot_s: Seconds
    """Slot time that was asked for and has not run."""
    contested_share: float | None = None
    """Part of the slots that it had while they were contested."""
    owed_share: float | None = None
    """Part of them that it was owed then."""
    gap_of_bound: float | None = None
    slowdown_mean: float | None = None
    slowdown_p95: float | None = None


class Changes(msgspec.Struct, kw_only=True):
    """Which jobs start at another time than they did in ``against``, and by how much."""

    against: str
    same: int
    earlier: int
    later: int
    earlier_p50_s: Seconds | None
    earlier_max_s: Seconds | None
    later_p50_s: Seconds | None
    later_max_s: Seconds | None


class Report(msgspec.Struct, kw_only=True):
    """All figures of one run."""

    policy: str
    jobs: int
    pool_gpus: int
    """The most slots that there were at once."""
    total_wait_s: Seconds
    zero_wait_jobs: int
    max_wait_s: Seconds | None
    makespan_s: Seconds
    """From the first arrival to the last end."""
    last_end_s: Seconds
    """The last end on the source's own clock."""
    unfinished_jobs: int
    unfinished_slot_s: Seconds
    refused_jobs: int
    utilisation: float | None
    """Busy slot time over the slot time that there was, from first arrival to last end."""
    contested_s: Seconds
    jain_index: float | None
    """Of the flows' contested service over what they were owed: 1 is even."""
    gap_of_bound: float | None
    pages: int | None
    decisions: int | None
    """None where nothing was decided again."""
    flows: list[Figures]
    classes: list[Figures]
    pools: list[Figures]
    changed: Changes | None = None


class _Shares(msgspec.Struct):
    """Slot-milliseconds while a pool was contested, by flow."""

    served: dict[Flow, float] = {}
    owed: dict[Flow, float] = {}
    capacity: float = 0.0
    contested_ms: int = 0
    offered: float = 0.0
    busy: float = 0.0


def report(name: str, outcome: Outcome) -> Report:
    """The figures of a run under the policy called ``name``. O(events * flows)."""
    runs = [run for run in outcome.runs if run.job.arrival_ms <= outcome.ended_at_ms]
    alone = _alone_ms(outcome)
    gaps, shares = {}, {}
    for pool in _pools(outcome):
        gaps.update(worst_gaps(outcome, pool))
        shares[pool] = _shares(outcome, pool)
    waits = [_wait_ms(run, outcome) for run in runs]
    begin = min((run.job.arrival_ms for run in runs), default=0)
    end = max((run.end_ms for run in runs if run.end_ms is not None), default=begin)
    offered = sum(share.offered for share in shares.values())
    groups = _Groups(outcome, runs, alone, gaps, shares)
    flows = groups.by(lambda run: run.job.flow)
    return Report(
        policy=name,
        jobs=len(runs),
        pool_gpus=_most_slots(outcome),
        total_wait_s=seconds(sum(waits)),
        zero_wait_jobs=sum(run.start_ms == run.job.arrival_ms for run in runs),
        max_wait_s=seconds(max(waits)) if waits else None,
        makespan_s=seconds(end - begin),
        last_end_s=seconds(end),
        unfinished_jobs=sum(run.end_ms is None and not run.refused for run in runs),
        unfinished_slot_s=seconds(sum(_left_ms(run, outcome) for run in runs)),
        refused_jobs=sum(bool(run.refused) for run in runs),
        utilisation=sum(s.busy for s in shares.values()) / offered if offered else None,
        contested_s=seconds(max((s.contested_ms for s in shares.values()), default=0)),
        jain_index=jain(_parts(flows)),
        gap_of_bound=max(gaps.values(), default=None),
        pages=outcome.pages or None,
        decisions=len(outcome.decisions) if outcome.pages else None,
        flows=flows,
        classes=groups.by(lambda run: run.job.workload_class),
        pools=groups.by(lambda run: run.job.pool),
    )


def changes(against: str, before: Sequence[int | None], outcome: Outcome) -> Changes:
    """How the starts of ``outcome`` differ from ``before`` (None: it did not start)."""
    moved = [
        run.start_ms - start
        for run, start in zip(outcome.runs, before, strict=True)
        if run.start_ms is not None and start is not None
    ]
    earlier = sorted(-by for by in moved if by < 0)
    later = sorted(by for by in moved if by > 0)
    return Changes(
        against=against,
        same=len(moved) - len(earlier) - len(later),
        earlier=len(earlier),
        later=len(later),
        earlier_p50_s=percentile_s(earlier, 50),
        earlier_max_s=percentile_s(earlier, 100),
        later_p50_s=percentile_s(later, 50),
        later_max_s=percentile_s(later, 100),
    )


def seconds(duration_ms: float) -> Seconds:
    """Whole seconds as an integer, others to the millisecond."""
    rounded_ms = round(duration_ms)
    return rounded_ms // 1000 if rounded_ms % 1000 == 0 else rounded_ms / 1000


def percentile(ordered: Sequence[Number], percent: int) -> Number | None:
    """Nearest rank: the smallest value that ``percent`` of all do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None


def percentile_s(ordered_ms: Sequence[int], percent: int) -> Seconds | None:
    value = percentile(ordered_ms, percent)
    return None if value is None else seconds(value)


def jain(values: Sequence[float]) -> float | None:
    """``(sum x)^2 / (n * sum x^2)``: 1 where all are equal, 1/n where one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def _parts(flows: Sequence[Figures]) -> list[float]:
    """What each flow had of the contested service that it was owed."""
    return [
        flow.contested_share / flow.owed_share
        for flow in flows
        if flow.owed_share and flow.contested_share is not None
    ]


def _pools(outcome: Outcome) -> list[str]:
    """Pools that somebody waits for or serves; the slots of none are not counted."""
    return sorted({*outcome.workload.pools, *outcome.slots} - {""})


def _shares(outcome: Outcome, pool: str) -> _Shares:
    shares, entitlement = _Shares(), Entitlement(outcome.policy, pool)
    for interval in intervals(outcome, pool):
        span = interval.span_ms
        shares.offered += interval.capacity * span
        shares.busy += sum(interval.running.values()) * span
        owed = entitlement.of(interval)
        if not interval.is_contested:
            continue
        shares.contested_ms += span
        shares.capacity += interval.capacity * span
        for flow, slots in interval.running.items():
            shares.served[flow] = shares.served.get(flow, 0.0) + slots * span
        for flow, slot_ms in owed.items():
            shares.owed[flow] = shares.owed.get(flow, 0.0) + slot_ms
    return shares


def _most_slots(outcome: Outcome) -> int:
    steps = sorted(
        step
        for slot in outcome.workload.slots
        for step in ((slot.from_ms, 1), (slot.until_ms, -1))
        if step[0] is not None
    )
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _wait_ms(run: Run, outcome: Outcome) -> int:
    begun = outcome.ended_at_ms if run.start_ms is None else run.start_ms
    return 0 if run.refused else begun - run.job.arrival_ms


def _served_ms(run: Run, outcome: Outcome) -> int:
    if run.start_ms is None:
        return 0
    end = outcome.ended_at_ms if run.end_ms is None else run.end_ms
    return run.job.slots * (end - run.start_ms)


def _left_ms(run: Run, outcome: Outcome) -> int:
    if run.refused:
        return 0
    return run.job.slots * run.job.duration_ms - _served_ms(run, outcome)


def _alone_ms(outcome: Outcome) -> Callable[[Run], float]:
    """How long a job would take alone on what its flow is owed when all flows have work."""
    slots_of: dict[str, dict[Flow, float]] = {}
    for pool in _pools(outcome):
        jobs = (run.job for run in outcome.runs)
        flows = list({(j.organization, j.workload_class): None for j in jobs if j.pool == pool})
        weights = flow_weights(flows, outcome.policy, pool)
        slots = len({slot.worker for slot in outcome.slots.get(pool, ())})
        total = sum(weights.values())
        slots_of[pool] = {flow: slots * weight / total for flow, weight in weights.items()}

    def alone_ms(run: Run) -> float:
        job = run.job
        owed = slots_of[job.pool][job.organization, job.workload_class]
        return max(1, job.duration_ms) * max(1.0, job.slots / owed if owed else 1.0)

    return alone_ms


class _Groups:
    """Figures of any division of the runs."""

    def __init__(
        self,
        outcome: Outcome,
        runs: Sequence[Run],
        alone_ms: Callable[[Run], float],
        gaps: dict[str, float],
        shares: dict[str, _Shares],
    ) -> None:
        self._outcome = outcome
        self._runs = runs
        self._alone_ms = alone_ms
        self._gaps = gaps
        self._shares = shares

    def by(self, name_of: Callable[[Run], str]) -> list[Figures]:
        groups: dict[str, list[Run]] = {}
        for run in self._runs:
            groups.setdefault(name_of(run), []).append(run)
        return [self._figures(name, groups[name]) for name in sorted(groups)]

    def _figures(self, name: str, runs: Sequence[Run]) -> Figures:
        outcome = self._outcome
        waits = sorted(_wait_ms(run, outcome) for run in runs if not run.refused)
        flows = {(r.job.pool, (r.job.organization, r.job.workload_class)): r.job.flow for r in runs}
        pools = [self._shares[pool] for pool in {pool for pool, _ in flows}]
        capacity = sum(share.capacity for share in pools)
        served = sum(self._shares[pool].served.get(flow, 0.0) for pool, flow in flows)
        owed = sum(self._shares[pool].owed.get(flow, 0.0) for pool, flow in flows)
        slowdowns = sorted(
            (run.end_ms - run.job.arrival_ms) / self._alone_ms(run)
            for run in runs
            if run.end_ms is not None
        )
        return Figures(
            name=name,
            jobs=len(runs),
            started=sum(run.start_ms is not None for run in runs),
            finished=sum(run.end_ms is not None for run in runs),
            total_wait_s=seconds(sum(waits)),
            zero_wait_jobs=sum(run.start_ms == run.job.arrival_ms for run in runs),
            wait_p50_s=percentile_s(waits, 50),
            wait_p95_s=percentile_s(waits, 95),
            wait_p99_s=percentile_s(waits, 99),
            max_wait_s=percentile_s(waits, 100),
            served_slot_s=seconds(sum(_served_ms(run, outcome) for run in runs)),
            unfinished_slot_s=seconds(sum(_left_ms(run, outcome) for run in runs)),
            contested_share=served / capacity if capacity else None,
            owed_share=owed / capacity if capacity else None,
            gap_of_bound=max(
                (self._gaps[flow] for flow in flows.values() if flow in self._gaps), default=None
            ),
            slowdown_mean=sum(slowdowns) / len(slowdowns) if slowdowns else None,
            slowdown_p95=percentile(slowdowns, 95),
        )
