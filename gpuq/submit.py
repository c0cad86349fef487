"""``gpuq submit``: from scripts or a command to jobs in the ledger.

Owns the checks that happen before anything is written, and the order of writing: the
script's blob, then the submit fact, and "submitted" only after its acknowledgement. The
environment of the submitter does not travel; ``--env`` does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from gpuq.client import Client, open_client
from gpuq.config import Setting
from gpuq.parse import (
    LeadSignal,
    parse_deadline,
    parse_duration,
    parse_env,
    parse_gpus,
    parse_grace,
    parse_signal,
    parse_size,
)
from gpuq.render import (
    local_time,
    long_duration,
    plain_table,
    print_json,
    printable,
    say,
    size,
    times,
)
from gpuq.script import Body, bodies_of
from gpuq.selectors import remember_last
from gpuq.view import View, read_view
from ledger.calibration import ONE
from ledger.decisions import JobAdmitted
from ledger.errors import RequestError, TransientError
from ledger.estimates import calibration_of
from ledger.events import JobSpec, Submitted
from ledger.names import WORKER, JobId, WorkerName, check_name, keyed_job_id, new_job_id
from ledger.projection import Projection
from ledger.state import Job, digest_of
from ledger.writer import put_blob
from scheduling.admission import verdict_on
from scheduling.retries import RETRY_WORDS, is_retry_rule

_COMMAND = "gpuq.command"


class CommandAfterDashes(TyperCommand):
    """Keeps what stands behind ``--`` apart; click would mix it with the scripts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The flags, read and checked, with who said what the flags did not."""

    organization: Setting
    workload_class: Setting
    pool: Setting
    spec: JobSpec
    """All fields that are the same for each script of one call."""
    key: str


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
    name: Annotated[str, typer.Option("--name", "-J", help="Else the file's or program's.")] = "",
    pool: Annotated[str, typer.Option("--pool", "-p", help="Resource pool.")] = "",
    org: Annotated[str, typer.Option("--org", help="Organization that pays.")] = "",
    workload_class: Annotated[
        str, typer.Option("--class", help="batch (default), interactive or system.")
    ] = "",
    gpus: Annotated[str, typer.Option("--gpus", "-G", help="Slots: N or TYPE:N.")] = "1",
    gpu_mem: Annotated[
        str, typer.Option("--gpu-mem", help="Only GPUs with at least this much: 40G.")
    ] = "",
    time: Annotated[
        str | None,
        typer.Option("--time", "-t", help="Limit: 90 (minutes), 1:30:00, 2-12, 90m, 1h30m."),
    ] = None,
    estimate: Annotated[
        str | None, typer.Option("--estimate", help="Expected time, as --time.")
    ] = None,
    worker: Annotated[str, typer.Option("--worker", help="Only there, such as node1-gpu0.")] = "",
    key: Annotated[str, typer.Option("--key", help="The same key is the same job.")] = "",
    chdir: Annotated[str, typer.Option("--chdir", help="Directory; else the current one.")] = "",
    env: Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE; repeatable.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Wait for 'gpuq release'.")] = False,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="May run again after its node was lost.")
    ] = False,
    resumable: Annotated[
        bool, typer.Option("--resumable", help="Saves at TERM, exits with 75, and goes on later.")
    ] = False,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Ends itself before a rerun can overlap.")
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", help="Between TERM and KILL: 30s, 2m; 0: at once.")
    ] = "",
    signal: Annotated[
        str, typer.Option("--signal", help="SIG@SECONDS before the time limit: USR1@120.")
    ] = "",
    deadline: Annotated[
        str, typer.Option("--deadline", help="No use after: 2h from now, or 2026-12-01T18:00.")
    ] = "",
    retries: Annotated[
        int, typer.Option("--retries", help="Further attempts after a failure.", min=0, max=100)
    ] = 0,
    retry_on: Annotated[
        str, typer.Option("--retry-on", help="Of which ends: failed (default), rc=75, oom, ...")
    ] = "",
    requests: Annotated[
        int, typer.Option("--requests", help="Calls of the pool's service (else 1).", min=0)
    ] = 0,
    input_tokens: Annotated[
        int, typer.Option("--input-tokens", help="Tokens in of all calls.", min=0)
    ] = 0,
    max_output_tokens: Annotated[
        int, typer.Option("--max-output-tokens", help="Tokens out of all calls, at most.", min=0)
    ] = 0,
    parsable: Annotated[
        bool, typer.Option("--parsable", "-q", help="Only the ids on stdout.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Check, write nothing.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each value and where it came from.")
    ] = False,
) -> None:
    """Submit script files, or the command behind --."""
    bodies = bodies_of(scripts or [], context.meta.get(_COMMAND, ()), name)
    if key and len(bodies) > 1:
        raise RequestError("--key names one job: submit these scripts one by one")
    template = _template(
        gpus=gpus, gpu_mem=gpu_mem, time=time, estimate=estimate, worker=worker, chdir=chdir,
        env=env or [], hold=hold, idempotent=idempotent, resumable=resumable,
        exclusive=exclusive, grace=grace,
        signal=signal, retries=retries, retry_on=retry_on, requests=requests,
        input_tokens=input_tokens, max_output_tokens=max_output_tokens,
    )  # fmt: skip
    client = open_client(context)
    if deadline:
        at_ms = parse_deadline(deadline, client.store.clock_ms())
        template = msgspec.structs.replace(template, deadline_at=at_ms)
    view = read_view(client.load_journal(), client.settings.timings)
    wishes = Wishes(
        organization=_organization(client, org),
        workload_class=_workload_class(view, workload_class),
        pool=_pool(client, view, pool, worker),
        spec=template,
        key=key,
    )
    specs = [_spec(client, wishes, body) for body in bodies]
    for spec in specs:
        _check(view, spec)
    if explain:
        _explain(view, wishes, specs, client.settings.timings.grace_ms)
    if not dry_run:
        _hint(view, wishes)
    shown = []
    for spec, body in zip(specs, bodies, strict=True):
        outcome = "checked" if dry_run else _submit(client, view, spec, body)
        if not json:
            print(
                spec.id if parsable else printable(f"{outcome} {spec.id} {spec.name}"), flush=True
            )
        shown.append(_json(spec, outcome))
    if json:
        print_json(shown)


# --- what is asked for


def _template(
    *,
    gpus: str,
    gpu_mem: str,
    time: str | None,
    estimate: str | None,
    worker: str,
    chdir: str,
    env: Sequence[str],
    hold: bool,
    idempotent: bool,
    resumable: bool,
    exclusive: bool,
    grace: str,
    signal: str,
    retries: int,
    retry_on: str,
    requests: int,
    input_tokens: int,
    max_output_tokens: int,
) -> JobSpec:
    """A spec of all that the flags say alone, before anything is asked of the ledger."""
    wanted = parse_gpus(gpus)
    time_limit_ms = parse_duration(time) if time is not None else 0
    lead = _lead_signal(signal, time_limit_ms)
    return JobSpec(
        id=JobId(""),
        name="",
        organization="",
        workload_class="",
        pool="",
        user="",
        cwd=os.path.abspath(os.path.expanduser(chdir)) if chdir else _current_directory(),
        env=parse_env(env),
        slots=wanted.slots,
        gpu_type=wanted.gpu_type,
        gpu_memory_bytes=parse_size(gpu_mem) if gpu_mem else 0,
        time_limit_ms=time_limit_ms,
        estimate_ms=parse_duration(estimate) if estimate is not None else 0,
        worker=_worker(worker),
        idempotent=idempotent,
        resumable=resumable,
        exclusive=exclusive,
        held=hold,
        grace_ms=parse_grace(grace) if grace else 0,
        signal=lead.signal,
        lead_ms=lead.lead_ms,
        retries=retries,
        retry_on=_retry_on(retry_on, retries=retries, idempotent=idempotent),
        requests=requests,
        input_tokens=input_tokens,
        max_output_tokens=max_output_tokens,
    )


def _retry_on(text: str, *, retries: int, idempotent: bool) -> tuple[str, ...]:
    """The ends after which it is tried again, as ``rc=75,oom`` says."""
    rules = tuple(rule.strip() for rule in text.split(",")) if text else ()
    for rule in rules:
        if not is_retry_rule(rule):
            raise RequestError(f"--retry-on {rule!r}: say one or more of {RETRY_WORDS}")
        if rule in ("lost", "timeout") and not idempotent:
            raise RequestError(
                f"--retry-on {rule}: the job may have done all of its work already; say "
                "--idempotent if it may run twice"
            )
    if rules and not retries:
        raise RequestError("--retry-on needs --retries N")
    return rules


def _lead_signal(text: str, time_limit_ms: int) -> LeadSignal:
    if not text:
        return LeadSignal("", 0)
    lead = parse_signal(text)
    if not time_limit_ms:
        raise RequestError("--signal comes before a time limit: give one with --time")
    if lead.lead_ms >= time_limit_ms:
        raise RequestError(
            f"--signal {text} would come before the job begins: its limit is "
            f"{long_duration(time_limit_ms)}"
        )
    return lead


def _worker(text: str) -> str:
    if text and not WORKER.fullmatch(text):
        raise RequestError(
            f"{text!r} is not a worker: say NODE-gpuN or NODE-cpuN; 'gpuq nodes' lists them"
        )
    return text


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise RequestError("the current directory is gone: use --chdir") from error


def _organization(client: Client, flag: str) -> Setting:
    if flag:
        return Setting(check_name("organization", flag), "--org")
    return client.settings.organization


def _workload_class(view: View, flag: str) -> Setting:
    if not flag:
        return Setting("batch", "default")
    known = view.state.policy.classes
    if flag in known:
        return Setting(flag, "--class")
    workers = view.state.workers.values()
    pools = {worker.pool for worker in workers} | set(view.state.policy.pools)
    gpus = {worker.slot.gpu_name.lower() for worker in workers}
    classes = f"a class is one of {', '.join(known)}"
    if flag in pools:
        raise RequestError(f"{flag!r} is a pool, no class: say --pool {flag} ({classes})")
    if any(flag.lower() in gpu for gpu in gpus):
        raise RequestError(f"{flag!r} is a kind of GPU, no class: say --gpus {flag}:1 ({classes})")
    raise RequestError(f"{flag!r} is no class ({classes}); if it is a pool, say --pool {flag}")


def _pool(client: Client, view: View, flag: str, worker: str) -> Setting:
    if flag:
        return Setting(check_name("pool", flag), "--pool")
    known = view.state.workers.get(WorkerName(worker))
    if known is not None and known.pool:
        return Setting(known.pool, "--worker")
    return client.settings.pool


def _spec(client: Client, wishes: Wishes, body: Body) -> JobSpec:
    organization = wishes.organization.value
    if wishes.key:
        job = keyed_job_id(client.ledger, organization, wishes.key)
    else:
        job = new_job_id(client.rng)
    return msgspec.structs.replace(
        wishes.spec,
        id=job,
        name=body.name,
        organization=organization,
        workload_class=wishes.workload_class.value,
        pool=wishes.pool.value,
        user=client.settings.user.value,
        host=client.settings.host,
        script=hashlib.sha256(body.script).hexdigest() if body.script else "",
        argv=body.argv,
        key=wishes.key,
    )


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


def _submit(client: Client, view: View, spec: JobSpec, body: Body) -> str:
    """Write one job, unless the job of its key is there; which of the two, in words."""
    outcome = "already submitted"
    if spec.id not in view.state.jobs and spec.id not in view.state.archive:
        _put_script(client, body)
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


def _hint(view: View, wishes: Wishes) -> None:
    """Talk about what was read how, and about a pool that nobody serves now."""
    spec = wishes.spec
    if spec.time_limit_ms:
        say(f"time limit {long_duration(spec.time_limit_ms)}")
    pools = {worker.pool for worker in view.state.workers.values() if worker.ready} - {""}
    if pools and wishes.pool.value not in pools:
        say(f"no worker serves pool {wishes.pool.value!r} now; there is {', '.join(sorted(pools))}")


def _explain(view: View, wishes: Wishes, specs: Sequence[JobSpec], grace_ms: int) -> None:
    """Each value and who said so; talk, so that stdout stays what a program reads."""
    spec = wishes.spec
    limit = long_duration(spec.time_limit_ms) if spec.time_limit_ms else ""
    memory = size(spec.gpu_memory_bytes) if spec.gpu_memory_bytes else ""
    lead = f"{spec.signal} {long_duration(spec.lead_ms)} before the limit" if spec.lead_ms else ""
    grace = long_duration(spec.grace_ms or grace_ms)
    deadline = local_time(spec.deadline_at, view.now_ms) if spec.deadline_at else ""
    retries = f"{spec.retries} on {', '.join(spec.retry_on or ('failed',))}" if spec.retries else ""
    rows = [
        ("user", specs[0].user, ""),
        ("organization", wishes.organization.value, wishes.organization.source),
        ("class", wishes.workload_class.value, wishes.workload_class.source),
        ("pool", wishes.pool.value, wishes.pool.source),
        ("slots", f"{spec.slots} {spec.gpu_type}".strip(), "--gpus"),
        ("gpu memory", memory, "--gpu-mem" if memory else ""),
        ("time limit", limit, "--time" if limit else ""),
        ("signal", lead, "--signal" if lead else ""),
        ("grace", grace, "--grace" if spec.grace_ms else "default"),
        ("worker", spec.worker, "--worker" if spec.worker else ""),
        ("directory", spec.cwd, ""),
        ("estimate", *_estimate(view, specs[0])),
        ("deadline", deadline, "--deadline" if deadline else ""),
        ("retries", retries, "--retries" if retries else ""),
    ]
    print(plain_table(("WHAT", "VALUE", "FROM"), rows), file=sys.stderr)


def _estimate(view: View, spec: JobSpec) -> tuple[str, str]:
    """What a dispatch would charge, and who says so."""
    projection = Projection(view.state)
    if view.state.policy.pool(spec.pool).api is not None:
        tokens, said = projection.estimated_cost(spec), "--input-tokens, --max-output-tokens"
        known = calibration_of(view.state, spec)
        so_far = f"; {known.factor_ppm / ONE:.3f} times, by what calls took" if known.calls else ""
        return f"{tokens} tokens", f"{said}{so_far}"
    run_ms, source = projection.expected(spec)
    return long_duration(run_ms), source


def _json(spec: JobSpec, outcome: str) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": spec.name,
        "outcome": outcome,
        "organization": spec.organization,
        "class": spec.workload_class,
        "pool": spec.pool,
        "slots": spec.slots,
        "gpu_type": spec.gpu_type,
        "gpu_memory_bytes": spec.gpu_memory_bytes,
        "time_limit_ms": spec.time_limit_ms or None,
        "pinned_to": spec.worker,
        "key": spec.key,
        **times(deadline_at=spec.deadline_at or None),
        "retries": spec.retries,
    }
