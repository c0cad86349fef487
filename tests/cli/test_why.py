"""``gpuq why``: one sentence and the numbers, for jobs that wait, run and are over."""

from __future__ import annotations

import re

import pytest

from ledger import events as e
from ledger.names import FlowId
from ledger.policy import FlowAgreement, Limits, Organization, Policy
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet
from tests.waiting import wait_until


def lines(out: str) -> dict[str, str]:
    """What stands behind each label; what continues it is joined to it."""
    found: dict[str, str] = {}
    label = ""
    for line in out.split("\n\n")[1].splitlines():
        match = re.match(r"([a-z ]+): +(.*)", line)
        if match is not None:
            label, text = match.groups()
            found[label] = text
        else:
            found[label] += " | " + line.strip()
    return found


@pytest.fixture
def busy(gpuq: Gpuq, fleet: Fleet) -> list[str]:
    """Two slots: one runs a job of ``o``, one a job of ``p``; two of o and one of p wait."""
    fleet.ready("n1-cpu0")
    fleet.ready("n1-cpu1")
    fleet.post()
    jobs: list[str] = []
    for organization, limit in (("o", "10m"), ("p", "20m"), ("o", "5m"), ("o", "5m"), ("p", "5m")):
        name = f"{organization}{len(jobs)}"
        args = ["--org", organization, "--name", name, "-t", limit, "-q", "--", "true"]
        jobs += gpuq("submit", *args).ids
        fleet.post()
    for job in jobs[:2]:
        fleet.start(job)
    fleet.post()
    return jobs


def test_a_waiting_job_shows_its_turn_its_share_and_who_is_ahead(
    gpuq: Gpuq, busy: list[str]
) -> None:
    """Each of two flows of equal weights is owed one of two slots, and has it.

    By finish tags o0 binds 600 (slot-seconds), p1 600 + 1200 = 1800; what comes then begins at
    1800: o2 would bind 2100, and so would p4, which came later; o3 2400. The slot of o0 is free
    in 10 minutes: o2 until 15, p4 until 20; then p1 is over too, and o3 starts: in 20 minutes.
    """
    out = gpuq("why", "o3").out
    assert out.startswith(f"{busy[3]} o3 waits: 1 before it in o/batch\n\n")
    shown = lines(out)
    assert shown["flow"] == "o/batch/default, weight 1, served by wfq"
    assert shown["share"] == "owed 1.00 of 2 slots, served 1.00 now"
    assert shown["ahead"] == f"1 job of its own flow | {busy[2]} o2"
    assert shown["slots"] == "2 serve and fit, 0 free"
    assert re.match(r"about \d\d:\d\d:\d\d \(in (19m5\ds|20m00s)\)", shown["may start"])
    running = out.split("run in its pool:\n")[1].splitlines()[1:]
    assert [row.split()[0] for row in running] == [busy[1], busy[0]]
    assert all(row.endswith("time limit") for row in running)


def test_a_flow_whose_turn_is_before_is_named(gpuq: Gpuq, busy: list[str]) -> None:
    """p1 set the virtual time to 1800 slot-s; o2 and p4 would both bind 2100, o2 came first."""
    standing = gpuq("why", "p4", "--json").json["standing"]
    assert standing["earlier_jobs"] == 0
    (ahead,) = standing["flows_ahead"]
    assert (ahead["flow"], ahead["waiting"]) == ("o/batch/default", 2)
    assert ahead["tag"] == standing["finish_tag"] == 2_100_000 * 1_000_000
    assert standing["start_tag"] == standing["virtual_time"] == 1_800_000 * 1_000_000


def test_the_whole_wait_is_accounted_for_once_it_runs_and_once_it_is_over(
    gpuq: Gpuq, fleet: Fleet, busy: list[str]
) -> None:
    fleet.finish(busy[0], 0)
    fleet.post()
    fleet.start(busy[2])
    fleet.post()
    out = gpuq("why", "o2").out
    assert re.match(rf"{busy[2]} o2 runs on n1-cpu0; it waited [\d.]+s before it started\n", out)
    assert lines(out)["turn"].startswith("attempt 1 went to n1-cpu0 at ")
    runs = gpuq("why", "o2", "--json").json
    assert sum(part["part_ms"] for part in runs["wait"]) == runs["wait_ms"] > 0
    reasons = {part["reason"] for part in runs["wait"]}
    assert reasons <= {"not yet posted", "others' turn", "assigned, not started"}
    assert runs["standing"] is None
    assert runs["decision"]["workers"] == ["n1-cpu0"]
    fleet.finish(busy[2], 3)
    fleet.post()
    assert gpuq("why", "o2", "--json").json["why"].startswith("ended FAILED; it waited ")


def test_as_of_an_earlier_time_it_is_as_it_was_then(
    gpuq: Gpuq, fleet: Fleet, busy: list[str]
) -> None:
    before = gpuq("why", "o2", "--json").json
    fleet.finish(busy[0], 0)
    fleet.post()
    assert gpuq("why", "o2", "--json").json["state"] == "ASSIGNED"
    # A time zone is said, because the store's clock is UTC and tests may run anywhere.
    at = before["as_of"].replace("Z", "+00:00")
    then = gpuq("why", "o2", "--at", at, "--json").json
    assert then == before
    refused = gpuq("why", "o2", "--at", "1d")
    assert refused.rc == 64
    assert "stood in no page at" in refused.err
    assert gpuq("why", "o2", "--at", "tomorrow").rc == 64


def test_a_limit_a_day_is_named_with_what_counts_and_when_there_is_room(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    """100 GPU-s a day, of which a run of 90 s used 90: 20 more have room when these have ceased
    to count, at the first full hour that is a day or more from now."""
    limits = Limits(gpu_seconds_per_day=100)
    policy = Policy(flows={FlowId("o/batch/default"): FlowAgreement(limits=limits)})
    fleet.report("cli-admin", e.PolicyApplied(at=fleet.store.clock_ms(), policy=policy))
    fleet.ready("n1-gpu0", gpu="T4", memory_bytes=16)
    fleet.post()
    used, waits = (
        gpuq("submit", "--org", "o", "-t", limit, "-q", "--", "true").ids[0]
        for limit in ("1m40s", "20s")
    )
    fleet.post()
    fleet.start(used)
    fleet.finish(used, 0, ran_ms=90_000)
    fleet.post()
    reason = (
        "flow o/batch/default counts 90 of at most 100 GPU-seconds a day, used or reserved; "
        "it needs 20"
    )
    out = gpuq("why", waits).out
    assert reason in " ".join(out.split("\n\n")[0].split())
    assert re.fullmatch(
        re.escape(reason) + r" \| room at the latest at \S+ \S+ \(in (1d|24h|25h).*\)",
        lines(out)["day"],
    )
    day = gpuq("why", waits, "--json").json["standing"]["day"]
    assert (day["limit"], day["reason"]) == ("flow o/batch/default", reason)
    assert re.fullmatch(r"\S+T\d\d:00:00(\.000)?Z", day["eases_at"])


def test_a_limit_is_named_with_the_time_since_which_it_holds(gpuq: Gpuq, fleet: Fleet) -> None:
    flows = {FlowId("o/batch/default"): FlowAgreement(limits=Limits(slots=1))}
    applied = e.PolicyApplied(policy=Policy(flows=flows), at=fleet.store.clock_ms())
    fleet.report("cli-elsewhere", applied)
    fleet.ready("n1-cpu0")
    fleet.ready("n1-cpu1")
    for name in ("first", "second"):
        gpuq("submit", "--org", "o", "--name", name, "-q", "--", "true")
    fleet.post()
    out = gpuq("why", "second").out
    limit = "flow o/batch/default runs 1 of at most 1 slots"
    assert out.splitlines()[0].endswith(f"second waits: {limit}")
    assert re.fullmatch(r"flow o/batch/default, since \d\d:\d\d:\d\d", lines(out)["limit"])
    assert lines(out)["may start"] == "unknown: it waits for a limit, not for a slot alone"


def test_what_does_not_serve_is_said(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    (job,) = gpuq("submit", "-q", "--name", "x", "--", "true").ids
    gpuq("hold", job)
    fleet.post()
    assert gpuq("why", "x").out.startswith(f"{job} x is held: held by ")
    gpuq("release", job)
    gpuq("drain", "n1", "--reason", "new disk")
    fleet.post()
    out = gpuq("why", "x").out
    assert "waits: nothing serves pool default: node n1 is drained (new disk)" in out
    assert lines(out)["not serving"] == "node n1 is drained (new disk)"
    assert lines(out)["may start"] == "unknown: no serving slot fits"


def test_a_job_that_no_page_has_says_so_and_who_leads(gpuq: Gpuq, script: str) -> None:
    (job,) = gpuq("submit", "-q", script).ids
    out = gpuq("why", "last").out
    assert out.startswith(f"{job} hello.sh is not yet posted")
    assert "start a leader with 'gpuq up'" in out
    assert gpuq("why", "last", "--json").json["state"] == "PENDING"


def test_that_nobody_leads_is_said_first(
    gpuq: Gpuq, busy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two leases, a thousand times shorter, are 60 ms."""
    before = gpuq("why", "o3", "--json").json
    monkeypatch.setenv("GPUQ_TIME_SCALE", "1000")
    wait_until(
        lambda: "nobody leads" in gpuq("why", "o3").out, deadline_s=10, what="the lease to be over"
    )
    out = gpuq("why", "o3").out
    assert out.startswith(f"{busy[3]} o3 waits: nobody leads, start a leader with 'gpuq up'; ")
    assert out.splitlines()[0].endswith("as of the last page: 1 before it in o/batch")
    # What was then is not explained by what is now.
    assert gpuq("why", "o3", "--at", before["as_of"].replace("Z", "+00:00")).out.startswith(
        f"{busy[3]} o3 waits: 1 before it in o/batch\n"
    )


def test_a_job_that_was_rejected_says_why(gpuq: Gpuq, fleet: Fleet) -> None:
    """The policy that refuses it is in force only after it was submitted."""
    fleet.ready("n1-cpu0")
    fleet.post()
    policy = Policy(organizations={"o": Organization(members=("somebody",))})
    fleet.report("cli-else", e.PolicyApplied(policy=policy, at=fleet.store.clock_ms()))
    fleet.submit("aaaaaaaa")
    fleet.post()
    out = gpuq("why", "aaaaaaaa").out
    reason = "no organization lists u among its members"
    assert out.startswith(f"aaaaaaaa job ended REJECTED: {reason}; it waited ")
    assert out.splitlines()[0].endswith("and never started")


def test_every_line_fits_eighty_columns(gpuq: Gpuq, busy: list[str]) -> None:
    for name in ("o0", "o3", "p4"):
        out = gpuq("why", name).out
        assert [line for line in out.splitlines() if len(line) > 80] == []
