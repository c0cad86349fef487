"""``gpuq policy`` and its file."""

from __future__ import annotations

import re
from pathlib import Path

from ledger import events as e
from ledger.names import JobId
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


AGREED = """\
[organizations.vision]
weight = 3
owner = "ada@example.org"
members = ["ada"]
limits = {slots = 6}

[organizations.nlp]
members = ["alan"]

[classes.interactive]
wait_target = "90s"
allow = [{organizations = ["vision"]}]

[pools.default]
discipline = "sfq"
"""


def test_the_agreement_says_what_each_is_owed(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    """Weights 3 and 1: 75 % and 25 %."""
    (here / "policy.toml").write_text(AGREED)
    applied = gpuq("policy", "apply", "policy.toml")
    assert applied.rc == 0, applied.err
    fleet.post()
    said = " ".join(gpuq("policy", "show", "--agreement").out.split())
    nlp, vision = said.split("organization vision")
    assert "owner: ada@example.org" in vision
    assert "owed in pool default while all have work waiting: 75.0 %" in vision
    assert "limits of its own: at most 6 slots at once" in vision
    assert "a wait is overdue: in interactive after 90 s" in vision
    assert "25.0 %" in nlp
    assert "interactive not (such jobs are rejected)" in nlp
    assert "pool default, for everybody served by sfq" in vision


def test_a_policy_is_tried_on_the_jobs_that_wait(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (job,) = gpuq("submit", "-q", "--org", "nlp", "--", "true").ids
    fleet.post()
    (here / "policy.toml").write_text(AGREED)
    said = gpuq("policy", "check", "--against-ledger", "policy.toml").out.splitlines()
    assert said[1].startswith(f"{job} true: would be refused: no organization lists")
    assert said[2] == "of 1 jobs that wait it would have treated 1 otherwise"
    fleet.post()
    assert fleet.state.policy_version == 0


def test_each_version_stays_and_differences_are_shown(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    (here / "one.toml").write_text(TEXT)
    (here / "two.toml").write_text(TEXT.replace("weight = 4", "weight = 5"))
    gpuq("policy", "apply", "one.toml")
    fleet.post()
    assert gpuq("policy", "diff", "one.toml").rc == 0
    changed = gpuq("policy", "diff", "two.toml")
    assert changed.rc == 1
    assert "-weight = 4" in changed.out.splitlines()
    assert "+weight = 5" in changed.out.splitlines()
    gpuq("policy", "apply", "two.toml")
    fleet.post()
    for version, weight in (("1", 4_000), ("2", 5_000)):
        old = gpuq("policy", "show", "--version", version, "--json").json
        assert (old["version"], old["organizations"]["astro"]) == (int(version), {"weight": weight})
    missing = gpuq("policy", "show", "--version", "3")
    assert (missing.rc, missing.err) == (64, "gpuq: no version 3: the newest is 2\n")
    both = gpuq("policy", "show", "--version", "1", "--at", "1h")
    assert (both.rc, both.err) == (64, "gpuq: say --at or --version, not both\n")
    shown = gpuq("policy", "show", "--at", "2001-01-01")
    assert shown.rc == 0
    assert shown.err.startswith("no policy yet")


def test_two_policies_of_one_page_are_two_versions(gpuq: Gpuq, fleet: Fleet, here: Path) -> None:
    for weight in (1, 2):
        (here / "policy.toml").write_text(f"[organizations.o]\nweight = {weight}\n")
        gpuq("policy", "apply", "policy.toml")
    fleet.post()
    shown = [gpuq("policy", "show", "--version", str(n)).out.splitlines() for n in (1, 2)]
    assert [lines[0].split(",")[0] for lines in shown] == ["# version 1", "# version 2"]
    assert [lines[2] for lines in shown] == ["weight = 1", "weight = 2"]


def test_what_calls_took_is_shown_behind_the_policy_and_by_explain(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    """160 (20 + 2 x 70) estimated, 40 (20 + 2 x 10) taken: 1 - 0.75 / 16 = 0.953125; 153."""
    (here / "policy.toml").write_text("[pools.default]\napi = {}\n")
    gpuq("policy", "apply", "policy.toml")
    fleet.ready("n1-cpu0")
    fleet.post()
    tokens = ("--input-tokens", "20", "--max-output-tokens", "70")
    (job,) = gpuq("submit", "-q", *tokens, "--", "true").ids
    fleet.post()
    fleet.start(job)
    fleet.finish(job, 0, report=e.Report(requests=1, input_tokens=20, output_tokens=10))
    fleet.post()
    shown = gpuq("policy", "show").out
    assert re.fullmatch(
        r"# default/batch: estimates of tokens count 0\.953 times, after 1 call "
        r"\(\d{4}-\d\d-\d\d 0\.953\)",
        shown.splitlines()[-1],
    )
    assert parse_policy(shown, source="p") == fleet.state.policy
    known = gpuq("policy", "show", "--json").json["calibrations"]["default/batch"]
    assert (known["factor_ppm"], known["calls"]) == (953_125, 1)
    explained = gpuq("submit", "--explain", *tokens, "--", "true").err
    assert "153 tokens" in explained
    assert "0.953 times, by what calls took" in explained


def test_who_was_demoted_before_would_get_what_was_asked_for(
    gpuq: Gpuq, fleet: Fleet, here: Path
) -> None:
    """In force: interactive is demoted. The new file lets everybody have it."""
    (here / "old.toml").write_text(
        "[classes.interactive]\nallow = [{submitters = ['root-only']}]\n"
        "otherwise = 'demote to batch'\n"
    )
    gpuq("policy", "apply", "old.toml")
    fleet.post()
    (job,) = gpuq("submit", "-q", "--org", "o", "--class", "interactive", "--", "true").ids
    fleet.post()
    assert fleet.state.jobs[JobId(job)].placed.workload_class == "batch"
    (here / "new.toml").write_text("[organizations.o]\nweight = 1\n")
    said = gpuq("policy", "check", "--against-ledger", "new.toml").out.splitlines()
    assert said[1] == f"{job} true: would run as o/interactive"
