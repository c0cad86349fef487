"""Stores to hold the contract against: a folder, moto, SeaweedFS, Ceph RGW (HTTP and TLS)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore
from tests.faults.proxy import FaultProxy
from tests.servers import Server
from tests.servers.fixtures import (  # noqa: F401 - fixtures that are used by their names
    _ceph,
    _moto,
    _rclone,
    _seaweedfs,
    ceph_pair,
    ceph_tls,
    s3_credentials,
)

# moto's conditional create is not atomic, SeaweedFS lists folder by folder.
ATOMIC = ("directory", "seaweedfs", "ceph", "ceph_tls")
ORDERED = ("directory", "moto", "ceph", "ceph_tls")
ALL = ("directory", "moto", "seaweedfs", "ceph", "ceph_tls")

Opener = Callable[[], SettlingStore]
"""Opens the same fresh ledger each time, as another process would."""


def page(put_id: str, **more: object) -> bytes:
    """A body as ``put_new`` wants it."""
    return json.dumps({"put_id": put_id, **more}).encode()


@pytest.fixture
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Parametrised indirectly with the name of a kind of store."""
    if request.param == "directory":
        url = f"file://{tmp_path}/ledger"
        return lambda: open_store(url, clock=SystemClock(), rng=random.Random())
    request.getfixturevalue("s3_credentials")
    server: Server = request.getfixturevalue(request.param)
    bucket = server.new_bucket()
    return lambda: server.open(bucket, "some/prefix")


@pytest.fixture
def store(opener: Opener) -> SettlingStore:
    return opener()


@pytest.fixture
def proxy(seaweedfs: Server, s3_credentials: None) -> Iterator[FaultProxy]:  # noqa: F811
    """In front of SeaweedFS."""
    with FaultProxy(seaweedfs.endpoint_url) as running:
        yield running


@pytest.fixture
def proxied(proxy: FaultProxy, seaweedfs: Server) -> SettlingStore:
    """A store on a fresh bucket of SeaweedFS that is reached through ``proxy``."""
    return seaweedfs.behind(proxy.url).open(seaweedfs.new_bucket())
