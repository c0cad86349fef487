"""What the pages of a ledger say of waits and gaps, as numbers.

Owns the figures that the demo and the bench print. All come from the ledger alone: when a
job was submitted, when its attempts started and ended.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ledger.journal import decode_journal_page
from ledger.keys import page_key
from ledger.names import WorkerName
from ledger.projection import Projection
from ledger.state import Job, State
from ledger.stores.base import Store


def walk(store: Store, ledger: str) -> Iterator[State]:
    """The state after each page from page 0 on; the same object, further on each time."""
    projection = Projection(State(ledger=ledger))
    while True:
        key = page_key(projection.state.seq + 1)
        body = store.get(key)
        if body is None:
            return
        projection.apply(decode_journal_page(body, key), hashlib.sha256(body).hexdigest())
        yield projection.state


def percentile(values: Sequence[int], percent: int) -> int:
    """The nearest rank: the smallest value that ``percent`` % of all do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def waits_ms(jobs: Iterable[Job]) -> list[int]:
    """From submit to the start of the first attempt, of all jobs that started."""
    return [
        max(0, first.started_at - job.submitted_at)
        for job in jobs
        if (first := job.attempt(1)) is not None and first.started_at is not None
    ]


def gaps_ms(jobs: Iterable[Job]) -> list[int]:
    """How long slots were idle between two jobs, where the later one had been waiting.

    A job waits from its submit on, so a gap counts from the later of the two: the end of
    the job before, and the submit of the job after.
    """
    by_worker: dict[WorkerName, list[tuple[int, int, int]]] = {}
    for job in jobs:
        for attempt in job.attempts:
            if attempt.started_at is not None and attempt.ended_at is not None:
                for name in attempt.slots:
                    run = (attempt.started_at, attempt.ended_at, job.submitted_at)
                    by_worker.setdefault(name, []).append(run)
    return [
        max(0, start - max(end, submitted))
        for runs in by_worker.values()
        for (_, end, _), (start, _, submitted) in pairwise(sorted(runs))
    ]
