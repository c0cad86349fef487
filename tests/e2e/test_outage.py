"""The bucket out of reach, for all or for one node; and everybody asleep at once.

Nothing that runs is given up for it, and what ended meanwhile is told afterwards, once. An
outage lasts as long as silence costs a node its jobs, which is ten minutes unscaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from ledger import events as e
from ledger.decisions import AttemptFound, LossDeclared, RevokeBegun
from ledger.events import JobState
from ledger.names import JobId
from ledger.state import Attempt
from ledger.timings import Timings
from tests.e2e.cluster import Cluster, Place
from tests.e2e.conftest import StartCluster
from tests.faults.proxy import Exchange, FaultProxy, refuses
from tests.servers import Server
from tools.fleet import FleetError

TIME_SCALE = 20
"""A silent node is stale after 9 s and gone after 30 s; a lease is 1.5 s."""
LONG_MS = Timings().scaled(TIME_SCALE).lost_ms + 2_000
DEADLINE_S = 120
CLOCKS_AGREE_MS = 2_000

T = TypeVar("T")


def last_long(cluster: Cluster) -> None:
    """Wait until what is played has lasted for longer than the longest limit."""
    ends_at = cluster.bucket.clock_ms() + LONG_MS
    cluster.wait_until(
        lambda: cluster.bucket.clock_ms() > ends_at, deadline_s=DEADLINE_S, what="a long time"
    )


def told(cluster: Cluster, kind: type[T]) -> list[tuple[e.Page, T]]:
    """Every fact, seen event and decision of that kind, with its page."""
    return [
        (page, said)
        for page in cluster.pages()
        for said in (*(posted.fact for posted in page.facts), *page.seen, *page.decisions)
        if isinstance(said, kind)
    ]


def the_run_of(cluster: Cluster, name: str, job: JobId) -> Attempt:
    """The attempt in which it ran, which must be the only one, and to the end."""
    begin, end = cluster.runs_of(name)
    assert (begin[1], end[1], begin[0]) == ("begin", "end", end[0])
    attempt = cluster.job(job).attempt(end[0])
    assert attempt is not None
    return attempt


# --- all writes refused


@contextmanager
def no_writes(proxy: FaultProxy) -> Iterator[None]:
    """The bucket is only read for a while."""
    refusal = proxy.inject(refuses(503, "ServiceUnavailable"), count=None)
    try:
        yield
    finally:
        refusal.stop()


def test_a_bucket_that_takes_no_writes_delays_what_is_told_and_costs_nothing(
    seaweedfs_place: Place, proxy: FaultProxy, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 2)
    cluster.serve("n2", 1)
    noted = folder / "ended"
    cluster.script("through.sh", cluster.gate("after"))
    cluster.script("within.sh", cluster.gate("within"), f"date +%s%3N >{noted}", rc=5)
    through, within = cluster.submit("through.sh", "within.sh")
    for job in (through, within):
        cluster.wait_for_state(job, JobState.RUNNING)

    with no_writes(proxy):
        cluster.open_gate("within")
        with pytest.raises(FleetError, match="kept on this machine"):
            cluster.gpuq("submit", "--name", "kept", "--", "true")
        last_long(cluster)
        last_page = len(cluster.pages())
        mended_at = cluster.bucket.clock_ms()
    cluster.gpuq("status")  # sends what was kept
    cluster.wait_for_end(within)
    assert [what for _, what in cluster.runs_of("through.sh")] == ["begin"]
    cluster.open_gate("after")
    cluster.wait_until(
        lambda: any(job.spec.name == "kept" for job in cluster.state().jobs.values()),
        deadline_s=DEADLINE_S,
        what="the kept job is posted",
    )
    (kept,) = (job.id for job in cluster.state().jobs.values() if job.spec.name == "kept")
    cluster.wait_for_end(through, kept)

    ends = told(cluster, e.AttemptFinished)
    assert sorted((end.job, end.rc) for _, end in ends) == sorted(
        [(through, 0), (within, 5), (kept, 0)]
    )
    (told_page,) = (page for page, end in ends if end.job == within)
    assert told_page.at >= mended_at - CLOCKS_AGREE_MS
    ended_at = the_run_of(cluster, "within.sh", within).ended_at
    assert ended_at is not None
    assert abs(ended_at - int(noted.read_text())) < CLOCKS_AGREE_MS
    the_run_of(cluster, "through.sh", through)
    assert given_up(cluster, since=last_page) == []
    assert cluster.verified()["void_pages"] == 0


def given_up(cluster: Cluster, since: int) -> list[tuple[int, object]]:
    """Nodes called silent, and attempts taken back or lost, from that page, with its seq."""
    return [
        (page.seq, said)
        for kind in (e.NodeSeen, RevokeBegun, LossDeclared, e.AttemptLost)
        for page, said in told(cluster, kind)
        if page.seq >= since and getattr(said, "liveness", None) is not e.Liveness.FRESH
    ]


# --- one node's own route is away


@pytest.fixture
def own_route(seaweedfs: Server) -> Iterator[FaultProxy]:
    """One node's way to SeaweedFS."""
    with FaultProxy(seaweedfs.endpoint_url) as running:
        yield running


@contextmanager
def cut(route: FaultProxy) -> Iterator[None]:
    """No request passes, for a while."""

    def hang_up(exchange: Exchange) -> None:
        exchange.cut()

    cuts = [route.inject(hang_up, method=method, count=None) for method in ("GET", "PUT", "HEAD")]
    try:
        yield
    finally:
        for each in cuts:
            each.stop()


def test_what_a_node_ran_while_it_was_away_counts_unless_it_ran_elsewhere_too(
    seaweedfs_place: Place, own_route: FaultProxy, folder: Path, start_cluster: StartCluster
) -> None:
    """``n2`` loses its route and keeps its job; ``n3`` sleeps, and its copy is superseded."""
    cluster = start_cluster(folder, seaweedfs_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.start_node("n2", 1, {"--endpoint-url": own_route.url})
    cluster.serve("n3", 1)
    cluster.script("busy.sh", cluster.gate("busy"))
    cluster.script("far.sh", "echo far", cluster.gate("far"), rc=3)
    cluster.script("copied.sh", "echo copy $GPUQ_ATTEMPT", cluster.gate("copied"))
    (busy,) = cluster.submit("--worker", "n1-cpu0", "busy.sh")
    (far,) = cluster.submit("--worker", "n2-cpu0", "far.sh")
    for job in (busy, far):
        cluster.wait_for_state(job, JobState.RUNNING)
    (copied,) = cluster.submit("--idempotent", "copied.sh")
    cluster.wait_for_state(copied, JobState.RUNNING)
    first = cluster.wait_for_begin("copied.sh")

    with cut(own_route), asleep(cluster, "n3") as sleeping:
        cluster.open_gate("busy")
        cluster.wait_for_state(far, JobState.NODE_FAIL)
        second = cluster.wait_for_begin("copied.sh", first + 1)
    cluster.wait_for_state(far, JobState.RUNNING)
    cluster.wait_until(
        lambda: not any(carries_attempt(process, first) for process in sleeping),
        deadline_s=DEADLINE_S,
        what="the superseded copy is killed",
    )
    cluster.open_gate("copied")
    cluster.open_gate("far")
    cluster.wait_for_end(copied, far)
    cluster.wait_until(
        lambda: all(attempt.outcome for attempt in cluster.job(copied).attempts),
        deadline_s=DEADLINE_S,
        what="the end of the superseded copy is told",
    )

    assert [said for _, said in told(cluster, AttemptFound)] == [AttemptFound(job=far, attempt=1)]
    assert cluster.logs(far) == b"far\n"
    assert cluster.runs_of("copied.sh") == [(first, "begin"), (second, "begin"), (second, "end")]
    assert cluster.logs(copied) == b"copy %d\n" % second
    shown = cluster.ended()
    assert {job: (shown[job]["state"], shown[job]["rc"]) for job in (far, copied)} == {
        far: ("FAILED", 3),
        copied: ("COMPLETED", 0),
    }
    assert the_run_of(cluster, "far.sh", far).rc == 3
    assert cluster.job(copied).attempts[first - 1].superseded
    assert cluster.verified()["void_pages"] == 0


# --- asleep


@contextmanager
def asleep(cluster: Cluster, *nodes: str) -> Iterator[list[psutil.Process]]:
    """All processes of these nodes, jobs included, do nothing for a while."""
    stopped: dict[int, psutil.Process] = {}

    def all_stopped() -> bool:
        awake = 0
        for process in processes_of(cluster, nodes):
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_STOPPED:
                    process.suspend()
                    stopped[process.pid] = process
                    awake += 1
        return not awake

    try:
        cluster.wait_until(all_stopped, deadline_s=DEADLINE_S, what=f"{nodes} sleep")
        yield list(stopped.values())
    finally:
        for process in stopped.values():
            with suppress(psutil.NoSuchProcess):
                process.resume()


def processes_of(cluster: Cluster, nodes: Sequence[str]) -> Iterator[psutil.Process]:
    folders = [str(cluster.folder / "state" / node) for node in nodes]
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            texts = [*process.environ().values(), *process.cmdline()]
            if any(folder in text for folder in folders for text in texts):
                yield process


def carries_attempt(process: psutil.Process, number: int) -> bool:
    """Whether it is a living process of a job, in its attempt of that number."""
    try:
        return process.environ().get("GPUQ_ATTEMPT") == str(number)
    except psutil.Error:
        return False


def test_when_everybody_sleeps_for_long_all_goes_on_as_if_nothing_had_been(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.serve("n2", 1)
    names = ("one.sh", "two.sh", "later.sh")
    for name in names:
        cluster.script(name, cluster.gate("end"), rc=3)
    one, two, later = cluster.submit(*names)
    for name, job in zip(names, (one, two), strict=False):
        cluster.wait_for_begin(name)  # a claim over which its runner slept starts nothing
        cluster.wait_for_state(job, JobState.RUNNING)

    with asleep(cluster, "n1", "n2"):
        last_page = len(cluster.pages())
        last_long(cluster)
    cluster.open_gate("end")
    cluster.wait_for_end(one, two, later)

    for name, job in zip(names, (one, two, later), strict=True):
        assert the_run_of(cluster, name, job).rc == 3
    assert given_up(cluster, since=last_page) == []
    assert cluster.verified()["void_pages"] == 0


def test_a_leader_that_slept_finds_another_one_and_steps_down(
    folder_place: Place, folder: Path, start_cluster: StartCluster
) -> None:
    cluster = start_cluster(folder, folder_place, time_scale=TIME_SCALE)
    cluster.init()
    cluster.serve("n1", 1)
    cluster.serve("n2", 1)
    former, epoch = cluster.leading_node(), cluster.state().epoch
    (leader,) = (
        process for process in processes_of(cluster, [former]) if "dispatcher" in process.cmdline()
    )
    cluster.script("meanwhile.sh")
    leader.suspend()
    try:
        cluster.wait_until(
            lambda: cluster.state().epoch > epoch, deadline_s=DEADLINE_S, what="another one leads"
        )
        (meanwhile,) = cluster.submit("meanwhile.sh")
        cluster.wait_for_end(meanwhile)
    finally:
        leader.resume()
    (said,) = (folder / "state" / former).glob("**/log/dispatcher.log")
    cluster.wait_until(
        lambda: "stepped down" in said.read_text(), deadline_s=DEADLINE_S, what="it steps down"
    )
    (afterwards,) = cluster.submit("meanwhile.sh")
    cluster.wait_for_end(afterwards)
    assert cluster.job(afterwards).state is JobState.COMPLETED
    assert cluster.verified()["difference"] is None
