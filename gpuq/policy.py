"""``gpuq policy``: the agreement between organizations, checked, applied and shown.

Owns nothing of the file's grammar (``scheduling.policy_file``). A policy is applied as one
fact; the text as it was written is kept as a blob beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gpuq.client import open_client
from gpuq.render import epilog, local_time, print_json, printable, say
from gpuq.view import read_view
from ledger.errors import RequestError
from ledger.events import PolicyApplied
from ledger.policy import Policy
from ledger.writer import put_blob
from scheduling.policy_file import parse_policy
from scheduling.policy_text import format_policy

app = typer.Typer(help="The agreement between organizations: weights and pools.")

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A policy file; docs/POLICY.md shows one.")
]


@app.command(epilog=epilog("gpuq policy apply team.toml"))
def apply(context: typer.Context, file: File) -> None:
    """Make FILE the policy from the next page on."""
    text = _read(file)
    policy = parse_policy(text, source=printable(file))
    client = open_client(context)
    fact = PolicyApplied(
        policy=policy,
        at=client.store.clock_ms(),
        by=client.settings.user.value,
        source=put_blob(client.store, text.encode()),
    )
    client.send(fact, "the policy")
    print(f"applied: {_summary(policy)}")


@app.command(epilog=epilog("gpuq policy check team.toml"))
def check(file: File) -> None:
    """Say whether FILE is a policy; nothing is written."""
    print(f"ok: {_summary(parse_policy(_read(file), source=printable(file)))}")


@app.command(epilog=epilog("gpuq policy show > team.toml"))
def show(
    context: typer.Context,
    *,
    json: Annotated[bool, typer.Option("--json", help="Weights in thousandths.")] = False,
) -> None:
    """Show the policy in force, as a file that could be applied again."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    state = view.state
    if json:
        print_json({"version": state.policy_version, **msgspec.to_builtins(state.policy)})
        return
    if not state.policy_version:
        say("no policy yet: every organization has weight 1, pools are what workers declare")
        return
    when = local_time(state.policy_at, view.now_ms)
    print(f"# version {state.policy_version}, by {printable(state.policy_by)}, {when}")
    print(format_policy(state.policy), end="")


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{printable(file)} is not UTF-8: save it as such") from error
    except OSError as error:
        raise RequestError(f"cannot read {printable(file)}: {error.strerror}") from error


def _summary(policy: Policy) -> str:
    organizations, pools = len(policy.organizations), len(policy.pools)
    return (
        f"{organizations} organization{'' if organizations == 1 else 's'}, "
        f"{pools} pool{'' if pools == 1 else 's'}"
    )
