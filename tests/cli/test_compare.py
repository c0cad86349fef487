"""``gpuq replay compare`` and ``whatif``: sources, options, text, JSON and pictures."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuq.__main__ import run
from ledger.clock import SystemClock
from ledger.stores import open_store
from tests.simulation.ledgers import bodies_of, eventful_world, write_ledger
from tests.world import World

ROOT = Path(__file__).resolve().parents[2]
PHILLY = ROOT / "examples" / "traces" / "philly"

SCENARIO = """
title = "two"
slots = 1
until = "10m"
[[streams]]
organization = "vision"
duration = "40s"
every = "1m"
[[streams]]
organization = "nlp"
duration = "50s"
every = "1m"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "two.toml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.fixture
def ledger(tmp_path: Path, gpuq_env: Mapping[str, str]) -> Path:
    folder = tmp_path / "ledger"
    store = open_store(str(folder), clock=SystemClock(), rng=random.Random())
    write_ledger(store, bodies_of(eventful_world()))
    return folder


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run(["replay", *args, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_json_has_the_columns_of_the_expected_file_of_philly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (PHILLY / "expected_strict_fifo.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["jobs_of_vc"] == "7f04ca")
    args = ("--policies", "fifo", "--slots", row["pool_gpus"], "--where", "vc=7f04ca")
    said = as_json(capsys, "compare", *args, str(PHILLY / "philly_4vc_jobs.csv.gz"))
    (made,) = said["policies"]
    assert {name: str(made[name]) for name in row} == row
    assert said["where"] == {"vc": "7f04ca"}


def test_abc_answers_its_three_questions_in_words_and_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["replay", "compare", "abc"]) == 0
    out = capsys.readouterr().out
    for question in (
        "How long does B wait for its start?",
        "What share does A get?",
        "Does C get at least part of its work done?",
    ):
        answers = out.split(question)[1].split("\n\n")[0].strip().splitlines()
        assert [answer.split(":")[0].strip() for answer in answers] == [
            "fifo",
            "strict",
            "wfq",
            "sfq",
        ]
        assert all(any(letter.isdigit() for letter in answer) for answer in answers)


def test_policies_are_run_in_the_order_asked_and_changes_are_against_the_first(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = as_json(capsys, "compare", "--policies", "sfq,fifo", scenario)
    assert [made["policy"] for made in said["policies"]] == ["sfq", "fifo"]
    assert said["policies"][0]["changed"] is None
    assert said["policies"][1]["changed"]["against"] == "sfq"


def test_a_policy_file_gives_the_weights(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vision asks for 2/3 of the slot and nlp for 5/6; with 1 : 4 nlp gets all that it asks."""
    path = tmp_path / "policy.toml"
    path.write_text("[organizations.nlp]\nweight = 4\n")
    even, weighted = (
        as_json(capsys, "compare", "--policies", "sfq", *more, scenario)["policies"][0]["flows"]
        for more in ((), ("--policy", str(path)))
    )
    assert [flow["name"] for flow in even] == ["nlp/batch/default", "vision/batch/default"]
    assert weighted[0]["served_slot_s"] > even[0]["served_slot_s"] + 50


def test_a_ledger_is_compared_with_what_was_recorded(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for args in ((str(ledger),), (ledger.as_uri(),), ("--store", str(ledger))):
        said = as_json(capsys, "compare", *args)
        assert said["title"] == "ledger test"
        was, *others = said["policies"]
        assert (was["policy"], was["changed"], was["pages"]) == ("recorded", None, None)
        assert [made["changed"]["against"] for made in others] == ["recorded"] * 4
        assert said["left_out"] + said["policies"][0]["jobs"] == 6


def test_of_a_ledger_in_which_nothing_has_ended_there_is_nothing_to_run(
    tmp_path: Path, gpuq_env: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path / "new"), clock=SystemClock(), rng=random.Random())
    write_ledger(store, bodies_of(World())[:1])
    assert run(["replay", "compare", str(tmp_path / "new")]) == 64
    assert "no job of the source has run to an end" in capsys.readouterr().err


def test_jobs_that_no_slot_fits_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(SCENARIO + "slots = 2\n")  # ten of nlp's, one slot there is
    assert run(["replay", "compare", "--policies", "wfq", str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == "gpuq: wfq: 10 of the jobs are refused: no slots fit\n"


def test_whatif_shows_the_work_as_it_is_and_changed(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a second slot nobody waits: 90 s of work a minute on 120 s."""
    as_it_is, changed = as_json(capsys, "whatif", "--add-node", "1xh100", scenario)["policies"]
    assert (as_it_is["policy"], changed["policy"]) == ("as it is", "changed")
    assert (as_it_is["pool_gpus"], changed["pool_gpus"]) == (1, 2)
    assert as_it_is["max_wait_s"] > 60
    assert changed["max_wait_s"] == 0
    assert changed["changed"]["against"] == "as it is"
    assert changed["changed"]["later"] == 0


def test_whatif_without_an_organization(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    changed = as_json(capsys, "whatif", "--drop-org", "nlp", scenario)["policies"][1]
    assert [flow["name"] for flow in changed["flows"]] == ["vision/batch/default"]
    assert changed["max_wait_s"] == 0  # 40 s of work a minute


def test_whatif_with_other_weights(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    as_it_is, changed = as_json(capsys, "whatif", "--weights", "vision=8", scenario)["policies"]
    vision = [made["flows"][1]["wait_p95_s"] for made in (as_it_is, changed)]
    assert vision[1] < vision[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("compare", "--policies", "lifo", "abc"), "no policy 'lifo'; policies are wfq"),
        (("compare", "nowhere"), "'nowhere' is no scenario (abc, honest, starvation, teams), file"),
        (("compare", "--where", "vc", "abc"), "--where vc: say COLUMN=VALUE"),
        (("compare", "--plot", "a.gif", "abc"), "must end in .png or .svg"),
        (("compare", str(PHILLY / "philly_4vc_jobs.csv.gz")), "says nothing of slots"),
        (("whatif", "abc"), "nothing would change"),
        (("whatif", "--weights", "z=2", "abc"), "no job is of organization 'z'"),
        (("whatif", "--weights", "a=0", "abc"), "say NAME=WEIGHT"),
        (("whatif", "--weights", "a=nan", "abc"), "say NAME=WEIGHT"),
        (("whatif", "--add-node", "h100", "abc"), "say SLOTSxGPU"),
        (("whatif", "--add-node", "8xh100@x", "abc"), "say @POOL, one of default"),
        (("whatif", "--drop-org", "z", "abc"), "organizations are a, b, c"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_mend(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", *args]) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_drawn(
    scenario: str, tmp_path: Path, suffix: str, begins: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"out.{suffix}"
    assert run(["replay", "compare", "--plot", str(path), scenario]) == 0
    assert path.read_bytes().startswith(begins)
    assert capsys.readouterr().err == f"gpuq: drawn to {path}\n"


def test_the_same_figures_give_the_same_picture(scenario: str, tmp_path: Path) -> None:
    paths = [tmp_path / "1.svg", tmp_path / "2.svg"]
    for path in paths:
        assert run(["replay", "compare", "--plot", str(path), scenario]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_without_matplotlib_and_greenlet_everything_but_pictures_works(
    scenario: str, gpuq_env: Mapping[str, str]
) -> None:
    """The packages that only developers have are made impossible to import."""
    program = (
        "import sys\n"
        "for name in ('greenlet', 'matplotlib', 'hypothesis', 'psutil'):\n"
        "    sys.modules[name] = None\n"
        "from gpuq.__main__ import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, "replay", "compare", *args, scenario],
            env=gpuq_env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )

    plain = call()
    assert plain.returncode == 0, plain.stderr
    assert "vision/batch/default" in plain.stdout
    drawn = call("--plot", "x.png")
    assert drawn.returncode == 64
    assert drawn.stderr == "gpuq: --plot needs matplotlib: pip install 'gpuq-ledger[plot]'\n"


def test_the_page_says_every_key_of_the_json_and_the_answers_as_they_are(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "REPLAY.md").read_text()
    said = as_json(capsys, "compare", "abc")
    made = said["policies"][1]
    keys = {*said, *made, *made["flows"][0], *made["changed"]}
    assert {key for key in keys if f"`{key}`" not in page} == set()
    for answer in said["answers"]:
        assert answer["question"] in page
        for policy, text in answer["answers"].items():
            assert f"  {policy}: {text}\n" in page
