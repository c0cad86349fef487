"""What is really sent: seen by a proxy before SeaweedFS, and below botocore on Ceph's TLS."""

from __future__ import annotations

import random

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.httpsession import URLLib3Session

from ledger.clock import SystemClock
from ledger.stores.probe import probe
from ledger.stores.settling import SettlingStore
from tests.faults.proxy import FaultProxy
from tests.servers import REGION, Server
from tests.stores.conftest import page
from tests.stores.wire import find_faults


def use_everything(store: SettlingStore) -> None:
    """Every operation of a store, small and large bodies, wins and losses, and the probe."""
    store.put_new("journal/000000000000", page("mine"))
    store.put_new("journal/000000000000", page("theirs"))
    for _ in range(2):
        store.put_once("blobs/00", b"x" * 3_000_000)
        store.put_once("logs/a2b3c4d5.1/000000", b"")
    store.get_many(["journal/000000000000", "blobs/00", "blobs/01"])
    assert len(list(store.list(""))) == 3
    store.clock_ms()
    probe(store, clock=SystemClock(), rng=random.Random(1))


def test_every_request_through_the_proxy_keeps_the_promises(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    use_everything(proxied)
    requests = list(proxy.requests)
    assert {request.method for request in requests} == {"GET", "PUT"}
    faults = [
        (request.target, fault)
        for request in requests
        for fault in find_faults(request.method, request.target, request.headers)
    ]
    assert faults == []


def test_every_request_to_ceph_over_tls_keeps_the_promises(
    ceph_tls: Server, s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[AWSPreparedRequest] = []
    plain_send = URLLib3Session.send

    def recording_send(session: URLLib3Session, request: AWSPreparedRequest) -> object:
        sent.append(request)
        return plain_send(session, request)

    store = ceph_tls.open(ceph_tls.new_bucket())
    monkeypatch.setattr(URLLib3Session, "send", recording_send)
    use_everything(store)

    assert sum(store.counts.values()) == len(sent)
    assert {request.method for request in sent} == {"GET", "PUT"}
    assert all(request.url.startswith("https://127.0.0.1:") for request in sent)
    faults = [
        (request.url, fault)
        for request in sent
        for fault in find_faults(request.method, request.url, as_text(request))
    ]
    assert faults == []


def test_the_recorded_faults_are_seen_in_what_boto3_sends_by_default(
    seaweedfs: Server, proxy: FaultProxy, s3_credentials: None
) -> None:
    client = boto3.client("s3", endpoint_url=proxy.url, region_name=REGION)
    bucket = seaweedfs.new_bucket()
    client.put_object(Bucket=bucket, Key="a", Body=b"plain")
    client.delete_object(Bucket=bucket, Key="a")
    put, delete = proxy.requests
    assert {"is an unconditional PUT", "asks for 100-continue", "names a checksum algorithm"} <= (
        set(find_faults(put.method, put.target, put.headers))
    )
    assert "is a DELETE" in find_faults(delete.method, delete.target, delete.headers)


def as_text(request: AWSPreparedRequest) -> list[tuple[str, str]]:
    return [
        (name, text.decode() if isinstance(text, bytes) else str(text))
        for name, text in request.headers.items()
    ]
