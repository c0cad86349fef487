"""What shares of classes buy and cost: the figures of docs/POLICY.md, worked by hand where
they can be."""

from __future__ import annotations

import pytest

from ledger.policy import ClassSlots, Policy, Pool
from simulation.engine import simulate
from simulation.metrics import Figures, report
from simulation.scenario import named_scenario

HOUR_S = 3_600


def flows(class_slots: dict[str, ClassSlots]) -> dict[str, Figures]:
    policy = Policy(pools={"default": Pool(class_slots=class_slots)})
    made = report("wfq", simulate(named_scenario("teams"), policy))
    return {flow.name.partition("/")[0]: flow for flow in made.flows}


def served_h(flow: Figures) -> float:
    return flow.served_slot_s / HOUR_S


def longest_wait_s(flow: Figures) -> float:
    assert flow.max_wait_s is not None
    return flow.max_wait_s


@pytest.mark.parametrize(
    "class_slots", [{"batch": ClassSlots(max=7)}, {"interactive": ClassSlots(min=1)}]
)
def test_with_batch_at_most_7_of_8_short_work_never_waits_and_an_eighth_is_left_idle(
    class_slots: dict[str, ClassSlots],
) -> None:
    """A look of 4 minutes every 20 needs one slot, and one is always there. Seven slots train for
    24 hours, but for the 0 + 13 + ... + 6 * 13 = 273 minutes until the first seven have come:
    168 h - 4.55 h = 163.45 h. The looks are 23 h / 20 min = 69, of 4 minutes each: 4.6 h."""
    found = flows(class_slots)
    assert found["look"].max_wait_s == 0
    assert served_h(found["look"]) == pytest.approx(4.6)
    assert served_h(found["train"]) == pytest.approx(163.45, abs=0.01)


def test_without_shares_looks_wait_for_the_end_of_a_training_and_no_slot_is_idle() -> None:
    """Eight slots for 24 h, less 0 + 13 + ... + 7 * 13 = 364 minutes until the first eight have
    come, less the looks but the two that find a slot idle before: 192 - 6.07 - 4.6 + 0.13 h.
    Eight trainings end every 2 h, so that no look waits longer than that."""
    found = flows({})
    assert served_h(found["train"]) == pytest.approx(181.47, abs=0.01)
    assert 30 * 60 < longest_wait_s(found["look"]) < 2 * HOUR_S


def test_a_slot_that_is_owed_is_no_more_than_a_turn_and_spares_no_wait_for_it() -> None:
    owed = {"batch": ClassSlots(nominal=7), "interactive": ClassSlots(nominal=1)}
    assert served_h(flows(owed)["train"]) == pytest.approx(served_h(flows({})["train"]), rel=0.01)
    assert longest_wait_s(flows(owed)["look"]) > 30 * 60
