"""Bodies: their tags and their one JSON form, which other readers rely on."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from ledger import events as e
from ledger.names import JobId, NodeName, Seq, WorkerName, WriterName
from ledger.policy import Organization, Policy

JOB = JobId("aaaaaaaa")
W0 = WorkerName("n1-cpu0")
SPEC = e.JobSpec(
    id=JOB, name="train", organization="a", workload_class="batch", pool="default", user="u"
)


def tags(union: object) -> set[str]:
    return {str(struct.__struct_config__.tag) for struct in get_args(union)}


def test_no_tag_is_ever_taken_away() -> None:
    """Old pages must be read for ever; a changed meaning gets a new tag."""
    assert tags(e.AnyFact) >= {
        "submit", "cancel", "hold", "release", "move", "retry", "policy", "drain", "undrain",
        "ready", "start", "finish", "lost", "skip", "retire",
    }  # fmt: skip
    assert tags(e.AnySeen) >= {"slot", "node", "claim", "refused"}
    assert tags(e.AnyDecision) >= {
        "elect", "reject", "assign", "stop", "revoke", "requeue", "lost", "found",
        "reserve", "unreserve", "block", "free", "overrun",
    }  # fmt: skip
    assert tags(e.AnyMessage) >= {"run", "stop"}


@pytest.mark.parametrize(
    ("expected", "struct"),
    [
        (
            b'{"kind":"cancel","job":"aaaaaaaa","by":"eve","v":1,"writer":"cli~aaaaaaaa",'
            b'"n":3,"at":5}',
            e.CancelRequested(at=5, job=JOB, by="eve", writer=WriterName("cli~aaaaaaaa"), n=3),
        ),
        (
            b'{"kind":"submit","job":{"id":"aaaaaaaa","name":"train","organization":"a",'
            b'"workload_class":"batch","pool":"default","user":"u"},"v":1,"at":5}',
            e.Submitted(at=5, job=SPEC),
        ),
        (
            b'{"kind":"claim","job":"aaaaaaaa","attempt":1,"owner":"revoke"}',
            e.ClaimSeen(job=JOB, attempt=1, owner="revoke"),
        ),
        (
            b'{"kind":"assign","job":"aaaaaaaa","attempt":1,"slots":["n1-cpu0"],"message":0,'
            b'"start_tag":2,"finish_tag":1000000000000000000000,"cost_ms":600000,'
            b'"weight":[6,7]}',
            e.AttemptAssigned(
                job=JOB,
                attempt=1,
                slots=(W0,),
                message=0,
                start_tag=2,
                finish_tag=10**21,
                cost_ms=600_000,
                weight=(6, 7),
            ),
        ),
        (
            b'{"kind":"stop","v":1,"ledger":"l","worker":"n1-cpu0","n":4,"seq":7,'
            b'"job":"aaaaaaaa","attempt":1,"reason":"cancelled","grace_ms":0,"machine":""}',
            e.StopMessage(
                ledger="l",
                worker=W0,
                n=4,
                seq=Seq(7),
                job=JOB,
                attempt=1,
                reason="cancelled",
            ),
        ),
    ],
)
def test_the_bytes_of_a_body(expected: bytes, struct: msgspec.Struct) -> None:
    assert e.encode(struct) == expected
    assert msgspec.json.decode(expected, type=type(struct)) == struct


def test_every_fact_says_its_version() -> None:
    """Also where all other defaults are left out."""
    for fact in (e.DrainRequested(at=1, node=NodeName("n1")), e.Submitted(at=1, job=SPEC)):
        assert msgspec.json.decode(e.encode(fact))["v"] == e.SCHEMA


def test_maps_are_written_in_order_of_their_keys() -> None:
    one = Policy(organizations={"b": Organization(), "a": Organization()})
    two = Policy(organizations={"a": Organization(), "b": Organization()})
    assert e.encode(e.PolicyApplied(at=1, policy=one)) == e.encode(
        e.PolicyApplied(at=1, policy=two)
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"kind":"teleport","at":1}',
        b'{"at":1,"job":"aaaaaaaa"}',
        b'{"kind":"cancel","job":"aaaaaaaa"}',
        b'{"kind":"cancel","at":"noon","job":"aaaaaaaa"}',
        b'{"kind":"start","at":1,"job":"aaaaaaaa","attempt":1.5,"worker":"w","cursor":0}',
    ],
)
def test_what_is_no_fact_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        e.decode_fact(body)


def test_a_field_from_the_future_is_no_error() -> None:
    """New fields get defaults; whoever does not know them passes over them."""
    assert e.decode_fact(
        b'{"kind":"cancel","at":1,"job":"aaaaaaaa","mood":"bad"}'
    ) == e.CancelRequested(at=1, job=JOB)


def test_the_header_of_any_body_can_be_read() -> None:
    body = b'{"v":9,"kind":"teleport","format":4,"job":{"id":"aaaaaaaa","new":[1,{}]}}'
    header = e.decode_header(body)
    assert (header.v, header.kind, header.format) == (9, "teleport", 4)


@pytest.mark.parametrize(
    ("state", "is_queued", "is_ended"),
    [
        (e.JobState.PENDING, True, False),
        (e.JobState.HELD, True, False),
        (e.JobState.ASSIGNED, False, False),
        (e.JobState.RUNNING, False, False),
        (e.JobState.STOPPING, False, False),
        *((state, False, True) for state in list(e.JobState)[5:]),
    ],
)
def test_which_states_are_queued_and_which_are_ends(
    state: e.JobState, is_queued: bool, is_ended: bool
) -> None:
    assert (state.queued, state.ended) == (is_queued, is_ended)
