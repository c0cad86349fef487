"""Dividing by weight among those who do not all want as much as they are owed.

Owns water-filling, in floats for what is drawn and in exact fractions for what is billed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
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
