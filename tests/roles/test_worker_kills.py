"""kill -9 of a worker at each of its effects in turn, and twice in a row.

The truth is the count of executions that the jobs themselves keep, and what the real fold
makes of the facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from ledger import events as e
from ledger.events import JobState
from ledger.keys import log_key, log_piece_key
from ledger.names import JobId, WriterName
from ledger.state import Phase
from tests.roles.worker_rig import WORKER, Death, Rig

JOB_MS = 5_000
"""Long enough for pieces of its log to be shipped while it runs."""


def killed_at(numbers: Iterable[int]) -> tuple[Rig, list[JobId]]:
    """Two jobs, one after the other, by a worker that dies at these effects."""
    rig = Rig()
    rig.disk.runs_ms = JOB_MS
    deaths = set(numbers)

    def die(number: int, _what: str) -> None:
        if number in deaths:
            raise Death

    rig.effects.on_effect = die
    jobs = [rig.submit(), rig.submit()]
    while not rig.turn():
        rig.step()
    rig.settle(rounds=600)
    return rig, jobs


def check(rig: Rig, jobs: list[JobId]) -> None:
    executed: Counter[str] = Counter()
    for name, count in rig.disk.executed.items():
        assert count == 1, f"attempt {name} ran {count} times"
        executed[name.split(".")[0]] += count
    for job in jobs:
        assert executed[job] == 1, "it ran as one attempt and no other"
        state = rig.job(job)
        assert state.state is JobState.FAILED
        last = rig.attempt(job, len(state.attempts))
        assert (last.rc, last.outcome, last.phase) == (3, "exited", Phase.ENDED)
        for attempt in state.attempts[:-1]:
            assert (attempt.outcome, attempt.ran) == ("lost", False)
        check_log(rig, job, len(state.attempts))
    assert rig.world.state.workers[WORKER].occupant is None
    assert not any(count > 1 for count in distinct_ends(rig).values())
    assert rig.world.state.void_pages == 0


def check_log(rig: Rig, job: JobId, attempt: int) -> None:
    whole = rig.object(log_key(job, attempt))
    assert whole == b"begin\nend\nrc=3\n"
    pieces: list[bytes] = []
    while (piece := rig.object(log_piece_key(job, attempt, len(pieces)))) is not None:
        pieces.append(piece)
    assert pieces, "some of it was shipped while it ran"
    assert whole.startswith(b"".join(pieces))


def distinct_ends(rig: Rig) -> Counter[tuple[str, int]]:
    """How many different ends were told of each attempt."""
    ends = {
        replace(fact, writer=WriterName(""), n=-1, prev="", cursor=0)
        for fact in rig.said(e.AttemptFinished)
    }
    return Counter((end.job, end.attempt) for end in ends)


UNDISTURBED = killed_at(())[0].effects.count


def test_undisturbed_it_takes_that_many_effects() -> None:
    rig, jobs = killed_at(())
    check(rig, jobs)
    assert rig.deaths == 0
    assert len(rig.said(e.AttemptFinished)) == 2, "each end is reported once"


@pytest.mark.parametrize("number", range(1, UNDISTURBED + 1))
def test_killed_at_any_effect_every_job_runs_once_and_its_end_is_told(number: int) -> None:
    rig, jobs = killed_at([number])
    check(rig, jobs)
    assert rig.deaths == 1


@pytest.mark.parametrize("first", range(1, UNDISTURBED, 7))
@pytest.mark.parametrize("distance", [1, 2, 5])
def test_killed_twice_too(first: int, distance: int) -> None:
    rig, jobs = killed_at([first, first + distance])
    check(rig, jobs)
    assert rig.deaths == 2
