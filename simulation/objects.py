"""The other objects of a ledger, held against its journal.

Owns what must stand beside the pages: every fact posted or refused, every message decided and
equal to its decision, every claim of an attempt and of the owner that the pages name, every
whole log ending with the rc of its attempt (and the blobs: ``blobs.py``). What has an innocent
reason is counted, not reported: a fact that no page holds yet, a message that is not put yet, an
object whose key no object of a ledger can have. A checkpoint must be the state that its pages
lead to, because readers begin with it. Beats and pieces of logs may expire and prove nothing.

Mailboxes and claims are listed before the journal is read: what stands there then was decided
by a page that is in. Logs are asked for by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ledger import events as e
from ledger.artifacts import read_artifacts
from ledger.checkpoint import decode_checkpoint
from ledger.claims import read_claim
from ledger.errors import LedgerError
from ledger.journal import BATCH_MAX, decode_journal_page
from ledger.keys import (
    ARTIFACTS,
    CHECKPOINTS,
    CLAIMS,
    FACTS,
    MAILBOX,
    FactKey,
    claim_key,
    log_key,
    message_key,
    page_key,
    parse_artifact_key,
    parse_checkpoint_key,
    parse_claim_key,
    parse_message_key,
)
from ledger.names import JobId, Seq, WorkerName, WriterName
from ledger.projection import Projection
from ledger.state import RULES
from ledger.stores.base import Store
from ledger.timings import Timings
from simulation.blobs import Blobs
from simulation.difference import Difference, plain

_RC_LINE = re.compile(rb"(?:\A|\n)rc=([0-9]+)\n\Z")

About = TypeVar("About")
Decoded = TypeVar("Decoded", bound=msgspec.Struct)

SETTLED_MS = Timings().overlap_long_ms
"""A fact so much older than the newest page is no longer on its way: a leader looked for it."""


class ObjectCounts(msgspec.Struct, kw_only=True):
    """How many were looked at, and what was left out for an innocent reason."""

    facts: int = 0
    messages: int = 0
    claims: int = 0
    logs: int = 0
    blobs: int = 0
    checkpoints: int = 0
    artifacts: int = 0
    unposted_facts: int = 0
    undelivered_messages: int = 0
    strays: int = 0
    """Keys below the ledger's prefixes that no object of it can have."""


class _Posted(msgspec.Struct, frozen=True):
    """A fact of a page; without a digest it was refused."""

    seq: Seq
    key: str
    digest: bytes | None


class _Sent(msgspec.Struct, frozen=True):
    seq: Seq
    digest: bytes


class _Attempt(msgspec.Struct):
    """What pages say of one attempt."""

    seq: Seq
    lead: WorkerName
    owner: str = ""
    """``start`` or ``revoke``, once a page says so."""
    rc: int | None = None


class Objects:
    """Listens to the fold with ``page``, then tells the differences."""

    def __init__(self, store: Store, ledger: str, *, from_ms: int = 0) -> None:
        """Bodies that belong to pages before ``from_ms`` are not looked at. Three LISTs."""
        self._store = store
        self._ledger = ledger
        self._from_ms = from_ms
        self._from_seq = Seq(0)
        self.counts = ObjectCounts()
        self._mailbox = [entry.key for entry in store.list(MAILBOX)]
        self._claims = [entry.key for entry in store.list(CLAIMS)]
        self._facts: dict[tuple[WriterName, int], _Posted] = {}
        self._messages: dict[str, _Sent] = {}
        self._attempts: dict[tuple[JobId, int], _Attempt] = {}
        self._blobs = Blobs(store)
        self._checkpoints = dict(_checkpoints(store))
        self._found: list[Difference] = []

    def page(self, page: e.Page, projection: Projection) -> None:
        """Take over a page that counts and was just folded."""
        if page.at < self._from_ms:
            self._from_seq = Seq(page.seq + 1)
        elif page.seq in self._checkpoints:
            self._check_checkpoint(page.seq, projection)
        for posted in page.facts:
            self._note_fact(page.seq, posted)
        for seen in page.seen:
            match seen:
                case e.FactRefused():
                    self._facts[seen.writer, seen.n] = _Posted(page.seq, seen.key, None)
                case e.ClaimSeen() if (seen.job, seen.attempt) in self._attempts:
                    self._attempts[seen.job, seen.attempt].owner = seen.owner
                case _:
                    pass
        for decision in page.decisions:
            match decision:
                case e.AttemptAssigned():
                    lead = decision.slots[0]
                    self._attempts[decision.job, decision.attempt] = _Attempt(page.seq, lead)
                    self._note_message(page.seq, projection, lead, decision.message)
                case e.StopOrdered():
                    self._note_message(page.seq, projection, decision.worker, decision.message)
                case _:
                    pass

    def differences(self, projection: Projection, *, is_whole: bool = True) -> Iterator[Difference]:
        """What stands there beside what should. Without ``is_whole`` later pages exist, whose
        objects cannot be judged. O(objects), one GET each.
        """
        yield from self._found
        yield from self._check_facts(projection, is_whole=is_whole)
        yield from self._check_messages(projection, is_whole=is_whole)
        yield from self._check_claims(is_whole=is_whole)
        yield from self._check_logs()
        yield from self._check_artifacts(is_whole=is_whole)
        yield from self._blobs.differences(self._from_seq)
        self.counts.blobs += self._blobs.count
        self.counts.strays += self._blobs.strays

    # -- what pages say

    def _note_fact(self, seq: Seq, posted: e.Posted) -> None:
        fact = posted.fact
        self._facts.setdefault((fact.writer, fact.n), _Posted(seq, posted.key, _digest(fact)))
        match fact:
            case e.Submitted():
                for blob in filter(None, (fact.job.script, fact.job.words)):
                    self._blobs.need(blob, seq)
                if fact.job.snapshot is not None:
                    self._blobs.need_snapshot(fact.job.snapshot.manifest, seq)
            case e.PolicyApplied() if fact.source:
                self._blobs.need(fact.source, seq)
            case e.AttemptStarted() | e.AttemptFinished():
                attempt = self._attempts.get((fact.job, fact.attempt))
                if attempt is not None:
                    attempt.owner = "start"
                    if isinstance(fact, e.AttemptFinished) and attempt.rc is None:
                        attempt.rc = fact.rc
            case _:
                pass

    def _note_message(
        self, seq: Seq, projection: Projection, worker: WorkerName, number: int
    ) -> None:
        message = projection.state.workers[worker].messages[number]
        self._messages[message_key(worker, number)] = _Sent(seq, _digest(message))

    def _check_checkpoint(self, seq: Seq, projection: Projection) -> None:
        key = self._checkpoints[seq]
        body = self._store.get(key)
        if body is None:  # expired since it was listed
            return
        self.counts.checkpoints += 1
        saved = decode_checkpoint(body)
        if saved is None:
            derived = "a state that can be read"
            self._found.append(_difference(seq, key, "body", _shown(body), derived))
        elif saved.rules == RULES and saved.state != projection.state:
            fields = [
                name
                for name in saved.state.__struct_fields__
                if getattr(saved.state, name) != getattr(projection.state, name)
            ]
            derived = f"the state after page {seq}: another {', '.join(fields)}"
            self._found.append(_difference(seq, key, "state", None, derived))

    # -- facts

    def _check_facts(self, projection: Projection, *, is_whole: bool) -> Iterator[Difference]:
        state = projection.state
        standing: set[str] = set()
        wanted: list[tuple[str, _Posted]] = []
        for entry in self._store.list(FACTS):
            try:
                key = FactKey.parse(entry.key)
            except ValueError:
                self.counts.strays += 1
                continue
            standing.add(entry.key)
            posted = self._facts.get((key.writer, key.n))
            if posted is not None:
                if posted.digest is not None and posted.seq >= self._from_seq:
                    wanted.append((entry.key, posted))
            elif key.n >= state.writers.get(key.writer, 0) and (
                not is_whole or key.stamp_ms >= state.at - SETTLED_MS
            ):
                self.counts.unposted_facts += 1
            else:
                yield _difference(None, entry.key, "page", None, "a page that holds or refuses it")
        wanted += [
            (posted.key, posted)
            for posted in self._facts.values()
            if posted.key not in standing and posted.digest and posted.seq >= self._from_seq
        ]
        self.counts.facts += len(wanted)
        for key_text, posted, body in self._fetch(wanted):
            fact = _decoded(body, e.decode_fact)
            if fact is None or _digest(fact) != posted.digest:
                derived = self._posted(posted)
                yield _difference(posted.seq, key_text, "body", _shown(body), derived)

    def _posted(self, posted: _Posted) -> Any:
        """The fact as its page has it; read again, because a difference is rare."""
        body = self._store.get(page_key(posted.seq))
        assert body is not None
        page = decode_journal_page(body, page_key(posted.seq))
        return next(plain(item.fact) for item in page.facts if item.key == posted.key)

    # -- mailboxes

    def _check_messages(self, projection: Projection, *, is_whole: bool) -> Iterator[Difference]:
        workers = projection.state.workers
        standing: set[str] = set()
        last: dict[str, int] = {}
        for key in self._mailbox:
            try:
                name, number = parse_message_key(key)
            except ValueError:
                self.counts.strays += 1
                continue
            standing.add(key)
            last[name] = max(last.get(name, 0), number)
            if key not in self._messages and is_whole:
                yield _difference(None, key, "page", None, "a decision that this message is of")
        wanted = []
        for key, sent in self._messages.items():
            name, number = parse_message_key(key)
            is_due = number < workers[name].cursor or number < last.get(name, 0)
            if key not in standing and not is_due:
                self.counts.undelivered_messages += 1
            elif sent.seq >= self._from_seq:
                wanted.append((key, sent))
        self.counts.messages += len(wanted)
        for key, sent, body in self._fetch(wanted):
            message = _decoded(body, e.decode_message)
            if message is None or _digest(message) != sent.digest:
                derived = f"the message that page {sent.seq} decided"
                yield _difference(sent.seq, key, "body", _shown(body), derived)

    # -- claims

    def _check_claims(self, *, is_whole: bool) -> Iterator[Difference]:
        wanted: dict[str, tuple[JobId, int]] = {}
        for key in self._claims:
            try:
                ref = parse_claim_key(key)
            except ValueError:
                self.counts.strays += 1
                continue
            if ref in self._attempts:
                wanted[key] = ref
            elif is_whole:
                yield _difference(None, key, "page", None, "an attempt that this claim is of")
        for ref, attempt in self._attempts.items():
            if attempt.owner:
                wanted.setdefault(claim_key(*ref), ref)
        judged = [(key, ref) for key, ref in wanted.items() if self._is_judged(ref)]
        self.counts.claims += len(judged)
        for key, ref, body in self._fetch(judged):
            yield from self._check_claim(key, ref, body)

    def _check_claim(
        self, key: str, ref: tuple[JobId, int], body: bytes | None
    ) -> Iterator[Difference]:
        attempt = self._attempts[ref]
        if body is None:
            derived = f"a claim: page {attempt.seq} or a later one says {attempt.owner}"
            yield _difference(attempt.seq, key, "body", None, derived)
            return
        try:
            claim = read_claim(body, self._ledger, *ref)
        except LedgerError as error:
            yield _difference(attempt.seq, key, "body", str(error), "a claim of this attempt")
            return
        if attempt.owner and claim.owner != attempt.owner:
            yield _difference(attempt.seq, key, "owner", claim.owner, attempt.owner)
        if claim.owner == "start" and claim.writer.partition("~")[0] != attempt.lead:
            yield _difference(attempt.seq, key, "writer", claim.writer, attempt.lead)

    # -- logs

    def _check_logs(self) -> Iterator[Difference]:
        """Of each attempt that is known, the whole log, where it is there.

        They are asked for by name: some servers list ``x.1.log`` behind what is below ``x.1/``.
        """
        for ref, attempt in self._attempts.items():
            if self._is_judged(ref):
                yield from self._check_log(log_key(*ref), attempt)

    def _check_log(self, key: str, attempt: _Attempt) -> Iterator[Difference]:
        """Fetched one by one, because a log may have 64 MiB."""
        body = self._store.get(key)
        if body is None:
            return
        self.counts.logs += 1
        line = _RC_LINE.search(body[-64:])
        rc = None if line is None else int(line[1])
        if rc is None:
            yield _difference(attempt.seq, key, "rc", None, "a last line rc=N")
        elif attempt.rc is not None and rc != attempt.rc:
            yield _difference(attempt.seq, key, "rc", rc, attempt.rc)
        elif attempt.owner == "revoke":
            yield _difference(attempt.seq, key, "rc", rc, "no log: the attempt was revoked")

    # -- artifacts

    def _check_artifacts(self, *, is_whole: bool) -> Iterator[Difference]:
        """Before the blobs, because a manifest says which of them are needed."""
        for entry in self._store.list(ARTIFACTS):
            try:
                ref = parse_artifact_key(entry.key)
            except ValueError:
                self.counts.strays += 1
                continue
            attempt = self._attempts.get(ref)
            if attempt is not None and self._is_judged(ref):
                yield from self._check_manifest(entry.key, ref, attempt)
            elif attempt is None and is_whole:
                derived = "an attempt that these artifacts are of"
                yield _difference(None, entry.key, "page", None, derived)

    def _check_manifest(
        self, key: str, ref: tuple[JobId, int], attempt: _Attempt
    ) -> Iterator[Difference]:
        body = self._store.get(key)
        if body is None:  # expired since it was listed
            return
        self.counts.artifacts += 1
        try:
            manifest = read_artifacts(body, self._ledger, *ref)
        except LedgerError as error:
            yield _difference(attempt.seq, key, "body", str(error), "artifacts of this attempt")
            return
        for piece in {piece for file in manifest.files for piece in file.content.pieces}:
            self._blobs.need(piece, attempt.seq, f"a piece that {key} names")

    # -- helpers

    def _is_judged(self, ref: tuple[JobId, int]) -> bool:
        return self._attempts[ref].seq >= self._from_seq

    def _fetch(
        self, wanted: Sequence[tuple[str, About]]
    ) -> Iterator[tuple[str, About, bytes | None]]:
        for first in range(0, len(wanted), BATCH_MAX):
            batch = wanted[first : first + BATCH_MAX]
            bodies = self._store.get_many([key for key, _ in batch])
            for (key, about), body in zip(batch, bodies, strict=True):
                yield key, about, body


def _digest(struct: msgspec.Struct) -> bytes:
    return hashlib.blake2b(e.encode(struct), digest_size=16).digest()


def _checkpoints(store: Store) -> Iterator[tuple[Seq, str]]:
    for entry in store.list(CHECKPOINTS):
        with suppress(ValueError):  # a stray object is no checkpoint
            yield parse_checkpoint_key(entry.key), entry.key


def _decoded(body: bytes | None, decode: Callable[[bytes], Decoded]) -> Decoded | None:
    """None where there is nothing, or nothing that can be read."""
    try:
        return None if body is None else decode(body)
    except msgspec.DecodeError:
        return None


def _shown(body: bytes | None) -> Any:
    """A body as JSON, else its size; None where there is none."""
    try:
        return None if body is None else msgspec.json.decode(body)
    except msgspec.DecodeError:
        return f"{len(body or b'')} bytes that cannot be read"


def _difference(seq: Seq | None, key: str, field: str, recorded: Any, derived: Any) -> Difference:
    return Difference(page=seq, key=key, field=field, recorded=recorded, derived=derived)
