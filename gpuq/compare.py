"""``gpuq replay compare`` and ``whatif``: the same work under other rules.

Owns the options. What they mean is ``gpuq.comparison``, which is costly to import and so is
imported by the commands themselves.
"""

from __future__ import annotations

from typing import Annotated

import typer

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[SOURCE]",
        help="A scenario (abc, honest, starvation, teams, or a file .toml), a trace file, or "
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
    from gpuq import comparison

    choice = comparison.Choice(source=source, policy=policy, slots=slots, where=where)
    output = comparison.Output(plot=plot, json=json)
    comparison.compare(context, choice, policies, output)


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
    from gpuq import comparison

    choice = comparison.Choice(source=source, policy=policy, slots=slots, where=where)
    change = comparison.Change(
        weights=weights or [], add_node=add_node or [], drop_org=drop_org or []
    )
    comparison.whatif(context, choice, change, comparison.Output(plot=plot, json=json))
