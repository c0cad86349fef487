"""How far charged service strays from the weights, measured on a ledger, beside the bound.

Owns the check that the demo makes of docs/ARCHITECTURE.md, "Fair sharing": charged service
while all flows are backlogged, per weight, pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import msgspec

from ledger.events import JobState
from ledger.names import FlowId
from ledger.policy import WEIGHT_ONE
from ledger.state import Attempt, Job, State
from ledger.stores.base import Store
from tools.figures import walk


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one flow was charged while all were backlogged, beside what it was owed."""

    flow: FlowId
    weight: float
    jobs: int
    charged_ms: int
    owed_ms: float
    bound_ms: float
    """How far ``charged_ms`` may be from ``owed_ms``, by the pairwise bounds."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two flows: how far their charged service per weight is apart, and how far it may be."""

    flows: tuple[FlowId, FlowId]
    difference_ms: float
    bound_ms: float


class Fairness(msgspec.Struct, frozen=True, kw_only=True):
    begin_at: int
    end_at: int
    shares: tuple[Share, ...]
    pairs: tuple[Pair, ...]


class _Usage(msgspec.Struct, kw_only=True):
    """One flow over the window: what the bound is made of."""

    weight: float
    charged_before_ms: int = 0
    charged_ms: int = 0
    attempts: list[Attempt] = []
    in_flight: int = 0
    first_costs_ms: dict[str, int] = {}

    @property
    def service_ms(self) -> int:
        return self.charged_ms - self.charged_before_ms

    @property
    def largest_ms(self) -> int:
        """The largest charge of an attempt: estimated, grown, or settled."""
        return max((max(a.cost_ms, _settled_ms(a)) for a in self.attempts), default=0)

    @property
    def error_ms(self) -> int:
        """The largest difference between what was charged at any time and what it really was."""
        return max(
            (
                abs(_settled_ms(attempt) - cost_ms)
                for attempt in self.attempts
                for cost_ms in (attempt.cost_ms, self.first_costs_ms[_name(attempt)])
            ),
            default=0,
        )

    @property
    def slack_ms(self) -> float:
        """This flow's part of each pairwise bound (docs/ARCHITECTURE.md, "Fair sharing")."""
        return (self.largest_ms + 2 * self.in_flight * self.error_ms) / self.weight


def fairness(
    store: Store, ledger: str, flows: Sequence[FlowId], measured: Callable[[Job], bool]
) -> Fairness | None:
    """Charged service while every flow has a measured job waiting; None if that never was.

    The charge of an attempt is its estimate, then what it really took. Two flows of weights
    w_f and w_g that both stay backlogged differ per weight by at most cmax_f/w_f +
    cmax_g/w_g, and where estimates are wrong by at most e, with at most n of a flow's
    attempts in flight, by 2 * (n_f*e_f/w_f + n_g*e_g/w_g) more.
    """
    usages: dict[FlowId, _Usage] = {}
    begin_at = end_at = 0
    for state in walk(store, ledger):
        waiting = {
            job.spec.flow
            for job in state.jobs.values()
            if job.state is JobState.PENDING and measured(job)
        }
        if not waiting.issuperset(flows):
            if usages:
                break
            continue
        if not usages:
            begin_at = state.at
            usages = {flow: _begin(state, flow) for flow in flows}
        end_at = state.at
        for flow, usage in usages.items():
            _measure(state, flow, usage, begin_at)
    if not usages:
        return None
    return _conclude(store, ledger, usages, begin_at, end_at)


def _begin(state: State, flow: FlowId) -> _Usage:
    organization = flow.split("/", 1)[0]
    weight = state.policy.organization_weight(organization) / WEIGHT_ONE
    return _Usage(weight=weight, charged_before_ms=_charged_ms(state, flow))


def _measure(state: State, flow: FlowId, usage: _Usage, begin_at: int) -> None:
    attempts = _attempts(state, flow)
    for attempt in attempts:
        usage.first_costs_ms.setdefault(_name(attempt), attempt.cost_ms)
    usage.charged_ms = sum(_now_charged_ms(attempt) for attempt in attempts)
    usage.in_flight = max(usage.in_flight, sum(not a.settled for a in attempts))
    usage.attempts = [a for a in attempts if a.ended_at is None or a.ended_at > begin_at]


def _conclude(
    store: Store, ledger: str, usages: dict[FlowId, _Usage], begin_at: int, end_at: int
) -> Fairness:
    """With the attempts as they ended, which may have been after the window."""
    *_, last = walk(store, ledger)
    for flow, usage in usages.items():
        names = {_name(attempt) for attempt in usage.attempts}
        usage.attempts = [a for a in _attempts(last, flow) if _name(a) in names]
    pairs = tuple(
        Pair(
            flows=(f, g),
            difference_ms=abs(
                usages[f].service_ms / usages[f].weight - usages[g].service_ms / usages[g].weight
            ),
            bound_ms=usages[f].slack_ms + usages[g].slack_ms,
        )
        for f, g in combinations(usages, 2)
    )
    return Fairness(
        begin_at=begin_at,
        end_at=end_at,
        shares=tuple(_share(flow, usages, pairs) for flow in usages),
        pairs=pairs,
    )


def _share(flow: FlowId, usages: dict[FlowId, _Usage], pairs: Sequence[Pair]) -> Share:
    """The pairwise bounds, weighted, bound the distance from the share owed.

    served_f - owed_f = sum over g of w_f * w_g * (served_f/w_f - served_g/w_g) / sum of w.
    """
    usage, total = usages[flow], sum(u.weight for u in usages.values())
    service_ms = sum(u.service_ms for u in usages.values())
    bound_ms = sum(
        math.prod(usages[name].weight for name in pair.flows) * pair.bound_ms / total
        for pair in pairs
        if flow in pair.flows
    )
    return Share(
        flow=flow,
        weight=usage.weight,
        jobs=len(usage.attempts),
        charged_ms=usage.service_ms,
        owed_ms=service_ms * usage.weight / total,
        bound_ms=bound_ms,
    )


def _attempts(state: State, flow: FlowId) -> list[Attempt]:
    jobs = (job for job in state.jobs.values() if job.spec.flow == flow)
    return [attempt for job in jobs for attempt in job.attempts]


def _charged_ms(state: State, flow: FlowId) -> int:
    return sum(_now_charged_ms(attempt) for attempt in _attempts(state, flow))


def _now_charged_ms(attempt: Attempt) -> int:
    return _settled_ms(attempt) if attempt.settled else attempt.cost_ms


def _settled_ms(attempt: Attempt) -> int:
    """Slot-milliseconds that an ended attempt really took; 0 if it never ran."""
    if attempt.started_at is None or attempt.ended_at is None:
        return 0
    return len(attempt.slots) * (attempt.ended_at - attempt.started_at)


def _name(attempt: Attempt) -> str:
    """An attempt's message is its own: worker and number name it for ever."""
    return f"{attempt.lead}/{attempt.message}"
