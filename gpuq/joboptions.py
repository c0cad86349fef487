"""What can be asked for with a job: the table of the options of ``gpuq submit``.

Owns one declaration for each option; an option whose form has rules of its own is declared
in the module of those rules, and listed here. What belongs to one call and not to the job
(``--json``, ``--dry-run``) is no such option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain

from gpuq.after import parse_after
from gpuq.arrays import ARRAY, SWEEP
from gpuq.fetch import parse_output
from gpuq.options import Choices, Kind, Option
from gpuq.parse import (
    LeadSignal,
    parse_begin,
    parse_count,
    parse_deadline,
    parse_duration,
    parse_gpus,
    parse_grace,
    parse_nodes,
    parse_secret,
    parse_signal,
    parse_size,
    parse_url,
    parse_variable,
)
from gpuq.render import long_duration, printable, size
from ledger.errors import RequestError
from ledger.names import WORKER, NodeName, check_name
from scheduling.admission import PRIORITY_MAX
from scheduling.retries import RETRY_WORDS, is_retry_rule

RETRIES_MAX = 100


def _read_organization(text: str) -> str:
    return check_name("organization", text)


def _read_pool(text: str) -> str:
    return check_name("pool", text)


def _read_worker(text: str) -> str:
    if not WORKER.fullmatch(text):
        raise RequestError(
            f"{text!r} is not a worker: say NODE-gpuN or NODE-cpuN; 'gpuq nodes' lists them"
        )
    return text


def _read_directory(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _read_folder(text: str) -> str:
    """A folder that is there, so that the option cannot swallow a script's name."""
    if not os.path.isdir(os.path.expanduser(text)):
        raise RequestError(
            f"--snapshot {printable(text)}: no such folder; name one: --snapshot . SCRIPT"
        )
    return _read_directory(text)


def _read_nodes(text: str) -> tuple[NodeName, ...]:
    return parse_nodes([text])


def _read_after(text: str) -> str:
    """As it was typed: which jobs are meant is asked of the ledger."""
    for _ in parse_after([text]):
        pass
    return text


def _read_priority(text: str) -> int:
    """Raises RequestError for what is no number from -100 to 100."""
    try:
        priority = int(text)
    except ValueError:
        priority = PRIORITY_MAX + 1
    if abs(priority) > PRIORITY_MAX:
        raise RequestError(f"a priority is between -{PRIORITY_MAX} and {PRIORITY_MAX}, not {text}")
    return priority


def _read_retry_rules(text: str) -> tuple[str, ...]:
    """The ends after which it is tried again, as ``rc=75,oom`` says."""
    rules = tuple(rule.strip() for rule in text.split(","))
    for rule in rules:
        if not is_retry_rule(rule):
            raise RequestError(f"--retry-on {rule!r}: say one or more of {RETRY_WORDS}")
    return rules


def _read_retries(text: str) -> int:
    return parse_count(text, most=RETRIES_MAX)


def _show_gpus(gpus: Sequence[object]) -> str:
    return " ".join(str(part) for part in gpus).strip()


def _show_names(pairs: Sequence[tuple[str, str | None]]) -> str:
    """Names only: a value may be long."""
    return ", ".join(dict.fromkeys(name for name, _ in pairs))


def _show_moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000):%Y-%m-%d %H:%M:%S}"


def _show_lead(lead: LeadSignal) -> str:
    return f"{lead.signal} {long_duration(lead.lead_ms)} before the limit" if lead.signal else ""


NAME = Option(flags=("--name", "-J"), help="Else the file's or program's.", default="")
POOL = Option(flags=("--pool", "-p"), help="Resource pool.", read=_read_pool, default="")
ORG = Option(flags=("--org",), help="Organization that pays.", read=_read_organization, default="")
CLASS = Option(
    flags=("--class",), help="batch (default), interactive, system, or one of the policy.",
    default="batch",
)  # fmt: skip
GPUS = Option(
    flags=("--gpus", "-G"), help="Slots: N or TYPE:N.", read=parse_gpus, default=parse_gpus("1"),
    fields=("slots", "gpu_type"), show=_show_gpus,
)  # fmt: skip
GPU_MEM = Option(
    flags=("--gpu-mem",), help="Only GPUs with at least this much: 40G.", read=parse_size,
    default=0, fields=("gpu_memory_bytes",), show=size,
)  # fmt: skip
TIME = Option(
    flags=("--time", "-t"), help="Limit: 90 (minutes), 1:30:00, 2-12, 90m, 1h30m.",
    read=parse_duration, default=0, fields=("time_limit_ms",), show=long_duration,
)  # fmt: skip
ESTIMATE = Option(
    flags=("--estimate",), help="Expected time, as --time.", read=parse_duration, default=0,
    fields=("estimate_ms",), show=long_duration,
)  # fmt: skip
WORKER_PIN = Option(
    flags=("--worker",), help="Only there, such as node1-gpu0.", read=_read_worker, default="",
    fields=("worker",),
)  # fmt: skip
EXCLUDE: Option[tuple[tuple[NodeName, ...], ...]] = Option(
    flags=("--exclude", "-x"), help="Nodes on which it never runs.", kind=Kind.LIST,
    read=_read_nodes, default=(), show=lambda lists: ", ".join(chain.from_iterable(lists)),
)  # fmt: skip
PRIORITY = Option(
    flags=("--priority",), help="In one's own flow only, -100 to 100.", read=_read_priority,
    default=0, fields=("priority",),
)  # fmt: skip
KEY = Option(flags=("--key",), help="The same key is the same job.", default="", fields=("key",))
CHDIR = Option(
    flags=("--chdir", "-D"), help="Directory; else the current one.", read=_read_directory,
    default="",
)  # fmt: skip
SNAPSHOT = Option(
    flags=("--snapshot",), help="Run in a copy of this folder as it is now: '.'.",
    read=_read_folder, default="",
)  # fmt: skip
OUTPUT: Option[tuple[str, ...]] = Option(
    flags=("--output",), help="Files to keep, for 'gpuq fetch': GLOB; repeatable.",
    kind=Kind.LIST, read=parse_output, default=(), fields=("outputs",), show=", ".join,
)  # fmt: skip
OUTPUT_ON_FAILURE = Option(
    flags=("--output-on-failure",), help="Also where it fails.", kind=Kind.SWITCH, default=False,
    fields=("outputs_on_failure",),
)  # fmt: skip
ENV: Option[tuple[tuple[str, str | None], ...]] = Option(
    flags=("--env",), help="NAME=VALUE, or NAME with its value here; repeatable.",
    kind=Kind.GATHERED, read=parse_variable, default=(), show=_show_names,
)  # fmt: skip
SECRET: Option[tuple[str, ...]] = Option(
    flags=("--secret",), help="NAME, with the value that the node holds; repeatable.",
    kind=Kind.GATHERED, read=parse_secret, default=(), fields=("secrets",), show=", ".join,
)  # fmt: skip
HOLD = Option(
    flags=("--hold",), help="Wait for 'gpuq release'.", kind=Kind.SWITCH, default=False,
    fields=("held",),
)  # fmt: skip
IDEMPOTENT = Option(
    flags=("--idempotent",), help="May run again after its node was lost.", kind=Kind.SWITCH,
    default=False, fields=("idempotent",),
)  # fmt: skip
RESUMABLE = Option(
    flags=("--resumable",), help="Saves at TERM, exits with 75, and goes on later.",
    kind=Kind.SWITCH, default=False, fields=("resumable",),
)  # fmt: skip
EXCLUSIVE = Option(
    flags=("--exclusive",), help="Ends itself before a rerun can overlap.", kind=Kind.SWITCH,
    default=False, fields=("exclusive",),
)  # fmt: skip
GRACE = Option(
    flags=("--grace",), help="Between TERM and KILL: 30s, 2m; 0: at once.", read=parse_grace,
    default=0, fields=("grace_ms",), show=long_duration,
)  # fmt: skip
SIGNAL = Option(
    flags=("--signal",), help="SIG@SECONDS before the time limit: USR1@120.", read=parse_signal,
    default=LeadSignal("", 0), fields=("signal", "lead_ms"), show=_show_lead,
)  # fmt: skip
DEADLINE = Option(
    flags=("--deadline",), help="No use after: 2h from now, or 2026-12-01T18:00.", default=0,
    fields=("deadline_at",), at_submit=parse_deadline, show=_show_moment,
)  # fmt: skip
AFTER: Option[tuple[str, ...]] = Option(
    flags=("--after", "--dependency", "-d"), help="Jobs that must end first: ID, ...",
    kind=Kind.LIST, read=_read_after, default=(), show=", ".join,
)  # fmt: skip
AFTER_ARTIFACT: Option[tuple[str, ...]] = Option(
    flags=("--after-artifact",), help="An object of the store, by key.", kind=Kind.LIST,
    default=(), show=", ".join,
)  # fmt: skip
BEGIN = Option(
    flags=("--begin",), help="Not before: 2h from now, or 2026-12-01T18:00.", default=0,
    fields=("begin_at",), at_submit=parse_begin, show=_show_moment,
)  # fmt: skip
RETRIES = Option(
    flags=("--retries",), help="Further attempts after a failure.", read=_read_retries, default=0,
    fields=("retries",),
)  # fmt: skip
RETRY_ON: Option[tuple[str, ...]] = Option(
    flags=("--retry-on",), help="Of which ends: failed (default), rc=75, oom, ...",
    read=_read_retry_rules, default=(), fields=("retry_on",), show=", ".join,
)  # fmt: skip
REQUESTS = Option(
    flags=("--requests",), help="Calls of the pool's service (else 1).", read=parse_count,
    default=0, fields=("requests",),
)  # fmt: skip
INPUT_TOKENS = Option(
    flags=("--input-tokens",), help="Tokens in of all calls.", read=parse_count, default=0,
    fields=("input_tokens",),
)  # fmt: skip
MAX_OUTPUT_TOKENS = Option(
    flags=("--max-output-tokens",), help="Tokens out of all calls, at most.", read=parse_count,
    default=0, fields=("max_output_tokens",),
)  # fmt: skip
NOTIFY = Option(
    flags=("--notify",), help="URL that is told of its end, as JSON.", read=parse_url, default="",
    fields=("notify",),
)  # fmt: skip

JOB_OPTIONS = (
    NAME, POOL, ORG, CLASS, GPUS, GPU_MEM, TIME, ESTIMATE, WORKER_PIN,
    EXCLUDE, PRIORITY, KEY, CHDIR, SNAPSHOT, OUTPUT, OUTPUT_ON_FAILURE, ENV, SECRET, HOLD,
    IDEMPOTENT, RESUMABLE, EXCLUSIVE, GRACE, SIGNAL, DEADLINE, AFTER, AFTER_ARTIFACT, BEGIN,
    RETRIES, RETRY_ON, REQUESTS, INPUT_TOKENS, MAX_OUTPUT_TOKENS, ARRAY, SWEEP, NOTIFY,
)  # fmt: skip


def variables_of(choices: Choices, environ: Mapping[str, str]) -> dict[str, str]:
    """The job's variables; ``--env NAME`` takes the value of ``environ``.

    Raises RequestError where there is none.
    """
    variables = {}
    for name, value in choices[ENV]:
        if value is None and name not in environ:
            raise RequestError(f"--env {name}: it is not set here; set it, or say --env NAME=VALUE")
        variables[name] = environ[name] if value is None else value
    return variables


def refuse_contradictions(choices: Choices) -> None:
    """Raise RequestError for options that say nothing together."""
    twice = {name for name, _ in choices[ENV]}.intersection(choices[SECRET])
    if twice:
        raise RequestError(f"{', '.join(sorted(twice))}: say --env or --secret, not both")
    if choices[OUTPUT_ON_FAILURE] and not choices[OUTPUT]:
        raise RequestError("--output-on-failure needs --output GLOB")
    for rule in choices[RETRY_ON]:
        if rule in ("lost", "timeout") and not choices[IDEMPOTENT]:
            raise RequestError(
                f"--retry-on {rule}: the job may have done all of its work already; say "
                "--idempotent if it may run twice"
            )
    if choices[RETRY_ON] and not choices[RETRIES]:
        raise RequestError("--retry-on needs --retries N")
    lead, time_limit_ms = choices[SIGNAL], choices[TIME]
    if lead.signal and not time_limit_ms:
        raise RequestError("--signal comes before a time limit: give one with --time")
    if lead.signal and lead.lead_ms >= time_limit_ms:
        raise RequestError(
            f"--signal {lead.signal}@{lead.lead_ms // 1000} would come before the job begins: "
            f"its limit is {long_duration(time_limit_ms)}"
        )
