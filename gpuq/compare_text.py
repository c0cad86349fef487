"""How a comparison of policies reads: tables, what changed, and answers in words.

Owns the wording. All figures come from ``simulation.metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpuq.render import Cut, print_table, printable, say, short_duration
from simulation.metrics import Changes, Figures, Report
from simulation.workload import Question, Workload

_HEADER = (
    "POLICY", "NAME", "JOBS", "UNFINISHED", "P50", "P95", "P99", "MAX", "SERVED", "SHARE",
    "OWED", "GAP", "SLOWDOWN",
)  # fmt: skip
_TOTALS = (
    "POLICY", "JOBS", "UNFINISHED", "WORK LEFT", "WAIT", "MAX", "MAKESPAN", "USED", "CONTESTED",
    "JAIN", "GAP",
)  # fmt: skip


_CUTS = (Cut("NAME", 24), *(Cut(column, 0) for column in ("SLOWDOWN", "P99", "P50", "SERVED")))

_TOTALS_CUTS = tuple(Cut(column, 0) for column in ("MAKESPAN", "WORK LEFT", "CONTESTED"))

_MANY_HOURS = 24
"""More slot time than this is not told in days."""


def print_comparison(workload: Workload, reports: Sequence[Report]) -> None:
    """Everything, for people."""
    print(printable(workload.title))
    if workload.left_out:
        jobs = "1 job" if workload.left_out == 1 else f"{workload.left_out} jobs"
        say(f"gpuq: no run time is known of {jobs} of the source: left out")
    for made in reports:
        if made.refused_jobs:
            say(f"gpuq: {made.policy}: {made.refused_jobs} of the jobs are refused: no slots fit")
    print()
    print_table(_TOTALS, [_total(made) for made in reports], _TOTALS_CUTS)
    _print_groups("by flow", reports, lambda made: made.flows)
    _print_groups("by class", reports, lambda made: made.classes)
    _print_groups("by pool", reports, lambda made: made.pools)
    changed = [(made.policy, made.changed) for made in reports if made.changed is not None]
    if changed:
        print(f"\nstarts, against {changed[0][1].against}")
        for policy, change in changed:
            print(f"  {policy}: {_change(change)}")
    for answer in answers(workload, reports):
        print(f"\n{printable(answer.question)}")
        for policy, text in answer.answers.items():
            print(f"  {policy}: {text}")


class Answer(msgspec.Struct, frozen=True):
    """In words, by policy."""

    question: str
    answers: dict[str, str]


def answers(workload: Workload, reports: Sequence[Report]) -> list[Answer]:
    """The workload's questions, answered for each policy."""
    return [
        Answer(question.ask, {made.policy: _answer(question, made) for made in reports})
        for question in workload.questions
    ]


def _print_groups(
    title: str, reports: Sequence[Report], groups_of: Callable[[Report], Sequence[Figures]]
) -> None:
    """Of a division into one group the totals say all."""
    if max(len(groups_of(made)) for made in reports) < 2:
        return
    print(f"\n{title}")
    print_table(
        _HEADER, [_row(made.policy, group) for made in reports for group in groups_of(made)], _CUTS
    )


def _total(made: Report) -> list[str]:
    return [
        made.policy,
        str(made.jobs),
        str(made.unfinished_jobs),
        _slot_time(made.unfinished_slot_s),
        _time(made.total_wait_s),
        _time(made.max_wait_s),
        _time(made.makespan_s),
        _percent(made.utilisation),
        _time(made.contested_s),
        _number(made.jain_index),
        _number(made.gap_of_bound),
    ]


def _row(policy: str, group: Figures) -> list[str]:
    return [
        policy,
        group.name,
        str(group.jobs),
        str(group.jobs - group.finished),
        _time(group.wait_p50_s),
        _time(group.wait_p95_s),
        _time(group.wait_p99_s),
        _time(group.max_wait_s),
        _slot_time(group.served_slot_s),
        _percent(group.contested_share),
        _percent(group.owed_share),
        _number(group.gap_of_bound),
        _number(group.slowdown_mean),
    ]


def _change(change: Changes) -> str:
    parts = []
    for count, word, half, most in (
        (change.earlier, "earlier", change.earlier_p50_s, change.earlier_max_s),
        (change.later, "later", change.later_p50_s, change.later_max_s),
    ):
        by = f" (half of them by {_time(half)} or more, at most {_time(most)})" if count else ""
        parts.append(f"{count} {word}{by}")
    return f"{', '.join(parts)}, {change.same} at the same time"


def _answer(question: Question, made: Report) -> str:
    flows = [f for f in made.flows if f.name.split("/")[0] == question.organization]
    if not flows:
        return "it sent nothing"
    if question.figure == "wait":
        return "; ".join(_waits(flow) for flow in flows)
    if question.figure == "share":
        had = sum(flow.contested_share or 0.0 for flow in flows)
        owed = sum(flow.owed_share or 0.0 for flow in flows)
        return f"{_percent(had)} of the slots while they are contested; it is owed {_percent(owed)}"
    finished, jobs = sum(flow.finished for flow in flows), sum(flow.jobs for flow in flows)
    served = sum(flow.served_slot_s for flow in flows)
    asked = served + sum(flow.unfinished_slot_s for flow in flows)
    done = f"{finished} of its {jobs} jobs are done, {_percent(served / asked)} of its work"
    return f"{'yes' if finished else 'no'}: {done}"


def _waits(flow: Figures) -> str:
    never = flow.jobs - flow.started
    waits = (
        f"half of its jobs at most {_time(flow.wait_p50_s)}, 95% at most "
        f"{_time(flow.wait_p95_s)}, the longest {_time(flow.max_wait_s)}"
    )
    return f"{waits}; {never} of {flow.jobs} never start" if never else waits


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else short_duration(round(seconds * 1000))


def _slot_time(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}h" if hours >= _MANY_HOURS else _time(seconds)


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
