"""``gpuq policy`` and its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import RequestError
from ledger.policy import DISCIPLINES, Organization, Policy, Pool
from scheduling.policy_file import format_policy, parse_policy
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet

TEXT = """\
# who gets what
[organizations.astro]
weight = 4

[organizations.bio]
weight = 0.5

[pools.h100]
workers = ["node1", "node2-gpu*"]
discipline = "sfq"
"""


def test_a_file_says_weights_in_thousandths_and_rosters() -> None:
    assert parse_policy(TEXT, source="p") == Policy(
        organizations={"astro": Organization(weight=4_000), "bio": Organization(weight=500)},
        pools={"h100": Pool(workers=("node1", "node2-gpu*"), discipline="sfq")},
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[organisations.a]\nweight = 1", "p:1: organisations: expected one of organizations, "
         "pools; did you mean 'organizations'?"),
        ("\n[organizations.a]\nwieght = 1", "p:3: organizations.a.wieght: expected one of weight; "
         "did you mean 'weight'?"),
        ("[organizations.a]\nweight = 0", "p:2: organizations.a.weight: expected a number from"),
        ("[organizations.a]\nweight = 1\n[organizations.b]\nweight = 0.0001",
         "p:4: organizations.b.weight: expected"),
        ("[organizations.a]\nweight = true", "p:2: organizations.a.weight: expected a number"),
        ("[organizations.a]\nweight = nan", "p:2: organizations.a.weight: expected a number"),
        ("[organizations.a]\nweight = '4'", "p:2: organizations.a.weight: expected a number"),
        ("[organizations.a]", "p:1: organizations.a: expected a 'weight'"),
        ("[organizations]\na = 4", "p:2: organizations.a: expected a table"),
        ("[organizations.\"A b\"]\nweight = 1", "p:1: organizations.'A b': expected a name"),
        ("organizations = 1", "p:1: organizations: expected a table: [organizations.NAME]"),
        ("[pools.x]\ndiscipline = 'lifo'", "p:2: pools.x.discipline: expected one of wfq, sfq"),
        ("[pools.x]\nworkers = 'n1'", "p:2: pools.x.workers: expected a list"),
        ("[pools.x]\nworkers = ['N1']", "p:2: pools.x.workers: expected a list"),
        ("[pools.x\n", "p: "),
    ],
)  # fmt: skip
def test_a_fault_names_line_key_and_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_policy(text, source="p")
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


names = st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True)
policies = st.builds(
    Policy,
    organizations=st.dictionaries(
        names, st.builds(Organization, weight=st.integers(1, 1_000_000_000)), max_size=4
    ),
    pools=st.dictionaries(
        names,
        st.builds(
            Pool,
            workers=st.lists(st.from_regex(r"[a-z0-9*?-]{1,20}", fullmatch=True), max_size=3).map(
                tuple
            ),
            discipline=st.sampled_from(DISCIPLINES),
        ),
        max_size=4,
    ),
)


@given(policies)
def test_what_is_shown_can_be_applied_again(policy: Policy) -> None:
    assert parse_policy(format_policy(policy), source="p") == policy


def test_apply_takes_effect_with_the_next_page(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "policy.toml").write_text(TEXT)
    assert gpuq("policy", "check", "policy.toml").out == "ok: 2 organizations, 1 pool\n"
    assert gpuq("policy", "show").err.startswith("no policy yet")
    assert gpuq("policy", "apply", "policy.toml").rc == 0
    fleet.post()
    assert fleet.state.policy == parse_policy(TEXT, source="p")
    shown = gpuq("policy", "show").out
    assert parse_policy(shown, source="p") == fleet.state.policy
    assert gpuq("policy", "show", "--json").json["organizations"] == {
        "astro": {"weight": 4000},
        "bio": {"weight": 500},
    }


def test_a_wrong_file_changes_nothing(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "policy.toml").write_text("[pool.x]\n")
    for verb in ("apply", "check"):
        result = gpuq("policy", verb, "policy.toml")
        assert (result.rc, result.out, result.err) == (
            64,
            "",
            "gpuq: policy.toml:1: pool: expected one of organizations, pools; "
            "did you mean 'pools'?\n",
        )
    assert gpuq("policy", "apply", "none.toml").rc == 64
    fleet.post()
    assert fleet.state.policy_version == 0


def test_a_pool_that_the_policy_does_not_know_is_refused_at_submit(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    (here / "policy.toml").write_text(TEXT)
    gpuq("policy", "apply", "policy.toml")
    fleet.post()
    result = gpuq("submit", "-p", "h1000", "--", "true")
    assert (result.rc, result.err) == (64, "gpuq: no pool 'h1000'; pools are h100\n")
