"""Following, posting and refusing pages; who a ledger is."""

from __future__ import annotations

import random
from copy import deepcopy

import msgspec
import pytest

from ledger.checkpoint import save_checkpoint
from ledger.errors import LedgerError, RequestError, UpgradeError
from ledger.events import LedgerInfo, Page, PutId, encode
from ledger.journal import (
    BATCH_MAX,
    Journal,
    create_ledger,
    decode_info,
    new_put_id,
    read_ledger,
)
from ledger.keys import LEDGER, checkpoint_key, page_key
from ledger.state import State
from ledger.stores.base import Lost, Won
from simulation.memory import ManualClock, MemoryStore
from tests.world import World, running_job, world_of_one_node


class SyncedStore(MemoryStore):
    """Notes which prefixes were made durable, between the keys that were read."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.log: list[str] = []

    def before(self, op: str, key: str) -> None:
        self.log.append(key)

    def sync(self, prefix: str) -> None:
        self.log.append(f"sync {prefix}")


def journal_of(bodies: list[bytes]) -> Journal:
    store = MemoryStore(ManualClock())
    for seq, body in enumerate(bodies):
        store.put_once(page_key(seq), body)
    return Journal(store, "test")


def long_world(pages: int) -> World:
    """A world of exactly so many pages, each with something in it."""
    made = world_of_one_node(2)
    while len(made.pages) < pages:
        made.submit()
        for job in list(made.state.jobs.values()):
            if job.last is not None and job.last.started_at is None:
                made.start(job.id)
        made.turn(after_ms=100)
    assert len(made.pages) == pages
    return made


def bodies_of(made: World) -> list[bytes]:
    return [encode(page) for page in made.pages]


# --- following --------------------------------------------------------------------------


def test_a_reader_agrees_with_the_leader() -> None:
    made = long_world(40)
    journal = journal_of(bodies_of(made))
    assert journal.follow() == made.pages
    assert journal.projection.state == made.state
    assert journal.projection.fair.digest() == made.pages[-1].fair


def test_where_nothing_is_new_following_costs_one_get() -> None:
    journal = journal_of(bodies_of(long_world(5)))
    journal.follow()
    store = journal.store
    assert isinstance(store, MemoryStore)
    store.counts.clear()
    assert journal.follow() == []
    assert store.counts == {"get": 1}


def test_a_reader_that_is_behind_asks_for_growing_batches() -> None:
    """1 + 2 + 4 + 8 + 16 = 31 pages, then 16 more, of which 9 are there."""
    journal = journal_of(bodies_of(long_world(40)))
    store = journal.store
    assert isinstance(store, MemoryStore)
    store.counts.clear()
    assert len(journal.follow()) == 40
    assert store.counts == {"get": 31 + BATCH_MAX}


def test_following_goes_on_where_it_ended() -> None:
    made = long_world(20)
    journal = journal_of(bodies_of(made)[:12])
    assert len(journal.follow()) == 12
    for page in made.pages[12:]:
        journal.store.put_once(page_key(page.seq), encode(page))
    assert journal.follow() == made.pages[12:]


def test_a_page_behind_a_gap_is_not_read() -> None:
    made = long_world(20)
    journal = Journal(MemoryStore(ManualClock()), "test")
    for page in made.pages:
        if page.seq != 10:
            journal.store.put_once(page_key(page.seq), encode(page))
    assert journal.follow() == made.pages[:10]


def test_what_was_read_is_durable_before_more_is_asked_for() -> None:
    store = SyncedStore()
    for page in long_world(3).pages:
        store.put_once(page_key(page.seq), encode(page))
    store.log.clear()
    Journal(store, "test").follow()
    keys = [page_key(seq) for seq in range(7)]
    sync = "sync journal/"
    assert store.log == [keys[0], sync, *keys[1:3], sync, *keys[3:7]]


# --- what no leader would have written --------------------------------------------------


def test_any_changed_byte_is_found_and_placed() -> None:
    """Page 4 is changed, at every byte; page 5 says what it should have been."""
    made = world_of_one_node()
    job = running_job(made)
    made.cancel(job)
    made.turn()
    made.turn()
    bodies = bodies_of(made)
    victim = 4
    assert len(bodies) == victim + 2
    assert b'"kind":"stop"' in bodies[victim]
    for position in range(len(bodies[victim])):
        damaged = bytearray(bodies[victim])
        damaged[position] ^= 0x01
        changed = [*bodies[:victim], bytes(damaged), *bodies[victim + 1 :]]
        with pytest.raises(LedgerError, match=r"page [45]\b|journal/000000000004"):
            journal_of(changed).follow()


def test_bytes_that_are_no_text_are_found_and_placed() -> None:
    bodies = bodies_of(long_world(6))
    for position in range(0, len(bodies[4]), 7):
        damaged = bytearray(bodies[4])
        damaged[position] = 0xFF
        changed = [*bodies[:4], bytes(damaged), *bodies[5:]]
        with pytest.raises(LedgerError, match=r"page [45]\b|journal/000000000004"):
            journal_of(changed).follow()


def test_a_broken_chain_names_both_pages() -> None:
    bodies = bodies_of(long_world(6))
    bodies[3] = bodies[3].replace(b'"put3"', b'"putX"')
    with pytest.raises(LedgerError, match=r"broken chain at page 4: it follows .*, but page 3 is"):
        journal_of(bodies).follow()


def test_nothing_of_a_changed_page_is_folded() -> None:
    """What follows from it could be anything; the fold ends at the page before."""
    made = long_world(12)
    bodies = bodies_of(made)
    bodies[8] = bodies[8].replace(b"put8", b"putX")
    journal = journal_of(bodies)
    with pytest.raises(LedgerError):
        journal.follow()
    assert journal.projection.state.seq == 7


def test_pages_of_another_ledger_are_refused() -> None:
    store = journal_of(bodies_of(long_world(3))).store
    with pytest.raises(LedgerError, match="page 0 belongs to ledger test"):
        Journal(store, "other").load()


def changed_page(page: Page, **fields: object) -> bytes:
    plain = msgspec.to_builtins(page) | fields
    return msgspec.json.encode(plain)


def test_a_newer_format_and_an_unknown_kind_ask_for_an_upgrade() -> None:
    made = long_world(4)
    for newer in (
        changed_page(made.pages[3], v=2),
        changed_page(made.pages[3], v=2, facts="something else altogether"),
        changed_page(made.pages[3], decisions=[{"kind": "teleport", "job": "x"}]),
    ):
        journal = journal_of([*bodies_of(made)[:3], newer])
        with pytest.raises(UpgradeError, match=r"journal/000000000003.*upgrade gpuq"):
            journal.follow()
        assert journal.projection.state.seq == 2


def test_a_page_that_is_no_json_object_is_an_error_that_names_it() -> None:
    bodies = bodies_of(long_world(3))
    for garbage in (b"", b"[]", b"\xff\xfe", bodies[2][:-1]):
        with pytest.raises(LedgerError, match="journal/000000000002 cannot be read"):
            journal_of([*bodies[:2], garbage]).follow()


# --- loading from a checkpoint ----------------------------------------------------------


def test_loading_reads_only_what_came_after_the_checkpoint() -> None:
    made = long_world(10)
    journal = journal_of(bodies_of(made))
    store = journal.store
    assert isinstance(store, MemoryStore)
    save_checkpoint(store, state_after(made, 7))
    store.counts.clear()
    journal.load()
    assert journal.projection.state == made.state
    # The checkpoint and its page; page 8; pages 9 and 10, of which 10 is not there.
    assert store.counts == {"list": 1, "get": 5}


def state_after(made: World, seq: int) -> State:
    journal = journal_of(bodies_of(made)[: seq + 1])
    journal.follow()
    return deepcopy(journal.projection.state)


def test_a_checkpoint_of_another_page_is_passed_over_for_an_older_one() -> None:
    made = long_world(10)
    journal = journal_of(bodies_of(made))
    save_checkpoint(journal.store, state_after(made, 4))
    wrong = state_after(made, 7)
    wrong.page_sha256 = "0" * 64
    save_checkpoint(journal.store, wrong)
    journal.load()
    assert journal.projection.state == made.state


def test_an_unreadable_checkpoint_costs_only_time() -> None:
    made = long_world(10)
    journal = journal_of(bodies_of(made))
    journal.store.put_once(checkpoint_key(9), b"damaged")
    journal.load()
    assert journal.projection.state == made.state


def test_loading_forgets_what_was_prepared() -> None:
    """After Lost: facts were applied for a page that somebody else posted first."""
    made = long_world(10)
    journal = journal_of(bodies_of(made))
    journal.load()
    journal.projection.begin(made.at, made.state.epoch, made.leader, (), made.pages[1].seen)
    journal.projection.state.arrivals += 1
    journal.load()
    assert journal.projection.state == made.state


# --- posting ----------------------------------------------------------------------------


def test_posting_creates_the_page_once() -> None:
    made = long_world(4)
    journal = journal_of(bodies_of(made)[:3])
    assert journal.post(made.pages[3], patience_ms=1000) == Won()
    other = msgspec.structs.replace(made.pages[3], put_id=PutId("other"))
    assert journal.post(other, patience_ms=1000) == Lost(encode(made.pages[3]))
    assert journal.follow() == made.pages


def test_a_leaders_own_page_gets_the_hash_that_readers_see() -> None:
    made = long_world(5)
    leader, reader = journal_of(bodies_of(made)[:4]), journal_of(bodies_of(made))
    leader.follow()
    page = made.pages[4]
    leader.projection.begin(page.at, page.epoch, page.leader, page.facts, page.seen)
    for decision in page.decisions:
        leader.projection.apply_decision(decision)
    leader.finish(page)
    reader.follow()
    assert leader.projection.state == reader.projection.state


# --- who a ledger is --------------------------------------------------------------------


def test_a_ledger_is_created_once_and_the_second_adopts_the_first() -> None:
    store = MemoryStore(ManualClock(wall_ms=5))
    first = create_ledger(store, random.Random(1))
    second = create_ledger(store, random.Random(2))
    assert first == second == read_ledger(store)
    assert first.created_at == 5


def test_where_there_is_no_ledger_the_user_is_told_how_to_make_one() -> None:
    with pytest.raises(RequestError, match="no ledger at memory:: make one with 'gpuq init"):
        read_ledger(MemoryStore(ManualClock()))


@pytest.mark.parametrize("field", ["v", "format"])
def test_a_ledger_of_a_newer_format_asks_for_an_upgrade(field: str) -> None:
    info = LedgerInfo(ledger="test", created_at=0, put_id=PutId("x"))
    newer = msgspec.json.encode(msgspec.to_builtins(info) | {field: 2})
    with pytest.raises(UpgradeError, match="upgrade gpuq"):
        decode_info(newer)


@pytest.mark.parametrize("body", [b"", b"nothing", b"{}", b"[1]", b'{"v":1,"ledger":3}'])
def test_an_unreadable_identity_is_an_error_that_names_the_object(body: bytes) -> None:
    with pytest.raises(LedgerError, match=f"{LEDGER} cannot be read"):
        decode_info(body)


def test_put_ids_have_130_bits() -> None:
    rng = random.Random(7)
    ids = {new_put_id(rng) for _ in range(100)}
    assert len(ids) == 100
    assert {len(put_id) for put_id in ids} == {26}
