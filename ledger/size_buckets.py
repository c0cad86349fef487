"""In which order a flow takes its small and its larger jobs.

Owns the rule of ``WorkloadClass.size_buckets``: the smallest bucket with jobs goes first, but
after ``small_first`` jobs of one bucket it is the turn of a larger one, if any waits there. So of
each ``small_first + 1`` jobs one is of a larger bucket, and of those one in as many of the one
above. ``turns`` are the counts, one for each bucket but the last. Pure integers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ledger.policy import SizeBuckets

Turns = tuple[int, ...]


def bucket_of(rule: SizeBuckets, size: int) -> int:
    """The bucket of a job that costs ``size``, from 0: a bound still belongs to the smaller."""
    return bisect_left(rule.bounds_ms, size)


def preference(rule: SizeBuckets, turns: Sequence[int]) -> list[int]:
    """All buckets; the next job is of the first one that has any."""
    first: list[int] = []
    after: list[int] = []
    for bucket in range(len(rule.bounds_ms)):
        went = turns[bucket] if bucket < len(turns) else 0
        (first if went < rule.small_first else after).append(bucket)
    return [*first, len(rule.bounds_ms), *reversed(after)]


def turns_after(rule: SizeBuckets, turns: Sequence[int], bucket: int) -> Turns:
    """The counts once a job of ``bucket`` went."""
    known = [*turns, *(0 for _ in rule.bounds_ms)][: len(rule.bounds_ms)]
    after = [0 if smaller < bucket else went for smaller, went in enumerate(known)]
    if bucket < len(after):
        after[bucket] = min(rule.small_first, after[bucket] + 1)
    return tuple(after)
