"""Ledgers that real runs of earlier versions left: this version reads them to the same end.

``tests/golden/record.py`` says how they were made. What must come out was written down then:
counts and digests, and how each job ended by a reading of the raw facts without gpuq.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from ledger.clock import SystemClock
from ledger.events import JobState, decode_claim, decode_fact, decode_message
from ledger.journal import Journal, decode_journal_page, read_ledger
from ledger.keys import (
    CLAIMS,
    FACTS,
    JOURNAL,
    MAILBOX,
    FactKey,
    claim_key,
    message_key,
    parse_claim_key,
    parse_message_key,
)
from ledger.stores import open_store
from ledger.stores.base import Store
from simulation.verify import verify

LEDGERS = sorted(path.parent for path in (Path(__file__).parent / "golden").glob("*/expected.json"))


@pytest.fixture(params=LEDGERS, ids=lambda path: path.name)
def root(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(str(root), clock=SystemClock(), rng=random.Random())


@pytest.fixture
def expected(root: Path) -> dict[str, Any]:
    return json.loads((root / "expected.json").read_bytes())


def test_there_is_a_golden_ledger() -> None:
    assert [path.name for path in LEDGERS] == ["v1"]


def test_every_decision_is_derived_again(store: Store, expected: dict[str, Any]) -> None:
    report = verify(store, read_ledger(store).ledger)
    assert report.difference is None
    assert (report.skipped_pages, report.void_pages) == (0, 0)
    counts = {name: getattr(report, name) for name in ("pages", "facts", "decisions", "epochs")}
    assert counts == {name: expected[name] for name in counts}
    assert (report.head, report.fair) == (expected["head"], expected["fair"])
    assert report.jobs == report.ended_jobs == len(expected["jobs"])


def test_every_job_ended_as_the_raw_facts_say(store: Store, expected: dict[str, Any]) -> None:
    journal = Journal(store, read_ledger(store).ledger)
    journal.follow()
    ends = {
        job.id: {
            "name": job.spec.name,
            "state": job.state.value,
            "rc": job.last.rc if job.last is not None else None,
        }
        for job in journal.projection.state.jobs.values()
    }
    assert ends == expected["jobs"]


def test_the_run_had_what_a_golden_ledger_is_for(store: Store, expected: dict[str, Any]) -> None:
    assert len(expected["jobs"]) >= 55
    assert expected["epochs"] >= 2
    states = {job["state"] for job in expected["jobs"].values()}
    assert states >= {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT}
    kinds = {FactKey.parse(entry.key).kind for entry in store.list(FACTS)}
    assert kinds >= {"submit", "cancel", "release", "policy", "drain", "undrain", "ready",
                     "start", "finish", "retire"}  # fmt: skip


def test_every_fact_stands_whole_in_one_page(store: Store) -> None:
    posted: dict[str, Any] = {}
    for entry in store.list(JOURNAL):
        body = store.get(entry.key)
        assert body is not None
        for item in decode_journal_page(body, entry.key).facts:
            assert item.key not in posted
            posted[item.key] = item.fact
    stored = {}
    for entry in store.list(FACTS):
        body = store.get(entry.key)
        assert body is not None
        assert FactKey.parse(entry.key).format() == entry.key
        stored[entry.key] = decode_fact(body)
    assert posted == stored


def test_claims_and_messages_can_be_read_and_none_is_missing(store: Store) -> None:
    journal = Journal(store, read_ledger(store).ledger)
    journal.follow()
    state = journal.projection.state
    claims = {parse_claim_key(entry.key) for entry in store.list(CLAIMS)}
    attempts = {(job.id, a.number) for job in state.jobs.values() for a in job.attempts}
    assert claims == attempts
    for job, attempt in claims:
        body = store.get(claim_key(job, attempt))
        assert body is not None
        claim = decode_claim(body)
        assert (claim.job, claim.attempt, claim.owner) == (job, attempt, "start")
    numbers: dict[str, list[int]] = {name: [] for name in state.workers}
    for entry in store.list(MAILBOX):
        worker, n = parse_message_key(entry.key)
        body = store.get(message_key(worker, n))
        assert body is not None
        message = decode_message(body)
        assert (message.worker, message.n) == (worker, n)
        numbers[worker].append(n)
    for name, worker_state in state.workers.items():
        assert numbers[name] == list(range(worker_state.next_message))


def test_nothing_in_it_names_the_machine_it_was_recorded_on(root: Path) -> None:
    text = b"\n".join(path.read_bytes() for path in root.rglob("*") if path.is_file()).decode()
    hosts = set(re.findall(r'"host":"([^"]*)"', text))
    users = set(re.findall(r'"(?:user|by)":"([^"]*)"', text))
    folders = set(re.findall(r'"cwd":"([^"]*)"', text))
    assert (hosts, users, folders) == ({"golden"}, {"golden"}, {"/tmp"})


def test_it_is_small(root: Path) -> None:
    assert sum(path.stat().st_size for path in root.rglob("*")) < 1_000_000
