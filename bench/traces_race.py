"""The same trace through gpuq and, beside it, AccaSim: equal work, then processor time.

Owns the SWF file that both read, the race (one after the other, each in a process of its own,
as many rounds as asked for) and what is compared: the total wait must be the exact integer of
``expected_strict_fifo.csv`` for both, else there is nothing to compare. Processor time covers
reading and simulating, so that other load on the machine counts as little as possible.
"""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from simulation.engine import simulate
from simulation.traces import read_trace
from simulation.workload import on_counting_pool, under

TRACES = Path(__file__).parents[1] / "examples" / "traces"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A trace on a pool, and the outcome that other programs found."""

    name: str
    trace: Path
    tenant: str
    """The column that names the organization."""
    slots: int
    total_wait_s: int


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation of one program. What AccaSim does not say is 0."""

    jobs: int
    total_wait_s: int
    cpu_s: float
    pages: int = 0
    decisions: int = 0
    longest_queue: int = 0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest of all rounds; ``accasim_jobs_per_s`` is None where it was not asked."""

    case: Case
    jobs: int
    longest_queue: int
    jobs_per_s: float
    decisions_per_s: float
    pages_per_s: float
    accasim_jobs_per_s: float | None


def cases() -> list[Case]:
    """All jobs of both traces, at the sizes that the expected files name."""
    found = []
    for name, file, tenant in (
        ("philly", "philly_4vc_jobs.csv.gz", "vc"),
        ("microsoft_itp", "itp_10clusters_jobs.csv.gz", "cluster"),
    ):
        with (TRACES / name / "expected_strict_fifo.csv").open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row.get("jobs_of_vc", "all") == "all"]
        for row in rows:
            case = Case(
                name=name,
                trace=TRACES / name / file,
                tenant=tenant,
                slots=int(row["pool_gpus"]),
                total_wait_s=int(row["total_wait_s"]),
            )
            found.append(case)
    return found


def race(case: Case, accasim: Path | None, rounds: int, folder: Path) -> Row:
    """Run ``case`` ``rounds`` times under gpuq and under the Python ``accasim``.

    Raises AssertionError where either gives another total wait than is expected.
    """
    swf = folder / f"{case.name}.swf"
    swf.write_text("".join(f"{line}\n" for line in swf_lines(case)))
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_run([sys.executable, "-m", "bench.traces_race"], swf, case))
        if accasim is not None:
            theirs.append(_run([str(accasim), str(_ACCASIM_RUN)], swf, case))
    cpu_s = min(timed.cpu_s for timed in ours)
    first = ours[0]
    return Row(
        case=case,
        jobs=first.jobs,
        longest_queue=first.longest_queue,
        jobs_per_s=first.jobs / cpu_s,
        decisions_per_s=first.decisions / cpu_s,
        pages_per_s=first.pages / cpu_s,
        accasim_jobs_per_s=first.jobs / min(t.cpu_s for t in theirs) if theirs else None,
    )


_ACCASIM_RUN = Path(__file__).with_name("accasim_run.py")


def _run(program: list[str], swf: Path, case: Case) -> Timed:
    command = [*program, str(swf), str(case.slots)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    timed = msgspec.json.decode(done.stdout.splitlines()[-1], type=Timed)
    assert timed.total_wait_s == case.total_wait_s, (program, case, timed)
    return timed


def swf_lines(case: Case) -> Iterator[str]:
    """The trace in the format that AccaSim reads; tenants become numbered groups."""
    groups: dict[str, int] = {}
    with gzip.open(case.trace, "rt", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=1):
            group = groups.setdefault(row[case.tenant], len(groups) + 1)
            run, slots = row["duration_s"], row["num_gpu"]
            yield (
                f"{number} {row['submit_s']} -1 {run} {slots} -1 -1 {slots} {run} -1 1 "
                f"-1 {group} -1 -1 -1 -1 -1"
            )


def timed_simulation(swf: Path, slots: int) -> Timed:
    """gpuq's own decisions under strict FIFO on one counting pool."""
    begun = time.process_time()
    workload = on_counting_pool(read_trace(swf), slots)
    outcome = simulate(workload, under(workload, "fifo"))
    cpu_s = time.process_time() - begun
    steps = []
    for run in outcome.runs:
        assert run.start_ms is not None
        steps += [(run.job.arrival_ms, 1), (run.start_ms, -1)]
    waiting = longest = 0
    for _, step in sorted(steps):  # who starts at an instant leaves before others come
        waiting += step
        longest = max(longest, waiting)
    return Timed(
        jobs=len(outcome.runs),
        total_wait_s=sum(run.wait_ms or 0 for run in outcome.runs) // 1000,
        cpu_s=cpu_s,
        pages=outcome.pages,
        decisions=len(outcome.decisions),
        longest_queue=longest,
    )


if __name__ == "__main__":
    print(json.dumps(msgspec.to_builtins(timed_simulation(Path(sys.argv[1]), int(sys.argv[2])))))
