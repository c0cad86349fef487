"""Real servers that do not keep the store's promises are refused by the commands themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Gpuq
from tests.servers import CREDENTIALS_ENV, Server
from tests.servers.fixtures import _ceph, _rclone, ceph_pair  # noqa: F401

REQUEST_ERROR = 64


def is_refused(gpuq: Gpuq, url: str, server: Server, home: Path, reason: str) -> None:
    """By init, which leaves no trace of it, and by doctor."""
    refused = gpuq("init", url, "--endpoint-url", server.endpoint_url)
    assert (refused.rc, refused.out) == (REQUEST_ERROR, "")
    assert reason in refused.err
    assert refused.err.count("\n") == 1
    assert not (home / ".config/gpuq/config.toml").exists()
    _, _, bucket = url.partition("s3://")
    assert server.open(bucket).get("gpuq.json") is None
    examined = gpuq("doctor", "--store", url, "--endpoint-url", server.endpoint_url)
    assert examined.rc == REQUEST_ERROR
    assert reason in examined.err


@pytest.fixture
def home(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in CREDENTIALS_ENV.items():
        monkeypatch.setenv(name, text)
    return tmp_path / "home"


def test_rclone_is_refused(gpuq: Gpuq, rclone: Server, home: Path) -> None:
    url = f"s3://{rclone.new_bucket()}"
    is_refused(gpuq, url, rclone, home, "ignores If-None-Match")


def test_a_versioned_bucket_of_ceph_is_refused(gpuq: Gpuq, ceph: Server, home: Path) -> None:
    url = f"s3://{ceph.new_bucket(versioned=True)}"
    is_refused(gpuq, url, ceph, home, "keeps versions")
