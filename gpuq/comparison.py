"""What ``gpuq replay compare`` and ``whatif`` do.

Owns the reading of SOURCE (a scenario by name or file, a trace file, or a ledger), of the
changes, and the order of work. The running is ``simulation.engine``, the figures
``simulation.metrics``, the showing ``gpuq.compare_text``. Nothing is written but the picture
that ``--plot`` names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import typer

from gpuq.client import connect, settings_of
from gpuq.compare_text import answers, print_comparison
from gpuq.config import Invocation, StoreFlags, read_settings
from gpuq.render import print_json, printable, say
from ledger.errors import RequestError
from ledger.policy import DISCIPLINES, WEIGHT_ONE, Organization, Policy
from scheduling.policy_file import parse_policy
from scheduling.policy_table import WEIGHT_MAX
from simulation.engine import Outcome, simulate
from simulation.metrics import Report, changes, report
from simulation.recorded import as_it_was, recorded
from simulation.scenario import named_scenario, parse_scenario, scenario_names
from simulation.traces import read_trace
from simulation.workload import (
    Workload,
    on_counting_pool,
    selected,
    under,
    with_node,
    without_organization,
)

AS_IT_IS = "as it is"

RECORDED = "recorded"
"""What really happened."""

MANY_JOBS = 5_000
"""With so many a run takes long enough to say on a terminal that it goes on."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is run: as the options say, None where they say nothing."""

    source: str | None
    policy: str | None
    slots: int | None
    where: str | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What ``whatif`` changes, as it was typed."""

    weights: list[str]
    add_node: list[str]
    drop_org: list[str]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Where it goes; ``plot`` is None where nothing is drawn."""

    plot: str | None
    json: bool


def compare(context: typer.Context, choice: Choice, policies: str, output: Output) -> None:
    """Run the workload under each of ``policies`` (names, commas between) and show it."""
    names = _disciplines(policies)
    workload = _workload(context, choice)
    _check_plot(output.plot)
    outcomes = {name: _run(name, workload, under(workload, name)) for name in names}
    against = RECORDED
    was = as_it_was(workload)
    if was is not None:
        outcomes = {RECORDED: was, **outcomes}
    starts = [job.recorded_start_ms for job in workload.jobs]
    if all(start is None for start in starts):
        against, starts = names[0], [run.start_ms for run in outcomes[names[0]].runs]
    reports = []
    for name, outcome in outcomes.items():
        made = report(name, outcome)
        if name != against:
            made.changed = changes(against, starts, outcome)
        reports.append(made)
    _show(choice, output, reports, outcomes)


def whatif(context: typer.Context, choice: Choice, change: Change, output: Output) -> None:
    """Run the workload under its own policy, as it is and changed, and show both."""
    if not (change.weights or change.add_node or change.drop_org):
        raise RequestError("nothing would change: say --weights, --add-node or --drop-org")
    workload = _workload(context, choice)
    _check_plot(output.plot)
    changed = msgspec.structs.replace(workload, policy=_weighted(workload, change.weights))
    for text in change.add_node:
        changed = with_node(changed, text)
    for name in change.drop_org:
        changed = without_organization(changed, name)
    outcomes = {
        AS_IT_IS: _run(AS_IT_IS, workload, workload.policy),
        "changed": _run("changed", changed, changed.policy),
    }
    before = [
        run.start_ms
        for run in outcomes[AS_IT_IS].runs
        if run.job.organization not in change.drop_org
    ]
    reports = [report(name, outcome) for name, outcome in outcomes.items()]
    reports[1].changed = changes(AS_IT_IS, before, outcomes["changed"])
    _show(choice, output, reports, outcomes)


def _run(name: str, workload: Workload, policy: Policy) -> Outcome:
    if len(workload.jobs) >= MANY_JOBS and sys.stderr.isatty():
        say(f"gpuq: {name}: running {len(workload.jobs)} jobs")
    return simulate(workload, policy)


def _show(
    choice: Choice, output: Output, reports: Sequence[Report], outcomes: Mapping[str, Outcome]
) -> None:
    workload = next(iter(outcomes.values())).workload
    if output.plot is not None:
        from simulation.plots import draw

        draw(outcomes, Path(output.plot))
    if output.json:
        print_json(_as_json(workload, reports, choice.source))
    else:
        print_comparison(workload, reports)
    if output.plot is not None:
        say(f"gpuq: drawn to {output.plot}")


def _as_json(workload: Workload, reports: Sequence[Report], source: str | None) -> dict[str, Any]:
    has_clusters = any("vc" in job.columns for job in workload.jobs[:1])
    cluster = {"jobs_of_vc": workload.where.get("vc", "all")} if has_clusters else {}
    return {
        "source": source,
        "title": workload.title,
        "where": workload.where,
        "left_out": workload.left_out,
        "policies": [{**cluster, **msgspec.to_builtins(made)} for made in reports],
        "answers": msgspec.to_builtins(answers(workload, reports)),
    }


def _disciplines(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in DISCIPLINES]
    if unknown:
        raise RequestError(f"no policy {unknown[0]!r}; policies are {', '.join(DISCIPLINES)}")
    return names


def _workload(context: typer.Context, choice: Choice) -> Workload:
    workload = _read(context, choice.source)
    if not workload.jobs:
        raise RequestError("no job of the source has run to an end: there is nothing to run again")
    workload = selected(workload, _conditions(choice.where))
    if choice.policy is not None:
        workload = msgspec.structs.replace(workload, policy=_policy(Path(choice.policy)))
    if choice.slots is not None:
        return on_counting_pool(workload, choice.slots)
    if not workload.slots:
        raise RequestError("the source says nothing of slots: say --slots N")
    return workload


def _read(context: typer.Context, source: str | None) -> Workload:
    if source in scenario_names():
        return named_scenario(str(source))
    path = Path(source) if source is not None else None
    if path is not None and path.is_file():
        if path.suffix == ".toml":
            return parse_scenario(_text(path), source=printable(str(path)))
        return read_trace(path)
    if source is None:
        client = connect(settings_of(context))
    elif "://" in source or (path is not None and path.is_dir()):
        client = connect(_settings_with_store(context, source))
    else:
        raise RequestError(
            f"{source!r} is no scenario ({', '.join(scenario_names())}), file, folder or store"
        )
    return recorded(client.store, client.ledger)


def _settings_with_store(context: typer.Context, url: str) -> Any:
    invocation = context.obj
    assert isinstance(invocation, Invocation)
    flags: StoreFlags = msgspec.structs.replace(invocation.flags, store=url)
    return read_settings(flags, invocation.environ)


def _conditions(where: str | None) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in where.split(",")] if where else []
    for name, equals, value in pairs:
        if not (name and equals):
            raise RequestError(f"--where {where}: say COLUMN=VALUE, not {name + value!r}")
    return {name: value for name, _, value in pairs}


def _policy(path: Path) -> Policy:
    return parse_policy(_text(path), source=printable(str(path)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {printable(str(path))}: {error}") from error


def _weighted(workload: Workload, texts: Iterable[str]) -> Policy:
    """The workload's policy with other weights of organizations."""
    organizations = dict(workload.policy.organizations)
    for pair in (pair for text in texts for pair in text.split(",")):
        name, _, value = pair.partition("=")
        if all(job.organization != name for job in workload.jobs):
            raise RequestError(f"--weights {pair}: no job is of organization {name!r}")
        known = organizations.get(name, Organization())
        organizations[name] = msgspec.structs.replace(known, weight=_weight(pair, value))
    return msgspec.structs.replace(workload.policy, organizations=organizations)


def _weight(pair: str, value: str) -> int:
    try:
        exact = Decimal(value) * WEIGHT_ONE
    except InvalidOperation:
        exact = Decimal(0)
    if not exact.is_finite() or not 1 <= exact <= WEIGHT_MAX * WEIGHT_ONE or exact % 1:
        raise RequestError(f"--weights {pair}: say NAME=WEIGHT, from 0.001 to {WEIGHT_MAX}")
    return int(exact)


def _check_plot(plot: str | None) -> None:
    """Before minutes are spent on what could not be drawn."""
    if plot is None:
        return
    if Path(plot).suffix not in (".png", ".svg"):
        raise RequestError(f"--plot {plot}: the file's name must end in .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RequestError("--plot needs matplotlib: pip install 'gpuq-ledger[plot]'") from error
