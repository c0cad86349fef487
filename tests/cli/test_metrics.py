"""``gpuq metrics`` in its three forms, and of a real fleet together with ``gpuq why``."""

from __future__ import annotations

import re
from collections.abc import Callable
from subprocess import Popen

import pytest

from gpuq.prometheus import Family, Sample, exposition
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.waiting import wait_until


@pytest.fixture
def one_of_two_ended(gpuq: Gpuq, fleet: Fleet) -> None:
    """Two organizations: o's job failed, p's waits."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (first,) = gpuq("submit", "-q", "--org", "o", "--", "a").ids
    fleet.post()
    gpuq("submit", "-q", "--org", "p", "--hold", "--", "b")
    gpuq("submit", "-q", "--org", "p", "--worker", "n9-gpu0", "--", "c")
    fleet.start(first)
    fleet.post()
    fleet.finish(first, 3)
    fleet.post()


@pytest.mark.usefixtures("one_of_two_ended")
def test_json_has_each_group_with_its_numbers(gpuq: Gpuq) -> None:
    shown = gpuq("metrics", "--by", "org", "--json").json
    o, p = shown["groups"]
    assert (o["organization"], p["organization"]) == ("o", "p")
    assert "class" not in o
    assert (o["submitted"], o["started"], o["ended"]) == (1, 1, {"FAILED": 1})
    assert (p["submitted"], p["started"], p["waiting"], p["held"]) == (2, 0, 1, 1)
    assert o["cost_slot_ms"] == {"estimated": 600_000, "actual": 1_500}
    assert p["wait_p95_ms"] is None


@pytest.mark.usefixtures("one_of_two_ended")
def test_tables_name_each_group(gpuq: Gpuq) -> None:
    out = gpuq("metrics").out
    assert re.search(r"^o/batch/default +1 ", out, flags=re.MULTILINE)
    assert re.search(r"^p/batch/default +0 +- +- +- +0 +1 +1 +0$", out, flags=re.MULTILINE)


@pytest.mark.usefixtures("one_of_two_ended")
def test_every_line_for_prometheus_is_of_its_grammar(gpuq: Gpuq) -> None:
    out = gpuq("metrics", "--by", "org,pool", "--prometheus").out
    assert out.endswith("\n")
    name, label = r"gpuq_[a-z_]+", r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"({name})(?:\{{{label}(?:,{label})*\}})? -?[0-9.e+-]+")
    told: set[str] = set()
    for line in out.splitlines():
        if head := re.fullmatch(rf"# (?:HELP ({name}) \S.*|TYPE ({name}) gauge)", line):
            told.add(head[1] or head[2])
            continue
        match = sample.fullmatch(line)
        assert match is not None, line
        assert match[1] in told
    assert 'gpuq_jobs_ended{org="o",pool="default",state="FAILED"} 1\n' in out
    assert 'gpuq_cost_slot_seconds{org="o",pool="default",kind="actual"} 1.5\n' in out


def test_labels_and_help_are_escaped() -> None:
    r"""Backslash and line feed everywhere, the quote in labels: a\b "c"<line feed>d."""
    text = 'a\\b "c"\nd'
    family = Family(name="x", help=text, samples=(Sample(labels={"l": text}, value=1.5),))
    assert exposition([family]) == (
        '# HELP gpuq_x a\\\\b "c"\\nd\n# TYPE gpuq_x gauge\ngpuq_x{l="a\\\\b \\"c\\"\\nd"} 1.5\n'
    )


def test_what_cannot_be_meant_is_refused(gpuq: Gpuq, fleet: Fleet) -> None:
    assert gpuq("metrics", "--by", "user").rc == 64
    assert gpuq("metrics", "--json", "--prometheus").rc == 64
    assert gpuq("metrics", "--since", "soon").rc == 64
    assert "nothing was submitted" in gpuq("metrics").out


def test_a_real_fleet_says_why_and_how_long(gpuq: Gpuq, spawn: Callable[..., Popen]) -> None:
    """One slot: the first job runs until it is cancelled, the second waits for it, then ends."""
    spawn("up", "--slots", "1", "--node", "n1")
    first, second = (
        gpuq("submit", "-q", "--org", organization, "--", *command).ids[0]
        for organization, command in (("a", ["sleep", "600"]), ("b", ["true"]))
    )

    def state(job: str) -> str:
        found: str = gpuq("why", job, "--json").json["state"]
        return found

    wait_until(lambda: state(first) == "RUNNING", deadline_s=60, what="the first job to run")
    wait_until(
        lambda: "next of its flow; a slot must become free" in gpuq("why", second).out,
        deadline_s=60,
        what="the second job's reason",
    )
    gpuq("cancel", first)
    wait_until(lambda: state(second) == "COMPLETED", deadline_s=60, what="the second job's end")
    over = gpuq("why", second, "--json").json
    assert sum(part["part_ms"] for part in over["wait"]) == over["wait_ms"]
    assert "others' turn" in {part["reason"] for part in over["wait"]}
    (group,) = gpuq("metrics", "--by", "pool", "--json").json["groups"]
    assert group["ended"] == {"CANCELLED": 1, "COMPLETED": 1}
    assert (group["started"], group["cancelled_after_start"]) == (2, 1)
