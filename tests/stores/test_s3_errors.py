"""What servers say when they refuse: a table of answers, and real servers where they differ."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import botocore.auth
import pytest

from ledger.clock import SystemClock
from ledger.errors import GpuqError, RequestError, TransientError
from ledger.stores import open_store
from ledger.stores.s3_errors import Reply, find_date_ms, meaning
from ledger.stores.settling import SettlingStore
from tests.servers import REGION, Server
from tests.stores.clocks import SteppedClock
from tests.stores.conftest import page

NOON_MS = 1_800_014_400_000


def reply(
    status: int, code: str = "", *, operation: str = "GetObject", html: bool = False
) -> Reply:
    return Reply(
        operation=operation, status=status, code=code, message="said", date_ms=NOON_MS, is_html=html
    )


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (reply(429), TransientError, "429"),
        (reply(429, html=True), TransientError, "429"),
        (reply(408), TransientError, "408"),
        (reply(409, "ConditionalRequestConflict"), TransientError, "409"),
        (reply(500, "InternalError"), TransientError, "InternalError"),
        (reply(502), TransientError, "502"),
        (reply(503, "SlowDown"), TransientError, "SlowDown"),
        (reply(400, "RequestTimeout"), TransientError, "RequestTimeout"),
        (reply(404, html=True), TransientError, "404"),
        (reply(501, "NotImplemented"), RequestError, "conditional writes"),
        (reply(404, "NoSuchBucket"), RequestError, "create it"),
        (reply(403, "AccessDenied"), RequestError, "s3:ListBucket"),
        (reply(403, operation="GetObject"), RequestError, "s3:GetObject"),
        (reply(403, operation="PutObject"), RequestError, "s3:PutObject"),
        (reply(403, operation="ListObjectsV2"), RequestError, "s3:ListBucket"),
        (reply(403, "InvalidAccessKeyId"), RequestError, "AWS_ACCESS_KEY_ID"),
        (reply(403, "SignatureDoesNotMatch"), RequestError, "AWS_SECRET_ACCESS_KEY"),
        (reply(403, "QuotaExceeded"), RequestError, "quota"),
        (reply(400, "ExpiredToken"), RequestError, "renew"),
        (reply(301, "PermanentRedirect"), RequestError, "region"),
        (reply(400, "SomethingNew"), RequestError, "SomethingNew"),
    ],
    ids=lambda value: f"{value.status} {value.code}" if isinstance(value, Reply) else None,
)
def test_a_refusal_says_what_the_caller_does_next(
    refusal: Reply, kind: type[GpuqError], words: str
) -> None:
    error = meaning(refusal, url="s3://bucket", wall_ms=NOON_MS)
    assert type(error) is kind
    assert words in str(error)
    assert "s3://bucket" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("off_minutes", "words"), [(20, "20 minutes ahead of"), (-17, "17 minutes behind")]
)
def test_a_skewed_clock_is_named_with_its_minutes(off_minutes: int, words: str) -> None:
    skewed = reply(403, "RequestTimeTooSkewed")
    error = meaning(skewed, url="s3://bucket", wall_ms=NOON_MS + off_minutes * 60_000)
    assert isinstance(error, RequestError)
    assert words in str(error)
    assert "2027-01-15 12:00 UTC" in str(error)


@pytest.mark.parametrize(
    ("refusal", "absent"),
    [
        (reply(404, "NoSuchKey"), True),
        (reply(404, "404"), True),
        (reply(404, "NoSuchBucket"), False),
        (reply(404, "404", html=True), False),
        (reply(403, "AccessDenied"), False),
        (reply(500, "NoSuchKey"), False),
    ],
)
def test_only_a_404_about_the_key_means_not_yet(refusal: Reply, absent: bool) -> None:
    assert refusal.is_absent() == absent


def test_the_date_of_an_answer_is_read_or_is_missing() -> None:
    assert find_date_ms({"date": "Fri, 15 Jan 2027 12:00:00 GMT"}) == NOON_MS
    assert find_date_ms({"date": "Fri, 15 Jan 2027 12:00:00 -0000"}) == NOON_MS
    assert find_date_ms({"date": "noon"}) is None
    assert find_date_ms({}) is None


REAL = pytest.mark.parametrize("name", ["seaweedfs", "ceph", "ceph_tls"])


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest, s3_credentials: None) -> Server:
    running: Server = request.getfixturevalue(name)
    return running


def asks(store: SettlingStore) -> list[str]:
    """What each operation says where the set-up is wrong."""
    said = []
    for ask in (
        lambda: store.get("gpuq.json"),
        lambda: list(store.list("facts/")),
        lambda: store.put_once("blobs/00", b""),
        lambda: store.put_new("gpuq.json", page("mine")),
    ):
        with pytest.raises(RequestError) as raised:
            ask()
        said.append(str(raised.value))
    return said


@REAL
def test_a_bucket_that_is_not_there_is_named(server: Server) -> None:
    for said in asks(server.open("no-such-bucket-here")):
        assert "s3://no-such-bucket-here: there is no such bucket" in said


@REAL
def test_a_wrong_secret_key_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = server.new_bucket()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for said in asks(server.open(bucket)):
        assert "AWS_SECRET_ACCESS_KEY" in said


@REAL
def test_an_unknown_access_key_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = server.new_bucket()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    for said in asks(server.open(bucket)):
        assert "AWS_ACCESS_KEY_ID" in said


@REAL
def test_a_clock_twenty_minutes_off_is_named_where_the_server_refuses_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.new_bucket()
    off_ms = 20 * 60_000

    def skewed_now(*, remove_tzinfo: bool = True) -> datetime:
        now = datetime.now(UTC) + timedelta(milliseconds=off_ms)
        return now.replace(tzinfo=None) if remove_tzinfo else now

    monkeypatch.setattr(botocore.auth, "get_current_datetime", skewed_now)
    store = open_store(
        f"s3://{bucket}",
        clock=SteppedClock(wall_ms=SystemClock().wall_ms() + off_ms),
        rng=random.Random(1),
        endpoint_url=server.endpoint_url,
        region=REGION,
        ca_bundle=str(server.ca_bundle) if server.ca_bundle else None,
    )
    for said in asks(store):
        assert "20 minutes ahead of the server's" in said
        assert "(NTP)" in said


def test_a_certificate_of_an_unknown_authority_is_named(
    ceph_tls: Server, s3_credentials: None
) -> None:
    store = open_store(
        f"s3://{ceph_tls.new_bucket()}",
        clock=SystemClock(),
        rng=random.Random(1),
        endpoint_url=ceph_tls.endpoint_url,
        region=REGION,
    )
    for said in asks(store):
        assert "CA bundle" in said


def test_missing_credentials_are_named(
    seaweedfs: Server, s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = seaweedfs.new_bucket()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for said in asks(seaweedfs.open(bucket)):
        assert "AWS_ACCESS_KEY_ID" in said
