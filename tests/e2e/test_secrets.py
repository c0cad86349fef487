"""A secret reaches the job and nothing else: no object, no plan, no answer of a command."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ledger.events import JobState
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tools.fleet import FleetError

TIME_SCALE = 6

PLANTED, OWN, TYPED = "planted-on-the-node", "set-where-submitted", "typed-by-mistake"


@pytest.fixture
def cluster(folder_place: Place, folder: Path, start_cluster: StartCluster) -> Cluster:
    variables = {"HF_TOKEN": OWN, "WANDB_API_KEY": OWN, "OTHER": OWN}
    place = Place(folder_place.url, folder_place.open, env=variables)
    cluster = start_cluster(folder, place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    return cluster


def files_that_hold(folder: Path, text: str) -> list[Path]:
    holders = []
    for path in folder.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            holders.append(path)
    return holders


def test_what_was_planted_is_found_in_the_job_alone(cluster: Cluster) -> None:
    place = cluster.folder / "home" / ".config" / "gpuq" / "secrets"
    place.mkdir()
    with open(os.open(place / "HF_TOKEN", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(f"{PLANTED}\n")
    with pytest.raises(FleetError, match="say --secret HF_TOKEN") as refused:
        cluster.gpuq("submit", "--env", f"HF_TOKEN={TYPED}", "true")
    assert TYPED not in str(refused.value).partition("ended with")[2]

    script = cluster.script(
        "look.sh", 'printf %s "$HF_TOKEN" | sha256sum', 'echo "<$WANDB_API_KEY$OTHER>"'
    )
    has, lacks = cluster.submit("--secret", "HF_TOKEN", script)[0], cluster.submit(script)[0]
    missing = cluster.submit("--secret", "NO_SUCH_TOKEN", script)[0]
    cluster.wait_for_end(has, lacks, missing)
    assert [cluster.job(job).state for job in (has, lacks)] == [JobState.COMPLETED] * 2
    expected = [hashlib.sha256(text.encode()).hexdigest() for text in (PLANTED, "")]
    for job, digest in zip((has, lacks), expected, strict=True):
        assert cluster.logs(job).decode().splitlines() == [f"{digest}  -", "<>"]
    attempt = cluster.job(missing).attempts[0]
    assert (attempt.outcome, attempt.rc) == ("failed_to_start", 126)
    assert attempt.reason == (
        "this node has no secret NO_SUCH_TOKEN: its operator puts it into "
        f"{place / 'NO_SUCH_TOKEN'}, mode 0600"
    )

    answers = [
        cluster.gpuq(*args)
        for args in (
            ["status", "--json"], ["status", "--json", has], ["why", "--json", has],
            ["nodes", "--json"], ["metrics", "--json"], ["audit", "--json"],
            ["audit", "job", "--json", has], ["audit", "fairness", "--json"],
            ["policy", "show", "--json"], ["replay", "verify", "--json"],
            ["export", "--format", "jsonl", "jobs"], ["export", "--format", "jsonl", "attempts"],
            ["submit", "--json", "-n", "--explain", "--secret", "HF_TOKEN", script],
        )
    ]  # fmt: skip
    for secret in (PLANTED, OWN, TYPED):
        assert [answer for answer in answers if secret in answer] == []
    # Its own file aside, none of them was ever written: store, state folders, logs of nodes.
    assert files_that_hold(cluster.folder, PLANTED) == [place / "HF_TOKEN"]
    assert files_that_hold(cluster.folder, OWN) == files_that_hold(cluster.folder, TYPED) == []
    # The search finds what is there.
    assert files_that_hold(cluster.folder / "ledger", "NO_SUCH_TOKEN") != []
