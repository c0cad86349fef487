"""The probe on stores that keep the contract, and on two real ones that do not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from ledger.errors import RequestError
from ledger.stores.base import Entry
from ledger.stores.directory import DirectoryStore
from ledger.stores.probe import ProbeReport, Verdict, probe
from ledger.stores.settling import Sender, SettlingStore
from tests.servers import Server
from tests.stores.clocks import SteppedClock
from tests.stores.conftest import ATOMIC


def probed(store: SettlingStore) -> ProbeReport:
    return probe(store, clock=SystemClock(), rng=random.Random(1))


def verdicts(report: ProbeReport) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in report.checks}


@pytest.mark.parametrize("opener", ATOMIC, indirect=True)
def test_a_store_that_keeps_the_contract_passes_and_keeps_its_own_keys_apart(
    store: SettlingStore,
) -> None:
    report = probed(store)
    assert set(verdicts(report).values()) == {Verdict.OK}, report.checks
    report.require()
    assert {entry.key.split("/")[0] for entry in store.list_raw("", "", 1000)} == {"probe"}


class RacyStore(DirectoryStore):
    """Refuses a second create, unless it comes at the same time as the first."""

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        return super()._create(key, body, sender) or "/race/" in key


class ReplacingStore(DirectoryStore):
    """Refuses a second create, and stores it all the same."""

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        created = super()._create(key, body, sender)
        (self._root / key).write_bytes(body)
        return created


class TextStore(DirectoryStore):
    """Takes bodies for text."""

    def _create(self, key: str, body: bytes, sender: Sender) -> bool:
        return super()._create(key, body.replace(b"\r\n", b"\n"), sender)


class UnorderedStore(DirectoryStore):
    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        return iter(sorted(self.list(prefix, start_after), key=lambda e: e.key[::-1]))


class InclusiveStore(DirectoryStore):
    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        return (entry for entry in self.list(prefix) if entry.key >= start_after)


class OnePageStore(DirectoryStore):
    """Forgets what comes after the first page."""

    def list_raw(self, prefix: str, start_after: str, page_keys: int) -> Iterator[Entry]:
        return islice(self.list(prefix, start_after), page_keys)


@pytest.mark.parametrize(
    ("broken", "check", "words"),
    [
        (RacyStore, "one winner", "at the same time"),
        (ReplacingStore, "create once", "changed although"),
        (TextStore, "byte fidelity", "256 byte values"),
        (UnorderedStore, "list order", "byte order"),
        (InclusiveStore, "list order", "not exclusive"),
        (OnePageStore, "list paging", "small pages"),
    ],
)
def test_a_store_that_breaks_one_promise_is_refused_for_it(
    tmp_path: Path, broken: type[DirectoryStore], check: str, words: str
) -> None:
    report = probed(broken(tmp_path, clock=SystemClock(), rng=random.Random(2)))
    assert report.refused is not None
    assert report.refused.name == check
    assert words in report.refused.reason
    with pytest.raises(RequestError, match="cannot hold a ledger"):
        report.require()


def test_a_thorough_probe_of_a_folder_passes(tmp_path: Path) -> None:
    clock = SteppedClock()
    store = DirectoryStore(tmp_path, clock=clock, rng=random.Random(2))
    report = probe(store, clock=clock, rng=random.Random(1), thorough=True)
    report.require()
    assert report.checks[2].reason == "exactly one of 16 racing creates won, on each of 50 keys"


def test_rclone_which_ignores_the_condition_is_refused(
    rclone: Server, s3_credentials: None
) -> None:
    report = probed(rclone.open(rclone.new_bucket()))
    reasons = {c.name: c.reason for c in report.checks if c.verdict is Verdict.FAILED}
    assert reasons.keys() == {"create once", "one winner"}
    assert "replaced the first" in reasons["create once"]
    assert "accepted at the same time" in reasons["one winner"]
    with pytest.raises(RequestError, match="ignores If-None-Match"):
        report.require()


def test_a_versioned_bucket_of_ceph_is_refused_and_the_versions_are_named(
    ceph: Server, s3_credentials: None
) -> None:
    report = probed(ceph.open(ceph.new_bucket(versioned=True)))
    assert verdicts(report)["create once"] is Verdict.FAILED
    with pytest.raises(RequestError, match="keeps versions"):
        report.require()
