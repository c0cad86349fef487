"""``gpuq metrics``: waits, ends, attempts and costs of some time, for people and Prometheus.

Owns the reading of the journal for it and the three forms in which it is shown. What is
counted is ``scheduling.metrics``'s and ``scheduling.gaps``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from gpuq.client import Client, open_client
from gpuq.history import pages_after, parse_moment, state_before
from gpuq.prometheus import Family, Sample, exposition
from gpuq.render import (
    Cut,
    local_time,
    print_clauses,
    print_json,
    print_table,
    short_duration,
    times,
)
from ledger.errors import RequestError
from ledger.events import JobState
from ledger.state import State
from scheduling.followed import Followed
from scheduling.gaps import Gap, Gaps
from scheduling.metrics import DIMENSIONS, Group, Key, Metrics

PERCENTS = (50, 95, 99)


class Counted(NamedTuple):
    """All that was counted, and of what time."""

    by: tuple[str, ...]
    since_ms: int
    now_ms: int
    page_at: int
    groups: dict[Key, Group]
    gaps: dict[str, Gap]


def metrics(
    context: typer.Context,
    *,
    since: Annotated[
        str, typer.Option("--since", help="From when on: 24h (ago), or a local time.")
    ] = "24h",
    by: Annotated[
        str, typer.Option("--by", help="Group by these: org, class, pool, with commas between.")
    ] = "org,class,pool",
    json: Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")] = False,
    prometheus_text: Annotated[
        bool, typer.Option("--prometheus", help="Prometheus' text format 0.0.4.")
    ] = False,
) -> None:
    """Show waits, ends, retries, costs and fairness of the last day."""
    if json and prometheus_text:
        raise RequestError("--json and --prometheus are two forms: say one of them")
    dimensions = _dimensions(by)
    client = open_client(context)
    now_ms = client.store.clock_ms()
    counted = _count(client, dimensions, parse_moment(since, now_ms), now_ms)
    if json:
        print_json(_json(client, counted))
    elif prometheus_text:
        print(exposition(families(counted)), end="")
    else:
        _show(counted)


def _dimensions(text: str) -> tuple[str, ...]:
    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in DIMENSIONS]
    if unknown:
        raise RequestError(f"--by {unknown[0]!r} is none of {', '.join(DIMENSIONS)}")
    return tuple(name for name in DIMENSIONS if name in named)


def _count(client: Client, by: tuple[str, ...], since_ms: int, now_ms: int) -> Counted:
    state: State = state_before(client.store, client.ledger, since_ms)
    followed = Followed(state)
    counts = Metrics(followed, since_ms, by)
    gaps: Gaps | None = None
    for page, sha256 in pages_after(client.store, state.seq, now_ms):
        if gaps is None and page.at >= since_ms:
            gaps = Gaps(followed)
        followed.fold(page, sha256)
    worst = {} if gaps is None else dict(sorted(gaps.worst.items()))
    return Counted(by, since_ms, now_ms, state.at, counts.groups_at(now_ms), worst)


# --- tables

_WAITS = ("GROUP", "STARTED", "P50", "P95", "P99", "OVERDUE", "WAITING", "HELD", "LATE")
_ENDS = ("GROUP", "ENDED", "DONE", "FAILED", "CANCELLED", "OTHER", "ATTEMPTS", "RETRIED", "LOST")
_COSTS = (
    "GROUP", "ESTIMATED", "ACTUAL", "AFTER-CANCEL", "TOKENS-EST", "TOKENS", "CALLS", "429",
    "TIMEOUTS",
)  # fmt: skip
_CUTS = (Cut("GROUP", 8),)


def _show(counted: Counted) -> None:
    now_ms = counted.now_ms
    since = f"{local_time(counted.since_ms, now_ms)} to {local_time(now_ms, now_ms)}"
    page = local_time(counted.page_at, now_ms) if counted.page_at else "none yet"
    print_clauses([f"from {since}", f"newest page {page}"])
    if not counted.groups:
        print("nothing was submitted, started or ended in that time, and nothing waits")
        return
    for title, header, row in (
        ("waits before the first start, and what waits now", _WAITS, _waits_row),
        ("ends and attempts", _ENDS, _ends_row),
        ("cost of attempts that were settled: slot time, and tokens", _COSTS, _costs_row),
    ):
        print(f"\n{title}:")
        rows = [("/".join(key) or "all", *row(group)) for key, group in counted.groups.items()]
        print_table(header, rows, _CUTS)
    _show_gaps(counted)


def _show_gaps(counted: Counted) -> None:
    if not counted.gaps:
        return
    print("\nservice of two flows that both waited, worst difference beside its bound:")
    for pool, gap in counted.gaps.items():
        print(f"{pool}: {float(gap.ratio):.2f} of the bound")
        for flow in gap.flows:
            print(f"  {flow}")


def _waits_row(group: Group) -> tuple[str, ...]:
    found = (group.waits.percentile(percent) for percent in PERCENTS)
    return (
        str(group.started),
        *("-" if wait_ms is None else short_duration(wait_ms) for wait_ms in found),
        *(str(count) for count in (group.overdue, group.waiting, group.held, group.late)),
    )


def _ends_row(group: Group) -> tuple[str, ...]:
    done, failed = group.ended[JobState.COMPLETED], group.ended[JobState.FAILED]
    ended, cancelled = group.ended.total(), group.ended[JobState.CANCELLED]
    counts = (ended, done, failed, cancelled, ended - done - failed - cancelled, group.attempts)
    shares = (_percent(group.retries, group.attempts), _percent(group.lost, group.attempts))
    return (*map(str, counts), *shares)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _costs_row(group: Group) -> tuple[str, ...]:
    return (
        short_duration(group.slot_ms.estimated),
        short_duration(group.slot_ms.actual),
        short_duration(group.after_cancel_slot_ms) if group.after_cancel_slot_ms else "-",
        str(group.tokens.estimated),
        str(group.tokens.actual),
        str(group.calls),
        _percent(group.throttled, group.calls),
        _percent(group.timeouts, group.calls),
    )


# --- JSON


def _json(client: Client, counted: Counted) -> dict[str, Any]:
    return {
        "store": client.store.url,
        "ledger": client.ledger,
        **times(since_at=counted.since_ms, as_of=counted.now_ms, page_at=counted.page_at or None),
        "groups": [_group_json(counted.by, key, group) for key, group in counted.groups.items()],
        "gaps": [
            {"pool": pool, "gap_ratio": float(gap.ratio), "flows": list(gap.flows)}
            for pool, gap in counted.gaps.items()
        ],
    }


_LONG = {"org": "organization", "class": "class", "pool": "pool"}


def _group_json(by: tuple[str, ...], key: Key, group: Group) -> dict[str, Any]:
    return {
        **{_LONG[name]: value for name, value in zip(by, key, strict=True)},
        **{f"wait_p{percent}_ms": group.waits.percentile(percent) for percent in PERCENTS},
        "waited_overdue": group.overdue,
        "submitted": group.submitted,
        "started": group.started,
        "ended": {state.value: count for state, count in sorted(group.ended.items()) if count},
        "cancelled_before_start": group.cancelled_waiting,
        "cancelled_after_start": group.cancelled_started,
        "attempts": group.attempts,
        "retries": group.retries,
        "lost": group.lost,
        "cost_slot_ms": msgspec.to_builtins(group.slot_ms),
        "cost_tokens": msgspec.to_builtins(group.tokens),
        "after_cancel_slot_ms": group.after_cancel_slot_ms,
        "calls": group.calls,
        "throttled": group.throttled,
        "timeouts": group.timeouts,
        "waiting": group.waiting,
        "held": group.held,
        "overdue": group.late,
    }


# --- Prometheus


class _Families:
    """Collects the families of one reading."""

    def __init__(self, counted: Counted) -> None:
        self._labelled = [
            (dict(zip(counted.by, key, strict=True)), group)
            for key, group in counted.groups.items()
        ]
        self.families: list[Family] = []

    def add(self, name: str, told: str, samples: Iterable[tuple[dict[str, str], float]]) -> None:
        taken = tuple(Sample(labels=labels, value=value) for labels, value in samples)
        self.families.append(Family(name=name, help=told, samples=taken))

    def of(self, name: str, told: str, value: Callable[[Group], float]) -> None:
        """One sample for each group."""
        self.add(name, told, [(labels, value(group)) for labels, group in self._labelled])

    def split(
        self, name: str, told: str, label: str, values: Callable[[Group], Mapping[str, float]]
    ) -> None:
        """One sample for each group and value of a further label."""
        samples = [
            ({**labels, label: kind}, value)
            for labels, group in self._labelled
            for kind, value in values(group).items()
        ]
        self.add(name, told, samples)


def families(counted: Counted) -> list[Family]:
    """One gauge for each number: they rise and fall, as the time that they are of moves on."""
    kept = _Families(counted)
    window_s = (counted.now_ms - counted.since_ms) / 1000
    kept.add("window_seconds", "How much time the figures are of.", [({}, window_s)])
    kept.of("jobs_submitted", "Jobs that were submitted.", lambda g: g.submitted)
    kept.of("jobs_started", "Jobs whose first attempt started.", lambda g: g.started)
    kept.split(
        "wait_seconds",
        "Wait from the submit to the first start, by nearest rank.",
        "quantile",
        lambda g: {
            f"{percent / 100:g}": wait_ms / 1000
            for percent in PERCENTS
            if (wait_ms := g.waits.percentile(percent)) is not None
        },
    )
    kept.of(
        "waits_overdue", "Started jobs that waited beyond the wait target.", lambda g: g.overdue
    )
    kept.split(
        "jobs_ended",
        "Jobs that ended, by state.",
        "state",
        lambda g: {state.value: count for state, count in sorted(g.ended.items())},
    )
    kept.split(
        "jobs_cancelled",
        "Jobs that were cancelled, before or after their first start.",
        "when",
        lambda g: {"before_start": g.cancelled_waiting, "after_start": g.cancelled_started},
    )
    kept.of("attempts", "Attempts that were assigned.", lambda g: g.attempts)
    kept.split(
        "attempts_ratio",
        "Retries, and attempts that were lost, by attempts.",
        "of",
        lambda g: (
            {"retried": g.retries / g.attempts, "lost": g.lost / g.attempts} if g.attempts else {}
        ),
    )
    kept.split(
        "cost_slot_seconds",
        "Slot time of attempts that were settled.",
        "kind",
        lambda g: {"estimated": g.slot_ms.estimated / 1000, "actual": g.slot_ms.actual / 1000},
    )
    kept.split(
        "cost_tokens",
        "Tokens of attempts that were settled, output weighted.",
        "kind",
        lambda g: {"estimated": g.tokens.estimated, "actual": g.tokens.actual},
    )
    kept.of(
        "after_cancel_slot_seconds",
        "Slot time that attempts took after their job was cancelled.",
        lambda g: g.after_cancel_slot_ms / 1000,
    )
    kept.of("calls", "Calls of services that jobs reported.", lambda g: g.calls)
    kept.of("calls_throttled", "Answers 429 that jobs reported.", lambda g: g.throttled)
    kept.of("calls_timed_out", "Timeouts of calls that jobs reported.", lambda g: g.timeouts)
    kept.split(
        "jobs_queued",
        "Jobs that wait now, and that are held or put off.",
        "state",
        lambda g: {"PENDING": g.waiting, "HELD": g.held},
    )
    kept.of("jobs_overdue", "Jobs that wait now, beyond the wait target.", lambda g: g.late)
    kept.add(
        "service_gap_ratio",
        "Worst difference of the service of two flows that both waited, by its bound.",
        [({"pool": pool}, float(gap.ratio)) for pool, gap in counted.gaps.items()],
    )
    return kept.families
