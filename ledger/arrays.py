"""Arrays: which members one has, and what each of them is asked to do.

Owns the order of the indices, the names of members and the rule by which the spec of a
member follows from that of its array. Pure arithmetic: a member is no object until it
begins or is named in a request, however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from ledger.events import ArraySpec, JobSpec
from ledger.names import JOB_ID, JobId

ARRAY_MAX = 100_000
"""Members of one array, at most."""

INDEX_MAX = 999_999_999

_MEMBER = re.compile(rf"({JOB_ID.pattern})_(0|[1-9][0-9]{{0,8}})")


def member_id(array: JobId, index: int) -> JobId:
    """``q7m2k4x3_17``."""
    return JobId(f"{array}_{index}")


def member_of(job: str) -> tuple[JobId, int] | None:
    """The array and the index that the id of a member names; None for any other id."""
    match = _MEMBER.fullmatch(job)
    return (JobId(match[1]), int(match[2])) if match is not None else None


def size_of(array: ArraySpec) -> int:
    """How many members it has. O(ranges), as all that follows."""
    return sum(_count(each) for each in array.ranges)


def index_at(array: ArraySpec, position: int) -> int:
    """The index of the member at ``position``, counted from 0."""
    for first, last, step in array.ranges:
        count = _count((first, last, step))
        if position < count:
            return first + position * step
        position -= count
    raise IndexError(position)


def position_of(array: ArraySpec, index: int) -> int | None:
    """The position of a member; None where the array has no such index."""
    before = 0
    for first, last, step in array.ranges:
        if first <= index <= last and (index - first) % step == 0:
            return before + (index - first) // step
        before += _count((first, last, step))
    return None


def indices(array: ArraySpec) -> Iterator[int]:
    """All indices in order. O(members)."""
    for first, last, step in array.ranges:
        yield from range(first, last + 1, step)


def malformed(array: ArraySpec) -> str:
    """Why this is no array; empty where it is one."""
    behind = -1
    for first, last, step in array.ranges:
        if not (behind < first <= last <= INDEX_MAX and step > 0):
            return f"the indices of an array grow, from 0 to {INDEX_MAX}"
        behind = last
    size = size_of(array)
    if not 0 < size <= ARRAY_MAX:
        return f"an array has 1 to {ARRAY_MAX} members, not {size}"
    combinations = 1
    for _, values in array.sweep:
        combinations *= len(values)
    if array.sweep and (array.ranges != ((0, size - 1, 1),) or combinations != size):
        return f"a sweep of {combinations} combinations has the indices from 0 to as many"
    return "an array cannot have a negative limit" if array.at_once < 0 else ""


def member_spec(spec: JobSpec, index: int) -> JobSpec:
    """What a member is asked to do: as its array, with its own id and variables.

    The end of the array is told as a whole, so a member tells of none.
    """
    assert spec.array is not None
    env = {
        **spec.env,
        **{f"GPUQ_{name}": value for name, value in values_at(spec.array, index)},
        "GPUQ_ARRAY_ID": spec.id,
        "GPUQ_ARRAY_INDEX": str(index),
    }
    own = member_id(spec.id, index)
    return replace(spec, id=own, array=None, env=env, key="", held=False, notify="")


def values_at(array: ArraySpec, index: int) -> list[tuple[str, str]]:
    """Names and values of one combination of a sweep; the last name varies fastest."""
    chosen = []
    for name, values in reversed(array.sweep):
        index, at = divmod(index, len(values))
        chosen.append((name, values[at]))
    return chosen[::-1]


def _count(indices: tuple[int, int, int]) -> int:
    first, last, step = indices
    return (last - first) // step + 1
