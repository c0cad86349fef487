"""A job's command and variables, where they are too long for a fact: a blob of their own.

Owns that blob's form and when it is used. What stands in it reaches the job as it was typed;
the ledger's pages stay small.
"""

from __future__ import annotations

import msgspec

from ledger.events import JobSpec

INLINE_MAX_BYTES = 16 * 1024
"""Of command and variables as JSON; what is longer goes into a blob."""


class Words(msgspec.Struct, frozen=True):
    """``JobSpec.argv`` and ``JobSpec.env``."""

    argv: tuple[str, ...]
    env: dict[str, str]


def long_words(spec: JobSpec) -> bytes | None:
    """The blob that the spec needs; None where it can say them itself."""
    body = msgspec.json.encode(Words(spec.argv, spec.env), order="deterministic")
    return body if len(body) > INLINE_MAX_BYTES else None


def with_words(spec: JobSpec, body: bytes) -> JobSpec:
    """The spec as it was typed, with the variables that an array gives to its members.

    Raises msgspec.DecodeError for what is no such blob.
    """
    words = msgspec.json.decode(body, type=Words)
    return msgspec.structs.replace(spec, argv=words.argv, env={**words.env, **spec.env})
