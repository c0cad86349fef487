"""Ids, beginnings of ids, names, ``last``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ledger.events import JobState
from ledger.names import JobId
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


# --- several


def sent(gpuq: Gpuq, fleet: Fleet, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        ids += gpuq("submit", "-q", "--", "a").ids
        fleet.post()
    return ids


def held(gpuq: Gpuq, fleet: Fleet) -> set[str]:
    fleet.post()
    return {job["id"] for job in gpuq("status", "--json").json["jobs"] if job["state"] == "HELD"}


@pytest.mark.parametrize("turned", [False, True])
def test_a_range_is_what_its_submitter_sent_between_two_jobs(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    monkeypatch.setenv("GPUQ_USER", "jane@a")
    before, first = sent(gpuq, fleet, 2)
    monkeypatch.setenv("GPUQ_USER", "joe@b")
    sent(gpuq, fleet, 1)
    monkeypatch.setenv("GPUQ_USER", "jane@a")
    middle, last, _ = sent(gpuq, fleet, 3)
    ends = (last, first) if turned else (first, last)
    assert gpuq("hold", "..".join(ends)).rc == 0
    assert held(gpuq, fleet) == {first, middle, last}
    assert gpuq("hold", before).rc == 0


@pytest.mark.parametrize("text", ["..", "{}..", "..{}", "{}..aaaaaaaa"])
def test_half_a_range_is_refused(gpuq: Gpuq, fleet: Fleet, text: str) -> None:
    (job,) = sent(gpuq, fleet, 1)
    result = gpuq("hold", text.format(job))
    assert (result.rc, result.err.count("\n")) == (64, 1)
    assert not held(gpuq, fleet)


def test_all_are_this_users_open_jobs(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUQ_USER", "joe@b")
    sent(gpuq, fleet, 1)
    monkeypatch.setenv("GPUQ_USER", "jane@a")
    assert gpuq("hold", "all").err == "gpuq: no job of jane@a is open\n"
    mine = sent(gpuq, fleet, 2)
    gpuq("cancel", *sent(gpuq, fleet, 1))
    fleet.post()
    assert gpuq("hold", "all").rc == 0
    assert held(gpuq, fleet) == set(mine)


@pytest.mark.parametrize(("answer", "is_done"), [("y\n", True), ("n\n", False), ("", False)])
def test_on_a_terminal_all_is_asked_for(
    gpuq: Gpuq, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answer: str, is_done: bool
) -> None:
    ids = sent(gpuq, fleet, 2)
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", typed)
    result = gpuq("hold", "all")
    assert "All? That is the 2 open jobs of" in result.err
    assert (result.rc == 0) is is_done
    assert held(gpuq, fleet) == (set(ids) if is_done else set())


def test_a_range_takes_an_array_as_one(gpuq: Gpuq, fleet: Fleet) -> None:
    """A member that has been assigned is a job by itself, and is none of the range."""
    fleet.ready("n1-cpu0")
    fleet.post()
    (array,) = gpuq("submit", "-q", "--array", "0-2", "--", "a").ids
    fleet.post()
    (last,) = sent(gpuq, fleet, 1)
    assert fleet.state.jobs[JobId(f"{array}_0")].state is JobState.ASSIGNED
    said = gpuq("cancel", f"{array}..{last}").out
    assert [line.split()[0] for line in said.splitlines()] == [array, last]
