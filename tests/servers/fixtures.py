"""Session fixtures of the real servers, for any conftest to register or import.

A server that is not installed skips its tests on a laptop and fails them where
``GPUQ_REQUIRE_SERVERS=1`` is set, as in CI: there a skipped test would be a hole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

import pytest

from tests.servers import (
    CREDENTIALS_ENV,
    MissingServerError,
    Server,
    ceph,
    moto,
    rclone,
    seaweedfs,
)

T = TypeVar("T")


def _started(server: AbstractContextManager[T]) -> Iterator[T]:
    with ExitStack() as at_the_end:
        try:
            running = at_the_end.enter_context(server)
        except MissingServerError as missing:
            if os.environ.get("GPUQ_REQUIRE_SERVERS") == "1":
                pytest.fail(f"GPUQ_REQUIRE_SERVERS=1, but {missing}", pytrace=False)
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope="session", name="seaweedfs")
def _seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(seaweedfs(tmp_path_factory.mktemp("seaweedfs")))


@pytest.fixture(scope="session")
def ceph_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """One Ceph RGW, over HTTP and over TLS."""
    yield from _started(ceph(tmp_path_factory.mktemp("ceph")))


@pytest.fixture(scope="session", name="ceph")
def _ceph(ceph_pair: tuple[Server, Server]) -> Server:
    return ceph_pair[0]


@pytest.fixture(scope="session")
def ceph_tls(ceph_pair: tuple[Server, Server]) -> Server:
    return ceph_pair[1]


@pytest.fixture(scope="session", name="rclone")
def _rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(rclone(tmp_path_factory.mktemp("rclone")))


@pytest.fixture(scope="session", name="moto")
def _moto() -> Iterator[Server]:
    yield from _started(moto())


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers' credentials in the environment of this process, and no others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, text in CREDENTIALS_ENV.items():
        monkeypatch.setenv(name, text)
