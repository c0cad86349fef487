"""Names of objects: round trips, strictness, and that they sort as the protocol needs."""

from __future__ import annotations

import string
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import keys
from ledger.keys import BeatKey, FactKey, after_stamp, format_stamp, parse_stamp
from ledger.names import BASE32, JobId, WorkerName, WriterName
from ledger.stores.naming import is_key

LAST_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999

times_ms = st.integers(0, LAST_MS)
numbers = st.integers(0, 2**63)
name_letters = string.ascii_lowercase + string.digits + "-"
writers = st.builds(
    lambda name, incarnation: WriterName(f"{name}~{incarnation}"),
    st.text(name_letters, min_size=1, max_size=80),
    st.text(BASE32, min_size=8, max_size=8),
)
kinds = st.text(string.ascii_lowercase + "_", min_size=1, max_size=32)
jobs = st.text(BASE32, min_size=8, max_size=8).map(JobId)
workers = st.text(name_letters, min_size=1, max_size=63).map(lambda node: f"{node}-gpu0")
fact_keys = st.builds(FactKey, stamp_ms=times_ms, writer=writers, n=numbers, kind=kinds)
beat_keys = st.builds(BeatKey, stamp_ms=times_ms, writer=writers, n=numbers)

FACT = "facts/20261130T17/20261130T171300123Z.node3-gpu0~k3f2x2ab.12.finish"
BEAT = "beats/20261130T17/20261130T171300123Z.node3~k3f2x2ab.0"


def test_stamp_is_the_one_of_the_format_description() -> None:
    moment = datetime(2026, 11, 30, 17, 13, 0, 123_000, tzinfo=UTC)
    assert format_stamp(round(moment.timestamp() * 1000)) == "20261130T171300123Z"


def test_keys_are_the_ones_of_the_format_description() -> None:
    at_ms = parse_stamp("20261130T171300123Z")
    worker = WriterName("node3-gpu0~k3f2x2ab")
    node = WriterName("node3~k3f2x2ab")
    assert FactKey(stamp_ms=at_ms, writer=worker, n=12, kind="finish").format() == FACT
    assert BeatKey(stamp_ms=at_ms, writer=node, n=0).format() == BEAT
    assert keys.page_key(7) == "journal/000000000007"
    assert keys.message_key("node3-gpu0", 7) == "mailbox/node3-gpu0/00000007"
    assert keys.claim_key("abcdefgh", 2) == "claims/abcdefgh.2"
    assert keys.artifact_key("abcdefgh", 2) == "artifacts/abcdefgh.2"
    assert keys.log_piece_key("abcdefgh", 2, 7) == "logs/abcdefgh.2/000007"
    assert keys.log_key("abcdefgh", 2) == "logs/abcdefgh.2.log"
    assert keys.checkpoint_key(7) == "checkpoints/999999999992"


@given(times_ms)
def test_stamp_round_trip(at_ms: int) -> None:
    assert parse_stamp(format_stamp(at_ms)) == at_ms


@given(fact_keys)
def test_fact_key_round_trip(key: FactKey) -> None:
    assert FactKey.parse(key.format()) == key


@given(beat_keys)
def test_beat_key_round_trip(key: BeatKey) -> None:
    assert BeatKey.parse(key.format()) == key


@given(st.integers(0, 10**12 - 1))
def test_page_and_checkpoint_key_round_trip(seq: int) -> None:
    assert keys.parse_page_key(keys.page_key(seq)) == seq
    assert keys.parse_checkpoint_key(keys.checkpoint_key(seq)) == seq


@given(workers, st.integers(0, 10**8 - 1))
def test_message_key_round_trip(worker: str, n: int) -> None:
    assert keys.parse_message_key(keys.message_key(worker, n)) == (WorkerName(worker), n)


@given(jobs, numbers, st.integers(0, 10**6 - 1))
def test_claim_and_log_key_round_trip(job: JobId, attempt: int, n: int) -> None:
    assert keys.parse_claim_key(keys.claim_key(job, attempt)) == (job, attempt)
    assert keys.parse_artifact_key(keys.artifact_key(job, attempt)) == (job, attempt)
    assert keys.parse_log_piece_key(keys.log_piece_key(job, attempt, n)) == (job, attempt, n)


@given(times_ms, times_ms)
def test_stamps_sort_like_times(one: int, other: int) -> None:
    assert (format_stamp(one) < format_stamp(other)) == (one < other)


@given(fact_keys, times_ms)
def test_a_list_after_a_stamp_begins_with_that_stamp(key: FactKey, at_ms: int) -> None:
    assert (key.format() > after_stamp(keys.FACTS, at_ms)) == (key.stamp_ms >= at_ms)


@given(beat_keys, times_ms)
def test_a_list_of_beats_after_a_stamp_begins_with_that_stamp(key: BeatKey, at_ms: int) -> None:
    assert (key.format() > after_stamp(keys.BEATS, at_ms)) == (key.stamp_ms >= at_ms)


@given(st.integers(0, 10**12 - 2))
def test_the_newest_checkpoint_sorts_first(seq: int) -> None:
    assert keys.checkpoint_key(seq + 1) < keys.checkpoint_key(seq)


def test_a_negative_time_starts_at_the_beginning() -> None:
    assert after_stamp(keys.FACTS, -1) == "facts/19700101T00/19700101T000000000Z"


# Each differs in one place from a valid key; the last ones only to the eye.
STRAYS: list[tuple[Callable[[str], object], str]] = [
    (FactKey.parse, FACT + " "),
    (FactKey.parse, FACT + "\n"),
    (FactKey.parse, "x" + FACT),
    (FactKey.parse, FACT.replace("facts/", "fact/")),
    (FactKey.parse, FACT.replace("T17/", "T18/")),
    (FactKey.parse, FACT.replace("20261130", "20261330")),
    (FactKey.parse, FACT.replace("171300", "171360")),
    (FactKey.parse, FACT.replace("~", "-")),
    (FactKey.parse, FACT.replace(".12.", ".012.")),
    (FactKey.parse, FACT.replace(".12.", ".-1.")),
    (FactKey.parse, FACT.replace(".12.", ".+12.")),
    (FactKey.parse, FACT.replace(".12.", "." + "9" * 5000 + ".")),
    (FactKey.parse, FACT.replace("finish", "Finish")),
    (FactKey.parse, FACT.replace("node3", "Node3")),
    (FactKey.parse, FACT.replace("2026", "0026")),
    (BeatKey.parse, BEAT + ".x"),
    (BeatKey.parse, BEAT.replace("T17/", "T16/")),
    (keys.parse_page_key, "journal/7"),
    (keys.parse_page_key, "journal/0000000000007"),
    (keys.parse_page_key, "journal/00000000000a"),
    (keys.parse_message_key, "mailbox/node3-gpu0/7"),
    (keys.parse_message_key, "mailbox/a/b/00000007"),
    (keys.parse_claim_key, "claims/abcdefgh.01"),
    (keys.parse_claim_key, "claims/abcdefg1.1"),
    (keys.parse_artifact_key, "artifacts/abcdefgh.01"),
    (keys.parse_log_piece_key, "logs/abcdefgh.1/0000001"),
    (keys.parse_checkpoint_key, "checkpoints/99999999999"),
    (FactKey.parse, FACT.replace(".12.", ".1٢.")),
    (FactKey.parse, FACT.replace("2026", "202٦")),
    (keys.parse_page_key, "journal/00000000000٣"),
    (keys.parse_message_key, "mailbox/node3-gpu0/0000000٣"),
    (keys.parse_checkpoint_key, "checkpoints/99999999999٣"),
]


@pytest.mark.parametrize(("parse", "text"), STRAYS)
def test_what_format_would_not_give_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keys.page_key(10**12),
        lambda: keys.page_key(-1),
        lambda: keys.message_key("node3-gpu0", 10**8),
        lambda: keys.log_piece_key("abcdefgh", 1, 10**6),
        lambda: keys.checkpoint_key(10**12),
    ],
)
def test_a_number_that_does_not_fit_makes_no_key(make: Callable[[], str]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        make()


@pytest.mark.parametrize(
    "text",
    ["a", "a/b.c", "~a/_b/-c", "A" * 255, "/".join(["x" * 99] * 9), "", "/a", "a/", "a//b", "../a",
     "a/../b", ".", "a/.h", "a b", "ä", "a\n", "x" * 256, "/".join(["x" * 99] * 9) + "/x"],
)  # fmt: skip
def test_a_path_is_what_a_store_takes_for_a_key(text: str) -> None:
    """Else a leader that looks for it would have to stop."""
    assert (keys.PATH.fullmatch(text) is not None) == is_key(text)
