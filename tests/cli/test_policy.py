"""``gpuq policy`` and its file."""

from __future__ import annotations

from pathlib import Path

from ledger.policy import Organization, Policy, Pool
from scheduling.policy_file import parse_policy
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
            "gpuq: policy.toml:1: pool: expected one of organizations, classes, pools, flows, "
            "default_organization; did you mean 'pools'?\n",
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
