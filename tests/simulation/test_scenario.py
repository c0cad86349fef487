"""Scenario files: what a stream sends, what is refused, and what those that ship show."""

from __future__ import annotations

import pytest

from ledger.errors import RequestError
from simulation.engine import simulate
from simulation.metrics import Figures, Report, report
from simulation.scenario import named_scenario, parse_scenario, scenario_names
from simulation.workload import under

STREAM = """
title = "t"
slots = 2
until = "1m"
[[streams]]
organization = "a"
duration = "5s"
every = "20s"
"""


def reports(name: str) -> dict[str, Report]:
    workload = named_scenario(name)
    return {
        discipline: report(discipline, simulate(workload, under(workload, discipline)))
        for discipline in ("fifo", "strict", "wfq", "sfq")
    }


def flow(made: Report, organization: str) -> Figures:
    (found,) = [flow for flow in made.flows if flow.name.startswith(f"{organization}/")]
    return found


def test_a_stream_sends_at_even_times_until_the_end() -> None:
    workload = parse_scenario(STREAM, source="t")
    assert [job.arrival_ms for job in workload.jobs] == [0, 20_000, 40_000]
    assert {(job.duration_ms, job.estimate_ms) for job in workload.jobs} == {(5_000, 5_000)}
    assert (len(workload.slots), workload.until_ms) == (2, 60_000)


def test_first_last_count_class_and_estimate() -> None:
    more = 'first = "30s"\nlast = "51s"\ncount = 2\nclass = "interactive"\nestimate = "500ms"\n'
    workload = parse_scenario(STREAM + more, source="t")
    assert [job.arrival_ms for job in workload.jobs] == [30_000, 30_000, 50_000, 50_000]
    assert {(job.workload_class, job.estimate_ms) for job in workload.jobs} == {
        ("interactive", 500)
    }


def test_nodes_and_a_policy() -> None:
    text = STREAM.replace(
        "slots = 2",
        'policy = """\n[organizations.a]\nweight = 4\n"""\n'
        '[[nodes]]\nname = "n1"\nslots = 2\ngpu = "h100"\nfrom = "10s"\nuntil = "20s"',
    ).replace('until = "1m"', "")
    text = 'until = "1m"\n' + text
    workload = parse_scenario(text, source="t")
    assert workload.policy.organization_weight("a") == 4_000
    assert [(s.worker, s.from_ms, s.until_ms) for s in workload.slots] == [
        ("n1-gpu0", 10_000, 20_000),
        ("n1-gpu1", 10_000, 20_000),
    ]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"20s"', '"20"', "t: '20' is not a time: say 500ms"),
        ('every = "20s"', 'evry = "20s"', "evry"),
        ("slots = 2", "", "either 'slots' or 'nodes'"),
        ('duration = "5s"', 'duration = "0s"', "begin at 1"),
        ('every = "20s"', 'every = "20s"\nclass = "huge"', "no class 'huge'"),
        ('title = "t"', "title = ", "t: "),
    ],
)
def test_a_fault_is_one_line_that_names_it(before: str, after: str, message: str) -> None:
    assert before in STREAM
    with pytest.raises(RequestError, match=message) as caught:
        parse_scenario(STREAM.replace(before, after), source="t")
    assert "\n" not in str(caught.value)


def test_three_scenarios_ship() -> None:
    assert scenario_names() == ["abc", "honest", "starvation", "teams"]


def test_abc_under_fair_sharing_b_is_quick_and_c_is_done_and_a_keeps_the_rest() -> None:
    """A asks for 12 of 8 slots. B brings half a slot's work and C, in 5 of 6 parts of the hour,
    1.6: both less than a third of 8, so both are owed all that they bring.
    """
    made = reports("abc")
    for name in ("wfq", "sfq"):
        a, b, c = (flow(made[name], organization) for organization in "abc")
        assert b.finished >= 359  # at most the last one is still at work
        assert c.finished > 0.9 * c.jobs
        assert b.contested_share == pytest.approx(b.owed_share, abs=0.01)
        assert a.contested_share == pytest.approx(a.owed_share, abs=0.02)
        assert a.jobs - a.finished > 100
    fifo_wait, fair_wait = flow(made["fifo"], "b").wait_p50_s, flow(made["wfq"], "b").wait_p50_s
    assert fifo_wait is not None
    assert fair_wait is not None
    assert fifo_wait > 10 * fair_wait


def test_under_strict_a_class_that_never_empties_starves_the_rest_and_weights_do_not() -> None:
    """Interactive work alone is 10 slots' worth of 8."""
    made = reports("starvation")
    assert flow(made["strict"], "patient").started == 0
    for name in ("wfq", "sfq"):
        patient = flow(made[name], "patient")
        assert patient.started == patient.jobs == 12


def test_a_wrong_estimate_earns_nothing_in_the_long_run() -> None:
    """Three even flows of one weight: a third each, but for the jobs in flight at the end."""
    made = reports("honest")
    for name in ("wfq", "sfq"):
        for organization in ("honest", "low", "high"):
            share = flow(made[name], organization).contested_share
            assert share == pytest.approx(1 / 3, abs=0.02)
