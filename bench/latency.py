"""``python -m bench.latency --store folder|seaweedfs``: starts, gaps and requests, measured.

Owns three measurements on real processes with the default timings:

- submit to start, of jobs submitted one by one while a slot is free;
- how long a slot is idle between two jobs while more wait;
- on SeaweedFS, behind a proxy for each node: requests by kind, per job and per idle hour.

Times are read from the ledger itself. docs/PERFORMANCE.md states the figures and the aims.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.requests import IdleHour, Kind, Meter, PerJob, hourly, per_job
from gpuq.render import plain_table
from ledger.clock import SystemClock
from ledger.journal import Journal, read_ledger
from ledger.stores import open_store
from ledger.stores.base import Store
from tests.faults.proxy import FaultProxy
from tests.servers import CREDENTIALS_ENV, Server, seaweedfs
from tools.figures import gaps_ms, percentile, waits_ms
from tools.fleet import Fleet

NODES = {"n1": 2, "n2": 2}
SINGLE_JOB = ("sleep", "0.5")
BACKLOG_SCRIPT = "#!/bin/sh\nsleep 1\n"
PAUSE_S = (0.5, 1.5)
IDLE_NODES = {"n1": 8, "n2": 8}
SETTLE_S = 15
"""Until the start of the processes no longer shows in an idle window."""
READY_TIMEOUT_S = 60
JOBS_TIMEOUT_S = 300


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured while jobs ran: single ones, then a backlog."""

    starts_ms: list[int]
    gaps_ms: list[int]
    single_requests: PerJob
    backlog_requests: PerJob


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fleet finds its store, and what counts the requests of each part of it."""

    url: str
    env: Mapping[str, str]
    endpoints: Mapping[str, str]
    """Of each node; empty for a folder."""
    meters: Mapping[str, Meter]
    store: Store
    """The same store, reached directly: what looks on is not counted."""


def main() -> int:
    """Measure and print; 0 unless something failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--store", choices=("folder", "seaweedfs"), default="folder")
    parser.add_argument("--jobs", type=int, default=100, help="half single, half as a backlog")
    parser.add_argument("--idle", type=int, default=120, help="seconds of the idle window")
    options = parser.parse_args()
    os.environ.update(CREDENTIALS_ENV)
    with ExitStack() as at_the_end:
        folder = Path(at_the_end.enter_context(tempfile.TemporaryDirectory(prefix="gpuq-bench-")))
        server = None
        if options.store == "seaweedfs":
            server = at_the_end.enter_context(seaweedfs(folder / "server"))
        with _place(server, folder / "busy", NODES) as place:
            busy = _busy(place, folder / "busy", options.jobs)
        _print_latencies(options.store, busy)
        if server is not None:
            _print_requests(busy)
            with _place(server, folder / "idle", IDLE_NODES) as place:
                _print_idle(_idle(place, folder / "idle", options.idle))
    return 0


@contextmanager
def _place(server: Server | None, folder: Path, nodes: Mapping[str, int]) -> Iterator[Place]:
    """A fresh store for a fleet in ``folder``; a bucket has a proxy for each node."""
    if server is None:
        url = (folder / "ledger").as_uri()
        store = open_store(url, clock=SystemClock(), rng=random.Random())
        yield Place(url=url, env={}, endpoints={}, meters={}, store=store)
        return
    bucket = server.new_bucket()
    with ExitStack() as proxies:
        names = (*nodes, "commands")
        proxy = {n: proxies.enter_context(FaultProxy(server.endpoint_url)) for n in names}
        yield Place(
            url=f"s3://{bucket}",
            env={**CREDENTIALS_ENV, "AWS_ENDPOINT_URL_S3": proxy["commands"].url},
            endpoints={name: proxy[name].url for name in nodes},
            meters={name: Meter(proxy[name], bucket) for name in names},
            store=server.open(bucket),
        )


@contextmanager
def _fleet(place: Place, folder: Path, nodes: Mapping[str, int]) -> Iterator[tuple[Fleet, Journal]]:
    """A fleet whose workers have all reported."""
    with Fleet(folder, place.url, place.env) as fleet:
        fleet.gpuq("init")
        journal = Journal(place.store, read_ledger(place.store).ledger)
        for name, slots in nodes.items():
            endpoint = place.endpoints.get(name)
            fleet.start_node(name, slots, {"--endpoint-url": endpoint} if endpoint else {})

        def all_ready() -> bool:
            journal.follow()
            workers = journal.projection.state.workers.values()
            return sum(worker.ready for worker in workers) == sum(nodes.values())

        fleet.wait_until(all_ready, deadline_s=READY_TIMEOUT_S, what="all workers are ready")
        yield fleet, journal


# -- busy


def _busy(place: Place, folder: Path, jobs: int) -> Busy:
    """Half of the jobs one by one, half as a backlog."""
    singles, backlog = jobs // 2, jobs - jobs // 2
    with _fleet(place, folder, NODES) as (fleet, journal):
        _reset(place)
        _submit_singly(fleet, journal, singles)
        single_jobs = dict(journal.projection.state.jobs)
        single_requests = per_job(place.meters, singles)
        _reset(place)
        _submit_backlog(fleet, journal, backlog)
        jobs_now = journal.projection.state.jobs
        swept = [job for name, job in jobs_now.items() if name not in single_jobs]
        return Busy(
            starts_ms=waits_ms(single_jobs.values()),
            gaps_ms=gaps_ms(swept),
            single_requests=single_requests,
            backlog_requests=per_job(place.meters, backlog),
        )


def _reset(place: Place) -> None:
    for meter in place.meters.values():
        meter.reset()


def _submit_singly(fleet: Fleet, journal: Journal, count: int) -> None:
    """One job after the other, never more than there are free slots, at odd moments."""
    rng = random.Random(1)
    slots = sum(NODES.values())
    for submitted in range(count):
        _wait_for(fleet, journal, ended=submitted - slots + 1, what="a slot is free")
        time.sleep(rng.uniform(*PAUSE_S))
        fleet.gpuq("submit", "-q", "--", *SINGLE_JOB)
    _wait_for(fleet, journal, ended=count, what="the single jobs ended")


def _submit_backlog(fleet: Fleet, journal: Journal, count: int) -> None:
    """Many scripts in one command, as a sweep is submitted."""
    before = len(journal.projection.state.ended)
    names = [f"sweep-{n:03d}.sh" for n in range(count)]
    for name in names:
        (fleet.work_dir / name).write_text(BACKLOG_SCRIPT)
    fleet.gpuq("submit", "-q", *names)
    _wait_for(fleet, journal, ended=before + count, what="the backlog ended")


def _wait_for(fleet: Fleet, journal: Journal, *, ended: int, what: str) -> None:
    def reached() -> bool:
        journal.follow()
        return len(journal.projection.state.ended) >= ended

    fleet.wait_until(reached, deadline_s=JOBS_TIMEOUT_S, what=what)


# -- idle


def _idle(place: Place, folder: Path, window_s: int) -> tuple[IdleHour, IdleHour]:
    """Requests an hour of a node that follows, and of the one that leads."""
    with _fleet(place, folder, IDLE_NODES) as (fleet, journal):
        leader = journal.projection.state.leader.partition("~")[0].removeprefix("dispatcher-")
        (follower,) = (name for name in IDLE_NODES if name != leader)
        time.sleep(SETTLE_S)
        _reset(place)
        time.sleep(window_s)
        counted = {name: hourly(place.meters[name].counts(), window_s) for name in IDLE_NODES}
        fleet.check_alive()
    return counted[follower], counted[leader]


# -- printing


def _print_latencies(store: str, measured: Busy) -> None:
    rows = [
        (name, str(len(values)), _s(percentile(values, 50)), _s(percentile(values, 95)), aim)
        for name, values, aim in (
            ("submit to start, a slot free", measured.starts_ms, "p50 2.5 s"),
            ("slot idle between two jobs", measured.gaps_ms, "p50 2.5 s"),
        )
    ]
    print(f"{store}: {sum(NODES.values())} workers on {len(NODES)} nodes")
    print(plain_table(("WHAT", "COUNT", "P50", "P95", "AIM"), rows), flush=True)


def _print_requests(busy: Busy) -> None:
    phases = (busy.single_requests, busy.backlog_requests)
    kinds = sorted({kind for phase in phases for kind in phase.by_kind})
    kinds.sort(key=lambda kind: kind.is_found_by_polling)
    rows = [
        _row(_kind_text(kind), [phase.by_kind.get(kind, 0) for phase in phases]) for kind in kinds
    ]
    rows += [
        _row("beyond polling", [phase.beyond_polling for phase in phases], aim="12"),
        _row("found by polling", [phase.found_by_polling for phase in phases]),
        _row("read by gpuq submit", [phase.read_by_commands for phase in phases]),
    ]
    print("\nrequests a job, without those that find nothing, LISTs and beats")
    print(plain_table(("REQUEST", "ONE BY ONE", "BACKLOG", "AIM"), rows), flush=True)


def _kind_text(kind: Kind) -> str:
    return f"{kind.verb} {kind.area}" + (" (polling)" if kind.is_found_by_polling else "")


def _row(what: str, values: Sequence[float], aim: str = "") -> tuple[str, ...]:
    return (what, *(f"{value:.1f}" for value in values), aim)


def _print_idle(idle: tuple[IdleHour, IdleHour]) -> None:
    follower, leader = idle
    print("\nrequests an hour of an idle node of 8 workers")
    rows = [
        ("follows", *(f"{n:.0f}" for n in follower.numbers), "8000 GETs, 70 PUTs"),
        ("leads", *(f"{n:.0f}" for n in leader.numbers), "300 PUTs, 5000 LISTs more"),
    ]
    print(plain_table(("NODE", "GET", "PUT", "LIST", "AIM"), rows))


def _s(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
