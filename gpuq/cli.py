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

from gpuq import cancel, init, logs, nodes, policy, run, status, submit
from gpuq.config import Invocation, StoreFlags
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
)


def with_global_options_first(args: Sequence[str]) -> list[str]:
    """``args`` with the options that choose the store moved before the command's name.

    Nothing behind ``--`` is touched: that is somebody else's command.
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
        status.status(context, json=False, watch=False)


def _add(function: Callable[..., Any], *names: str, cls: Any = None, hidden: bool = False) -> None:
    """Register a command under its name; further names work too, but are not listed."""
    for place, name in enumerate(names):
        app.command(name, cls=cls, hidden=hidden or place > 0)(function)


_add(submit.submit, "submit", cls=submit.CommandAfterDashes)
_add(status.status, "status")
_add(logs.logs, "logs", "log")
_add(logs.wait, "wait")
_add(cancel.cancel, "cancel", "kill")
_add(cancel.hold, "hold")
_add(cancel.release, "release")
_add(nodes.nodes, "nodes")
_add(nodes.drain, "drain")
_add(nodes.undrain, "undrain")
app.add_typer(policy.app, name="policy", no_args_is_help=True)
app.add_typer(replay_app, name="replay")
_add(run.up, "up")
_add(run.supervisor, "supervisor")
_add(run.dispatcher, "dispatcher")
_add(run.worker, "worker", hidden=True)
_add(init.init, "init")
_add(init.doctor, "doctor")
