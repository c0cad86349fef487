"""``gpuq submit --after``, ``--begin``: what is read, what is refused, what is shown."""

from __future__ import annotations

import re

import pytest

from gpuq.after import parse_after
from gpuq.parse import parse_begin
from ledger.errors import RequestError
from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.cli.test_why import lines


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a"], [("ok", "a")]),
        (["a,b"], [("ok", "a"), ("ok", "b")]),
        (["afterok:a:b,afterany:c"], [("ok", "a"), ("ok", "b"), ("any", "c")]),
        (["a,afternotok:b", "AfterAny:last"], [("ok", "a"), ("notok", "b"), ("any", "last")]),
        (["afterok:a, afterok:b"], [("ok", "a"), ("ok", "b")]),
    ],
)
def test_slurms_forms_are_read(texts: list[str], expected: list[tuple[str, str]]) -> None:
    assert list(parse_after(texts)) == expected


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "afterok:", ":a", "afterok:a::b", "after:a", "aftercorr:a", "a:b",
     "singleton:", "afterok:a?afterok:b"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(RequestError, match="say ID, afterok:ID, afterany:ID or afternotok:ID"):
        list(parse_after([text]))


NOW_MS = 1_796_058_793_123


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW_MS + 90_000),
        ("1h30m", NOW_MS + 5_400_000),
        ("2027-01-01T00:00Z", 1_798_761_600_000),
    ],
)
def test_a_begin_is_so_long_from_now_or_a_time(text: str, expected: int) -> None:
    """1,798,761,600 is 2027-01-01T00:00:00Z (``date -u -d 2027-01-01 +%s``)."""
    assert parse_begin(text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["16:00", "90", "tomorrow", "2026-11-30T00:00Z", "9999d", "0s", ""]
)
def test_another_begin_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="begin"):
        parse_begin(text, NOW_MS)


def submitted(gpuq: Gpuq, *args: str) -> str:
    (job,) = gpuq("submit", "-q", *args, "--", "true").ids
    return job


def test_a_job_is_named_by_id_by_name_and_as_the_last(gpuq: Gpuq, fleet: Fleet) -> None:
    first = submitted(gpuq, "--name", "prepare")
    second = submitted(gpuq, "-d", first[:5])
    third = submitted(gpuq, "--after", "afterany:prepare:last")
    fourth = submitted(gpuq, "--dependency", "afterok:prepare:prepare")
    fleet.post()
    after = {job: fleet.state.jobs[JobId(job)].spec.after for job in (second, third, fourth)}
    assert {job: [str(each) for each in jobs] for job, jobs in after.items()} == {
        second: [f"afterok:{first}"],
        third: [f"afterany:{first}", f"afterany:{second}"],
        fourth: [f"afterok:{first}"],
    }


@pytest.mark.parametrize("name", ["zzzzzzzz", "afterok:nosuch", "afterok:"])
def test_a_job_that_nobody_knows_is_refused_and_nothing_is_written(
    gpuq: Gpuq, fleet: Fleet, name: str
) -> None:
    result = gpuq("submit", "-d", name, "--", "true")
    assert (result.rc, result.out, result.err.count("\n")) == (64, "", 1)
    fleet.post()
    assert fleet.state.jobs == {}


def test_a_job_is_shown_with_what_it_waits_for(gpuq: Gpuq, fleet: Fleet) -> None:
    """Also where nothing of its flow has ever stood in a queue."""
    fleet.ready("n1-cpu0")
    first = submitted(gpuq, "--org", "o")
    second = submitted(gpuq, "--org", "p", "--name", "then", "-d", first)
    fleet.post()
    waits = f"waits for afterok:{first} (ASSIGNED)"
    status = gpuq("status", "--json").json
    assert status["counts"]["waiting"] == 2
    (shown,) = (job for job in status["jobs"] if job["id"] == second)
    assert (shown["state"], shown["why"]) == ("PENDING", waits)
    assert waits in gpuq("status").out
    assert f"after: afterok:{first}" in gpuq("status", second).out.replace("  ", "")
    why = gpuq("why", second).out
    assert why.startswith(f"{second} then {waits}\n")
    assert lines(why)["after"] == f"afterok:{first}: ASSIGNED"
    said = gpuq("why", "--json", second).json
    assert (said["after"], said["standing"]) == ([f"afterok:{first}"], None)


def test_a_dependency_that_can_never_be_is_said_at_once_and_is_the_end(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    fleet.ready("n1-cpu0")
    first = submitted(gpuq)
    fleet.post()
    fleet.finish(first, rc=4)
    fleet.post()
    result = gpuq("submit", "-q", "-d", first, "--", "true")
    assert f"{first} has ended already, and not so" in result.err
    fleet.post()
    (second,) = result.ids
    shown = gpuq("status", "--json", second).json
    assert (shown["state"], shown["why"]) == (
        "DEPENDENCY_NEVER",
        f"it waits for afterok:{first}, which ended FAILED (rc 4)",
    )
    assert gpuq("wait", second).rc == 77


def test_the_same_key_with_another_dependency_is_another_job(gpuq: Gpuq, fleet: Fleet) -> None:
    first = submitted(gpuq)
    keyed = submitted(gpuq, "--key", "k", "-d", first)
    assert submitted(gpuq, "--key", "k", "-d", first) == keyed
    result = gpuq("submit", "--key", "k", "--", "true")
    assert result.rc == 64
    assert "which differs in after: use another key" in result.err


def test_a_held_job_of_a_new_flow_can_be_asked_why(gpuq: Gpuq, fleet: Fleet) -> None:
    held = submitted(gpuq, "--hold")
    fleet.post()
    result = gpuq("why", held)
    assert result.rc == 0
    assert "of which nothing has waited yet" in result.out


def test_a_begin_is_shown_until_it_has_come(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    job = submitted(gpuq, "--begin", "3h30m")
    fleet.post()
    shown = gpuq("status", "--json", job).json
    begin_ms = fleet.state.jobs[JobId(job)].spec.begin_at
    assert (shown["state"], shown["begin_at_ms"]) == ("PENDING", begin_ms)
    assert abs(begin_ms - shown["submitted_at_ms"] - 12_600_000) < 60_000
    assert re.fullmatch(r"begins in 3h(2[89]|30)m(\d+s)?", shown["why"])
    why = gpuq("why", job).out
    assert re.fullmatch(rf"{job} true begins in 3h(2[89]|30)m(\d+s)?", why.splitlines()[0])
    assert re.search(r"\(in 3h(29|30)m\)$", lines(why)["begin"])


def test_a_begin_behind_the_deadline_is_refused(gpuq: Gpuq) -> None:
    result = gpuq("submit", "--begin", "2h", "--deadline", "1h", "--", "true")
    assert (result.rc, result.err) == (
        64,
        "gpuq: --begin is not before --deadline: say an earlier time, or none\n",
    )


def test_an_object_of_the_store_is_waited_for(gpuq: Gpuq, fleet: Fleet) -> None:
    """The leader of this test looks at once, as it has not looked before."""
    fleet.ready("n1-cpu0")
    job = submitted(gpuq, "--after-artifact", "artifacts/weights.bin")
    fleet.store.put_once("artifacts/weights.bin.part", b"not yet")
    fleet.post()
    shown = gpuq("status", "--json", job).json
    assert (shown["state"], shown["why"], shown["after_artifacts"]) == (
        "PENDING", "waits for artifacts/weights.bin", ["artifacts/weights.bin"],
    )  # fmt: skip
    assert "waits for artifacts/weights.bin" in gpuq("why", job).out


def test_what_is_no_key_is_refused(gpuq: Gpuq) -> None:
    result = gpuq("submit", "--after-artifact", "s3://bucket/x", "--", "true")
    assert (result.rc, result.out) == (64, "")
    assert result.err == "gpuq: it waits for 's3://bucket/x', which is no key of an object\n"
