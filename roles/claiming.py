"""From an order to run to the answer who owns the attempt.

Owns a worker's claims. What is needed to start is on the disk before the claim is put
(the plan, with the boot's id and the time: the intent of docs/ARCHITECTURE.md, "Rules the
model forced", 10), and only the body that stands at the claim's key decides (rule 8). The
same bytes are put again until that is known, however long it takes; whether there is
still time to start is the caller's to judge.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from ledger.claims import read_claim
from ledger.errors import LedgerError, RequestError
from ledger.events import Claim, JobSpec, RunMessage, encode
from ledger.journal import new_put_id
from ledger.keys import blob_key, claim_key
from ledger.names import WriterName
from ledger.stores.base import Lost
from ledger.words import with_words
from roles.context import Context
from roles.jobplan import JobBase, plan_of
from roles.launcher import JobHandle, Plan
from roles.snapshots import place_snapshot

Owner = Literal["mine", "revoked", "former"]
"""This incarnation's, taken back by a leader, or a former incarnation's."""


class Claiming:
    """One order to run, prepared on the disk and being claimed."""

    def __init__(
        self,
        context: Context,
        message: RunMessage,
        handle: JobHandle,
        plan: Plan,
        *,
        unfit: str,
        was_prepared: bool,
    ) -> None:
        """``was_prepared``: by a former incarnation, which did not come to launch it."""
        self.message = message
        self.handle = handle
        self.unfit = unfit
        """Why it cannot be executed although it may be claimed; or empty."""
        self.never_ran = False
        """Of a former incarnation's claim: it is certain that nothing was executed."""
        self._context = context
        self._was_prepared = was_prepared
        self._plan = plan
        self._claim: Claim | None = None

    @property
    def is_late(self) -> bool:
        """Whether too much time has passed since the claim was first put."""
        passed_ms = self._context.clock.boot_ms() - self._plan.claim_boot_ms
        return passed_ms > self._plan.start_within_ms

    def settle(self, writer: WriterName) -> Owner:
        """Put the claim, and say whose it is.

        Raises TransientError (InDoubtError if it may have landed): call again.
        """
        if self._claim is None:
            self._claim = Claim(
                ledger=self._context.ledger,
                put_id=new_put_id(self._context.rng),
                job=self.message.job.id,
                attempt=self.message.attempt,
                owner="start",
                writer=writer,
                at=self._context.store.clock_ms(),
                machine=self._context.machine,
            )
        key = claim_key(self._claim.job, self._claim.attempt)
        outcome = self._context.store.put_new(
            key, encode(self._claim), patience_ms=self._context.timings.retry_max_ms
        )
        return self._owner_of(key, outcome.body) if isinstance(outcome, Lost) else "mine"

    def _owner_of(self, key: str, body: bytes) -> Owner:
        claim = read_claim(body, self._context.ledger, self.message.job.id, self.message.attempt)
        if claim.owner == "revoke":
            return "revoked"
        if claim.writer.partition("~")[0] != self.message.worker:
            raise LedgerError(f"{key} was given to {self.message.worker}, not to {claim.writer}")
        if claim.machine != self._context.machine:
            raise RequestError(
                f"{key} was claimed on another machine ({claim.machine}) under this worker's "
                "name: give one of the two another --node"
            )
        self.never_ran = self._was_prepared
        return "former"


def prepare_claim(
    context: Context, message: RunMessage, handle: JobHandle, base: JobBase, free_port: int
) -> Claiming:
    """Fetch all that the job runs, and write down what is about to be claimed; durable on return.

    The private copy of a snapshot need not be durable: no attempt survives a power cut. Raises
    TransientError, or RequestError where the disk does not take it.
    """
    script, words, unfit = _blobs(context, message.job)
    was_prepared = handle.state() == "prepared"
    snapshot = message.job.snapshot
    if snapshot is not None and not unfit:
        unfit = place_snapshot(context, base.boot_id, snapshot, handle.tree_path)
    spec = message.job if words is None else with_words(message.job, words)
    typed = msgspec.structs.replace(message, job=spec)
    plan = plan_of(context, typed, handle, script, base, free_port)
    handle.prepare(plan, script)
    return Claiming(context, message, handle, plan, unfit=unfit, was_prepared=was_prepared)


def _blobs(context: Context, spec: JobSpec) -> tuple[bytes | None, bytes | None, str]:
    """The script and the long words, if the job has them, and why one cannot be had."""
    script, no_script = _blob(context, spec.script, "script")
    words, no_words = _blob(context, spec.words, "command")
    return script, words, no_script or no_words


def _blob(context: Context, sha256: str, what: str) -> tuple[bytes | None, str]:
    if not sha256:
        return None, ""
    blob = context.store.get(blob_key(sha256))
    if blob is None:
        return None, f"its {what} {blob_key(sha256)} is not in the store: submit it again"
    if hashlib.sha256(blob).hexdigest() != sha256:
        return None, f"its {what} {blob_key(sha256)} is not what was submitted: submit it again"
    return blob, ""
