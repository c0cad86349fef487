"""``gpuq status``: what is seen when, and that no name breaks it."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

ODD_NAMES = ["[/x]", "[red]", "🚀", "n" * 300, "a\nb", "\x1b[31m", "-", " ", "{}", "%s"]


def rows(out: str) -> dict[str, list[str]]:
    """The rows of all tables, by their first word."""
    return {line.split()[0]: line.split() for line in out.splitlines() if line}


def test_a_job_is_seen_at_once_also_without_a_leader(gpuq: Gpuq, script: str) -> None:
    (job,) = gpuq("submit", "-q", script).ids
    out = gpuq("status").out
    assert out.splitlines()[0].startswith("0 running, 1 waiting, 0 nodes up, 1 report not yet")
    assert "no leader: start one with 'gpuq up'" in out.splitlines()[0]
    assert rows(out)[job][-3:] == ["not", "yet", "posted"]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_on_a_narrow_terminal_ids_and_states_stay_whole(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    long = ["--name", "n" * 60, "--org", "o" * 60, "-q", "--", "a"]
    runs, waits, ended = (gpuq("submit", *long).ids[0] for _ in range(3))
    fleet.ready("n1-cpu0")
    fleet.ready("n1-cpu1")
    fleet.post()
    started = [job for job in (runs, waits, ended) if fleet.state.jobs[JobId(job)].last]
    for job in started:
        fleet.start(job)
    fleet.finish(started[0], 0)
    fleet.post()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in gpuq("status").out.splitlines()]
    assert [line for line in lines if len(line) > columns] == []
    shown = {line[:8]: line.split() for line in lines}
    assert {runs, waits, ended} <= shown.keys()
    assert "COMPLETED" in shown[started[0]]
    assert "RUNNING" in shown[started[1]]


def test_bare_gpuq_is_status(gpuq: Gpuq, script: str) -> None:
    (job,) = gpuq("submit", "-q", script).ids
    assert job in rows(gpuq().out)


def test_what_runs_is_first_with_its_worker_and_what_waits_has_a_reason(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    first = gpuq("submit", "-q", "-t", "2h", "--", "a").ids[0]
    fleet.post()
    fleet.start(first)
    fleet.post()
    second = gpuq("submit", "-q", "--", "b").ids[0]
    third = gpuq("submit", "-q", "--", "c").ids[0]
    pinned = gpuq("submit", "-q", "--worker", "n9-gpu0", "--", "d").ids[0]
    held = gpuq("submit", "-q", "--hold", "--", "e").ids[0]
    elsewhere = gpuq("submit", "-q", "-p", "moon", "--", "f").ids[0]
    fleet.post()
    out = gpuq("status").out
    assert re.match(r"1 running, 4 waiting, 1 held, 1 node up; as of .*; leader fleet", out)
    table = rows(out)
    assert list(table)[2:] == [first, second, third, pinned, elsewhere, held]
    assert table[first][5] == "RUNNING"
    assert table[first][6].endswith("/2h00m")
    assert table[first][7] == "n1-cpu0"
    assert " ".join(table[second][7:]) == "next of its flow; a slot must become free"
    assert " ".join(table[third][7:]).startswith("1 before it in ")
    assert " ".join(table[pinned][7:]) == "n9-gpu0 never reported"
    assert " ".join(table[elsewhere][7:]) == "no worker serves pool moon"
    assert " ".join(table[held][7:]) == "held at submit"


def test_it_ends_with_the_last_twenty_that_ended(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    jobs = []
    for rc in range(22):
        jobs.append(gpuq("submit", "-q", "--", "a").ids[0])
        fleet.post()
        fleet.start(jobs[-1])
        fleet.finish(jobs[-1], rc)
        fleet.post()
    result = gpuq("status")
    listed = result.out.partition("ended last:\n")[2].splitlines()[1:]
    assert [line.split()[0] for line in listed] == jobs[:1:-1]
    assert listed[0].split()[3:6] == ["FAILED", "21", "1.5s"]
    newest = gpuq("status", "--json").json["ended"][0]
    assert (newest["state"], newest["rc"]) == ("FAILED", 21)


def test_json_has_utc_times_and_milliseconds(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--", "a").ids
    fleet.post()
    fleet.start(job)
    fleet.post()
    overview = gpuq("status", "--json").json
    assert overview["counts"] == {"running": 1, "waiting": 0, "held": 0}
    assert overview["nodes"] == {"up": 1, "draining": 0, "silent": 0}
    assert overview["leader"]["alive"] is True
    (shown,) = overview["jobs"]
    assert shown["workers"] == ["n1-cpu0"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown["started_at"])
    assert isinstance(shown["started_at_ms"], int)
    assert shown["ended_at"] is None


def test_one_job_is_shown_whole_with_its_attempts(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--name", "train", "--env", "A=1", "--", "x", "--lr").ids
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 3)
    fleet.post()
    out = gpuq("status", job).out
    assert "command:       x --lr\n" in out
    assert "variables:     A=1\n" in out
    assert rows(out)["1"][:4] == ["1", "n1-cpu0", "exited", "3"]
    whole = gpuq("status", "--json", job).json
    assert whole["attempts"][0]["rc"] == 3
    assert whole["command"] == ["x", "--lr"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_breaks_a_table(gpuq: Gpuq, fleet: Fleet, name: str) -> None:
    (job,) = gpuq("submit", "-q", "--name", name, "--", "true").ids
    fleet.post()
    result = gpuq("status")
    lines = result.out.splitlines()
    assert (result.rc, len(lines)) == (0, 4)
    assert lines[3].startswith(job)
    assert "\x1b" not in result.out
    assert gpuq("status", job).rc == 0
    assert gpuq("status", "--json").json["jobs"][0]["name"] == name


def test_a_leader_that_was_silent_for_two_leases_is_called_gone(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.post()
    assert "leader fleet (epoch 1)" in gpuq("status").out
    monkeypatch.setenv("GPUQ_TIME_SCALE", "1000")  # two leases are 60 ms
    result = gpuq("status")
    while "no leader for" not in result.out:
        result = gpuq("status")
    assert "start one with 'gpuq up'" in result.out


def test_a_rejected_job_says_why(gpuq: Gpuq, fleet: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "-G", "9", "--", "true").ids
    fleet.ready("n1-cpu0")
    fleet.post()
    shown = gpuq("status", "--json", job).json
    assert shown["state"] == "REJECTED"
    assert "at most 1" in shown["why"]
    assert rows(gpuq("status").out)[job][3] == "REJECTED"


# --- what is left out


@pytest.fixture
def one_of_each(gpuq: Gpuq, fleet: Fleet) -> dict[str, str]:
    """By state, a job that runs, one that failed, and two that wait, one of another org."""
    fleet.ready("n1-cpu0")
    fleet.post()
    ids = [gpuq("submit", "-q", "--org", "o", "--", "a").ids[0]]
    fleet.post()
    fleet.start(ids[0])
    fleet.finish(ids[0], 3)
    for org in ("o", "o", "p"):
        ids += gpuq("submit", "-q", "--org", org, "--", "a").ids
        fleet.post()
    fleet.start(ids[1])
    fleet.post()
    return dict(zip(("failed", "running", "pending", "other"), ids, strict=True))


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], ["running", "pending", "other", "failed"]),
        (["--state", "FAILED"], ["failed"]),
        (["--state", "running,pending"], ["running", "pending", "other"]),
        (["--org", "p"], ["other"]),
        (["--org", "o", "--state", "pending"], ["pending"]),
        (["--limit", "1"], ["running", "pending", "failed"]),
        (["--limit", "0"], ["running"]),
        (["--since", "1h"], ["running", "pending", "other", "failed"]),
    ],
)
def test_only_what_was_asked_for_is_shown(
    gpuq: Gpuq, one_of_each: dict[str, str], options: list[str], shown: list[str]
) -> None:
    expected = [one_of_each[name] for name in shown]
    body = gpuq("status", "--json", *options).json
    assert [job["id"] for job in body["jobs"] + body["ended"]] == expected
    out = gpuq("status", *options).out
    assert [line[:8] for line in out.splitlines() if line[:8] in one_of_each.values()] == expected


def test_of_what_ended_only_what_did_since_is_shown(
    gpuq: Gpuq, one_of_each: dict[str, str]
) -> None:
    ended_ms = gpuq("status", "--json", one_of_each["failed"]).json["ended_at_ms"]
    for since_ms, ended in ((ended_ms, [one_of_each["failed"]]), (ended_ms + 1, [])):
        since = datetime.fromtimestamp(since_ms / 1000).isoformat(timespec="milliseconds")
        body = gpuq("status", "--json", "--since", since).json
        assert [job["id"] for job in body["ended"]] == ended
        assert len(body["jobs"]) == 3


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (["--state", "runing"], "--state 'runing' is no state of a job: did you mean running?"),
        (["--since", "soon"], "'soon' is no time: say 2h (ago), or a time such as"),
        (["--state", "failed", "last"], "choose among all: name no job"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(gpuq: Gpuq, words: list[str], mend: str) -> None:
    result = gpuq("status", *words)
    assert (result.rc, result.out) == (64, "")
    assert mend in result.err


def test_what_the_nodes_cost_an_hour_is_summed_once_a_node(gpuq: Gpuq, fleet: Fleet) -> None:
    """2 slots of a node of 2.50 and one of a node of 0.40; a third told no price."""
    for worker, price in (("a-cpu0", 2.5), ("a-cpu1", 2.5), ("b-cpu0", 0.4), ("c-cpu0", 0)):
        fleet.ready(worker, price_micros=int(price * 1_000_000))
    fleet.post()
    assert "3 nodes up, 2.90 an hour" in gpuq("status").out
    assert gpuq("status", "--json").json["price_micros_per_hour"] == 2_900_000
