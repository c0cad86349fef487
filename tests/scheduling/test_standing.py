"""Under which organization and class a job is scheduled: the policy says it, not the job."""

from __future__ import annotations

import msgspec
import pytest

from ledger.events import JobState
from ledger.names import FlowId
from ledger.policy import AllowRule, Organization, Policy, Pool, WorkloadClass
from tests.world import World

POLICY = Policy(
    organizations={
        "vision": Organization(members=("ada", "grace@*")),
        "nlp": Organization(members=("alan@lab",)),
    },
    classes={
        "batch": WorkloadClass(),
        "interactive": WorkloadClass(
            allow=(
                AllowRule(organizations=("vision",), names=("demo-*",)),
                AllowRule(submitters=("alan",), pools=("default",)),
            )
        ),
    },
)


def ask(policy: Policy, user: str, organization: str, asked: str, name: str = "job") -> object:
    """The standing, or the reason why there is none, as plain data."""
    said = policy.standing(
        user=user, organization=organization, workload_class=asked, pool="default", name=name
    )
    return msgspec.structs.astuple(said)


CASES = [
    ("ada@desk", "vision", "batch", "job", ("vision", "batch")),
    ("grace@lab", "vision", "batch", "job", ("vision", "batch")),
    # A client that says no organization sends the user's own name.
    ("ada@desk", "ada", "batch", "job", ("vision", "batch")),
    ("ada@desk", "nlp", "batch", "job", "ada@desk is no member of organization 'nlp'"),
    ("alan@home", "nlp", "batch", "job", "no organization lists alan@home"),
    ("ada@desk", "vision", "interactive", "demo-1", ("vision", "interactive")),
    ("ada@desk", "vision", "interactive", "train", "no allow rule of class 'interactive'"),
    ("alan@lab", "nlp", "interactive", "any", ("nlp", "interactive")),
    ("alan@lab", "nlp", "system", "any", "no class 'system'; classes are batch, interactive"),
]


@pytest.mark.parametrize(("user", "organization", "asked", "name", "said"), CASES)
def test_the_policy_says_who_one_is(
    user: str, organization: str, asked: str, name: str, said: object
) -> None:
    answer = ask(POLICY, user, organization, asked, name)
    if isinstance(said, str):
        assert isinstance(answer, tuple)
        assert str(answer[0]).startswith(said)
    else:
        assert answer == said


def test_without_members_everybody_says_it_for_himself() -> None:
    assert ask(Policy(), "x@y", "anything", "batch") == ("anything", "batch")


def test_those_whom_nobody_lists_fall_to_the_default_organization() -> None:
    policy = msgspec.structs.replace(POLICY, default_organization="guests")
    assert ask(policy, "eve@x", "vision", "batch") == ("guests", "batch")


def test_a_class_that_one_may_not_have_is_rejected_with_the_rule_and_nothing_runs() -> None:
    made = World(POLICY)
    made.node_up("n1", 1)
    made.turn()
    job = made.submit("vision", workload_class="interactive", name="train", user="ada")
    made.turn()
    assert made.job(job).state is JobState.REJECTED
    assert made.job(job).reason == (
        "no allow rule of class 'interactive' matches ada of vision with job 'train' "
        "in pool 'default'"
    )
    assert made.job(job).attempts == []


@pytest.mark.parametrize("held", [False, True])
def test_or_demoted_where_the_policy_says_so(held: bool) -> None:
    """It waits, runs and is charged in the class that it got; the spec stays as submitted."""
    classes = {
        "batch": WorkloadClass(),
        "interactive": WorkloadClass(allow=(AllowRule(submitters=("root",)),), demote_to="batch"),
    }
    made = World(Policy(classes=classes, pools={"default": Pool()}))
    made.node_up("n1", 1)
    made.turn()
    job = made.submit("a", workload_class="interactive", held=held)
    made.turn()
    if held:
        made.release(job)
        made.turn()
    assert made.job(job).state is JobState.ASSIGNED
    assert made.job(job).placed.flow == "a/batch/default"
    assert made.job(job).spec.workload_class == "interactive"
    assert made.state.flows[FlowId("a/batch/default")].running == 1
    assert made.state.flows.get(FlowId("a/interactive/default")) is None or (
        made.state.flows[FlowId("a/interactive/default")].waiting == 0
    )
