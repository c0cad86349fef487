"""Verification derives every decision again, and finds what was changed in a ledger."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from ledger.errors import UpgradeError
from ledger.keys import page_key
from simulation.memory import ManualClock, MemoryStore
from simulation.verify import Verification, verify
from tests.simulation.ledgers import (
    WEIGHTS,
    bodies_of,
    drain_queue,
    eventful_world,
    policy,
    write_ledger,
)
from tests.world import START_MS, World

EDITS_PER_PAGE = 25
SEED = 20_261_130

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    return bodies_of(eventful_world())


def store_of(bodies: Sequence[bytes]) -> MemoryStore:
    store = MemoryStore(ManualClock(START_MS))
    write_ledger(store, bodies)
    return store


def verdict(bodies: Sequence[bytes]) -> Verification:
    return verify(store_of(bodies), "test")


def rechained(bodies: Sequence[bytes], seq: int, edit: Edit) -> list[bytes]:
    """What a forger would write: page ``seq`` edited, and all later pages linked to that."""
    forged = list(bodies[:seq])
    for number, body in enumerate(bodies[seq:], start=seq):
        page = msgspec.json.decode(body)
        page["prev_sha256"] = hashlib.sha256(forged[-1]).hexdigest() if forged else ""
        if number == seq:
            edit(page)
        forged.append(msgspec.json.encode(page))
    return forged


def page_with(bodies: Sequence[bytes], kind: str) -> tuple[int, int]:
    """Where the first decision of this kind stands: page and index."""
    for seq, body in enumerate(bodies):
        for index, decision in enumerate(msgspec.json.decode(body)["decisions"]):
            if decision["kind"] == kind:
                return seq, index
    raise AssertionError(kind)


def test_a_ledger_as_it_was_written_is_verified_whole(bodies: list[bytes]) -> None:
    pages = [msgspec.json.decode(body) for body in bodies]
    report = verdict(bodies)
    assert report.difference is None
    assert report.pages == len(bodies)
    assert report.facts == sum(len(page["facts"]) for page in pages)
    assert report.decisions == sum(len(page["decisions"]) for page in pages)
    assert (report.jobs, report.ended_jobs, report.epochs) == (6, 6, 2)
    assert (report.void_pages, report.skipped_pages) == (0, 0)
    assert report.fair == pages[-1]["fair"]
    assert report.head == hashlib.sha256(bodies[-1]).hexdigest()


def test_a_ledger_without_pages_has_nothing_to_differ_in() -> None:
    report = verdict([])
    assert (report.pages, report.head, report.difference) == (0, "", None)


def test_progress_is_told_of_every_page(bodies: list[bytes]) -> None:
    told: list[int] = []
    verify(store_of(bodies), "test", lambda report: told.append(report.pages))
    assert told == list(range(1, len(bodies) + 1))


def test_any_byte_of_any_page_but_the_last_is_missed(bodies: list[bytes]) -> None:
    rng = random.Random(SEED)
    for seq, body in enumerate(bodies[:-1]):
        for _ in range(EDITS_PER_PAGE):
            place = rng.randrange(len(body))
            edited = bytearray(body)
            edited[place] = (body[place] + rng.randrange(1, 256)) % 256
            report = verdict([*bodies[:seq], bytes(edited), *bodies[seq + 1 :]])
            where = (seq, place, bytes(edited[max(0, place - 30) : place + 10]))
            assert report.difference is not None, where
            assert report.difference.page == seq, (where, report.difference)
            assert report.difference.key == page_key(seq)


def test_of_the_last_page_only_what_its_decisions_rest_on_is_missed(bodies: list[bytes]) -> None:
    last = len(bodies) - 1
    harmless = rechained(bodies, last, lambda page: page.update(put_id="another"))
    assert verdict(harmless).difference is None
    assert verdict(harmless).head != verdict(bodies).head

    def forget_a_fact(page: dict[str, Any]) -> None:
        assert page["facts"].pop()["fact"]["kind"] == "finish"

    forged = verdict(rechained(bodies, last, forget_a_fact))
    assert forged.difference is not None
    assert (forged.difference.page, forged.difference.field) == (last, "decisions[0]")
    assert forged.difference.recorded is None
    assert forged.difference.derived["kind"] == "overrun"


def test_what_the_last_page_hid_is_found_when_another_follows(bodies: list[bytes]) -> None:
    edited = bodies[-2].replace(b'"put_id":"put', b'"put_id":"pun')
    assert edited != bodies[-2]
    assert verdict([*bodies[:-2], edited]).difference is None
    report = verdict([*bodies[:-2], edited, bodies[-1]])
    assert report.difference is not None
    assert report.difference.page == len(bodies) - 2
    assert report.difference.field == "sha256"
    assert report.difference.recorded == hashlib.sha256(edited).hexdigest()
    assert hashlib.sha256(bodies[-2]).hexdigest() in report.difference.derived


def test_a_link_that_was_changed_is_told_from_a_page_that_was_changed(bodies: list[bytes]) -> None:
    link = hashlib.sha256(bodies[3]).hexdigest().encode()
    report = verdict([*bodies[:4], bodies[4].replace(link, b"0" * 64), *bodies[5:]])
    assert report.difference is not None
    assert (report.difference.page, report.difference.field) == (4, "prev_sha256")
    assert report.difference.recorded == "0" * 64
    assert report.difference.derived == link.decode()


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("assign", "slots", ["n1-cpu1"]),
        ("assign", "start_tag", 1),
        ("assign", "cost_ms", 1),
        ("stop", "reason", "superseded"),
        ("revoke", "reason", "no reason"),
        ("overrun", "cost_ms", 1),
    ],
)
def test_a_forged_decision_is_found_though_the_whole_chain_was_forged(
    bodies: list[bytes], kind: str, field: str, value: object
) -> None:
    seq, index = page_with(bodies, kind)
    genuine = msgspec.json.decode(bodies[seq])["decisions"][index]
    assert genuine[field] != value

    def forge(page: dict[str, Any]) -> None:
        page["decisions"][index][field] = value

    report = verdict(rechained(bodies, seq, forge))
    assert report.difference is not None
    assert (report.difference.page, report.difference.field) == (seq, f"decisions[{index}]")
    assert report.difference.recorded == {**genuine, field: value}
    assert report.difference.derived == genuine


def test_a_decision_too_many_and_one_too_few_are_found(bodies: list[bytes]) -> None:
    seq, index = page_with(bodies, "requeue")
    fewer = verdict(rechained(bodies, seq, lambda page: page["decisions"].pop(index)))
    assert fewer.difference is not None
    assert (fewer.difference.page, fewer.difference.field) == (seq, f"decisions[{index}]")

    extra = {"kind": "reject", "job": "aaaaaaaa", "reason": "invented"}
    last = len(bodies) - 1
    more = verdict(rechained(bodies, last, lambda page: page["decisions"].append(extra)))
    assert more.difference is not None
    assert more.difference.recorded == extra
    assert more.difference.derived is None


def test_a_forged_fair_digest_is_found(bodies: list[bytes]) -> None:
    report = verdict(rechained(bodies, 5, lambda page: page.update(fair="0" * 32)))
    assert report.difference is not None
    assert (report.difference.page, report.difference.field) == (5, "fair")


def test_a_page_that_goes_back_in_time_is_found(bodies: list[bytes]) -> None:
    report = verdict(rechained(bodies, 6, lambda page: page.update(at=START_MS)))
    assert report.difference is not None
    assert (report.difference.page, report.difference.field) == (6, "at")


def test_a_missing_page_is_named_where_later_ones_exist(bodies: list[bytes]) -> None:
    store = MemoryStore(ManualClock(START_MS))
    write_ledger(store, bodies[:5])
    for seq in range(6, len(bodies)):
        store.put_once(page_key(seq), bodies[seq])
    report = verify(store, "test")
    assert report.pages == 5
    assert report.difference is not None
    assert (report.difference.page, report.difference.field) == (5, "body")
    assert report.difference.recorded is None


def test_a_stray_object_in_the_journal_is_no_later_page(bodies: list[bytes]) -> None:
    store = store_of(bodies)
    store.put_once("journal/notes", b"somebody's own")
    assert verify(store, "test").difference is None


def test_a_page_posted_while_the_end_is_looked_for_is_verified_too(bodies: list[bytes]) -> None:
    class Posting(MemoryStore):
        """Two more pages land just before the end of the journal is looked for."""

        def before(self, op: str, key: str) -> None:
            if op == "list" and self.counts["list"] == 0:
                self.counts["list"] += 1
                for seq in (len(bodies) - 2, len(bodies) - 1):
                    self.put_once(page_key(seq), bodies[seq])

    store = Posting(ManualClock(START_MS))
    write_ledger(store, bodies[:-2])
    report = verify(store, "test")
    assert report.difference is None
    assert report.pages == len(bodies)


def test_a_newer_page_that_the_chain_vouches_for_asks_for_an_upgrade(bodies: list[bytes]) -> None:
    newer = rechained(bodies, 4, lambda page: page.update(v=2))
    with pytest.raises(UpgradeError, match="journal/000000000004 has format 2"):
        verdict(newer)


def test_pages_of_other_rules_are_folded_and_counted(bodies: list[bytes]) -> None:
    report = verdict(rechained(bodies, 4, lambda page: page.update(rules=7)))
    assert report.difference is None
    assert report.skipped_pages == 1
    assert report.pages == len(bodies)
    assert report.ended_jobs == 6


@pytest.mark.parametrize("discipline", ["wfq", "sfq", "fifo", "strict"])
def test_a_thousand_jobs_are_derived_again(discipline: str) -> None:
    rng = random.Random(SEED)
    world = World(policy(discipline))
    for node in ("n1", "n2", "n3", "n4"):
        world.node_up(node, 8)
    for number in range(1_000):
        world.submit(
            rng.choice(sorted(WEIGHTS)),
            name=f"job-{number}",
            slots=rng.choice((1, 1, 1, 2, 4)),
            estimate_ms=rng.randrange(200, 5_000),
        )
    world.turn()
    drain_queue(world)
    assert sum(job.state == "COMPLETED" for job in world.state.jobs.values()) == 1_000
    report = verdict(bodies_of(world))
    assert report.difference is None
    assert (report.jobs, report.ended_jobs) == (1_000, 1_000)
    assert report.decisions >= 1_000
