"""Where the tests of this folder run: a folder, SeaweedFS behind a recording proxy, Ceph RGW."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from ledger.stores import open_store
from tests.e2e.cluster import PREFIX, Cluster, Place
from tests.faults.proxy import FaultProxy
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import (  # noqa: F401 - fixtures that are used by their names
    _ceph,
    _seaweedfs,
    ceph_pair,
    ceph_tls,
    s3_credentials,
)

StartCluster = Callable[..., Cluster]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name occurs nowhere else: by it, processes are found."""
    return Path(tempfile.mkdtemp(prefix="gpuq-e2e-", dir=tmp_path))


@pytest.fixture
def start_cluster() -> Iterator[StartCluster]:
    """Makes clusters on places; nothing of them runs when the test is over."""
    with ExitStack() as at_the_end:

        def start(folder: Path, place: Place, *, time_scale: int) -> Cluster:
            return at_the_end.enter_context(Cluster(folder, place, time_scale=time_scale))

        yield start


@pytest.fixture
def folder_place(folder: Path) -> Place:
    url = (folder / "ledger").as_uri()
    return Place(url, lambda: open_store(url, clock=SystemClock(), rng=random.Random()))


@pytest.fixture
def proxy(seaweedfs: Server, s3_credentials: None) -> Iterator[FaultProxy]:  # noqa: F811
    """In front of SeaweedFS."""
    with FaultProxy(seaweedfs.endpoint_url) as running:
        yield running


@pytest.fixture
def seaweedfs_place(seaweedfs: Server, proxy: FaultProxy) -> Place:
    """SeaweedFS, which all processes reach through ``proxy``."""
    return place_on(seaweedfs, endpoint_url=proxy.url)


@pytest.fixture
def ceph_place(ceph: Server, s3_credentials: None) -> Place:  # noqa: F811
    return place_on(ceph, endpoint_url=ceph.endpoint_url)


@pytest.fixture
def ceph_tls_place(ceph_tls: Server, s3_credentials: None) -> Place:  # noqa: F811
    return place_on(ceph_tls, endpoint_url=ceph_tls.endpoint_url)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """Parametrised indirectly with the name of a kind of place."""
    chosen: Place = request.getfixturevalue(f"{request.param}_place")
    return chosen


def place_on(server: Server, *, endpoint_url: str) -> Place:
    """A prefix of a fresh bucket."""
    bucket = server.new_bucket()
    flags = ["--endpoint-url", endpoint_url]
    if server.ca_bundle is not None:
        flags += ["--ca-bundle", str(server.ca_bundle)]
    return Place(
        f"s3://{bucket}/{PREFIX}",
        lambda: server.open(bucket, PREFIX),
        tuple(flags),
        CREDENTIALS_ENV,
    )
