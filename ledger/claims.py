"""Reading a claim: who owns an attempt, by the body that stands there.

Owns the strictness of that reading. What this version does not fully understand decides
nothing: an owner of another kind is neither a start nor a revoke.
"""

from __future__ import annotations

import msgspec

from ledger.errors import LedgerError, UpgradeError
from ledger.events import SCHEMA, Claim, decode_claim
from ledger.journal import decode_header_of
from ledger.keys import claim_key

OWNERS = ("start", "revoke")


def read_claim(body: bytes, ledger: str, job: str, attempt: int) -> Claim:
    """The claim of that attempt of that ledger.

    Raises UpgradeError for a newer format or owner, LedgerError for anything else that is
    not exactly this claim.
    """
    key = claim_key(job, attempt)
    if decode_header_of(body, key).v > SCHEMA:
        raise UpgradeError(f"{key} is of a newer format: upgrade gpuq")
    try:
        claim = decode_claim(body)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{key} cannot be read: {error}") from error
    if (claim.ledger, claim.job, claim.attempt) != (ledger, job, attempt):
        raise LedgerError(f"{key} is the claim of {claim.job}.{claim.attempt} of {claim.ledger}")
    if claim.owner not in OWNERS:
        raise UpgradeError(f"{key} has an owner {claim.owner!r} that is not known: upgrade gpuq")
    return claim
