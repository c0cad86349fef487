"""What the demo shows while it runs: two small tables on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ledger.events import JobState
from ledger.state import Attempt, Job, State

LINE_EVERY_S = 4.0


class Screen:
    """Shows states until it is left; on a terminal the last picture stays."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._begun_s = time.monotonic()
        self._next_line_s = 0.0
        self._is_terminal = sys.stdout.isatty()

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(f"{self._elapsed_s():3.0f} s  {text}", markup=False)

    def show(self, state: State) -> None:
        """Draw ``state``, or print a line about it when one is due."""
        if self._is_terminal:
            self._live.update(self._picture(state), refresh=True)
        elif self._elapsed_s() >= self._next_line_s:
            self._next_line_s = self._elapsed_s() + LINE_EVERY_S
            print(f"{self._elapsed_s():3.0f} s  {_counts(list(state.jobs.values()))}", flush=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _picture(self, state: State) -> Group:
        headline = (
            f"{self._elapsed_s():3.0f} s  {_counts(list(state.jobs.values()))}; "
            f"{state.leader or 'nobody'} leads, page {state.seq}"
        )
        return Group(Text(), Text(headline), Text(), _slots(state), Text(), self._shares(state))

    def _shares(self, state: State) -> Table:
        table = _table(
            "ORG", "WEIGHT", "WAITING", "RUNNING", "ENDED", "SLOT-SECONDS", "SHARE", "OWED"
        )
        used = {name: _used_ms(state, name) for name in self._weights}
        total, weights = sum(used.values()) or 1, sum(self._weights.values())
        for name, weight in self._weights.items():
            jobs = [job for job in state.jobs.values() if job.spec.organization == name]
            table.add_row(
                name,
                str(weight),
                str(sum(job.state.queued for job in jobs)),
                str(sum(_is_open(job) for job in jobs)),
                str(sum(job.state.ended for job in jobs)),
                f"{used[name] / 1000:.1f}",
                f"{used[name] / total:.0%}",
                f"{weight / weights:.0%}",
            )
        return table


def _slots(state: State) -> Table:
    table = _table("SLOT", "JOB", "NAME", "ORG", "STATE")
    for name in sorted(state.workers):
        occupant = state.workers[name].occupant
        job = state.jobs.get(occupant.job) if occupant is not None else None
        if job is None:
            table.add_row(name, "-", "-", "-", "idle")
        else:
            table.add_row(name, job.id, job.spec.name, job.spec.organization, job.state.value)
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _counts(jobs: Sequence[Job]) -> str:
    ended = sum(job.state.ended for job in jobs)
    waiting = sum(job.state.queued for job in jobs)
    return f"{len(jobs) - ended - waiting} running, {waiting} waiting, {ended} ended"


def _is_open(job: Job) -> bool:
    return job.state in (JobState.ASSIGNED, JobState.RUNNING, JobState.STOPPING)


def _used_ms(state: State, organization: str) -> int:
    """What its attempts have run so far, as of the last page."""
    jobs = (job for job in state.jobs.values() if job.spec.organization == organization)
    return sum(_ran_ms(attempt, state.at) for job in jobs for attempt in job.attempts)


def _ran_ms(attempt: Attempt, at: int) -> int:
    if attempt.started_at is None:
        return 0
    return max(0, (at if attempt.ended_at is None else attempt.ended_at) - attempt.started_at)
