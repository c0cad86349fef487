"""``gpuq audit fairness``: what each organization was owed and got, and why they differ.

Owns the words for the difference. Each reason rests on numbers that are shown beside it in the
JSON, and all numbers follow from the journal (``scheduling.contest``).
"""

from __future__ import annotations

from typing import Any

from gpuq.render import printable, short_duration
from scheduling.contest import Contest, Part

HEADER = ("POOL", "ORG", "WEIGHT", "CONTESTED", "OWED", "GOT", "DIFFERENCE", "WHY")
_ORDERED_OTHERWISE = {"fifo": "by arrival", "strict": "by class and arrival"}


def fairness_rows(contest: Contest) -> list[list[str]]:
    return [
        [
            pool,
            organization,
            f"{part.weight / 1_000:g}",
            short_duration(part.contested_ms),
            short_duration(round(part.owed)),
            short_duration(part.got),
            _signed(difference(part)),
            "; ".join(why(contest, pool, organization)),
        ]
        for (pool, organization), part in sorted(contest.parts.items())
    ]


def fairness_json(contest: Contest) -> list[dict[str, Any]]:
    return [
        {
            "pool": pool,
            "contested_ms": contest.contested_ms.get(pool, 0),
            "organizations": [
                _part_json(contest, pool, organization)
                for of_pool, organization in sorted(contest.parts)
                if of_pool == pool
            ],
        }
        for pool in sorted({pool for pool, _ in contest.parts})
    ]


def difference(part: Part) -> int:
    """What it got beyond what it was owed, slot-milliseconds."""
    return part.got - round(part.owed)


def why(contest: Contest, pool: str, organization: str) -> list[str]:
    """Reasons for the difference, those first that weigh most; none where there is none."""
    part = contest.parts[pool, organization]
    others = [
        other
        for (of_pool, name), other in contest.parts.items()
        if of_pool == pool and name != organization
    ]
    reasons = [
        f"nothing of it could be served for {short_duration(ms)}: {reason}"
        for reason, ms in sorted(part.blocked_ms.items(), key=lambda item: -item[1])
    ]
    surplus = difference(part)
    if not surplus:
        return reasons
    if part.discipline in _ORDERED_OTHERWISE:
        order = _ORDERED_OTHERWISE[part.discipline]
        reasons.insert(0, f"{part.discipline} serves {order}, not by weight")
    carried = part.carried if surplus > 0 else sum(other.carried for other in others)
    if carried:
        whose = "its jobs" if surplus > 0 else "others' jobs"
        reasons.append(f"{whose} from before the contest held {short_duration(carried)}")
    largest = max([part.largest, *(other.largest for other in others)])
    if abs(surplus) <= largest:
        reasons.append(f"jobs are not cut: one was charged {short_duration(largest)}")
    if not reasons:
        charged = short_duration(part.dispatched)
        reasons.append(f"turns go by what jobs are charged, {charged} here, not by what they held")
    return reasons


def _part_json(contest: Contest, pool: str, organization: str) -> dict[str, Any]:
    part = contest.parts[pool, organization]
    return {
        "organization": organization,
        "weight_thousandths": part.weight,
        "discipline": part.discipline,
        "contested_ms": part.contested_ms,
        "owed_slot_ms": round(part.owed),
        "got_slot_ms": part.got,
        "difference_slot_ms": difference(part),
        "carried_slot_ms": part.carried,
        "dispatched_cost": part.dispatched,
        "largest_cost": part.largest,
        "sated_ms": part.sated_ms,
        "blocked": [
            {"reason": printable(reason), "ms": ms} for reason, ms in part.blocked_ms.items()
        ],
        "why": why(contest, pool, organization),
    }


def _signed(slot_ms: int) -> str:
    if not slot_ms:
        return "0"
    return f"{'+' if slot_ms > 0 else '-'}{short_duration(abs(slot_ms))}"
