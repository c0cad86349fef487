"""``gpuq export``: three tables in three formats, and their sums beside the audit's."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuq.exporttables import COLUMNS, Table
from tests.cli.conftest import Gpuq

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_bytes())["jobs"]


@pytest.fixture
def exported(gpuq: Gpuq) -> Any:
    """The rows of one table of the recorded ledger, as JSON."""

    def rows(table: str, *args: str) -> list[dict[str, Any]]:
        result = gpuq("export", table, "--format", "jsonl", "--store", str(GOLDEN), *args)
        assert (result.rc, result.err) == (0, "")
        return [json.loads(line) for line in result.out.splitlines()]

    return rows


def test_jobs_are_those_of_the_recording(exported: Any) -> None:
    rows = exported("jobs")
    assert {
        row["id"]: {"name": row["name"], "state": row["state"], "rc": row["rc"]} for row in rows
    } == EXPECTED


def test_attempts_have_the_times_of_the_facts(exported: Any) -> None:
    finished = {}
    for path in (GOLDEN / "facts").rglob("*.finish"):
        fact = json.loads(path.read_bytes())
        finished[fact["job"], fact["attempt"]] = (fact["started_at"], fact["ended_at"], fact["rc"])
    rows = exported("attempts")
    assert {
        (row["job"], row["attempt"]): (row["started_at_ms"], row["ended_at_ms"], row["rc"])
        for row in rows
    } == finished
    assert all(row["node"] == row["workers"][:2] for row in rows)


def test_usage_adds_up_to_the_audit(gpuq: Gpuq, exported: Any) -> None:
    rows = exported("usage")
    total = gpuq("audit", "--json", "--store", str(GOLDEN)).json["total"]
    spans: dict[str, int] = {}
    for row in rows:
        spans[row["became"]] = spans.get(row["became"], 0) + row["end_ms"] - row["begin_ms"]
    idle = spans.pop("idle")
    assert idle == total["idle_slot_ms"]
    assert sum(spans.values()) == total["occupied_slot_ms"]
    assert spans["failed"] == total["failed_slot_ms"]
    assert {row["job"] for row in rows if row["became"] == "idle"} == {None}


@pytest.mark.parametrize("table", list(Table))
def test_csv_has_the_same_rows_and_empty_for_null(gpuq: Gpuq, exported: Any, table: str) -> None:
    out = gpuq("export", table, "--store", str(GOLDEN)).out
    rows = list(csv.DictReader(io.StringIO(out)))
    wanted = exported(table)
    assert list(rows[0]) == list(COLUMNS[Table(table)])
    assert rows == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in wanted
    ]


def test_a_file_gets_what_stdout_would(gpuq: Gpuq, here: Path) -> None:
    out = gpuq("export", "jobs", "--store", str(GOLDEN)).out
    result = gpuq("export", "jobs", "--store", str(GOLDEN), "-o", "jobs.csv")
    assert (result.rc, result.out) == (0, "")
    assert (here / "jobs.csv").read_text() == out


def test_a_period_chooses_jobs_by_their_submit_and_cuts_usage(exported: Any) -> None:
    """Up to a moment long before the recording there is nothing."""
    for table in Table:
        assert exported(table, "--to", "2000-01-01") == []


def test_parquet_has_the_same_rows(gpuq: Gpuq, exported: Any, here: Path) -> None:
    from pyarrow import parquet

    for table in Table:
        args = ["--format", "parquet", "-o", f"{table}.parquet", "--store", str(GOLDEN)]
        result = gpuq("export", table, *args)
        assert (result.rc, result.out, result.err) == (0, "", "")
        assert parquet.read_table(here / f"{table}.parquet").to_pylist() == exported(table)


def test_parquet_without_pyarrow_is_one_line_with_the_mend(
    gpuq: Gpuq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = gpuq("export", "jobs", "--format", "parquet", "-o", "x", "--store", str(GOLDEN))
    assert (result.rc, result.out) == (64, "")
    assert result.err == (
        "gpuq: Parquet needs pyarrow: pip install 'gpuq-ledger[parquet]', or say --format csv\n"
    )


def test_a_file_that_cannot_be_written_is_one_line(gpuq: Gpuq) -> None:
    result = gpuq("export", "jobs", "-o", "no/such/folder/jobs.csv", "--store", str(GOLDEN))
    assert result.rc == 64
    assert result.err == ("gpuq: cannot write no/such/folder/jobs.csv: No such file or directory\n")


@pytest.mark.parametrize("table", list(Table))
def test_every_column_is_in_the_page(table: Table) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "AUDIT.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{table.value}` |"))
    assert row.split("|")[2].strip() == ", ".join(f"`{name}`" for name in COLUMNS[table])
