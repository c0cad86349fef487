"""``gpuq submit --priority``, and who of one's own goes before a job."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.cli.test_why import lines


def test_why_names_the_jobs_of_its_flow_that_go_before_in_their_order(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    jobs = []
    for number, priority in enumerate((0, 0, -3, 10)):
        args = ("--name", f"j{number}", "--priority", str(priority))
        jobs += gpuq("submit", "-q", *args, "--", "true").ids
        fleet.post()
    said = gpuq("why", "--json", "j2").json
    assert said["priority"] == -3
    standing = said["standing"]
    assert (standing["earlier_jobs"], standing["earlier"]) == (2, [jobs[3], jobs[1]])
    shown = lines(gpuq("why", "j2").out)
    assert shown["ahead"].split(" | ")[:3] == [
        "2 jobs of its own flow", f"{jobs[3]} j3, priority 10", f"{jobs[1]} j1",
    ]  # fmt: skip
    assert shown["priority"] == "-3, in its flow alone"
    assert gpuq("status", "--json", "j3").json["priority"] == 10


@pytest.mark.parametrize("priority", ["101", "-101"])
def test_another_priority_is_refused(gpuq: Gpuq, priority: str) -> None:
    result = gpuq("submit", "--priority", priority, "--", "true")
    assert (result.rc, result.out) == (64, "")
    assert result.err == f"gpuq: a priority is between -100 and 100, not {priority}\n"
