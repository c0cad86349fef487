"""``gpuq replay verify``: what it says, in text and JSON, and how it exits."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from gpuq.__main__ import run
from gpuq.progress import bar
from ledger.clock import SystemClock
from ledger.events import decode_page
from ledger.stores import open_store
from tests.simulation.ledgers import bodies_of, eventful_world, write_ledger, write_objects

ROOT = Path(__file__).resolve().parents[2]
SEED = 20_261_201

FIRST_ASSIGNMENTS = 2
"""The page of ``eventful_world`` that assigns its first jobs."""


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return bodies_of(eventful_world())


@pytest.fixture
def ledger(tmp_path: Path, bodies: list[bytes], gpuq_env: Mapping[str, str]) -> Path:
    """A folder store with two epochs, six jobs and every page intact."""
    folder = tmp_path / "ledger"
    store = open_store(str(folder), clock=SystemClock(), rng=random.Random())
    write_ledger(store, bodies)
    write_objects(store, [decode_page(body) for body in bodies])
    return folder


def edit(ledger: Path, bodies: list[bytes], before: bytes, after: bytes) -> None:
    """Write ``after`` for the first ``before`` in the page of the first assignments."""
    body = bodies[FIRST_ASSIGNMENTS]
    assert before in body
    path = ledger / "journal" / f"{FIRST_ASSIGNMENTS:012d}"
    path.write_bytes(body.replace(before, after, 1))


def test_verify_reports_counts_and_that_all_is_identical(
    ledger: Path, bodies: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "verify", "--store", str(ledger)]) == 0
    said = capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert lines["ledger"] == f"test at {ledger.as_uri()}"
    assert lines["pages"] == str(len(bodies))
    assert lines["epochs"] == "2"
    assert lines["jobs"] == "6, of which 6 ended"
    assert lines["result"].startswith("identical")
    assert said.err == ""


def test_verify_as_json(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "verify", "--store", str(ledger), "--json"]) == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["store"] == ledger.as_uri()
    assert (report["epochs"], report["ended_jobs"], report["difference"]) == (2, 6, None)


def test_one_changed_byte_of_any_page_is_found_in_a_copy(
    ledger: Path, tmp_path: Path, bodies: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the last page only where a decision rests on the byte: see ``simulation.verify``."""
    rng = random.Random(SEED)
    places = [rng.randrange(len(body)) for body in bodies[:-1]]
    places.append(bodies[-1].index(b'"rc":0') + len('"rc":'))
    for seq, place in enumerate(places):
        copy = tmp_path / f"copy-{seq}"
        shutil.copytree(ledger, copy)
        page = copy / "journal" / f"{seq:012d}"
        edited = bytearray(bodies[seq])
        edited[place] ^= 0x11
        page.write_bytes(edited)
        assert run(["replay", "verify", "--store", str(copy)]) == 1
        out = capsys.readouterr().out
        assert f"DIFFERENT at page {seq};" in out, (seq, place, out)
        assert f"journal/{seq:012d}" in out


def test_a_difference_shows_page_field_and_both_values(
    ledger: Path, bodies: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    edit(ledger, bodies, b'"cost_ms":1000', b'"cost_ms":1001')
    assert run(["replay", "verify", "--store", str(ledger)]) == 1
    said = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in said.splitlines() if line)
    assert lines["field"] == "decisions[0]"
    assert msgspec.json.decode(lines["recorded"])["cost_ms"] == 1001
    assert msgspec.json.decode(lines["derived"])["cost_ms"] == 1000
    assert lines["pages"] == str(FIRST_ASSIGNMENTS)


def test_a_long_value_is_cut_in_text_and_whole_in_json(
    ledger: Path, bodies: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    edit(ledger, bodies, b'"slots":["n1-cpu0"]', b'"slots":["%s"]' % (b"n" * 5_000))
    assert run(["replay", "verify", "--store", str(ledger)]) == 1
    out = capsys.readouterr().out
    assert all(len(line) < 400 for line in out.splitlines())
    assert "whole with --json" in out
    assert run(["replay", "verify", "--store", str(ledger), "--json"]) == 1
    assert "n" * 5_000 in capsys.readouterr().out


def test_other_objects_are_listed_after_the_result(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fact and a claim are gone; the pages themselves are sound."""
    fact = sorted((ledger / "facts").rglob("*.finish"))[0]
    claim = sorted((ledger / "claims").iterdir())[0]
    fact.unlink()
    claim.unlink()
    assert run(["replay", "verify", "--store", str(ledger)]) == 1
    out = capsys.readouterr().out
    assert "result     DIFFERENT: 2 objects\n" in out
    assert f"object     {fact.relative_to(ledger)} (page " in out
    assert f"object     {claim.relative_to(ledger)} (page " in out
    assert run(["replay", "verify", "--store", str(ledger), "--json"]) == 1
    report = msgspec.json.decode(capsys.readouterr().out)
    assert report["difference"] is None
    assert [one["recorded"] for one in report["differences"]] == [None, None]


def test_a_period_is_told(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "verify", "--store", str(ledger), "--to", "2000-01-01"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["pages"], lines["jobs"]) == ("0", "0, of which 0 ended")
    args = ["replay", "verify", "--store", str(ledger), "--from", "1h", "--to", "2h"]
    assert run(args) == 64
    assert "--from '1h' is not before --to '2h'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("done", "total", "cells"), [(0, 60, 0), (30, 60, 15), (59, 60, 29), (60, 60, 30), (90, 60, 30)]
)
def test_the_bar_is_as_long_as_what_is_done(done: int, total: int, cells: int) -> None:
    assert bar(done, total) == f"[{'#' * cells}{'.' * (30 - cells)}] "
    assert bar(done, 0) == ""


def test_no_ledger_is_one_line_with_the_mend(
    tmp_path: Path, gpuq_env: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "verify", "--store", str(tmp_path / "nowhere")]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gpuq: no ledger at ")
    assert said.err.count("\n") == 1


def test_the_tool_of_the_checkout_is_the_same_command(
    ledger: Path, gpuq_env: Mapping[str, str]
) -> None:
    def output(*command: str) -> str:
        return subprocess.run(
            [sys.executable, *command, "verify", "--store", str(ledger)],
            cwd=ROOT,
            env=gpuq_env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    tool = output("tools/replay.py")
    assert "identical" in tool
    assert tool == output("-m", "gpuq", "replay")


@pytest.mark.parametrize(("patience_ms", "is_drawn"), [(0, True), (60_000, False)])
def test_progress_is_shown_on_a_terminal_once_it_takes_long_and_is_wiped(
    ledger: Path,
    bodies: list[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    patience_ms: int,
    is_drawn: bool,
) -> None:
    monkeypatch.setattr("gpuq.progress.PATIENCE_MS", patience_ms)
    monkeypatch.setattr("gpuq.progress.REDRAW_MS", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["replay", "verify", "--store", str(ledger)]) == 0
    err = capsys.readouterr().err
    assert (f"\r{len(bodies)} pages derived again" in err) == is_drawn
    assert err.endswith("\r\x1b[K") == is_drawn
