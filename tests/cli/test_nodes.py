"""``gpuq nodes``: the journal and the newest beats beside each other."""

from __future__ import annotations

import pytest

from ledger.events import SlotBeat
from tests.cli.conftest import Gpuq
from tests.cli.fleet import Fleet


@pytest.fixture
def h100(fleet: Fleet) -> Fleet:
    fleet.ready("n1-gpu0", pool="big", gpu="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984)
    fleet.ready("n2-cpu0")
    fleet.post()
    fleet.beat(
        "n1",
        {
            "n1-gpu0": SlotBeat(
                alive=True,
                utilisation_percent=97,
                memory_used_bytes=42_949_672_960,
                memory_total_bytes=85_520_809_984,
            )
        },
    )
    return fleet


def test_a_node_is_shown_with_its_gpu_and_the_age_of_its_beat(gpuq: Gpuq, h100: Fleet) -> None:
    header, first, second = gpuq("nodes").out.splitlines()
    assert header.split() == [
        "NODE", "WORKER", "POOL", "GPU", "MEMORY", "UTIL", "RUNNING", "BEAT", "STATE",
    ]  # fmt: skip
    assert "NVIDIA H100 80GB HBM3  40 GiB/79.6 GiB  97%   -" in first
    assert second.split()[:8] == ["n2", "n2-cpu0", "default", "cpu", "-", "-", "-", "none"]
    assert second.endswith("none !  silent")


def test_a_beat_older_than_two_intervals_is_marked(
    gpuq: Gpuq, h100: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale() -> bool:
        nodes = gpuq("nodes", "--json").json["nodes"]
        assert [node["node"] for node in nodes] == ["n1", "n2"]
        return bool(nodes[0]["beat_is_stale"])

    assert not stale()
    monkeypatch.setenv("GPUQ_TIME_SCALE", "1000")  # two intervals are 120 ms
    while not stale():
        pass
    assert " !  silent" in gpuq("nodes").out.splitlines()[1]


def test_a_problem_and_a_drain_are_shown(gpuq: Gpuq, h100: Fleet) -> None:
    h100.beat("n2", {"n2-cpu0": SlotBeat(alive=True, problem="[red] GPU memory is taken")})
    assert "[red] GPU memory is taken" in gpuq("nodes").out
    gpuq("drain", "n2", "--reason", "broken fan")
    h100.post()
    node = gpuq("nodes", "--json").json["nodes"][1]
    assert node["drained"] == "broken fan"
    assert node["workers"][0]["state"] == "drained, empty (broken fan)"


def test_a_reading_that_is_not_there_is_absent(gpuq: Gpuq, h100: Fleet) -> None:
    (worker,) = gpuq("nodes", "--json").json["nodes"][1]["workers"]
    assert [worker[key] for key in ("utilisation_percent", "memory_used_bytes", "alive")] == [
        None, None, None,
    ]  # fmt: skip


def test_a_ledger_without_workers_says_how_to_start_some(gpuq: Gpuq) -> None:
    assert gpuq("nodes").out == "no worker serves this ledger: start some with 'gpuq up'\n"


def test_what_a_gpu_tells_of_is_shown_beside_its_state(gpuq: Gpuq, fleet: Fleet) -> None:
    fleet.ready("n1-gpu0", gpu="NVIDIA H100 80GB HBM3")
    fleet.post()
    fleet.beat("n1", {"n1-gpu0": SlotBeat(alive=True, ecc_errors=3, xid=94)})
    assert gpuq("nodes").out.splitlines()[1].endswith("  ok; 3 ECC errors; XID 94")
    (node,) = gpuq("nodes", "--json").json["nodes"]
    (worker,) = node["workers"]
    assert (worker["ecc_errors"], worker["xid"], worker["state"]) == (3, 94, "ok")
    assert (node["blocked"], node["probe_at"]) == ("", None)


def test_a_node_whose_jobs_fail_is_shown_as_blocked_and_undrain_frees_it(
    gpuq: Gpuq, fleet: Fleet
) -> None:
    fleet.ready("n1-cpu0")
    fleet.post()
    for number, organization in enumerate(("a", "b", "a")):
        job = gpuq("submit", "-q", "--org", organization, "--", "sh", "-c", f"exit {number}").out
        fleet.post()
        fleet.start(job.strip())
        fleet.finish(job.strip(), rc=number + 1)
        fleet.post()
    state = "node n1 is blocked (3 jobs in a row ("
    assert state in gpuq("nodes").out
    (node,) = gpuq("nodes", "--json").json["nodes"]
    assert node["workers"][0]["state"].startswith(state)
    assert node["blocked"].endswith("one job tries it after 10 min, or 'gpuq undrain n1'")
    gpuq("undrain", "n1")
    fleet.post()
    assert gpuq("nodes", "--json").json["nodes"][0]["blocked"] == ""
