"""``python -m bench.replay``: how fast pages are folded, verified, decided and simulated.

Owns three measurements, all in processor time of one core:

- whole traces simulated with the full ``decide``, beside AccaSim on the same file
  (``--accasim PYTHON``: of a virtual environment that has it; see docs/PERFORMANCE.md);
- one page of a steady state (a job ends, one arrives, one is assigned) against the number of
  waiting jobs and of flows;
- a made journal folded and verified.

Of several rounds the fastest counts: other work on the machine only ever makes one slower.
docs/PERFORMANCE.md states the figures and the aims.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.made import LEDGER, MadeLedger
from bench.traces_race import Row, cases, race
from gpuq.render import plain_table
from ledger.journal import Journal
from simulation.memory import ManualClock, MemoryStore
from simulation.verify import verify

SLOTS = 64
QUEUES = (1_000, 10_000, 100_000)
LONGEST_QUEUE = 1_000_000
FLOWS = (10, 1_000, 10_000)
DISCIPLINE = "wfq"
"""The one that reckons most."""
SUBMITS_PER_PAGE = 1_000


class DecisionCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one page with an end, a submit, a start and an assignment."""

    flows: int
    waiting: int
    decisions: int
    page_us: float


class JournalSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Events are facts and decisions."""

    pages: int
    events: int
    waiting: int
    folded_events_per_s: float
    verified_events_per_s: float


def main() -> int:
    """Measure and print; 0 unless something failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--accasim", type=Path, help="the Python that has AccaSim 1.1.3")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement")
    parser.add_argument("--full", action="store_true", help="also 1,000,000 waiting jobs (2 GB)")
    options = parser.parse_args()
    backlogs = [(n, flows) for n in QUEUES for flows in FLOWS if flows <= n]
    if options.full:
        backlogs.append((LONGEST_QUEUE, FLOWS[-1]))
    journal = [journal_speed(turns=1_000, jobs=8, waiting=1_000) for _ in range(options.rounds)]
    _print_journal(journal)
    _print_costs([decision_cost(flows, n, options.rounds) for n, flows in backlogs])
    with tempfile.TemporaryDirectory(prefix="gpuq-bench-") as folder:
        _print_traces([race(c, options.accasim, options.rounds, Path(folder)) for c in cases()])
    return 0


def decision_cost(flows: int, waiting: int, rounds: int, turns: int = 500) -> DecisionCost:
    """The fastest of ``rounds`` runs of ``turns`` pages over one backlog."""
    made = MadeLedger(flows=flows, slots=SLOTS, discipline=DISCIPLINE)
    missing = waiting + SLOTS
    while missing:
        jobs = min(SUBMITS_PER_PAGE, missing)
        made.submit(jobs)
        missing -= jobs
    gc.collect()
    gc.freeze()  # the backlog is not what is measured, and walking it would be
    made.turn(1)
    assert made.waiting == waiting, made.waiting
    before, taken_s = made.decisions, []
    for _ in range(rounds):
        begun = time.process_time()
        for _ in range(turns):
            made.turn(1)
        taken_s.append(time.process_time() - begun)
    gc.unfreeze()
    assert made.waiting == waiting, made.waiting
    return DecisionCost(
        flows=flows,
        waiting=waiting,
        decisions=made.decisions - before,
        page_us=min(taken_s) / turns * 1e6,
    )


def journal_speed(turns: int, jobs: int, waiting: int) -> JournalSpeed:
    """A made journal of ``turns`` pages in which ``jobs`` jobs end, arrive and are assigned."""
    store = MemoryStore(ManualClock())
    made = MadeLedger(flows=10, slots=SLOTS, discipline=DISCIPLINE, store=store)
    made.submit(waiting + SLOTS)
    for _ in range(turns):
        made.turn(jobs)
    begun = time.process_time()
    pages = Journal(store, LEDGER).load()
    folded_s = time.process_time() - begun
    begun = time.process_time()
    report = verify(store, LEDGER)
    verified_s = time.process_time() - begun
    assert report.difference is None, report.difference
    events = made.facts + made.decisions
    assert (report.pages, report.facts + report.decisions) == (len(pages), events)
    return JournalSpeed(
        pages=len(pages),
        events=events,
        waiting=made.waiting,
        folded_events_per_s=events / folded_s,
        verified_events_per_s=events / verified_s,
    )


def _print_journal(speeds: Sequence[JournalSpeed]) -> None:
    first = speeds[0]
    each = first.pages / first.events
    print(f"A journal of {first.pages} pages, {first.events} events, {first.waiting} jobs waiting")
    rows = []
    for what, figures in (
        ("folded", [speed.folded_events_per_s for speed in speeds]),
        ("verified", [speed.verified_events_per_s for speed in speeds]),
    ):
        rows.append((what, f"{max(figures):,.0f}", f"{max(figures) * each:,.0f}"))
    print(plain_table(("", "EVENTS/S", "PAGES/S"), rows), end="\n\n")


def _print_costs(costs: Sequence[DecisionCost]) -> None:
    print(f"A page with one assignment ({DISCIPLINE}, {SLOTS} slots)")
    rows = [(f"{c.waiting:,}", f"{c.flows:,}", f"{c.page_us:,.0f}") for c in costs]
    print(plain_table(("WAITING", "FLOWS", "MICROSECONDS"), rows), end="\n\n")


def _print_traces(rows: Sequence[Row]) -> None:
    print("Traces under strict FIFO, total waits exact")
    header = ("TRACE", "SLOTS", "JOBS", "QUEUE", "JOBS/S", "DECISIONS/S", "PAGES/S", "ACCASIM", "")
    print(plain_table(header, [_cells(row) for row in rows]))


def _cells(row: Row) -> tuple[str, ...]:
    figures = (row.jobs_per_s, row.decisions_per_s, row.pages_per_s)
    theirs = row.accasim_jobs_per_s
    beside = ("-", "-") if theirs is None else (f"{theirs:,.0f}", f"{row.jobs_per_s / theirs:.2f}x")
    counts = (str(row.case.slots), f"{row.jobs:,}", f"{row.longest_queue:,}")
    return (row.case.name, *counts, *(f"{figure:,.0f}" for figure in figures), *beside)


if __name__ == "__main__":
    sys.exit(main())
