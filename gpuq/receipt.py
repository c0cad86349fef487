"""The receipt of one job: every event of it, and what each attempt used, cost and left behind.

Owns what belongs to a job's receipt and in which order: facts by when they happened, all else
by the page that holds it. Of variables the names are told, never the values. A receipt rests
on the journal; claims, scripts and logs are looked up and their hashes told as they stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from gpuq.billtext import micros
from gpuq.job import snapshot_json
from gpuq.render import times
from ledger import events as e
from ledger.artifacts import read_artifacts
from ledger.bill import Bill, Sum
from ledger.claims import read_claim
from ledger.events import Page, kind_of
from ledger.health import command_of
from ledger.keys import artifact_key, blob_key, claim_key, log_key, message_key, page_key
from ledger.names import JobId
from ledger.state import State
from ledger.stores.base import Store
from ledger.usage import Use

_NOT_TOLD = frozenset(
    {
        "kind", "v", "writer", "n", "at", "prev", "cursor", "job", "key", "start_tag",
        "finish_tag", "weight",
    }
)  # fmt: skip
"""Fields of an event that say where it stands, or nothing of this job."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, when, and when its page was posted; a claim has none."""

    at: int
    posted_at: int | None = None
    page: int | None = None
    event: str
    key: str
    """The object that says so: the fact, the claim, or the page."""
    details: dict[str, Any]


class Story:
    """Collects the events of one job. Call ``page`` after each page that counts."""

    def __init__(self, job: JobId) -> None:
        self.job = job
        self.spec: e.JobSpec | None = None
        self.events: list[Event] = []
        self.assigned: dict[int, tuple[e.AttemptAssigned, int]] = {}
        """By number of the attempt: its assignment, and when."""

    def page(self, page: Page) -> None:
        for posted in page.facts:
            self._fact(page, posted)
        for event in (*page.seen, *page.decisions):
            if getattr(event, "job", None) == self.job:
                self._note(page, event, page.at, page_key(page.seq))
                if isinstance(event, e.AttemptAssigned):
                    self.assigned[event.attempt] = (event, page.at)

    def _fact(self, page: Page, posted: e.Posted) -> None:
        fact = posted.fact
        if isinstance(fact, e.Submitted):
            if fact.job.id == self.job:
                self.spec = self.spec or fact.job
                self._note(page, fact, fact.at, posted.key)
        elif getattr(fact, "job", None) == self.job:
            self._note(page, fact, fact.at, posted.key)

    def _note(self, page: Page, event: msgspec.Struct, at: int, key: str) -> None:
        plain = msgspec.to_builtins(event)
        details = {name: value for name, value in plain.items() if name not in _NOT_TOLD}
        if isinstance(event, e.Submitted):
            details = {"by": event.job.user, "host": event.job.host}
        self.events.append(
            Event(
                at=at,
                posted_at=page.at,
                page=page.seq,
                event=kind_of(event),
                key=key,
                details=details,
            )
        )


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt on the receipt; None where something has not happened or is not there."""

    attempt: int
    workers: tuple[str, ...]
    gpus: tuple[str, ...]
    assigned_at: int
    started_at: int | None
    ended_at: int | None
    became: str | None
    outcome: str
    rc: int | None
    reason: str
    occupied_slot_ms: int
    asked_slot_ms: int | None
    money_micros: int
    message_key: str
    claim_key: str
    claim_owner: str | None
    claim_writer: str | None
    claim_machine: str | None
    claimed_at: int | None
    log_key: str
    log_sha256: str | None
    log_bytes: int | None
    """Of the stored log, its last line ``rc=N`` included."""
    artifacts_key: str
    artifacts_sha256: str | None
    """Of the manifest, which has the hash of each file."""
    artifacts_files: int | None
    artifacts_bytes: int | None


class Receipt:
    """A job's story with what its attempts used: of a bill by job and attempt."""

    def __init__(
        self, store: Store, state: State, story: Story, uses: Sequence[Use], bill: Bill
    ) -> None:
        self._store = store
        self._state = state
        self.story = story
        self._uses = {use.attempt: use for use in uses if use.job == story.job}
        self._sums = {
            key: of_attempt for key, of_attempt in bill.used.items() if key[0] == story.job
        }
        self.attempts = [self._attempt(number) for number in sorted(story.assigned)]

    def facts(self) -> dict[str, Any]:
        """What was asked for, what became of it, and what it cost."""
        spec, state = self.story.spec, self._state
        assert spec is not None
        job, archived = state.jobs.get(spec.id), state.archive.get(spec.id)
        placed = spec if job is None else job.placed
        standing = job if job is not None else archived
        script = self._store.get(blob_key(spec.script)) if spec.script else None
        return {
            "id": spec.id,
            "name": spec.name,
            "organization": placed.organization,
            "class": placed.workload_class,
            "pool": placed.pool,
            "user": spec.user,
            "host": spec.host,
            "state": None if standing is None else standing.state.value,
            "command": list(spec.argv),
            "directory": spec.cwd,
            "snapshot": snapshot_json(spec),
            "variables": sorted(spec.env),
            "secrets": list(spec.secrets),
            "script_sha256": spec.script or None,
            "words_sha256": spec.words or None,
            "script_bytes": None if script is None else len(script),
            "command_fingerprint": command_of(spec),
            "occupied_slot_ms": sum(one.occupied_slot_ms for one in self._sums.values()),
            "money_micros": micros(sum((one.money for one in self._sums.values()), Fraction(0))),
        }

    def json(self) -> dict[str, Any]:
        return {
            **self.facts(),
            "attempts": [_attempt_json(attempt) for attempt in self.attempts],
            "events": [
                {
                    **times(at=event.at, posted_at=event.posted_at),
                    "page": event.page,
                    "event": event.event,
                    "key": event.key,
                    "details": event.details,
                }
                for event in self.events()
            ],
        }

    def events(self) -> list[Event]:
        """In the order in which they happened; of one moment, in that of the journal."""
        claims = [
            Event(
                at=attempt.claimed_at,
                event="claim",
                key=attempt.claim_key,
                details={"attempt": attempt.attempt, "owner": attempt.claim_owner},
            )
            for attempt in self.attempts
            if attempt.claimed_at is not None
        ]
        return sorted([*self.story.events, *claims], key=lambda event: event.at)

    def _attempt(self, number: int) -> Attempt:
        job = self.story.job
        assigned, assigned_at = self.story.assigned[number]
        use, used = self._uses.get(number), self._sums.get((job, str(number)), Sum())
        claim = self._claim(number)
        log = self._store.get(log_key(job, number))
        body = self._store.get(artifact_key(job, number))
        files = () if body is None else read_artifacts(body, self._state.ledger, job, number).files
        return Attempt(
            attempt=number,
            workers=assigned.slots,
            gpus=() if use is None else tuple(slot.gpu for slot in use.slots),
            assigned_at=assigned_at,
            started_at=None if use is None else use.started_at,
            ended_at=None if use is None else use.ended_at,
            became=None if use is None else use.became.value,
            outcome="" if use is None else use.outcome,
            rc=None if use is None else use.rc,
            reason="" if use is None else use.reason,
            occupied_slot_ms=used.occupied_slot_ms,
            asked_slot_ms=None if use is None else use.asked_ms,
            money_micros=micros(used.money),
            message_key=message_key(assigned.slots[0], assigned.message),
            claim_key=claim_key(job, number),
            claim_owner=None if claim is None else claim.owner,
            claim_writer=None if claim is None else claim.writer,
            claim_machine=None if claim is None else claim.machine,
            claimed_at=None if claim is None else claim.at,
            log_key=log_key(job, number),
            log_sha256=None if log is None else hashlib.sha256(log).hexdigest(),
            log_bytes=None if log is None else len(log),
            artifacts_key=artifact_key(job, number),
            artifacts_sha256=None if body is None else hashlib.sha256(body).hexdigest(),
            artifacts_files=None if body is None else len(files),
            artifacts_bytes=None if body is None else sum(file.content.size for file in files),
        )

    def _claim(self, number: int) -> e.Claim | None:
        body = self._store.get(claim_key(self.story.job, number))
        if body is None:
            return None
        return read_claim(body, self._state.ledger, self.story.job, number)


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    fields = msgspec.to_builtins(attempt)
    moments = {name: fields.pop(name) for name in [name for name in fields if name.endswith("_at")]}
    return {**fields, **times(**moments)}
