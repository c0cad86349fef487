"""``gpuq audit``: sums in four formats, periods, prices, and what it says to wrong calls."""

from __future__ import annotations

import csv
import io
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.waiting import wait_until


@pytest.fixture
def job(gpuq: Gpuq, fleet: Fleet) -> str:
    """One job of organization ``o`` that ran for 1.5 seconds on the only slot, and failed."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "--org", "o", "-q", "-t", "10m", "--", "true").ids
    fleet.post()
    fleet.start(job)
    fleet.post()
    fleet.finish(job, 3)
    fleet.post()
    return job


def local(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000).isoformat(timespec="milliseconds")


def audited(gpuq: Gpuq, *args: str) -> Any:
    result = gpuq("audit", "--json", *args)
    assert result.rc == 0, result.err
    return result.json


def test_a_person_sees_a_table_with_the_period_and_the_page(gpuq: Gpuq, job: str) -> None:
    out = gpuq("audit").out.splitlines()
    assert out[0].endswith("; as of page 4")
    header, *rows = (line.split() for line in out[2:])
    assert header == [
        "ORG", "JOBS", "ATTEMPTS", "OCCUPIED", "DONE", "FAILED", "CANCELLED", "LOST", "RUNNING",
        "ASKED", "IDLE",
    ]  # fmt: skip
    used, idle, total = rows
    assert used == ["o", "1", "1", "1.5s", "0.0s", "1.5s", *["0.0s"] * 3, "10m00s", "-"]
    assert idle[0] == "(idle)"
    assert total[:4] == ["total", "1", "1", "1.5s"]


def test_json_holds_milliseconds(gpuq: Gpuq, job: str) -> None:
    body = audited(gpuq, "--by", "org,job")
    assert body["by"] == ["org", "job"]
    (row,) = body["rows"]
    assert row == {
        "org": "o", "job": job, "jobs": 1, "attempts": 1, "occupied_slot_ms": 1_500,
        "done_slot_ms": 0, "failed_slot_ms": 1_500, "cancelled_slot_ms": 0, "lost_slot_ms": 0,
        "running_slot_ms": 0, "asked_slot_ms": 600_000, "money_micros": 0,
    }  # fmt: skip
    (idle,) = body["idle"]
    assert (idle["org"], idle["job"]) == (None, None)
    assert body["total"]["idle_slot_ms"] == idle["idle_slot_ms"]
    assert body["from_ms"] < body["to_ms"]


def test_a_period_cuts_a_job_at_its_edges(gpuq: Gpuq, fleet: Fleet, job: str) -> None:
    (attempt,) = fleet.state.jobs[JobId(job)].attempts
    assert attempt.started_at is not None
    begin, end = local(attempt.started_at + 500), local(attempt.started_at + 1_300)
    body = audited(gpuq, "--from", begin, "--to", end)
    assert body["total"]["occupied_slot_ms"] == 800
    assert body["total"]["asked_slot_ms"] == 0
    assert audited(gpuq, "--from", begin)["total"]["occupied_slot_ms"] == 1_000
    assert audited(gpuq, "--to", begin)["total"]["occupied_slot_ms"] == 500


def test_csv_has_a_line_for_each_group_and_for_idle_time(gpuq: Gpuq, job: str) -> None:
    used, idle = csv.DictReader(io.StringIO(gpuq("audit", "--by", "user,node", "--csv").out))
    assert (used["line"], used["node"], used["failed_slot_ms"]) == ("used", "n1", "1500")
    assert (idle["line"], idle["user"], idle["node"]) == ("idle", "", "n1")
    assert int(idle["idle_slot_ms"]) >= 0


def test_markdown_is_the_table(gpuq: Gpuq, job: str) -> None:
    lines = gpuq("audit", "--markdown").out.splitlines()
    assert lines[0].startswith("| ORG | JOBS | ATTEMPTS |")
    assert lines[1].startswith("| --- | ---: | ---: |")
    assert lines[2].startswith("| o | 1 | 1 | 1.5s |")
    assert lines[-1].startswith("| total |")


def test_prices_of_a_file_give_money(gpuq: Gpuq, here: Path, job: str) -> None:
    """1800 an hour is half a unit a second: 1.5 seconds are 0.75."""
    (here / "prices.toml").write_text('[nodes]\n"n9" = 7\n"n*" = 1800.0\n')
    body = audited(gpuq, "--prices", "prices.toml")
    assert body["rows"][0]["money_micros"] == 750_000
    idle_ms = body["total"]["idle_slot_ms"]
    assert body["total"]["idle_money_micros"] == idle_ms * 500
    header, used, *_ = gpuq("audit", "--prices", "prices.toml").out.splitlines()[2:]
    assert (header.split()[-1], used.split()[-1]) == ("MONEY", "0.75")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[nodes]\nn1 = 'much'\n", "prices.toml: 'n1' has no price"),
        ("[nodes]\nn1 = -1\n", "'-1' is no price"),
        ("[nodes]\nn1 = 0.0000001\n", "'0.0000001' is no price"),
        ("[rates]\nn1 = 1\n", "needs one table [nodes]"),
        ("nodes\n", "prices.toml is not TOML"),
    ],
)
def test_a_file_of_prices_that_is_none_is_refused(
    gpuq: Gpuq, here: Path, job: str, text: str, said: str
) -> None:
    (here / "prices.toml").write_text(text)
    result = gpuq("audit", "--prices", "prices.toml")
    assert (result.rc, result.out) == (64, "")
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--by", "colour"], "--by 'colour': say one or more of org, user, class"),
        (["--by", "org,org"], "names something twice"),
        (["--csv", "--json"], "--csv and --json exclude each other"),
        (["--from", "yesterday"], "'yesterday' is no time"),
        (["--from", "1h", "--to", "2h"], "--from '1h' is not before --to '2h'"),
        (["--by", "node", "fairness"], "--by must stand behind 'gpuq audit fairness'"),
        (["--json", "job", "last"], "--json must stand behind 'gpuq audit job'"),
        (["--prices", "nowhere.toml"], "cannot read nowhere.toml"),
    ],
)
def test_a_wrong_call_is_one_line_with_the_mend(
    gpuq: Gpuq, job: str, args: list[str], said: str
) -> None:
    result = gpuq("audit", *args)
    assert (result.rc, result.out) == (64, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_an_empty_ledger_has_a_bill_of_nothing(gpuq: Gpuq, here: Path) -> None:
    body = audited(gpuq)
    assert (body["rows"], body["idle"], body["page"]) == ([], [], -1)


def test_fairness_shows_what_was_owed_and_got_and_why(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    """One slot, weights 1: ``o`` has it from before the contest, ``p`` waits and is owed half."""
    fleet.ready("n1-cpu0")
    fleet.post()
    assert gpuq("audit", "fairness").out == "no pool was contested, as of page 1\n"
    first, _ = (
        gpuq("submit", "--org", organization, "-q", "-t", "1s", "--", "true").ids[0]
        for organization in ("o", "o")
    )
    fleet.post()
    fleet.start(first)
    fleet.post()
    gpuq("submit", "--org", "p", "-q", "-t", "1s", "--", "true")
    fleet.post()
    gpuq("submit", "--org", "p", "-q", "-t", "1s", "--", "true")
    fleet.post()
    (pool,) = gpuq("audit", "fairness", "--json").json["pools"]
    o, p = pool["organizations"]
    assert (pool["pool"], o["organization"], p["organization"]) == ("default", "o", "p")
    assert o["got_slot_ms"] == o["carried_slot_ms"] == pool["contested_ms"] > 0
    assert p["got_slot_ms"] == 0
    assert abs(o["owed_slot_ms"] + p["owed_slot_ms"] - o["got_slot_ms"]) <= 1
    assert abs(p["owed_slot_ms"] - o["got_slot_ms"] / 2) <= 1
    assert p["difference_slot_ms"] == -p["owed_slot_ms"]
    assert p["why"][0].startswith("others' jobs from before the contest held ")
    rows = gpuq("audit", "fairness").out.splitlines()
    assert rows[0].split() == [
        "POOL", "ORG", "WEIGHT", "CONTESTED", "OWED", "GOT", "DIFFERENCE", "WHY",
    ]  # fmt: skip
    assert [row.split()[1] for row in rows[1:]] == ["o", "p"]
    assert gpuq("audit", "fairness", "--to", "1h").out.startswith("no pool was contested")


def test_what_a_node_costs_is_told_where_it_is_started(
    gpuq: Gpuq, spawn: Callable[..., subprocess.Popen]
) -> None:
    """3600 an hour is 1000 millionths a millisecond, all of it idle on the only slot."""
    node = spawn("up", "--slots", "1", "--node", "n1", "--price", "3600")

    def is_told() -> bool:
        return gpuq("audit").rc == 0 and audited(gpuq)["total"]["idle_money_micros"] > 0

    wait_until(is_told, deadline_s=60, what="the price of n1")
    node.send_signal(signal.SIGINT)
    assert node.wait(timeout=60) == 0
    total = audited(gpuq, "--by", "node")["total"]
    assert total["idle_money_micros"] == 1_000 * total["idle_slot_ms"]


def test_a_price_that_is_none_starts_no_node(gpuq: Gpuq) -> None:
    result = gpuq("up", "--price", "much")
    assert result.rc == 64
    assert "'much' is no price: a price is a number such as 2.5" in result.err
