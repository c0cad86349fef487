"""``gpuq policy``: the agreement between organizations, checked, applied and shown.

Owns nothing of the file's grammar (``scheduling.policy_file``). A policy is applied as one
fact; the text as it was written is kept as a blob beside it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from textwrap import fill
from typing import Annotated

import msgspec
import typer
from msgspec.structs import astuple

from gpuq.client import Client, open_client
from gpuq.history import pages_after, parse_moment, state_before
from gpuq.render import epilog, local_time, print_json, printable, say
from gpuq.view import View, read_view
from ledger.calibration import ONE, Calibration
from ledger.decisions import JobExpired, JobRejected
from ledger.errors import RequestError
from ledger.events import PolicyApplied, encode
from ledger.policy import Policy, Standing
from ledger.projection import Projection
from ledger.state import Job, State
from ledger.timings import DAY_MS
from ledger.writer import put_blob
from scheduling.admission import verdict_on
from scheduling.agreement import agreement, pool_terms
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


@app.command(epilog=epilog("gpuq policy check team.toml --against-ledger"))
def check(
    context: typer.Context,
    file: File,
    *,
    against_ledger: Annotated[
        bool, typer.Option("--against-ledger", help="Ask it about all jobs that wait.")
    ] = False,
) -> None:
    """Say whether FILE is a policy; nothing is written."""
    policy = parse_policy(_read(file), source=printable(file))
    print(f"ok: {_summary(policy)}")
    if against_ledger:
        client = open_client(context)
        view = read_view(client.load_journal(), client.settings.timings)
        waiting = [job for job in view.open_jobs() if job.state.queued]
        said = [(job, _would_say(view, policy, job)) for job in waiting]
        for job, what in said:
            if what:
                print(printable(f"{job.id} {job.spec.name}: {what}"))
        count = sum(1 for _, what in said if what)
        print(f"of {len(waiting)} jobs that wait it would have treated {count} otherwise")


def _would_say(view: View, policy: Policy, job: Job) -> str:
    """What would have become of a job that waits, had this policy been in force; or empty."""
    state = msgspec.structs.replace(view.state, policy=policy)
    fresh = Job(spec=job.spec, arrival=job.arrival, submitted_at=job.submitted_at)
    said = verdict_on(state, fresh, view.now_ms)
    if isinstance(said, JobRejected | JobExpired):
        return f"would be refused: {said.reason}"
    asked = job.spec if said is None else said
    standing = Standing(asked.organization, asked.workload_class)
    now = Standing(job.placed.organization, job.placed.workload_class)
    return "" if standing == now else f"would run as {'/'.join(astuple(standing))}"


@app.command(epilog=epilog("gpuq policy diff team.toml"))
def diff(context: typer.Context, file: File) -> None:
    """Show what FILE would change of the policy in force; exit 1 if anything."""
    policy = parse_policy(_read(file), source=printable(file))
    client = open_client(context)
    state = read_view(client.load_journal(), client.settings.timings).state
    # The ledger keeps names in their order, a file as they were written.
    posted = msgspec.json.decode(encode(policy), type=Policy)
    before, after = (format_policy(each).splitlines() for each in (state.policy, posted))
    name = f"version {state.policy_version}"
    lines = list(unified_diff(before, after, name, printable(file), lineterm="", n=1))
    for line in lines:
        print(line)
    if lines:
        raise typer.Exit(1)
    say("no difference")


@app.command(epilog=epilog("gpuq policy show > team.toml", "gpuq policy show --agreement"))
def show(
    context: typer.Context,
    *,
    at: Annotated[
        str | None, typer.Option("--at", help="The one in force then: 2h (ago), or a local time.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="The one of that number, from 1.")
    ] = None,
    as_agreement: Annotated[
        bool, typer.Option("--agreement", help="What it means, for people.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Weights in thousandths.")] = False,
) -> None:
    """Show the policy in force, as a file that could be applied again."""
    client = open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    if at is not None and version is not None:
        raise RequestError("say --at or --version, not both")
    state = view.state if at is None else _state_at(client, parse_moment(at, view.now_ms))
    if version is not None:
        state = _state_of_version(client, version)
    if as_agreement:
        _print_agreement(state.policy)
        return
    if json:
        known = msgspec.to_builtins(state.calibrations)
        policy = msgspec.to_builtins(state.policy)
        print_json({"version": state.policy_version, **policy, "calibrations": known})
        return
    if not state.policy_version:
        say("no policy yet: every organization has weight 1, pools are what workers declare")
        return
    when = local_time(state.policy_at, view.now_ms)
    print(f"# version {state.policy_version}, by {printable(state.policy_by)}, {when}")
    print(format_policy(state.policy), end="")
    for name, calibration in sorted(state.calibrations.items()):
        print(printable(f"# {name}: {_calibration_line(calibration)}"))


def _calibration_line(known: Calibration) -> str:
    """The factor of now, and the last of each of the newest days on which it moved."""
    days = ", ".join(
        f"{datetime.fromtimestamp(day * DAY_MS // 1000, UTC):%Y-%m-%d} {factor / ONE:.3f}"
        for day, factor in known.history
    )
    calls = f"{known.calls} call{'' if known.calls == 1 else 's'}"
    return f"estimates of tokens count {known.factor_ppm / ONE:.3f} times, after {calls} ({days})"


def _state_at(client: Client, at_ms: int) -> State:
    """The fold of all that was posted by then."""
    projection = Projection(state_before(client.store, client.ledger, at_ms))
    for page, sha256 in pages_after(client.store, projection.state.seq, at_ms):
        projection.apply(page, sha256)
    return projection.state


def _state_of_version(client: Client, version: int) -> State:
    """The fold of all up to the page that has the policy of that number, with this policy.

    A page may have several: the last one is in force after it. O(pages).
    """
    projection = Projection(State(ledger=client.ledger))
    for page, sha256 in pages_after(client.store, projection.state.seq):
        before = projection.state.policy_version
        if not projection.apply(page, sha256):
            continue
        applied = [posted.fact for posted in page.facts if isinstance(posted.fact, PolicyApplied)]
        if before < version <= before + len(applied):
            fact = applied[version - before - 1]
            return msgspec.structs.replace(
                projection.state,
                policy=fact.policy,
                policy_version=version,
                policy_by=fact.by,
                policy_at=fact.at,
            )
    raise RequestError(f"no version {version}: the newest is {projection.state.policy_version}")


def _print_agreement(policy: Policy) -> None:
    for name, terms in agreement(policy):
        print(printable(f"organization {name}"))
        for term in terms:
            print(fill(printable(term), 78, initial_indent="  ", subsequent_indent="    "))
    for name, pool in policy.pools.items():
        print(printable(f"pool {name}, for everybody"))
        print(fill("; ".join(pool_terms(pool)), 78, initial_indent="  ", subsequent_indent="    "))
    if not policy.organizations:
        say("it names no organization: each has weight 1, and whoever asks belongs to it")


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
