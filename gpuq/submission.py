"""``gpuq submit``: from scripts or a command to jobs in the ledger.

Owns the checks that happen before anything is written, and the order of writing: the snapshot
and the script's blob, then the submit fact, and "submitted" only after its acknowledgement.
What may be asked for stands in ``gpuq/joboptions.py``. The environment of the submitter does
not travel; ``--env`` does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from gpuq.after import dependencies
from gpuq.arrays import array_of
from gpuq.client import Client, connect, invocation_of, open_client, settings_of
from gpuq.config import Setting, StoreFlags
from gpuq.directives import said_by_script
from gpuq.joboptions import (
    AFTER,
    AFTER_ARTIFACT,
    CHDIR,
    CLASS,
    EXCLUDE,
    JOB_OPTIONS,
    KEY,
    NAME,
    ORG,
    POOL,
    SNAPSHOT,
    WORKER_PIN,
    refuse_contradictions,
    variables_of,
)
from gpuq.logs import wait_for
from gpuq.options import Choices, Layer, Option, Said, said_by_variables, takes
from gpuq.projectfile import PROJECT_FILE, said_by_project
from gpuq.render import print_json, printable, say
from gpuq.script import DASHES, Body, bodies_of
from gpuq.selectors import remember_last
from gpuq.snapshot import Packing
from gpuq.submittext import Wish, explain_wish, hint, job_json
from gpuq.view import View, read_view
from ledger.decisions import JobAdmitted
from ledger.errors import RequestError, TransientError
from ledger.events import ArraySubmitted, JobSpec, Submitted
from ledger.names import WorkerName, keyed_job_id, new_job_id
from ledger.state import Job, digest_of
from ledger.words import long_words
from ledger.writer import put_blob
from scheduling.admission import verdict_on

ARGUMENT_MAX_BYTES = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN without the NUL at the end."""
ARGUMENTS_MAX_BYTES = 1024 * 1024
"""Half of what Linux takes by default (a quarter of the stack limit); the node adds its own."""

_BEHIND_DASHES = "gpuq.behind_dashes"


class SubmitCommand(TyperCommand):
    """Its options end at the first word that is none; all from there on belongs to the job.

    Keeps whether that word stood behind ``--``, which click drops.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        begin = len(given) - len(ctx.params["words"] or ())
        ctx.meta[_BEHIND_DASHES] = given[max(0, begin - 1) : begin] == [DASHES]
        return rest


@takes(JOB_OPTIONS)
def submit(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT|COMMAND",
            help="Script files, one job each; or a script or a command with its arguments.",
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
    store: Annotated[str | None, typer.Option("--store", hidden=True)] = None,
    endpoint_url: Annotated[str | None, typer.Option("--endpoint-url", hidden=True)] = None,
    region: Annotated[str | None, typer.Option("--region", hidden=True)] = None,
    ca_bundle: Annotated[str | None, typer.Option("--ca-bundle", hidden=True)] = None,
    **said: Any,
) -> None:
    """Submit script files, or a command; gpuq's own options go before them."""
    context.obj = invocation_of(context).with_flags(
        StoreFlags(store=store, endpoint_url=endpoint_url, region=region, ca_bundle=ca_bundle)
    )
    environ = invocation_of(context).environ
    behind_dashes = context.meta[_BEHIND_DASHES]
    Choices(JOB_OPTIONS, [[Said("", said)]])  # first what is wrong with a flag, if something is
    bodies = bodies_of(words or [], is_command=behind_dashes)
    if not behind_dashes:
        _tell_of_own_options(context, bodies, words or [])
    asked = _asked(context, bodies, said)
    client = connect(settings_of(context)) if dry_run else open_client(context)
    view = read_view(client.load_journal(), client.settings.timings)
    packing = Packing()
    wishes = [
        _wish(client, view, body, choices, environ, packing)
        for body, choices in zip(bodies, asked, strict=True)
    ]
    for wish in wishes:
        _check(view, wish.spec)
    if explain:
        for wish in wishes:
            explain_wish(view, wish, client.settings)
    if not dry_run:
        for line in dict.fromkeys(line for wish in wishes for line in hint(view, wish.spec)):
            say(line)
    shown = []
    for wish in wishes:
        outcome = "checked" if dry_run else _submit(client, view, wish)
        if not json:
            print(_line(wish.spec, outcome, parsable=parsable), flush=True)
        shown.append(job_json(wish.spec, outcome))
    if json:
        print_json(shown)
    if wait and not dry_run:
        sys.stdout.flush()
        raise typer.Exit(wait_for(client, [wish.spec.id for wish in wishes]))


def _line(spec: JobSpec, outcome: str, *, parsable: bool) -> str:
    return spec.id if parsable else printable(f"{outcome} {spec.id} {spec.name}")


def wish_for(
    context: typer.Context, client: Client, view: View, body: Body, said: Mapping[str, Any]
) -> Wish:
    """What the command whose context this is would submit, with ``said`` as its flags."""
    (choices,) = _asked(context, [body], said)
    return _wish(client, view, body, choices, invocation_of(context).environ, Packing())


def submit_wish(client: Client, view: View, wish: Wish) -> str:
    """Check one job and write it; as ``_submit``, and prints no data."""
    _check(view, wish.spec)
    return _submit(client, view, wish)


# --- what is asked for


def _tell_of_own_options(
    context: typer.Context, bodies: Sequence[Body], words: Sequence[str]
) -> None:
    """Say which words behind the first one look like gpuq's and are the job's."""
    command: Any = context.command
    own = {flag for parameter in command.get_params(context) for flag in parameter.opts}
    end = words.index(DASHES) if DASHES in words else len(words)
    given = [word for word in words[1:end] if word.partition("=")[0] in own]
    if given:
        first = words[0]
        meant = f"{first} {DASHES} ..." if bodies[0].script else f"{DASHES} {first} ..."
        say(
            f"{', '.join(given)} behind {first} goes to the job: gpuq's own options stand before "
            f"it, and '{meant}' says that it is meant"
        )


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


def _wish(
    client: Client,
    view: View,
    body: Body,
    choices: Choices,
    environ: Mapping[str, str],
    packing: Packing,
) -> Wish:
    organization = _setting(choices, ORG, client.settings.organization)
    pool = _setting(choices, POOL, _default_pool(client, view, choices))
    workload_class = _workload_class(view, choices)
    if choices[KEY]:
        job = keyed_job_id(client.ledger, organization.value, choices[KEY])
    else:
        job = new_job_id(client.rng)
    cwd = choices[CHDIR] or _current_directory()
    packed = packing.pack(choices[SNAPSHOT], cwd) if choices[SNAPSHOT] else None
    typed = JobSpec(
        exclude=tuple(sorted({node for nodes in choices[EXCLUDE] for node in nodes})),
        after=dependencies(client, view, choices[AFTER]),
        after_artifacts=tuple(sorted(set(choices[AFTER_ARTIFACT]))),
        **choices.fields(client.store.clock_ms()),
        id=job,
        name=choices[NAME] or body.name,
        organization=organization.value,
        workload_class=workload_class.value,
        pool=pool.value,
        user=client.settings.user.value,
        host=client.settings.host,
        argv=body.argv,
        cwd=cwd,
        snapshot=packed.spec if packed is not None else None,
        env=variables_of(choices, environ),
        array=array_of(choices),
    )
    if 0 < typed.deadline_at <= typed.begin_at:
        raise RequestError("--begin is not before --deadline: say an earlier time, or none")
    _refuse_unsendable(typed)
    spec, blobs = _with_blobs(typed, body)
    return Wish(
        choices=choices, spec=spec, blobs=blobs, packed=packed,
        organization=organization, pool=pool, workload_class=workload_class,
    )  # fmt: skip


def _refuse_unsendable(spec: JobSpec) -> None:
    """Raise RequestError for words that no ledger can hold or no node could execute."""
    for field in ("name", "argv", "cwd", "env", "key", "user", "snapshot", "outputs"):
        try:
            msgspec.json.encode(getattr(spec, field))
        except UnicodeEncodeError as error:
            raise RequestError(f"{field} is not UTF-8: use another spelling") from error
    strings = [*spec.argv, *(f"{name}={value}" for name, value in spec.env.items())]
    sizes = [len(string.encode()) for string in strings]
    for string, size_bytes in zip(strings, sizes, strict=True):
        if size_bytes > ARGUMENT_MAX_BYTES:
            raise RequestError(
                f"{string[:20]!r}... has {size_bytes} bytes, and Linux takes at most "
                f"{ARGUMENT_MAX_BYTES} in an argument or variable: put it into a file"
            )
    if sum(sizes) > ARGUMENTS_MAX_BYTES:
        raise RequestError(
            f"arguments and variables have {sum(sizes)} bytes, at most {ARGUMENTS_MAX_BYTES} are "
            "safe to execute: put them into a file"
        )


def _with_blobs(typed: JobSpec, body: Body) -> tuple[JobSpec, tuple[bytes, ...]]:
    """The spec as a fact can hold it, and the blobs that it names."""
    spec, blobs = typed, []
    if body.script:
        blobs.append(body.script)
        spec = msgspec.structs.replace(spec, script=_sha256(body.script))
    words = long_words(typed)
    if words is not None:
        blobs.append(words)
        spec = msgspec.structs.replace(spec, argv=(), env={}, words=_sha256(words))
    return spec, tuple(blobs)


def _sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _setting(choices: Choices, option: Option[str], otherwise: Setting) -> Setting:
    if choices.is_said(option):
        return Setting(choices[option], choices.source(option))
    return otherwise


def _default_pool(client: Client, view: View, choices: Choices) -> Setting:
    known = view.state.workers.get(WorkerName(choices[WORKER_PIN]))
    if known is not None and known.pool:
        return Setting(known.pool, choices.source(WORKER_PIN))
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
    near = get_close_matches(name, known, n=1)
    mend = f"; did you mean {near[0]!r}?" if near else ""
    classes = f"a class is one of {', '.join(known)}{mend}"
    if name in pools:
        raise RequestError(f"{name!r} is a pool, no class: say --pool {name} ({classes})")
    if any(name.lower() in gpu for gpu in gpus):
        raise RequestError(f"{name!r} is a kind of GPU, no class: say --gpus {name}:1 ({classes})")
    raise RequestError(f"{name!r} is no class ({classes}); if it is a pool, say --pool {name}")


# --- what speaks against it


def _check(view: View, spec: JobSpec) -> None:
    """Raise RequestError for what would be rejected, or is another job under the same key."""
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
        _put_blobs(client, wish)
        kind = Submitted if spec.array is None else ArraySubmitted
        fact = kind(at=client.store.clock_ms(), job=spec)
        client.send(fact, f"the submit of {spec.id} ({spec.name})")
        outcome = "submitted"
    remember_last(client, spec.id)
    return outcome


def _put_blobs(client: Client, wish: Wish) -> None:
    if wish.packed is not None:
        wish.packed.upload(client.store)
    try:
        for blob in wish.blobs:
            put_blob(client.store, blob)
    except TransientError as error:
        raise TransientError(f"{error}; {wish.spec.name} was not submitted: try again") from error
