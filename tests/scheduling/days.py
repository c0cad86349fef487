"""GPU time of the last day, read from the pages alone: the oracle of the limits a day.

It shares no line with the code under test. For each attempt it knows which GPUs it had and what
its assignment promised; what has ended counts for the time in which it really ran within the
last day, what has not for what was promised.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger import events as e
from ledger.events import AttemptRef
from ledger.names import FlowId, flow_parts
from ledger.policy import Scope
from ledger.state import State


@dataclass
class Run:
    flow: FlowId
    gpus: int
    promised_ms: int
    began: int | None = None
    ended: int | None = None

    def since(self, day_began: int) -> int:
        """GPU-milliseconds that it had from then on, or may have."""
        if self.ended is None:
            return self.promised_ms
        if self.began is None:
            return 0
        return self.gpus * max(0, self.ended - max(self.began, day_began))


class GpuDays:
    """Fed page by page; a day has ``day_ms``."""

    def __init__(self, day_ms: int) -> None:
        self._day_ms = day_ms
        self._runs: dict[AttemptRef, Run] = {}

    def note(self, page: e.Page, state: State) -> None:
        for fact in (posted.fact for posted in page.facts):
            match fact:
                case e.AttemptStarted():
                    self._run(fact).began = self._run(fact).began or fact.at
                case e.AttemptFinished():
                    self._run(fact).began, self._run(fact).ended = fact.started_at, fact.ended_at
                case e.AttemptLost():
                    self._run(fact).ended = fact.at
        for seen in page.seen:
            if isinstance(seen, e.ClaimSeen) and seen.owner == "revoke":
                self._run(seen).ended = page.at
        for decision in page.decisions:
            match decision:
                case e.AttemptAssigned():
                    gpus = sum(state.workers[name].slot.kind == "gpu" for name in decision.slots)
                    flow = state.jobs[decision.job].placed.flow
                    ref = AttemptRef(decision.job, decision.attempt)
                    self._runs[ref] = Run(flow, gpus, decision.gpu_ms)
                case e.LossDeclared():
                    self._run(decision).ended = page.at
                case e.AttemptFound():
                    self._run(decision).ended = None

    def gpus(self, decision: e.AttemptAssigned) -> int:
        return self._run(decision).gpus

    def used_ms(self, scope: Scope, at: int) -> int:
        """Of those whom ``scope`` names."""
        return sum(
            run.since(at - self._day_ms) for run in self._runs.values() if _is_of(run.flow, scope)
        )

    def _run(
        self,
        event: e.AttemptStarted
        | e.AttemptFinished
        | e.AttemptLost
        | e.ClaimSeen
        | e.AttemptAssigned
        | e.LossDeclared
        | e.AttemptFound,
    ) -> Run:
        return self._runs[AttemptRef(event.job, event.attempt)]


def _is_of(flow: FlowId, scope: Scope) -> bool:
    organization, workload_class, pool = flow_parts(flow)
    names = {"flow": flow, "organization": organization, "class": workload_class, "pool": pool}
    return names[scope.kind] == scope.name
