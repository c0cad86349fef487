"""Arrays and their members on the command line."""

from __future__ import annotations

import pytest

from gpuq.arrays import members_named, parse_array, parse_sweep
from ledger.arrays import indices
from ledger.errors import RequestError
from ledger.keys import FACTS
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


@pytest.mark.parametrize(
    ("text", "expected", "at_once"),
    [
        # The forms of sbatch(1), --array.
        ("0-3", [0, 1, 2, 3], 0),
        ("1,3,5,7", [1, 3, 5, 7], 0),
        ("0-15:4", [0, 4, 8, 12], 0),
        ("1,3,5-9:2", [1, 3, 5, 7, 9], 0),
        ("0-15%4", list(range(16)), 4),
        ("7", [7], 0),
        ("5-9:2,6,6", [5, 6, 7, 9], 0),
        ("3,1-2", [1, 2, 3], 0),
    ],
)
def test_indices_are_read_as_slurm_reads_them(text: str, expected: list[int], at_once: int) -> None:
    array = parse_array(text)
    assert (list(indices(array)), array.at_once) == (expected, at_once)


def test_ten_thousand_indices_are_one_range() -> None:
    assert parse_array("0-9999%50").ranges == ((0, 9999, 1),)


@pytest.mark.parametrize(
    "text", ["", "a", "-1", "1-", "5-3", "0-9:0", "0-9%0", "0-9%", "1,,2", "0-100000", "1 2"]
)
def test_what_names_no_indices_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_array(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr=1e-3,1e-4", ("lr", ("1e-3", "1e-4"))),
        ("seed=0-4", ("seed", ("0", "1", "2", "3", "4"))),
        ("n=1,4-8:2,x", ("n", ("1", "4", "6", "8", "x"))),
        ("flag=a=b", ("flag", ("a=b",))),
    ],
)
def test_a_sweep_is_a_name_and_its_values(text: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert parse_sweep(text) == expected


@pytest.mark.parametrize(
    "text", ["lr", "lr=", "=1", "a-b=1", "lr=1,,2", "JOB_ID=1", "API_KEY=x", "d=9-1"]
)
def test_what_is_no_sweep_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_sweep(text)


def test_several_members_are_named_by_their_indices() -> None:
    assert members_named("abcdefgh_3-5") == ["abcdefgh_3", "abcdefgh_4", "abcdefgh_5"]
    assert members_named("abcdefgh_1,9") == ["abcdefgh_1", "abcdefgh_9"]
    assert members_named("abcdefgh_3") == ["abcdefgh_3"]
    assert members_named("run_a-b") == ["run_a-b"]


@pytest.fixture
def array(gpuq: Gpuq, fleet: Fleet) -> JobId:
    """Ten members, two of which have begun."""
    for slot in (0, 1):
        fleet.ready(f"n1-cpu{slot}")
    (job,) = gpuq("submit", "-q", "--array", "0-9", "--name", "t", "--", "true").ids
    fleet.post()
    return JobId(job)


def test_an_array_is_one_object_and_one_line_of_status(
    gpuq: Gpuq, fleet: Fleet, array: JobId
) -> None:
    submits = [entry.key for entry in fleet.store.list(FACTS) if "submit" in entry.key]
    assert [key.rpartition(".")[2] for key in submits] == ["submit_array"]
    fleet.finish(f"{array}_0", 0)
    fleet.finish(f"{array}_1", 3)
    fleet.post()
    said = gpuq("status").out
    assert said.startswith("0 running, 8 waiting")
    (line,) = [line for line in said.splitlines() if array in line]
    assert "1 done, 2 running, 1 failed, 6 pending" in line
    overview = gpuq("status", "--json").json
    (shown,) = overview["jobs"]
    assert shown["array"] == {
        "done": 1, "running": 2, "failed": 1, "cancelled": 0, "pending": 6
    }  # fmt: skip
    failed = gpuq("status", "--state", "failed", "--json").json
    assert [job["id"] for job in failed["ended"]] == [f"{array}_1"]


def test_a_member_is_named_before_and_after_it_began(
    gpuq: Gpuq, fleet: Fleet, array: JobId
) -> None:
    fleet.finish(f"{array}_0", 0, log=b"zero\n")
    fleet.post()
    assert gpuq("logs", f"{array}_0").out == "zero\n"
    assert gpuq("status", f"{array}_7", "--json").json["state"] == "PENDING"
    assert gpuq("hold", f"{array}_7").out == f"{array}_7 t: held\n"
    assert gpuq("cancel", f"{array}_5-6").out.splitlines() == [
        f"{array}_5 t: cancelled",
        f"{array}_6 t: cancelled",
    ]
    fleet.post()
    states = {name: str(job.state) for name, job in fleet.state.jobs.items()}
    assert (states[JobId(f"{array}_5")], states[JobId(f"{array}_7")]) == ("CANCELLED", "HELD")
    refused = gpuq("cancel", f"{array}_10")
    assert refused.rc == 64
    assert "has no such index" in refused.err


def test_a_cancelled_array_says_what_became_of_its_members(
    gpuq: Gpuq, fleet: Fleet, array: JobId
) -> None:
    said = gpuq("cancel", array).out
    assert said == f"{array} t: cancelled: what is left, and 2 that had begun are stopped\n"
    fleet.post()
    assert gpuq("status", array, "--json").json["array"] == {
        "done": 0, "running": 2, "failed": 0, "cancelled": 8, "pending": 0
    }  # fmt: skip
    assert gpuq("cancel", f"{array}_9").rc == 64


def test_the_log_of_an_array_is_that_of_its_members(gpuq: Gpuq, array: JobId) -> None:
    refused = gpuq("logs", array)
    assert refused.rc == 64
    assert f"name a member, such as {array}_0" in refused.err


def test_wait_gives_the_first_code_that_is_not_0_in_order_of_the_indices(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    for slot in range(3):
        fleet.ready(f"n1-cpu{slot}")
    (job,) = gpuq("submit", "-q", "--array", "0-2", "--", "true").ids
    fleet.post()
    for index, rc in ((2, 5), (1, 7), (0, 0)):
        fleet.finish(f"{job}_{index}", rc)
    fleet.post()
    assert gpuq("wait", job).rc == 7
    assert gpuq("wait", f"{job}_2").rc == 5


def test_two_ways_to_ask_for_an_array_are_one_too_many(gpuq: Gpuq) -> None:
    assert gpuq("submit", "--array", "0-1", "--sweep", "a=1,2", "--", "true").rc == 64
    assert gpuq("submit", "--sweep", "a=1", "--sweep", "a=2", "--", "true").rc == 64
    shown = gpuq("submit", "-n", "--json", "--sweep", "a=1,2", "--sweep", "b=0-4", "--", "true")
    assert shown.json[0]["members"] == 10


def test_why_a_member_that_has_not_begun_waits_is_why_its_array_does(
    gpuq: Gpuq, fleet: Fleet, array: JobId
) -> None:
    said = gpuq("why", f"{array}_7").out.splitlines()
    assert said[0] == f"{array}_7 has not begun and waits as part of its array:"
    assert said[1].startswith(f"{array} t waits: next of its flow; ")
    assert gpuq("why", "--json", f"{array}_7").json["id"] == array
    assert gpuq("why", f"{array}_0").out.startswith(f"{array}_0 t is assigned to n1-cpu")


def test_why_an_array_is_at_its_own_limit_and_what_became_of_it(gpuq: Gpuq, fleet: Fleet) -> None:
    for slot in range(3):
        fleet.ready(f"n1-cpu{slot}")
    (job,) = gpuq("submit", "-q", "--array", "0-2%1", "--name", "t", "--", "true").ids
    fleet.post()
    limited = "waits: 1 of its members are underway, as many as it allows"
    assert gpuq("why", job).out.startswith(f"{job} t {limited}\n")
    assert limited.removeprefix("waits: ") == gpuq("status", job, "--json").json["why"]
    for index, rc in enumerate((0, 0, 3)):
        fleet.finish(f"{job}_{index}", rc)
        fleet.post()
    assert gpuq("why", job).out.startswith(f"{job} t ended FAILED: 2 done, 1 failed\n")


def test_a_job_waits_for_an_array_but_not_for_a_member(
    gpuq: Gpuq, fleet: Fleet, array: JobId
) -> None:
    (job,) = gpuq("submit", "-q", "-d", array, "--", "true").ids
    fleet.post()
    assert gpuq("why", job).out.startswith(f"{job} true waits for afterok:{array} (PENDING)")
    refused = gpuq("submit", "-d", f"{array}_3", "--", "true")
    mend = f"a job can wait for a whole array, not for a member: say {array}"
    assert (refused.rc, refused.err) == (64, f"gpuq: --after {array}_3: {mend}\n")
