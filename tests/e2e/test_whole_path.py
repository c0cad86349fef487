"""The whole path on every kind of store, through a killed worker and a killed leader.

Two nodes, an elected leader, ten jobs. What ran is told by the jobs themselves, in a file
that they append to; what was sent, by a recording proxy or by hooks within botocore.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledger import events as e
from ledger.names import JobId, WorkerName
from tests.e2e.cluster import Cluster, Place, key_of
from tests.e2e.conftest import StartCluster
from tests.faults.proxy import FaultProxy
from tests.stores.wire import find_faults

TIME_SCALE = 6
"""A lease of 5 s, and 5 s from a claim to its start."""
LINES = 3_000
ADOPTING = WorkerName("n2-cpu0")
WIRE_HOOK = Path(__file__).parent / "wire_hook"


class Ending(msgspec.Struct, frozen=True):
    """How a job must have ended, as its script has it."""

    state: str
    rc: int
    log: bytes


def numbers(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % n for n in range(first, last + 1))


ENDINGS = {
    "hello.sh": Ending("COMPLETED", 0, b"hello\n"),
    "fail.sh": Ending("FAILED", 3, b"no such luck\n"),
    "00_first.sh": Ending("FAILED", 4, b"first\n"),
    "01_second.sh": Ending("COMPLETED", 0, b"second\n"),
    "once.sh": Ending("COMPLETED", 0, b"once\n"),
    "bar.sh": Ending("COMPLETED", 0, b"10%\r100%\r\x1b[32mdone\x1b[0m, no newline"),
    "adopted.sh": Ending("FAILED", 7, numbers(1, 2 * LINES)),
    "across.sh": Ending("COMPLETED", 0, b"led by one\nled by another\n"),
    "late-1.sh": Ending("COMPLETED", 0, b"late\n"),
    "late-2.sh": Ending("COMPLETED", 0, b"late\n"),
}


class Story:
    """One run of the whole path; ``ids`` are the jobs' by name."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ids: dict[str, JobId] = {}

    def play(self) -> None:
        cluster = self.cluster
        cluster.init()
        cluster.serve("n1", 2)
        cluster.serve("n2", 1)
        self._submit_early_jobs()
        self._kill_a_worker_while_its_job_runs()
        self._kill_the_leader()
        cluster.wait_for_end(*self.ids.values())

    def _submit_early_jobs(self) -> None:
        gate = self.cluster.gate
        self._write("adopted.sh", f"seq {LINES}", gate("adopted"), f"seq {LINES + 1} {2 * LINES}")
        self._write("across.sh", "echo led by one", gate("across"), "echo led by another")
        self._write("00_first.sh", "echo first")
        self._write("01_second.sh", "echo second")
        self._write("once.sh", "echo once")
        self._write("hello.sh", "echo hello")
        self._write("fail.sh", "echo no such luck")
        self._write("bar.sh", r"printf '10%%\r100%%\r\e[32mdone\e[0m, no newline'")
        self._submit("adopted.sh", flags=["--worker", ADOPTING])
        # What waits for that worker is led by two leaders. The second first: what decides
        # is the order of their names.
        for names in (["across.sh"], ["01_second.sh", "00_first.sh"]):
            self._submit(*names, flags=["--worker", "n1-cpu0"])
        self._submit("hello.sh", "fail.sh", "bar.sh")
        self._submit("once.sh", flags=["--key", "only"])
        first = self.ids["once.sh"]
        self._submit("once.sh", flags=["--key", "only"])
        assert self.ids["once.sh"] == first

    def _kill_a_worker_while_its_job_runs(self) -> None:
        self.cluster.wait_for_begin("adopted.sh")
        self.cluster.kill_worker(ADOPTING)
        self.cluster.open_gate("adopted")

    def _kill_the_leader(self) -> None:
        """While a job runs, and another one was just submitted and stands in no page yet."""
        self.cluster.wait_for_begin("across.sh")
        self._write("late-1.sh", "echo late")
        self._write("late-2.sh", "echo late")
        self._submit("late-1.sh")
        self.cluster.kill_leader()
        self.cluster.open_gate("across")
        self._submit("late-2.sh")

    def _write(self, name: str, *lines: str) -> None:
        self.cluster.script(name, *lines, rc=ENDINGS[name].rc)

    def _submit(self, *names: str, flags: Iterable[str] = ()) -> None:
        self.ids.update(zip(names, self.cluster.submit(*flags, *names), strict=True))

    # -- what must be true afterwards

    def check(self) -> None:
        assert sorted(self.ids) == sorted(ENDINGS)
        shown = self.cluster.ended()
        for name, job in self.ids.items():
            self._check_job(name, shown[job])
        for name in ("adopted.sh", "bar.sh"):
            assert self.cluster.logs(self.ids[name]) == ENDINGS[name].log
        assert self._order_of("00_first.sh", "end") < self._order_of("01_second.sh", "begin")
        assert self.cluster.verified()["ended_jobs"] == len(ENDINGS)
        self._check_adoption(shown[self.ids["adopted.sh"]]["attempt"])

    def _check_job(self, name: str, shown: Mapping[str, Any]) -> None:
        attempt = shown["attempt"]
        assert self.cluster.runs_of(name) == [(attempt, "begin"), (attempt, "end")], name
        written, _, last = self.cluster.whole_log(self.ids[name], attempt).rpartition(b"rc=")
        if not ENDINGS[name].log.endswith(b"\n"):
            written = written.removesuffix(b"\n")  # the last line begins on a line of its own
        assert Ending(shown["state"], shown["rc"], written) == ENDINGS[name], name
        assert last == b"%d\n" % ENDINGS[name].rc

    def _order_of(self, name: str, what: str) -> int:
        lines = self.cluster.witness.read_text().splitlines()
        (order,) = (n for n, line in enumerate(lines) if line.split()[::2] == [name, what])
        return order

    def _check_adoption(self, attempt: int) -> None:
        """A later incarnation of the worker began with the job in hand, and told its end."""
        ref = e.AttemptRef(self.ids["adopted.sh"], attempt)
        facts = [posted.fact for page in self.cluster.pages() for posted in page.facts]
        adopters = {
            fact.writer for fact in facts if isinstance(fact, e.WorkerReady) and ref in fact.running
        }
        ends = [
            fact
            for fact in facts
            if isinstance(fact, e.AttemptFinished) and e.AttemptRef(fact.job, fact.attempt) == ref
        ]
        assert len(ends) == 1
        assert ends[0].writer in adopters
        pieces = self.cluster.log_pieces(ref.job, ref.attempt)
        assert pieces
        assert ENDINGS["adopted.sh"].log.startswith(pieces)


def play(cluster: Cluster) -> None:
    story = Story(cluster)
    story.play()
    story.check()
    cluster.drain()


@pytest.mark.parametrize("place", ["folder", "ceph"], indirect=True)
def test_ten_jobs_survive_a_killed_worker_and_a_killed_leader(
    place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    play(start_cluster(folder, place, time_scale=TIME_SCALE))


def test_on_seaweedfs_they_do_too_and_every_request_keeps_the_promises(
    seaweedfs_place: Place, proxy: FaultProxy, folder: Path, start_cluster: StartCluster
) -> None:
    play(start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE))
    check_wire([(sent.method, sent.target, sent.headers) for sent in proxy.requests])


def test_on_ceph_over_tls_they_do_too_and_every_request_keeps_the_promises(
    ceph_tls_place: Place, folder: Path, tmp_path: Path, start_cluster: StartCluster
) -> None:
    records = tmp_path / "wire"
    records.mkdir()
    hooked = {"PYTHONPATH": str(WIRE_HOOK), "WIRE_RECORDS": str(records)}
    place = replace(ceph_tls_place, env={**ceph_tls_place.env, **hooked})
    play(start_cluster(folder, place, time_scale=TIME_SCALE))

    lines = [line for path in records.iterdir() for line in path.read_text().splitlines()]
    sent: list[Sent] = [tuple(json.loads(line)) for line in lines]
    assert all(target.startswith("https://127.0.0.1:") for _, target, _ in sent)
    check_wire(sent)


Sent = tuple[str, str, Iterable[tuple[str, str]]]
"""Method, target, headers."""


def check_wire(requests: list[Sent]) -> None:
    """Nothing was sent that gpuq promises not to send, and all kinds of objects were."""
    faults = [
        (target, fault)
        for method, target, headers in requests
        for fault in find_faults(method, target, headers)
    ]
    assert faults == []
    put = [key_of(target) for method, target, _ in requests if method == "PUT"]
    kinds = {"facts", "beats", "journal", "mailbox", "claims", "blobs", "logs", "gpuq.json"}
    assert kinds <= {key.partition("/")[0] for key in put}
