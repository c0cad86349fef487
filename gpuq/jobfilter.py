"""Which jobs ``gpuq status`` shows: by state, organization and time.

Owns how these options are read. Of a job that has ended the time is that of its end; one
that is open belongs to every time.
"""

from __future__ import annotations

import difflib

import msgspec

from gpuq.history import parse_moment
from gpuq.render import printable
from ledger.errors import RequestError
from ledger.events import JobState
from ledger.state import Job


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Empty and 0 let everything pass; ``since_at`` is in ms since the epoch."""

    states: frozenset[JobState] = frozenset()
    organization: str = ""
    since_at: int = 0

    def passes(self, job: Job) -> bool:
        """Whether the job is to be shown."""
        return (
            (not self.states or job.state in self.states)
            and self.organization in ("", job.placed.organization)
            and (job.ended_at is None or job.ended_at >= self.since_at)
        )


def parse_filter(states: str, organization: str, since: str, now_ms: int) -> JobFilter:
    """Raises RequestError for what is no state or no time."""
    return JobFilter(
        states=frozenset(_state(word.strip()) for word in states.split(",") if word.strip()),
        organization=organization,
        since_at=parse_moment(since, now_ms) if since else 0,
    )


def _state(word: str) -> JobState:
    known = [state.value for state in JobState]
    if word.upper() in known:
        return JobState(word.upper())
    near = difflib.get_close_matches(word.upper(), known, 1)
    mend = f"did you mean {near[0].lower()}?" if near else f"states are {', '.join(known)}"
    raise RequestError(f"--state {printable(word)!r} is no state of a job: {mend}")
