"""The assembly of the commands; nothing here does any work.

Owns the options that choose the store, which may stand anywhere before ``--``, and what
bare ``gpuq`` means. Modules that are costly to import (boto3, NVML, rich) are imported by
the commands that need them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated, Any

import typer

from gpuq import (
    cancel,
    completion,
    export,
    fetch,
    importpending,
    init,
    logs,
    metrics,
    nodes,
    operate,
    policy,
    run,
    status,
    submission,
    why,
)
from gpuq.audit import audit_app
from gpuq.config import Invocation, StoreFlags
from gpuq.render import epilog
from gpuq.replay import replay_app

GLOBAL_OPTIONS = ("--store", "--endpoint-url", "--region", "--ca-bundle")

app = typer.Typer(
    name="gpuq",
    help="A GPU job queue whose only shared medium is an S3 bucket or a folder.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="\b\nTo begin: 'gpuq up' in one terminal, in another 'gpuq submit -- echo hello',\n"
    "then 'gpuq status' and 'gpuq logs last'.",
)


def with_global_options_first(args: Sequence[str]) -> list[str]:
    """``args`` with the options that choose the store moved before the command's name.

    Nothing behind ``--`` or ``submit`` is touched: that may be somebody else's command, and
    submit reads these options itself.
    """
    end = args.index("--") if "--" in args else len(args)
    first: list[str] = []
    rest: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word in GLOBAL_OPTIONS:
            first.append(word)
            first.extend(value for value in [next(words, None)] if value is not None)
        elif word.partition("=")[0] in GLOBAL_OPTIONS:
            first.append(word)
        else:
            rest.append(word)
            if rest == ["submit"]:
                rest.extend(words)
    return [*first, *rest, *args[end:]]


def _version(value: bool) -> None:
    if value:
        print(f"gpuq {metadata.version('gpuq-ledger')}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    *,
    store: Annotated[
        str | None,
        typer.Option("--store", help="s3://bucket/prefix or a folder; else GPUQ_STORE."),
    ] = None,
    endpoint_url: Annotated[
        str | None, typer.Option("--endpoint-url", help="Of an S3 server that is not AWS.")
    ] = None,
    region: Annotated[str | None, typer.Option("--region", help="Of the bucket.")] = None,
    ca_bundle: Annotated[
        str | None, typer.Option("--ca-bundle", help="Certificates to trust, a PEM file.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """A GPU job queue whose only shared medium is an S3 bucket or a folder."""
    flags = StoreFlags(store=store, endpoint_url=endpoint_url, region=region, ca_bundle=ca_bundle)
    context.obj = Invocation(flags=flags, environ=os.environ)
    if context.invoked_subcommand is None:
        status.status(context)


def _add(
    function: Callable[..., Any],
    *names: str,
    short: str,
    examples: Sequence[str],
    cls: Any = None,
) -> None:
    """Register a command under its name; further names work too, but are not listed.

    ``short`` is what the list of commands says: 45 characters are shown at 80 columns.
    """
    for place, name in enumerate(names):
        app.command(name, cls=cls, hidden=place > 0, short_help=short, epilog=epilog(*examples))(
            function
        )


_add(
    submission.submit,
    "submit",
    cls=submission.SubmitCommand,
    short="Submit script files, or a command.",
    examples=[
        "gpuq submit train.sh eval.sh",
        "gpuq submit --name train --gpus h100:2 --time 8h python3 train.py --lr 1e-3",
    ],
)
_add(
    status.status,
    "status",
    short="Show what runs, waits (and why) and ended.",
    examples=["gpuq status --watch", "gpuq status --state failed --since 2h", "gpuq status last"],
)
_add(
    why.why,
    "why",
    short="Say why a job waits, or waited.",
    examples=["gpuq why last", "gpuq why train --at 2h"],
)
_add(
    logs.logs,
    "logs",
    "log",
    short="Show what a job wrote.",
    examples=["gpuq logs -f train", "gpuq logs -n 20 last"],
)
_add(
    logs.wait,
    "wait",
    short="Wait for jobs; exit with their exit code.",
    examples=["gpuq wait $(gpuq submit -q a.sh b.sh)"],
)
_add(
    fetch.fetch,
    "fetch",
    short="Get the files that a job left (--output).",
    examples=["gpuq fetch last", "gpuq fetch train results/"],
)
_add(
    cancel.cancel,
    "cancel",
    "kill",
    short="End jobs that wait or run.",
    examples=["gpuq cancel train --reason 'wrong data'"],
)
_add(
    cancel.cancelled,
    "cancelled",
    short="Inside a job: whether it is to end.",
    examples=["gpuq cancelled && exit 75"],
)
_add(cancel.hold, "hold", short="Keep waiting jobs from starting.", examples=["gpuq hold train"])
_add(cancel.release, "release", short="Let held jobs go on.", examples=["gpuq release train"])
_add(nodes.nodes, "nodes", short="Show nodes, workers and GPUs.", examples=["gpuq nodes --all"])
_add(
    metrics.metrics,
    "metrics",
    short="Show waits, retries, costs and fairness.",
    examples=["gpuq metrics --since 1h --by class", "gpuq metrics --prometheus"],
)
_add(
    operate.move,
    "move",
    short="Have jobs that wait run elsewhere.",
    examples=["gpuq move train --pool h100", "gpuq move --from node1 --worker node2-gpu0"],
)
_add(
    operate.retry,
    "retry",
    short="Give ended jobs a further attempt.",
    examples=["gpuq retry train"],
)
_add(
    operate.drain,
    "drain",
    short="Let a node finish and start nothing new.",
    examples=["gpuq drain node1 --reason 'new disk'", "gpuq drain node1 --now"],
)
_add(
    operate.undrain,
    "undrain",
    short="Let a drained node start jobs again.",
    examples=["gpuq undrain node1"],
)
app.add_typer(
    policy.app,
    name="policy",
    short_help="Weights of organizations, and pools.",
    epilog=epilog("gpuq policy show", "gpuq policy apply team.toml"),
)
_add(
    run.up,
    "up",
    short="Run jobs on this machine.",
    examples=["gpuq up", "gpuq up --node node1 --gpus 0,1 --pool h100", "gpuq up --slots 2"],
)
_add(
    run.supervisor,
    "supervisor",
    short="The same as 'up', for service managers.",
    examples=["gpuq supervisor --gpus all --pool h100 --no-dispatch"],
)
_add(
    run.dispatcher,
    "dispatcher",
    short="Lead where nobody else does; run no jobs.",
    examples=["gpuq dispatcher --node head"],
)
app.command("worker", hidden=True)(run.worker)
_add(
    init.init,
    "init",
    short="Choose a store, and make a ledger in it.",
    examples=[
        "gpuq init s3://bucket/prefix --endpoint-url https://s3.example.com",
        "gpuq init /mnt/shared/gpuq",
    ],
)
_add(
    init.doctor,
    "doctor",
    short="Ask whether the store can hold a ledger.",
    examples=["gpuq doctor --store s3://bucket/prefix"],
)
_add(
    importpending.import_pending,
    "import-pending",
    short="Take over what waits for earlier scripts.",
    examples=[
        "gpuq import-pending s3://bucket/gpuq --dry-run",
        "gpuq import-pending s3://bucket/gpuq --map a100box=node1-gpu0 --map big=h100",
    ],
)
app.add_typer(audit_app, name="audit", short_help="Who used what, at what cost, how fairly.")
_add(
    export.export,
    "export",
    short="Write jobs, attempts or slot time as a table.",
    examples=[
        "gpuq export jobs > jobs.csv",
        "gpuq export usage --format parquet -o usage.parquet --from 30d",
    ],
)
_add(
    completion.completion,
    "completion",
    short="Make a shell complete jobs, nodes and options.",
    examples=[
        'eval "$(gpuq completion bash)"',
        "gpuq completion fish > ~/.config/fish/completions/gpuq.fish",
    ],
)
app.command("complete", hidden=True)(completion.complete)
app.add_typer(
    replay_app,
    name="replay",
    short_help="Verify a ledger; compare policies on it.",
    epilog=epilog("gpuq replay verify", "gpuq replay compare abc"),
)
