"""``gpuq submit``: from scripts or a command to jobs in the ledger.

Owns the checks that happen before anything is written, and the order of writing: the
script's blob, then the submit fact, and "submitted" only after its acknowledgement. What may
be asked for stands in ``gpuq/joboptions.py``. The environment of the submitter does not
travel; ``--env`` does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from gpuq.client import Client, connect, invocation_of, open_client, settings_of
from gpuq.config import Setting
from gpuq.directives import said_by_script
from gpuq.joboptions import (
    CHDIR,
    CLASS,
    ENV,
    JOB_OPTIONS,
    KEY,
    NAME,
    ORG,
    POOL,
    WORKER_PIN,
    refuse_contradictions,
)
from gpuq.logs import wait_for
from gpuq.options import Choices, Layer, Option, Said, said_by_variables, takes
from gpuq.projectfile import PROJECT_FILE, said_by_project
from gpuq.render import print_json, printable, say
from gpuq.script import Body, bodies_of
from gpuq.selectors import remember_last
from gpuq.submittext import Wish, explain_wish, hint, job_json
from gpuq.view import View, read_view
from ledger.decisions import JobAdmitted
from ledger.errors import RequestError, TransientError
from ledger.events import JobSpec, Submitted
from ledger.names import WorkerName, keyed_job_id, new_job_id
from ledger.state import Job, digest_of
from ledger.writer import put_blob
from scheduling.admission import verdict_on

_COMMAND = "gpuq.command"


class CommandAfterDashes(TyperCommand):
    """Keeps what stands behind ``--`` apart; click would mix it with the scripts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@takes(JOB_OPTIONS)
def submit(
    context: typer.Context,
    scripts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT",
            help="Script files, one job each. A command goes behind --.",
            show_default=False,
        ),
    ] = None,
    *,
    parsable: Annotated[
        bool, typer.Option("--parsable", "-q", help="Only the ids on stdout.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Check, write nothing.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-W", help="Until they have ended; exit with their code.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each value and where it came from.")
    ] = False,
    **said: Any,
) -> None:
    """Submit script files, or the command behind --."""
    bodies = bodies_of(scripts or [], context.meta.get(_COMMAND, ()))
    asked = _asked(context, bodies, said)
    client = connect(settings_of(context)) if dry_run else open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    wishes = [
        _wish(client, view, body, choices) for body, choices in zip(bodies, asked, strict=True)
    ]
    for wish in wishes:
        _check(view, wish.spec)
    for wish in wishes:
        if explain:
            explain_wish(view, wish, client.settings)
    if not dry_run:
        for line in dict.fromkeys(line for wish in wishes for line in hint(view, wish.spec)):
            say(line)
    shown = []
    for wish in wishes:
        spec = wish.spec
        outcome = "checked" if dry_run else _submit(client, view, wish)
        if not json:
            print(
                spec.id if parsable else printable(f"{outcome} {spec.id} {spec.name}"), flush=True
            )
        shown.append(job_json(spec, outcome))
    if json:
        print_json(shown)
    if wait and not dry_run:
        sys.stdout.flush()
        raise typer.Exit(wait_for(client, [wish.spec.id for wish in wishes]))


def wish_for(
    context: typer.Context, client: Client, view: View, body: Body, said: Mapping[str, Any]
) -> Wish:
    """What the command whose context this is would submit, with ``said`` as its flags."""
    (choices,) = _asked(context, [body], said)
    return _wish(client, view, body, choices)


def submit_wish(client: Client, view: View, wish: Wish) -> str:
    """Check one job and write it; as ``_submit``, and prints no data."""
    _check(view, wish.spec)
    return _submit(client, view, wish)


# --- what is asked for


def _asked(
    context: typer.Context, bodies: Sequence[Body], flags: Mapping[str, Any]
) -> list[Choices]:
    """What the user chose for each body, before anything is asked of the ledger."""
    above: list[Layer] = [
        [Said("", flags)],
        said_by_variables(JOB_OPTIONS, invocation_of(context).environ),
    ]
    below: list[Layer] = [said_by_project(JOB_OPTIONS, Path(PROJECT_FILE))]
    if len(bodies) > 1:
        _refuse_for_several(Choices(JOB_OPTIONS, [*above, *below]))
    asked = []
    for body in bodies:
        script = said_by_script(body.script, body.path, partial(_values, context))
        choices = Choices(JOB_OPTIONS, [*above, *script, *below])
        refuse_contradictions(choices)
        asked.append(choices)
    return asked


def _values(context: typer.Context, words: Sequence[str]) -> Mapping[str, Any]:
    """What this command's parser makes of a directive's words, by parameter."""
    command: Any = context.command
    values, _, _ = command.make_parser(context).parse_args(list(words))
    of_jobs = {option.parameter for option in JOB_OPTIONS}
    for parameter in command.get_params(context):
        given = values.get(parameter.name)
        if given and parameter.name not in of_jobs:
            what = parameter.opts[0] if parameter.opts[0].startswith("-") else repr(given[0])
            raise RequestError(f"{what} is not an option of a job: leave it out of the script")
    return {name: value for name, value in values.items() if name in of_jobs}


def _refuse_for_several(shared: Choices) -> None:
    for option in (NAME, KEY):
        if shared[option]:
            raise RequestError(f"{option.flags[0]} names one job: submit these scripts one by one")


def _wish(client: Client, view: View, body: Body, choices: Choices) -> Wish:
    organization = _setting(choices, ORG, client.settings.organization)
    pool = _setting(choices, POOL, _default_pool(client, view, choices[WORKER_PIN]))
    workload_class = _workload_class(view, choices)
    variables = choices[ENV]
    if choices[KEY]:
        job = keyed_job_id(client.ledger, organization.value, choices[KEY])
    else:
        job = new_job_id(client.rng)
    spec = JobSpec(
        **choices.fields(client.store.clock_ms()),
        id=job,
        name=choices[NAME] or body.name,
        organization=organization.value,
        workload_class=workload_class.value,
        pool=pool.value,
        user=client.settings.user.value,
        host=client.settings.host,
        script=hashlib.sha256(body.script).hexdigest() if body.script else "",
        argv=body.argv,
        cwd=choices[CHDIR] or _current_directory(),
        env=dict(variables),
    )
    return Wish(
        body=body, choices=choices, spec=spec, organization=organization, pool=pool,
        workload_class=workload_class,
    )  # fmt: skip


def _setting(choices: Choices, option: Option[str], otherwise: Setting) -> Setting:
    if choices.is_said(option):
        return Setting(choices[option], choices.source(option))
    return otherwise


def _default_pool(client: Client, view: View, worker: str) -> Setting:
    known = view.state.workers.get(WorkerName(worker))
    if known is not None and known.pool:
        return Setting(known.pool, "--worker")
    return client.settings.pool


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise RequestError("the current directory is gone: use --chdir") from error


def _workload_class(view: View, choices: Choices) -> Setting:
    name = choices[CLASS]
    known = view.state.policy.classes
    if name in known or not choices.is_said(CLASS):
        return Setting(name, choices.source(CLASS))
    workers = view.state.workers.values()
    pools = {worker.pool for worker in workers} | set(view.state.policy.pools)
    gpus = {worker.slot.gpu_name.lower() for worker in workers}
    classes = f"a class is one of {', '.join(known)}"
    if name in pools:
        raise RequestError(f"{name!r} is a pool, no class: say --pool {name} ({classes})")
    if any(name.lower() in gpu for gpu in gpus):
        raise RequestError(f"{name!r} is a kind of GPU, no class: say --gpus {name}:1 ({classes})")
    raise RequestError(f"{name!r} is no class ({classes}); if it is a pool, say --pool {name}")


# --- what speaks against it


def _check(view: View, spec: JobSpec) -> None:
    """Raise RequestError for what would be rejected, or is another job under the same key."""
    for field in ("name", "argv", "cwd", "env", "key", "user"):
        try:
            msgspec.json.encode(getattr(spec, field))
        except UnicodeEncodeError as error:
            raise RequestError(f"{field} is not UTF-8: use another spelling") from error
    conflict = _conflict(view, spec)
    if conflict:
        raise RequestError(conflict)
    now_ms = view.now_ms
    job = Job(spec=spec, arrival=0, submitted_at=now_ms)
    verdict = verdict_on(view.state, job, now_ms)
    if isinstance(verdict, JobAdmitted):
        say(f"it will run as {verdict.organization}/{verdict.workload_class}: so the policy says")
    elif verdict is not None:
        raise RequestError(verdict.reason)


def _conflict(view: View, spec: JobSpec) -> str:
    known = view.state.jobs.get(spec.id)
    archived = view.state.archive.get(spec.id)
    if known is not None and digest_of(known.spec) != digest_of(spec):
        differing = [
            name
            for name in JobSpec.__struct_fields__
            if name != "host" and getattr(known.spec, name) != getattr(spec, name)
        ]
        return (
            f"the key {spec.key!r} already stands for {spec.id}, which differs in "
            f"{', '.join(differing)}: use another key"
        )
    if archived is not None and archived.digest != digest_of(spec):
        return f"the key {spec.key!r} already stands for another job, {spec.id}: use another key"
    return ""


# --- writing


def _submit(client: Client, view: View, wish: Wish) -> str:
    """Write one job, unless the job of its key is there; which of the two, in words."""
    spec, outcome = wish.spec, "already submitted"
    if spec.id not in view.state.jobs and spec.id not in view.state.archive:
        _put_script(client, wish.body)
        fact = Submitted(at=client.store.clock_ms(), job=spec)
        client.send(fact, f"the submit of {spec.id} ({spec.name})")
        outcome = "submitted"
    remember_last(client, spec.id)
    return outcome


def _put_script(client: Client, body: Body) -> None:
    if not body.script:
        return
    try:
        put_blob(client.store, body.script)
    except TransientError as error:
        raise TransientError(f"{error}; {body.name} was not submitted: try again") from error
