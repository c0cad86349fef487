"""Which facts a page may hold.

Owns the verdict on one fact: admitted whole, or refused with the reason and in the place
that its number has (docs/ARCHITECTURE.md, rule 15), so that its writer's order goes on.
Refused is what is too large, too old, of a newer version or an unknown kind, unreadable,
or another fact than its key says.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from ledger.events import (
    SCHEMA,
    AnyFact,
    FactRefused,
    Header,
    Posted,
    WorkerFact,
    WorkerReady,
    decode_fact,
    encode,
)
from ledger.keys import MESSAGES_MAX, FactKey
from ledger.names import JOB_ID, WORKER
from ledger.timings import FACT_MAX_BYTES

_WRAPPING_BYTES = 64
"""What a page adds to the key and the body of a fact."""

_TOO_OLD = "its stamp is too far behind the journal"

_KINDS = frozenset(str(fact.__struct_config__.tag) for fact in get_args(AnyFact))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a page will say of a fact."""

    key: FactKey
    posted: Posted | FactRefused
    prev: str
    """What the body names as the key of its predecessor; may be anything."""
    page_bytes: int
    """How much of a page it takes; an upper bound."""


class _Envelope(Header, frozen=True):
    """What is read of a body before its kind is known to be one of ours."""

    writer: Any = ""
    n: Any = -1
    prev: Any = ""


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def judge(key: FactKey, body: bytes, *, too_old: bool) -> Verdict:
    """The fact in ``body``, or why no page may hold it."""
    if len(body) > FACT_MAX_BYTES:
        return too_large(key, len(body))
    try:
        envelope = _decode_envelope(body)
    except (msgspec.DecodeError, RecursionError) as error:
        return _refused(key, f"its body cannot be read: {error}")
    prev = envelope.prev if isinstance(envelope.prev, str) else ""
    reason = _TOO_OLD if too_old else _mismatch(key, envelope)
    if not reason:
        try:
            posted = Posted(key=key.format(), fact=decode_fact(body))
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"its body cannot be read: {error}"
        else:
            reason = _impossible(posted.fact)
        if not reason:
            size = len(posted.key) + len(body) + _WRAPPING_BYTES
            return Verdict(key=key, posted=posted, prev=prev, page_bytes=size)
    return _refused(key, reason, job=_job_of(envelope), prev=prev)


def too_large(key: FactKey, size_bytes: int) -> Verdict:
    """The verdict on a fact of which the size is enough to know."""
    return _refused(key, f"its body has {size_bytes} bytes; at most {FACT_MAX_BYTES} are admitted")


def _mismatch(key: FactKey, envelope: _Envelope) -> str:
    """Why the body is none that this version reads at this key; empty where it is."""
    if envelope.v > SCHEMA:
        return f"its version is {envelope.v} and this gpuq reads {SCHEMA}: upgrade gpuq"
    if envelope.kind not in _KINDS:
        return f"its kind {envelope.kind[:32]!r} is not known to this gpuq: upgrade gpuq"
    if (envelope.writer, envelope.n, envelope.kind) != (key.writer, key.n, key.kind):
        return "its body names another writer, number or kind than its key"
    return ""


def _impossible(fact: AnyFact) -> str:
    """Why no worker of ours can have said this; empty where one can.

    A name or number that no key can hold would stop every leader that acts on it.
    """
    if not isinstance(fact, WorkerFact):
        return ""
    match = WORKER.fullmatch(fact.worker)
    if match is None:
        return f"{fact.worker[:80]!r} is not the name of a worker"
    if fact.writer.partition("~")[0] != fact.worker:
        return "its writer is not the worker of which it speaks"
    if isinstance(fact, WorkerReady) and fact.node != match[1]:
        return f"{fact.worker} is no worker of node {fact.node[:80]!r}"
    if not 0 <= fact.cursor < MESSAGES_MAX:
        return f"its cursor {fact.cursor} is none"
    return ""


def _job_of(envelope: _Envelope) -> str:
    """The id of the job that a refused submit wanted; empty where there is none."""
    if envelope.kind != "submit" or not isinstance(envelope.job, dict):
        return ""
    job = envelope.job.get("id")
    return job if isinstance(job, str) and JOB_ID.fullmatch(job) else ""


def _refused(key: FactKey, reason: str, *, job: str = "", prev: str = "") -> Verdict:
    refused = FactRefused(key=key.format(), writer=key.writer, n=key.n, reason=reason, job=job)
    return Verdict(key=key, posted=refused, prev=prev, page_bytes=len(encode(refused)))
