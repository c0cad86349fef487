"""Writes whose fate their writer does not learn, with real processes behind a proxy.

A page and a claim: stored while the answer is lost; landing late, just before they are put
again; landing long after it was settled. Each counts once.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from ledger import events as e
from ledger.keys import CLAIMS, JOURNAL
from tests.e2e.cluster import Cluster, Place, key_of
from tests.e2e.conftest import StartCluster
from tests.faults.proxy import Answer, Exchange, FaultProxy, Request
from tests.waiting import wait_until

TIME_SCALE = 6
LANDS_S = 60


class Doubt:
    """The fault of the next PUT below ``prefix``: it lands, and its writer does not learn so."""

    sent = 2
    """How often its writer puts it."""

    def __init__(self, proxy: FaultProxy, prefix: str) -> None:
        self.request: Request | None = None
        self._landing = threading.Event()
        self._answer: Answer | None = None
        proxy.inject(self._cut_off, path=f"/{prefix}")

    def _cut_off(self, exchange: Exchange) -> None:
        self.request = exchange.request
        exchange.cut()
        assert self._landing.wait(LANDS_S)
        self._answer = exchange.forward()

    def land(self) -> int:
        """Let it reach the server, if it has not yet; the status that this answered."""
        self._landing.set()
        wait_until(lambda: self._answer is not None, deadline_s=LANDS_S, what="a late PUT")
        assert self._answer is not None
        return self._answer.status

    def check(self) -> None:
        """The server said what makes this doubt the one that it is."""
        raise NotImplementedError


class ReplyLost(Doubt):
    """It is stored at once, and the answer is lost."""

    sent = 1

    def _cut_off(self, exchange: Exchange) -> None:
        self.request = exchange.request
        self._answer = exchange.forward()
        exchange.cut()

    def check(self) -> None:
        assert self.land() == 200


class LandsBeforeItsRepeat(Doubt):
    """It is missing when its writer looks, and refuses its own repeat."""

    def __init__(self, proxy: FaultProxy, prefix: str) -> None:
        super().__init__(proxy, prefix)
        self._repeat: Answer | None = None
        proxy.inject(self._pass_on_repeat, path=f"/{prefix}")

    def _pass_on_repeat(self, exchange: Exchange) -> None:
        self.land()
        self._repeat = exchange.forward()
        exchange.answer(self._repeat)

    def check(self) -> None:
        assert self._repeat is not None
        assert (self.land(), self._repeat.status) == (200, 412)


class LandsLongAfter(Doubt):
    """Its repeat is stored, and it lands when all is over."""

    def check(self) -> None:
        assert self.land() == 412


def test_pages_and_claims_in_doubt_count_once(
    seaweedfs_place: Place, proxy: FaultProxy, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    for kind in (ReplyLost, LandsBeforeItsRepeat, LandsLongAfter):
        for prefix in (JOURNAL, CLAIMS):
            check_doubt(cluster, proxy, kind(proxy, prefix))
    check_counted_once(cluster)


def check_doubt(cluster: Cluster, proxy: FaultProxy, doubt: Doubt) -> None:
    """Submit a job while ``doubt`` waits for its PUT: that counts, and the job runs once."""
    name = cluster.script(f"{type(doubt).__name__}.{len(cluster.state().jobs)}")
    cluster.wait_for_end(*cluster.submit(name))
    doubt.check()
    assert doubt.request is not None
    puts = [request.path for request in proxy.requests if request.method == "PUT"]
    assert puts.count(doubt.request.path) == doubt.sent
    assert cluster.bucket.get(key_of(doubt.request.path)) == doubt.request.body
    assert [what for _, what in cluster.runs_of(name)] == ["begin", "end"]


def check_counted_once(cluster: Cluster) -> None:
    """Nothing stands twice in the pages of one leader, who never had to give up."""
    pages = cluster.pages()
    facts = Counter((p.fact.writer, p.fact.n) for page in pages for p in page.facts)
    assigned = Counter(
        (decision.job, decision.attempt)
        for page in pages
        for decision in page.decisions
        if isinstance(decision, e.AttemptAssigned)
    )
    assert set(facts.values()) == set(assigned.values()) == {1}
    assert {job.state for job in cluster.state().jobs.values()} == {e.JobState.COMPLETED}
    report = cluster.verified()
    assert (report["epochs"], report["void_pages"]) == (1, 0)
