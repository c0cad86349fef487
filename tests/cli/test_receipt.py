"""``gpuq audit job``: every event with its object, each attempt with its hashes, and the cost."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ledger.events import Claim, MessageSkipped, PutId, encode
from ledger.keys import claim_key, log_key
from ledger.names import JobId, WorkerName, WriterName
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

SCRIPT = "#!/bin/sh\necho hello\n"


@pytest.fixture
def job(gpuq: Gpuq, fleet: Fleet, script: str) -> str:
    """A script that ran twice, the first time cancelled."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (job,) = gpuq("submit", "-q", "-t", "10m", "--env", "SEED=17", script).ids
    fleet.post()
    fleet.start(job)
    fleet.post()
    gpuq("cancel", job, "--reason", "wrong data")
    fleet.post()
    fleet.finish(job, 143, outcome="stopped", log=b"hel", ran_ms=1)
    skip = MessageSkipped(at=fleet.store.clock_ms(), worker=WorkerName("n1-cpu0"), cursor=2)
    fleet.report("n1-cpu0", skip)
    fleet.post()
    gpuq("retry", job)
    fleet.post()
    fleet.start(job)
    fleet.post()
    fleet.finish(job, 0, log=b"hello\n", ran_ms=1)
    fleet.post()
    return job


def test_the_receipt_has_every_event_and_its_object(gpuq: Gpuq, fleet: Fleet, job: str) -> None:
    body = gpuq("audit", "job", job, "--json").json
    events = body["events"]
    assert sorted(event["event"] for event in events) == sorted(
        ["submit", "assign", "start", "cancel", "stop", "finish", "retry", "assign", "start",
         "finish"]
    )  # fmt: skip
    for event in events:
        assert fleet.store.get(event["key"]) is not None, event
        assert event["at_ms"] <= event["posted_at_ms"] + 1_000
    (cancel,) = (event for event in events if event["event"] == "cancel")
    assert cancel["details"]["reason"] == "wrong data"
    assert [event["at_ms"] for event in events] == sorted(event["at_ms"] for event in events)


def test_the_receipt_has_both_attempts_with_end_cost_and_log(
    gpuq: Gpuq, fleet: Fleet, job: str
) -> None:
    body = gpuq("audit", "job", "last", "--json").json
    first, second = body["attempts"]
    assert [first["became"], first["rc"], second["became"], second["rc"]] == [
        "cancelled", 143, "done", 0,
    ]  # fmt: skip
    assert [first["occupied_slot_ms"], second["occupied_slot_ms"]] == [1, 1]
    assert body["occupied_slot_ms"] == 2
    assert second["workers"] == ["n1-cpu0"]
    log = b"hello\nrc=0\n"
    assert second["log_key"] == log_key(job, 2)
    assert (second["log_bytes"], second["log_sha256"]) == (
        len(log),
        hashlib.sha256(log).hexdigest(),
    )


def test_the_receipt_names_the_code_and_no_value_of_a_variable(gpuq: Gpuq, job: str) -> None:
    result = gpuq("audit", "job", job, "--json")
    assert result.json["script_sha256"] == hashlib.sha256(SCRIPT.encode()).hexdigest()
    assert result.json["script_bytes"] == len(SCRIPT)
    assert result.json["variables"] == ["SEED"]
    assert "17" not in {str(value) for value in result.json.values()}
    assert "SEED=17" not in result.out + gpuq("audit", "job", job).out


def test_a_claim_is_an_event_of_its_own(gpuq: Gpuq, fleet: Fleet, job: str) -> None:
    claim = Claim(
        ledger=fleet.state.ledger, put_id=PutId("p"), job=JobId(job), attempt=2, owner="start",
        writer=WriterName("n1-cpu0~aaaaaaaa"), at=fleet.store.clock_ms(), machine="m1",
    )  # fmt: skip
    fleet.store.put_new(claim_key(job, 2), encode(claim))
    body = gpuq("audit", "job", job, "--json").json
    (event,) = (event for event in body["events"] if event["event"] == "claim")
    assert event["key"] == claim_key(job, 2)
    assert (event["at_ms"], event["page"]) == (claim.at, None)
    assert body["attempts"][1]["claim_machine"] == "m1"
    assert "as start by n1-cpu0~aaaaaaaa on machine m1" in gpuq("audit", "job", job).out


def test_a_person_sees_attempts_and_a_table_of_events(gpuq: Gpuq, here: Path, job: str) -> None:
    """900,000 an hour is a quarter a millisecond: two of them are 0.50."""
    (here / "prices.toml").write_text('[nodes]\n"n1" = 900000\n')
    out = gpuq("audit", "job", job, "--prices", "prices.toml").out
    head, first, second, events = out.split("\n\n")
    assert "money:         0.50" in head.splitlines()
    assert "money:         0.25" in first.splitlines()
    assert "became:        cancelled" in first.splitlines()
    assert "rc:            0" in second.splitlines()
    assert events.splitlines()[0].split() == ["TIME", "EVENT", "OBJECT", "DETAILS"]
    assert any("reason='wrong data'" in line for line in events.splitlines())


def test_a_job_that_no_page_has_is_one_line(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.post()
    (job,) = gpuq("submit", "-q", "--", "true").ids
    result = gpuq("audit", "job", job)
    assert (result.rc, result.out) == (64, "")
    assert result.err == f"gpuq: no page holds the submit of {job} yet: try again shortly\n"
