"""Dividing by weight among those who do not all want as much as they are owed.

Owns water-filling, in floats for what is drawn and in exact fractions for what is billed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

Who = TypeVar("Who")
Number = TypeVar("Number", float, Fraction)


def water_filling(
    capacity: Number, demand: Mapping[Who, Number], weights: Mapping[Who, Number]
) -> dict[Who, Number]:
    """``capacity`` divided by weight, to none more than its demand. O(n log n).

    Where all demands together are not less than the capacity, all of that is divided.
    """
    given: dict[Who, Number] = {}
    order = sorted(demand, key=lambda who: demand[who] / weights[who])
    if not order:
        return given
    weight_left = sum((weights[who] for who in order[1:]), start=weights[order[0]])
    for who in order:
        given[who] = min(demand[who], capacity * weights[who] / weight_left)
        capacity -= given[who]
        weight_left -= weights[who]
    return given


def capped_filling(
    capacity: float,
    demand: Mapping[Who, float],
    weights: Mapping[Who, float],
    caps: Sequence[tuple[Collection[Who], float]],
) -> dict[Who, float]:
    """The same where in addition groups have together no more than their cap (> 0).

    All are raised in proportion to their weights; who has his demand, or is of a group that has
    its cap, is raised no further (weighted max-min fairness). O(n * (n + members of caps)).
    """
    given = dict.fromkeys(demand, 0.0)
    limits = [(set(members), cap) for members, cap in ((list(demand), capacity), *caps)]
    rising = {who for who, wanted in demand.items() if wanted > 0}
    while rising:
        steps = {who: (demand[who] - given[who]) / weights[who] for who in rising}
        for members, cap in limits:
            risen = members & rising
            if risen:
                left = cap - sum(given[who] for who in members & given.keys())
                step = max(0.0, left) / sum(weights[who] for who in risen)
                steps.update((who, min(steps[who], step)) for who in risen)
        step = min(steps.values())
        for who in rising:
            given[who] += step * weights[who]
        rising = {who for who in rising if steps[who] > step}
    return given
