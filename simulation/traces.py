"""Public traces as workloads: one reader for each kind of file, told apart by its first line.

Owns what each column means. A file may be gzipped. Times become milliseconds on the trace's
own clock; jobs keep the order of the file, which breaks ties of arrival. A row that says no
run time is left out and counted. What a reader assumes beyond the file stands in its docstring.

Most traces say nothing of what was expected of a job: it is then charged for exactly what it
takes, and has no time limit.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec

from ledger.errors import RequestError
from simulation.workload import SimJob, Workload, organization_name

PREFILL_US_PER_TOKEN = 100
"""Assumed, for the traces of requests: a model reads 10,000 tokens a second ..."""

DECODE_US_PER_TOKEN = 30_000
"""... and writes 33. The traces themselves say no times."""

_GZIP = b"\x1f\x8b"
_SWF_FIELDS = 18

Row = dict[str, str]
_Reader = Callable[[int, Row], SimJob | None]


def read_trace(path: Path) -> Workload:
    """The jobs of a trace file; it says nothing of slots.

    Raises RequestError for what cannot be read, with the line.
    """
    lines = _lines(path)
    header = tuple(lines[0].split(",")) if lines else ()
    reader = _READERS.get(header)
    if reader is not None:
        rows: Sequence[tuple[int, Row]] = [
            (number, row) for number, row in enumerate(csv.DictReader(lines), start=2)
        ]
    elif path.name.removesuffix(".gz").endswith(".swf"):
        reader, rows = _swf, list(_swf_rows(path, lines))
    else:
        known = "; ".join(",".join(header) for header in _READERS)
        raise RequestError(f"{path} is no trace: a file .swf, or a first line of {known}")
    return _workload(path, reader, rows)


def _workload(path: Path, reader: _Reader, rows: Sequence[tuple[int, Row]]) -> Workload:
    jobs = []
    for number, row in rows:
        try:
            job = reader(number, row)
        except (ValueError, KeyError, TypeError, InvalidOperation) as error:
            raise RequestError(f"{path}:{number} cannot be read: {error}") from error
        if job is not None:
            jobs.append(job)
    begin = min((job.arrival_ms for job in jobs), default=0)
    if begin > _AGES_MS:  # a calendar, not a clock that begins with the trace
        jobs = [_earlier(job, begin) for job in jobs]
    return Workload(title=path.name, jobs=tuple(jobs), left_out=len(rows) - len(jobs))


_AGES_MS = 10 * 365 * 86_400_000


def _lines(path: Path) -> list[str]:
    try:
        body = path.read_bytes()
        if body.startswith(_GZIP):
            body = gzip.decompress(body)
        return body.decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {path}: {error}") from error


def _earlier(job: SimJob, by_ms: int) -> SimJob:
    return msgspec.structs.replace(job, arrival_ms=job.arrival_ms - by_ms)


def _ms(seconds: str) -> int:
    """Milliseconds of a decimal number of seconds."""
    return int(Decimal(seconds) * 1000)


def _cluster_job(tenant: str) -> _Reader:
    """microsoft_itp and philly: the virtual cluster is the organization."""

    def read(number: int, row: Row) -> SimJob:
        duration_ms = _ms(row["duration_s"])
        return SimJob(
            name=row["job_id"],
            organization=organization_name(row[tenant]),
            arrival_ms=_ms(row["submit_s"]),
            duration_ms=duration_ms,
            estimate_ms=duration_ms,
            slots=int(row["num_gpu"]),
            columns={tenant: row[tenant]},
        )

    return read


def _openb(number: int, row: Row) -> SimJob | None:
    """alibaba_openb: the quality of service is organization and class (LS is interactive).

    A pod that asks for a part of a GPU takes a whole slot; one that asks for none, or was
    never scheduled, is left out. Which models it would take is not looked at.
    """
    if row["num_gpu"] == "0" or not row["scheduled_time"] or not row["deletion_time"]:
        return None
    begun, ended = _ms(row["scheduled_time"]), _ms(row["deletion_time"])
    return SimJob(
        name=row["name"],
        organization=organization_name(row["qos"]),
        workload_class="interactive" if row["qos"] == "LS" else "batch",
        arrival_ms=_ms(row["creation_time"]),
        duration_ms=ended - begun,
        estimate_ms=ended - begun,
        slots=int(row["num_gpu"]),
        recorded_start_ms=begun,
        columns={"qos": row["qos"], "pod_phase": row["pod_phase"]},
    )


def _request(name: str, arrival_ms: int, tokens_in: int, tokens_out: int) -> SimJob:
    """One request to a language model, on one slot, at the assumed speeds."""
    taken_us = PREFILL_US_PER_TOKEN * tokens_in + DECODE_US_PER_TOKEN * tokens_out
    duration_ms = -(-taken_us // 1000)
    return SimJob(
        name=name,
        organization="requests",
        workload_class="interactive",
        arrival_ms=arrival_ms,
        duration_ms=duration_ms,
        estimate_ms=duration_ms,
    )


def _azure(number: int, row: Row) -> SimJob:
    """azure_llm_2023: arrivals count from the first request."""
    moment = datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00")
    micros = round(moment.timestamp() * 1_000_000)
    tokens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    return _request(f"request-{number - 1}", micros // 1000, *tokens)


def _mooncake(number: int, row: Row) -> SimJob:
    """mooncake: no prefix is taken to be cached."""
    tokens = int(row["input_tokens"]), int(row["output_tokens"])
    return _request(f"request-{number - 1}", int(row["timestamp_ms"]), *tokens)


def _swf_rows(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(lines, start=1):
        fields = line.partition(";")[0].split()
        if not fields:
            continue
        if len(fields) != _SWF_FIELDS:
            raise RequestError(f"{path}:{number} has {len(fields)} fields, SWF has {_SWF_FIELDS}")
        yield number, dict(zip(_SWF_NAMES, fields, strict=True))


_SWF_NAMES = (
    "job", "submit", "wait", "run", "processors", "cpu", "memory", "asked_processors",
    "asked_time", "asked_memory", "status", "user", "group", "executable", "queue",
    "partition", "preceding", "think",
)  # fmt: skip


def _swf(number: int, row: Row) -> SimJob | None:
    """SWF 2.2: a processor is a slot, the group (else the user) the organization.

    The time asked for is the job's time limit, and so what it is charged at dispatch.
    """
    duration_ms, wait_ms = _ms(row["run"]), _ms(row["wait"])
    slots = int(row["processors"]) if int(row["processors"]) > 0 else int(row["asked_processors"])
    if duration_ms < 0 or slots < 1:
        return None
    arrival_ms, limit_ms = _ms(row["submit"]), max(0, _ms(row["asked_time"]))
    has_group = not row["group"].startswith("-")
    return SimJob(
        name=f"job-{row['job']}",
        organization=f"group{row['group']}" if has_group else f"user{row['user'].lstrip('-')}",
        arrival_ms=arrival_ms,
        duration_ms=duration_ms,
        time_limit_ms=limit_ms,
        estimate_ms=0 if limit_ms else duration_ms,
        slots=slots,
        recorded_start_ms=arrival_ms + wait_ms if wait_ms >= 0 else None,
        columns={name: row[name] for name in ("user", "group", "queue", "partition", "status")},
    )


_READERS: dict[tuple[str, ...], _Reader] = {
    ("job_id", "vc", "num_gpu", "submit_s", "duration_s"): _cluster_job("vc"),
    ("job_id", "cluster", "num_gpu", "submit_s", "duration_s"): _cluster_job("cluster"),
    (
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ): _openb,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("timestamp_ms", "input_tokens", "output_tokens", "prefix_blocks_seen", "blocks"): _mooncake,
}
