"""Saved projections: they give back what was saved, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import msgspec
import pytest

from ledger.checkpoint import (
    TRIES,
    decode_checkpoint,
    encode_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from ledger.events import encode
from ledger.fair_state import FairState
from ledger.keys import checkpoint_key, page_key
from ledger.projection import Projection
from ledger.state import State
from simulation.memory import ManualClock, MemoryStore
from tests.world import World, running_job, sha256_of, world_of_one_node


def worked() -> World:
    """A world in which each table of the state holds something."""
    made = world_of_one_node(2)
    ended = running_job(made)
    made.finish(ended)
    running_job(made)
    made.submit(slots=2)
    made.submit("b", workload_class="interactive", held=True)
    made.cancel(made.submit("c"))
    made.turn()
    return made


def store_of(made: World) -> MemoryStore:
    """A store that holds the world's pages and no checkpoint."""
    store = MemoryStore(ManualClock())
    for page in made.pages:
        store.put_once(page_key(page.seq), encode(page))
    return store


def states(made: World) -> Iterator[State]:
    """The state after each page, oldest first."""
    reader = Projection(State(ledger="test"))
    for page in made.pages:
        reader.apply(page, sha256_of(page))
        yield reader.state


def test_a_state_comes_back_as_it_was_saved() -> None:
    state = worked().state
    checkpoint = decode_checkpoint(encode_checkpoint(state))
    assert checkpoint is not None
    assert checkpoint.state == state
    assert (checkpoint.seq, checkpoint.page_sha256) == (state.seq, state.page_sha256)


def test_the_order_of_every_table_comes_back() -> None:
    """Decisions depend on it."""
    state = worked().state
    checkpoint = decode_checkpoint(encode_checkpoint(state))
    assert checkpoint is not None
    for name in state.__struct_fields__:
        saved, restored = getattr(state, name), getattr(checkpoint.state, name)
        if isinstance(saved, dict):
            assert list(restored) == list(saved), name


def test_the_same_state_gives_the_same_bytes() -> None:
    assert encode_checkpoint(worked().state) == encode_checkpoint(worked().state)


def test_the_fair_state_of_a_checkpoint_has_the_same_digest() -> None:
    made = worked()
    checkpoint = decode_checkpoint(encode_checkpoint(made.state))
    assert checkpoint is not None
    restored = FairState(checkpoint.state.flows, checkpoint.state.pools)
    assert restored.digest() == made.projection.fair.digest() == made.pages[-1].fair


def test_tags_beyond_64_bits_can_be_saved() -> None:
    """Ten years of 1000 slots at a weight of 0.001: 3e17 slot-ms times SCALE times 1000."""
    state = worked().state
    flow = next(iter(state.flows.values()))
    flow.finish = 10**27
    checkpoint = decode_checkpoint(encode_checkpoint(state))
    assert checkpoint is not None
    assert checkpoint.state.flows[flow.id].finish == 10**27


def test_a_changed_byte_never_gives_another_state() -> None:
    state = State(ledger="test")
    body = encode_checkpoint(state)
    for position in range(len(body)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(body)
            damaged[position] ^= flip
            checkpoint = decode_checkpoint(bytes(damaged))
            assert checkpoint is None or checkpoint.state == state, (position, flip)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\x28\xb5\x2f\xfd",
        encode_checkpoint(State(ledger="x"))[:-5],
        encode_checkpoint(State(ledger="x"))[:-1],
    ],
)
def test_what_is_no_checkpoint_is_none(body: bytes) -> None:
    assert decode_checkpoint(body) is None


def test_the_newest_checkpoint_is_found_with_one_list_and_two_gets() -> None:
    made = worked()
    store = store_of(made)
    for state in states(made):
        save_checkpoint(store, state)
    store.counts.clear()
    assert newest_checkpoint(store, "test") == made.state
    assert store.counts == {"list": 1, "get": 2}


def test_there_is_none_in_an_empty_ledger() -> None:
    assert newest_checkpoint(MemoryStore(ManualClock()), "test") is None


def test_saving_twice_is_saving_once() -> None:
    made = worked()
    store = store_of(made)
    save_checkpoint(store, made.state)
    save_checkpoint(store, made.state)
    assert newest_checkpoint(store, "test") == made.state


def older_one(store: MemoryStore, made: World) -> State:
    """Save the state three pages before the end; a copy of it."""
    for state in states(made):
        if state.seq == made.state.seq - 3:
            save_checkpoint(store, state)
            return deepcopy(state)
    raise AssertionError("the world is too small")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda state: b"not a checkpoint", id="unreadable"),
        pytest.param(
            lambda state: encode_checkpoint(msgspec.structs.replace(state, page_sha256="0" * 64)),
            id="of another page",
        ),
        pytest.param(
            lambda state: encode_checkpoint(msgspec.structs.replace(state, ledger="other")),
            id="of another ledger",
        ),
    ],
)
def test_a_checkpoint_that_does_not_agree_is_passed_over(damage: Callable[[State], bytes]) -> None:
    made = worked()
    store = store_of(made)
    older = older_one(store, made)
    store.put_once(checkpoint_key(made.state.seq), damage(made.state))
    assert newest_checkpoint(store, "test") == older


def test_a_checkpoint_of_a_page_that_is_not_there_is_passed_over() -> None:
    made = worked()
    store = store_of(made)
    older = older_one(store, made)
    ahead = msgspec.structs.replace(made.state, seq=made.state.seq + 1)
    save_checkpoint(store, ahead)
    assert newest_checkpoint(store, "test") == older


def test_a_stray_object_is_passed_over() -> None:
    made = worked()
    store = store_of(made)
    save_checkpoint(store, made.state)
    store.put_once("checkpoints/.README", b"hello")
    store.put_once("checkpoints/000", b"hello")
    assert newest_checkpoint(store, "test") == made.state


def test_a_reader_gives_up_after_some_tries() -> None:
    made = worked()
    store = store_of(made)
    older_one(store, made)
    for ahead in range(1, TRIES + 1):
        store.put_once(checkpoint_key(made.state.seq + ahead), b"damaged")
    assert newest_checkpoint(store, "test") is None
