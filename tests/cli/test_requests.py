"""cancel, hold, release, drain, undrain: what is said, and what becomes of it."""

from __future__ import annotations

from ledger.names import JobId
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


def state_of(gpuq: Gpuq, job: str) -> str:
    state: str = gpuq("status", "--json", job).json["state"]
    return state


def test_cancel_says_what_it_did_by_where_the_job_stood(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    runs = gpuq("submit", "-q", "--name", "runs", "--", "a").ids[0]
    fleet.post()
    fleet.start(runs)
    waits = gpuq("submit", "-q", "--name", "waits", "--", "a").ids[0]
    fleet.post()
    assert gpuq("cancel", runs, "waits", "--reason", "enough").out.splitlines() == [
        f"{runs} runs: stop requested: TERM on n1-cpu0, KILL after 30 s",
        f"{waits} waits: cancelled",
    ]
    fleet.post()
    assert (state_of(gpuq, runs), state_of(gpuq, waits)) == ("STOPPING", "CANCELLED")
    assert gpuq("kill", runs).out.startswith(f"{runs} runs: stop already requested by ")
    later = gpuq("cancel", runs, "--grace", "4").out  # minutes; the default is 30 s
    assert later.startswith(f"{runs} runs: stop already requested by ")
    sooner = gpuq("cancel", runs, "--grace", "1s").out
    assert sooner == f"{runs} runs: stopping sooner: KILL after 1 s\n"
    fleet.post()
    assert gpuq("cancel", runs, "--grace", "2s").out.startswith(f"{runs} runs: stop already ")
    fleet.finish(runs, 143, outcome="stopped")
    fleet.post()
    again = gpuq("cancel", runs)
    assert (again.rc, again.out) == (0, f"{runs} runs: already ended as CANCELLED\n")
    assert gpuq("status", "--json", waits).json["why"] == "enough"


def test_a_job_not_yet_posted_can_be_cancelled(gpuq: Gpuq, fleet: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "--", "a").ids
    assert gpuq("cancel", "last").out == f"{job} a: cancelled\n"
    fleet.post()
    assert fleet.state.jobs[JobId(job)].state.value == "CANCELLED"


def test_nothing_is_cancelled_where_one_of_the_names_is_wrong(gpuq: Gpuq, fleet: Fleet) -> None:
    (job,) = gpuq("submit", "-q", "--", "a").ids
    result = gpuq("cancel", job, "nosuch")
    assert (result.rc, result.out) == (64, "")
    assert state_of(gpuq, job) == "PENDING"


def test_a_held_job_waits_until_it_is_released(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.post()
    (job,) = gpuq("submit", "-q", "--", "a").ids
    assert gpuq("hold", job, "--reason", "data").out == f"{job} a: held\n"
    fleet.post()
    shown = gpuq("status", "--json", job).json
    assert (shown["state"], shown["why"]) == ("HELD", "data")
    assert gpuq("hold", job).out == f"{job} a: already held\n"
    assert gpuq("release", job).out == f"{job} a: released\n"
    fleet.post()
    assert state_of(gpuq, job) == "PENDING"
    again = gpuq("release", job)
    assert (again.rc, again.err) == (
        64,
        f"gpuq: {job} is PENDING: only a held job can be released\n",
    )


def test_a_drained_node_takes_nothing_until_it_is_undrained(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    assert gpuq("drain", "n1", "--reason", "disk").rc == 0
    fleet.post()
    (job,) = gpuq("submit", "-q", "--", "a").ids
    fleet.post()
    assert gpuq("status", "--json", job).json["why"] == (
        "nothing serves pool default: node n1 is drained (disk)"
    )
    assert gpuq("status", "--json").json["nodes"] == {"up": 0, "draining": 1, "silent": 0}
    assert gpuq("undrain", "n1").rc == 0
    fleet.post()
    assert state_of(gpuq, job) == "ASSIGNED"
    unknown = gpuq("drain", "n2")
    assert (unknown.rc, unknown.err) == (64, "gpuq: no node 'n2'; nodes are n1\n")
