"""Which URLs name a store, and what opening one costs."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from ledger.clock import SystemClock
from ledger.errors import RequestError
from ledger.stores import open_store
from ledger.stores.settling import SettlingStore


def opened(url: str, **options: str) -> SettlingStore:
    return open_store(url, clock=SystemClock(), rng=random.Random(1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("/srv/ledger", "file:///srv/ledger"),
        ("file:///srv/ledger", "file:///srv/ledger"),
        ("file:///srv/my%20ledger", "file:///srv/my%20ledger"),
        ("/srv/my ledger#1", "file:///srv/my%20ledger%231"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/team/gpuq/", "s3://bucket/team/gpuq"),
    ],
)
def test_a_store_says_its_url(typed: str, url: str, s3_credentials: None) -> None:
    assert opened(typed).url == url
    assert opened(opened(typed).url).url == url


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ledger", "no absolute path"),
        ("~/ledger", "no absolute path"),
        ("", "no absolute path"),
        ("file://ledger", "no absolute path"),
        ("https://host/bucket", "--endpoint-url"),
        ("s3://", "not the name of a bucket"),
        ("s3:///prefix", "not the name of a bucket"),
        ("s3://a", "not the name of a bucket"),
        ("s3://bucket/../x", "cannot be a prefix"),
        ("s3://bucket//x", "cannot be a prefix"),
        ("s3://bucket/a b", "cannot be a prefix"),
        (f"s3://bucket/{'x' * 101}", "cannot be a prefix"),
    ],
)
def test_what_names_no_store_is_refused_with_the_mend(typed: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as raised:
        opened(typed)
    assert "\n" not in str(raised.value)


def test_settings_that_cannot_be_right_are_refused_at_once(
    tmp_path: Path, s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="CA bundle"):
        opened("s3://bucket", ca_bundle=str(tmp_path / "missing.pem"))
    with pytest.raises(RequestError, match="endpoint"):
        opened("s3://bucket", endpoint_url="no url")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(RequestError, match="nobody"):
        opened("s3://bucket")


def test_boto3_is_not_imported_for_a_folder(tmp_path: Path) -> None:
    program = (
        "import random, sys\n"
        "from ledger.clock import SystemClock\n"
        "from ledger.stores import open_store\n"
        f"store = open_store({str(tmp_path)!r}, clock=SystemClock(), rng=random.Random(1))\n"
        "store.put_once('blobs/00', b'')\n"
        "print(sorted({'boto3', 'botocore', 'urllib3'} & set(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


def test_two_prefixes_of_one_bucket_are_two_ledgers(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("s3_credentials")
    server = request.getfixturevalue("moto")
    bucket = server.new_bucket()
    one, two = server.open(bucket, "one"), server.open(bucket, "one-more")
    whole = server.open(bucket)
    one.put_once("gpuq.json", b"1")
    two.put_once("gpuq.json", b"2")
    whole.put_once("gpuq.json", b"0")
    assert [store.get("gpuq.json") for store in (whole, one, two)] == [b"0", b"1", b"2"]
    assert [entry.key for entry in one.list("")] == ["gpuq.json"]
    assert [entry.key for entry in whole.list("")] == [
        "gpuq.json",
        "one-more/gpuq.json",
        "one/gpuq.json",
    ]
