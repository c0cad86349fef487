"""What ``bench.replay`` measures is the work that it says; how fast that is, is not judged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench.replay import decision_cost, journal_speed
from bench.traces_race import Case, cases, race, swf_lines

TRACE = """\
job_id,vc,num_gpu,submit_s,duration_s
a-1,a,2,0,10
b-1,b,2,1,5
a-2,a,1,2,1
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Case:
    """On 2 slots b-1 waits 9 s for a-1, and a-2 13 s for b-1: nothing passes the head."""
    path = tmp_path / "tiny.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    return Case(name="tiny", trace=path, tenant="vc", slots=2, total_wait_s=9 + 13)


def test_a_made_journal_is_verified_and_all_its_events_counted() -> None:
    speed = journal_speed(turns=3, jobs=2, waiting=10)

    # A policy and 64 workers; 10 + 64 submits; 64 starts, 2 ends, 2 submits; twice 2 of each.
    facts = (1 + 64) + 74 + (64 + 2 + 2) + 2 * (2 + 2 + 2)
    decisions = 1 + 64 + 3 * 2  # the election, what fills the slots, two a turn
    assert (speed.pages, speed.events, speed.waiting) == (5, facts + decisions, 10)


def test_the_queue_stays_as_long_as_the_figure_says() -> None:
    cost = decision_cost(flows=3, waiting=20, rounds=2, turns=4)

    assert (cost.flows, cost.waiting, cost.decisions) == (3, 20, 2 * 4)


def test_a_trace_is_simulated_from_the_file_that_the_other_program_reads(
    tiny: Case, tmp_path: Path
) -> None:
    row = race(tiny, None, rounds=1, folder=tmp_path)

    assert (row.jobs, row.longest_queue, row.accasim_jobs_per_s) == (3, 2, None)
    assert list(swf_lines(tiny))[2] == "3 2 -1 1 1 -1 -1 1 1 -1 1 -1 1 -1 -1 -1 -1 -1"


def test_unequal_work_is_not_compared(tiny: Case, tmp_path: Path) -> None:
    other = Case(name="tiny", trace=tiny.trace, tenant="vc", slots=3, total_wait_s=22)

    with pytest.raises(AssertionError):
        race(other, None, rounds=1, folder=tmp_path)


def test_the_rows_are_those_of_the_expected_files() -> None:
    sizes = [(case.name, case.slots, case.total_wait_s) for case in cases()]

    assert sizes == [
        ("philly", 1152, 2_090_898),
        ("philly", 640, 8_444_889_936),
        ("microsoft_itp", 1536, 48_693_147),
        ("microsoft_itp", 1280, 883_481_386),
    ]
