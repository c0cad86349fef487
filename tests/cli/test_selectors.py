"""Ids, beginnings of ids, names, ``last``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


def chosen(gpuq: Gpuq, text: str) -> str:
    job: str = gpuq("status", "--json", text).json["id"]
    return job


def test_an_id_a_unique_beginning_and_a_name_mean_the_job(gpuq: Gpuq) -> None:
    (job,) = gpuq("submit", "-q", "--name", "train", "--", "a").ids
    assert [chosen(gpuq, text) for text in (job, job[:2], job[:7], "train", "last")] == [job] * 5


def test_a_beginning_of_several_ids_lists_them(gpuq: Gpuq, fleet: Fleet) -> None:
    for job in ("aaaaaaab", "aaaaaaac", "aabaaaaa"):
        fleet.submit(job)
    result = gpuq("status", "aaaa")
    assert (result.rc, result.err) == (
        64,
        "gpuq: 'aaaa' is the beginning of 2 ids: aaaaaaab, aaaaaaac\n",
    )
    assert chosen(gpuq, "aab") == "aabaaaaa"


def test_a_name_of_several_jobs_means_the_newest_that_is_open_and_says_so(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    jobs = [gpuq("submit", "-q", "--name", "train", "--", "a").ids[0] for _ in range(3)]
    gpuq("cancel", jobs[2])
    fleet.post()
    result = gpuq("status", "--json", "train")
    assert result.json["id"] == jobs[1]
    assert f"3 jobs are named 'train'; taking {jobs[1]}, the newest that is open" in result.err


def test_last_falls_back_to_the_users_newest_job_elsewhere(
    gpuq: Gpuq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUQ_USER", "jane@a")
    (mine,) = gpuq("submit", "-q", "--", "a").ids
    monkeypatch.setenv("GPUQ_USER", "joe@b")
    gpuq("submit", "-q", "--", "a")
    monkeypatch.setenv("GPUQ_USER", "jane@a")
    monkeypatch.setenv("GPUQ_STATE_DIR", str(tmp_path / "another-machine"))
    assert chosen(gpuq, "last") == mine


@pytest.mark.parametrize("text", ["nosuch", "aaaaaaaa", "a", "[/x]", "last", "\n"])
def test_what_stands_for_no_job_is_one_line(gpuq: Gpuq, text: str) -> None:
    result = gpuq("status", text)
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
