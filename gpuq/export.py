"""``gpuq export``: jobs, attempts and slot time as tables for pandas, DuckDB and spreadsheets.

Owns the columns (docs/AUDIT.md lists them) and the three formats. Times are milliseconds since
the epoch; what has not happened or is not known is null, in CSV empty. Text stands as it was
submitted. pyarrow, which writes Parquet, is imported only where that is asked for.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from gpuq.audit import From, Period, To, read_usage
from gpuq.client import connect, settings_of
from gpuq.exporttables import COLUMNS, JobLog, Table, rows_of
from gpuq.render import printable
from ledger.errors import RequestError

_BATCH_ROWS = 10_000


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def export(
    context: typer.Context,
    table: Annotated[Table, typer.Argument(help="jobs, attempts or usage.")],
    *,
    format: Annotated[Format, typer.Option("--format", help="csv, jsonl or parquet.")] = Format.CSV,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Else stdout.")
    ] = None,
    begin: From = None,
    end: To = None,
) -> None:
    """Write a table of the ledger: jobs, attempts, or who held which slot when."""
    if format is Format.PARQUET:
        _check_parquet(output)
    client = connect(settings_of(context))
    period = Period(client, begin, end)
    jobs = JobLog()
    usage, state = read_usage(client, jobs.page)
    rows = rows_of(table, jobs, usage, state, period)
    if format is Format.PARQUET:
        assert output is not None
        _write_parquet(output, table, rows)
        return
    with _opened(output) as file:
        (_write_csv if format is Format.CSV else _write_jsonl)(file, table, rows)


@contextmanager
def _opened(output: str | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        return
    try:
        with Path(output).open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise RequestError(f"cannot write {printable(output)}: {error.strerror}") from error


def _write_csv(file: IO[str], table: Table, rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS[table])
    writer.writerows(rows)


def _write_jsonl(file: IO[str], table: Table, rows: Iterable[Sequence[Any]]) -> None:
    names = list(COLUMNS[table])
    for row in rows:
        file.write(msgspec.json.encode(dict(zip(names, row, strict=True))).decode() + "\n")


def _check_parquet(output: str | None) -> None:
    """Before the ledger is read, which may take long."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise RequestError(
            "Parquet needs pyarrow: pip install 'gpuq-ledger[parquet]', or say --format csv"
        ) from error
    if output is None:
        raise RequestError("Parquet is not text: name a file with --output")


def _write_parquet(output: str, table: Table, rows: Iterator[Sequence[Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds: dict[type, Callable[[], Any]] = {int: pa.int64, str: pa.string, bool: pa.bool_}
    schema = pa.schema([(name, kinds[kind]()) for name, kind in COLUMNS[table].items()])
    try:
        with parquet.ParquetWriter(output, schema) as writer:
            while batch := list(islice(rows, _BATCH_ROWS)):
                columns = list(zip(*batch, strict=True))
                writer.write_table(pa.table([list(c) for c in columns], schema=schema))
    except OSError as error:
        raise RequestError(f"cannot write {printable(output)}: {error}") from error
