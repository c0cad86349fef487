"""Deliberately broken protocols: each must be caught by the checkers, or these prove nothing.

Owns one patch per rule that a plain reading of the protocol gets wrong (numbers are those
of docs/ARCHITECTURE.md, "Rules the model forced"). A variant replaces a few methods of the
product for the length of a ``with`` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from ledger import events as e
from ledger.errors import InDoubtError, TransientError
from ledger.keys import message_key
from ledger.names import Seq
from ledger.projection import Projection
from ledger.reader import FactTail
from ledger.state import Phase
from ledger.stores.base import Lost, Won
from ledger.stores.settling import Sender, SettlingStore
from ledger.writer import FactOutbox
from roles import supervisor as supervisor_module
from roles import worker as worker_module
from roles.claiming import Claiming
from roles.dispatcher import Dispatcher
from roles.leader import Leader
from roles.liveness import LivenessJudge
from roles.reports import Reports
from scheduling.decide import Scheduler

Patches = list[tuple[Any, str, Any]]


def _no_put_id() -> Patches:
    """After doubt, whatever stands at the key is taken for one's own."""

    def find_outcome(self: SettlingStore, key: str, own: str) -> Won | None:
        return None if self._read(key) is None else Won()

    return [(SettlingStore, "_find_outcome", find_outcome)]


def _sdk_retries() -> Patches:
    """The SDK sends a create twice; its 412 is believed."""

    def put_new(
        self: SettlingStore, key: str, body: bytes, *, patience_ms: int | None = None
    ) -> Won | Lost:
        while True:
            try:
                if self._create(key, body, Sender.PATIENT):
                    return Won()
                standing = self._read(key)
            except TransientError:
                self._clock.sleep_ms(1_000)
                continue
            if standing is not None:
                return Lost(standing)

    return [(SettlingStore, "put_new", put_new)]


def _cursor_by_time() -> Patches:
    """Facts are tailed from the newest stamp on; gaps and hints are not followed."""
    return [
        (FactTail, "_overlap_ms", lambda self, now_ms: 0),
        (FactTail, "_close_gaps", lambda self, admitted: None),
        (FactTail, "hint", lambda self, newest: None),
    ]


def _act_before_page() -> Patches:
    """Messages are delivered before their page is in."""
    build = Leader._build

    def build_and_deliver(self: Leader, *args: Any, **kwargs: Any) -> e.Page:
        page = build(self, *args, **kwargs)
        self._deliver()
        return page

    return [(Leader, "_build", build_and_deliver)]


def _no_claim() -> Patches:
    """A worker starts what its mailbox says, without asking who owns it."""
    return [(Claiming, "settle", lambda self, writer: "mine")]


def _stop_outside_page() -> Patches:
    """Rule 1: a stop is sent as a message that no page decided."""
    read = Leader._read

    def read_and_stop(self: Leader) -> Any:
        facts, refused = read(self)
        for posted in facts:
            if isinstance(posted.fact, e.CancelRequested):
                job = self._state.jobs.get(posted.fact.job)
                if job is not None and job.last is not None and not job.state.ended:
                    worker = self._state.workers[job.last.lead]
                    message = e.StopMessage(
                        ledger=self._context.ledger,
                        worker=worker.name,
                        n=worker.next_message,
                        seq=Seq(self._state.seq),
                        job=job.id,
                        attempt=job.last.number,
                        reason="cancelled",
                    )
                    key = message_key(worker.name, message.n)
                    self._context.store.put_once(key, e.encode(message))
        return facts, refused

    return [(Leader, "_read", read_and_stop)]


def _no_redelivery() -> Patches:
    """Rule 2: a new leader delivers only what it decides itself."""
    take_over = Leader._take_over_journal

    def take_over_without(self: Leader) -> None:
        take_over(self)
        self._delivered = {
            name: worker.next_message for name, worker in self._state.workers.items()
        }

    return [(Leader, "_take_over_journal", take_over_without)]


def _keep_prepared_page() -> Patches:
    """Rule 3: after Lost the same decisions are put under the next number."""

    def post(self: Leader, facts: Any, seen: Any, *, elected: bool) -> None:
        page = self._build(tuple(facts), tuple(seen), elected=elected)
        while True:
            try:
                outcome: Won | Lost | None = self._journal.post(page, patience_ms=10_000)
            except InDoubtError:
                continue
            if isinstance(outcome, Won):
                self._act(page)
                self._reload()
                return
            self._journal.load()
            page = replace(page, seq=Seq(self._state.seq + 1), prev_sha256=self._state.page_sha256)

    return [(Leader, "_post", post)]


def _silence_of_its_own() -> Patches:
    """Rule 4: the leader's own gaps count as everybody's silence."""

    def read_succeeded(self: LivenessJudge, boot_ms: int) -> None:
        if self._read_at_ms is not None:
            self._observed_ms += boot_ms - self._read_at_ms
        self._read_at_ms = boot_ms

    return [(LivenessJudge, "read_succeeded", read_succeeded)]


def _lose_open_claims() -> Patches:
    """Rule 5: an attempt whose claim is open is declared lost, not revoked."""
    settle = Scheduler._settle_attempt

    def settle_attempt(self: Scheduler, job: Any, attempt: Any) -> None:
        state = self._projection.state
        node = state.nodes[state.workers[attempt.lead].node]
        open_claim = attempt.phase in (Phase.ASSIGNED, Phase.REVOKING)
        if open_claim and node.liveness is not e.Liveness.FRESH:
            self.emit(e.LossDeclared(job=job.id, attempt=attempt.number))
            return
        settle(self, job, attempt)

    return [(Scheduler, "_settle_attempt", settle_attempt)]


def _lost_frees_slots() -> Patches:
    """Rule 5: a declared loss frees the slots, although the attempt may still run."""
    declare = Projection._declare_lost

    def declare_lost(self: Projection, decision: e.LossDeclared) -> None:
        declare(self, decision)
        job = self.state.jobs[decision.job]
        attempt = job.attempt(decision.attempt)
        assert attempt is not None
        self.vacate(job, attempt)

    return [(Projection, "_declare_lost", declare_lost)]


def _any_clock_leads() -> Patches:
    """Rule 6: a candidate leads however wrong its clock is."""
    return [(Dispatcher, "_why_not_lead", lambda self: "")]


def _forget_early_cancel() -> Patches:
    """Rule 7: the cancel of a job that is not known yet is dropped."""
    cancel = Projection._cancel

    def drop_unknown(self: Projection, fact: e.CancelRequested) -> None:
        if fact.job in self.state.jobs:
            cancel(self, fact)

    return [(Projection, "_cancel", drop_unknown)]


def _lost_means_revoked() -> Patches:
    """Rule 8: a claim that was not won is taken for revoked, whatever its body says."""
    return [(Claiming, "_owner_of", lambda self, key, body: "revoked")]


def _ready_lists_nothing() -> Patches:
    """Rule 9: a new incarnation does not say what it adopted."""
    ready = Reports.ready

    def ready_without(
        self: Reports, node: Any, pool: Any, slot: Any, running: Any, price_micros: int
    ) -> None:
        ready(self, node, pool, slot, (), price_micros)

    return [(Reports, "ready", ready_without)]


def _no_draining() -> Patches:
    """Rule 9: what a former incarnation had not sent is left in its spool."""
    return [(worker_module, "drain_spools", lambda store, timings, spools: {})]


def _withdrawn_slots_forgotten() -> Patches:
    """Rule 12: a node that offers fewer slots than before does nothing about the others."""
    return [(supervisor_module, "left_over", lambda state, node, machine, offered: {})]


def _start_whenever() -> Patches:
    """Rule 10: an attempt is started however long ago it was claimed."""
    return [(Claiming, "is_late", False), *_patient_runner()]


def _patient_runner() -> Patches:
    from simulation.machine import Attempt

    return [(Attempt, "claim_expires", False)]


def _any_answer_acknowledges() -> Patches:
    """Rule 14: a fact counts as acknowledged however late the answer came."""

    def put(self: FactOutbox, fact: e.AnyFact) -> str:
        from ledger.writer import _fact_key

        self._stamp_ms = max(self._stamp_ms, self._store.clock_ms())
        key = _fact_key(fact, self._stamp_ms)
        self._store.put_once(key, e.encode(replace(fact, prev=self._newest_key)))
        return key

    return [(FactOutbox, "_put", put)]


def _dependents_at_once() -> Patches:
    """A job that waits for others enters its queue at once."""
    return [(Projection, "enter", Projection.queue)]


VARIANTS: dict[str, Callable[[], Patches]] = {
    "no_put_id": _no_put_id,
    "sdk_retries": _sdk_retries,
    "cursor_by_time": _cursor_by_time,
    "act_before_page": _act_before_page,
    "no_claim": _no_claim,
    "rule_1_stop_outside_page": _stop_outside_page,
    "rule_2_no_redelivery": _no_redelivery,
    "rule_3_keep_prepared_page": _keep_prepared_page,
    "rule_4_silence_of_its_own": _silence_of_its_own,
    "rule_5_lose_open_claims": _lose_open_claims,
    "rule_5_lost_frees_slots": _lost_frees_slots,
    "rule_6_any_clock_leads": _any_clock_leads,
    "rule_7_forget_early_cancel": _forget_early_cancel,
    "rule_8_lost_means_revoked": _lost_means_revoked,
    "rule_9_ready_lists_nothing": _ready_lists_nothing,
    "rule_9_no_draining": _no_draining,
    "rule_10_start_whenever": _start_whenever,
    "rule_12_withdrawn_slots_forgotten": _withdrawn_slots_forgotten,
    "rule_14_any_answer_acknowledges": _any_answer_acknowledges,
    "dependents_at_once": _dependents_at_once,
}
"""By name; the first five are the classic mistakes, the others one rule switched off each."""


@contextmanager
def broken(name: str) -> Iterator[None]:
    """The protocol with one rule switched off; nothing is changed for an empty name."""
    with ExitStack() as stack:
        for owner, attribute, value in VARIANTS[name]() if name else []:
            stack.enter_context(patch.object(owner, attribute, value))
        yield
