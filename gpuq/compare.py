"""``gpuq replay compare`` and ``whatif``: the same work under other rules.

Owns the options and the reading of SOURCE: a scenario by name or file, a trace file, or a
ledger. The running is ``simulation.engine``, the figures ``simulation.metrics``, the showing
``gpuq.compare_text``. Nothing is written but the picture that ``--plot`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gpuq.client import connect, settings_of
from gpuq.compare_text import answers, print_comparison
from gpuq.config import Invocation, StoreFlags, read_settings
from gpuq.render import print_json, printable, say
from ledger.errors import RequestError
from ledger.policy import DISCIPLINES, WEIGHT_ONE, Organization, Policy
from scheduling.policy_file import WEIGHT_MAX, parse_policy
from simulation.engine import Outcome, simulate
from simulation.metrics import Report, changes, report
from simulation.recorded import recorded
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

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A scenario (abc, honest, starvation, or a file .toml), a trace file, or "
        " a ledger's store; else the ledger of --store.",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", min=1, help="One synthetic node of so many slots, for all jobs."),
]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Only jobs with these values: vc=7f04ca or org=a,class=batch."),
]
PolicyFile = Annotated[
    str | None, typer.Option("--policy", help="A policy file instead of the source's own policy.")
]
Json = Annotated[bool, typer.Option("--json", help="Stable JSON; see docs/CLI.md.")]
Plot = Annotated[
    str | None, typer.Option("--plot", help="Draw it to this file, .png or .svg (matplotlib).")
]


def compare(
    context: typer.Context,
    source: Source = None,
    *,
    policies: Annotated[
        str, typer.Option("--policies", help="Disciplines, in the order of the table.")
    ] = "fifo,strict,wfq,sfq",
    policy: PolicyFile = None,
    slots: Slots = None,
    where: Where = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Run the same jobs under several disciplines, in virtual time."""
    names = _disciplines(policies)
    workload = _workload(context, source, policy=policy, slots=slots, where=where)
    _check_plot(plot)
    outcomes = {name: simulate(workload, under(workload, name)) for name in names}
    first = outcomes[names[0]]
    starts = [job.recorded_start_ms for job in workload.jobs]
    against = "recorded"
    if all(start is None for start in starts):
        against, starts = names[0], [run.start_ms for run in first.runs]
    reports = []
    for name, outcome in outcomes.items():
        made = report(name, outcome)
        if name != against:
            made.changed = changes(against, starts, outcome)
        reports.append(made)
    _show(workload, reports, outcomes, source=source, plot=plot, json=json)


def whatif(
    context: typer.Context,
    source: Source = None,
    *,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="Of organizations: vision=8,nlp=2.")
    ] = None,
    add_node: Annotated[
        list[str] | None, typer.Option("--add-node", help="One more node: 8xh100 or 8xh100@POOL.")
    ] = None,
    drop_org: Annotated[
        list[str] | None, typer.Option("--drop-org", help="Without the jobs of an organization.")
    ] = None,
    policy: PolicyFile = None,
    slots: Slots = None,
    where: Where = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Run the same jobs as they are and under a change, in virtual time."""
    if not (weights or add_node or drop_org):
        raise RequestError("nothing would change: say --weights, --add-node or --drop-org")
    workload = _workload(context, source, policy=policy, slots=slots, where=where)
    _check_plot(plot)
    changed = workload
    for text in add_node or ():
        changed = with_node(changed, text)
    for name in drop_org or ():
        changed = without_organization(changed, name)
    changed = msgspec.structs.replace(changed, policy=_weighted(changed, weights or ()))
    outcomes = {"as it is": simulate(workload), "changed": simulate(changed)}
    before = [
        run.start_ms
        for run in outcomes["as it is"].runs
        if run.job.organization not in (drop_org or ())
    ]
    reports = [report(name, outcome) for name, outcome in outcomes.items()]
    reports[1].changed = changes("as it is", before, outcomes["changed"])
    _show(workload, reports, outcomes, source=source, plot=plot, json=json)


def _show(
    workload: Workload,
    reports: Sequence[Report],
    outcomes: dict[str, Outcome],
    *,
    source: str | None,
    plot: str | None,
    json: bool,
) -> None:
    if plot is not None:
        from simulation.plots import draw

        draw(outcomes, Path(plot))
    if json:
        print_json(_as_json(workload, reports, source))
    else:
        print_comparison(workload, reports)
    if plot is not None:
        say(f"gpuq: drawn to {plot}")


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


def _workload(
    context: typer.Context,
    source: str | None,
    *,
    policy: str | None,
    slots: int | None,
    where: str | None,
) -> Workload:
    workload = selected(_read(context, source), _conditions(where))
    if policy is not None:
        workload = msgspec.structs.replace(workload, policy=_policy(Path(policy)))
    if slots is not None:
        return on_counting_pool(workload, slots)
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
