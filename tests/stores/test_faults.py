"""Doubt and its settlement, on SeaweedFS behind a proxy that plays the faults."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from ledger.clock import SystemClock
from ledger.errors import InDoubtError, RequestError, TransientError
from ledger.stores import open_store, s3
from ledger.stores.base import Lost, Won
from ledger.stores.probe import probe
from ledger.stores.settling import NEWS_PATIENCE_MS, Sender, SettlingStore
from tests.faults.proxy import (
    Exchange,
    Fault,
    FaultProxy,
    answers_when,
    lost_reply,
    refuses,
    sent_twice,
    throttles,
)
from tests.servers import REGION, Server
from tests.stores.clocks import SteppedClock
from tests.stores.conftest import page

PAGE = "journal/000000000000"
MINE, THEIRS = page("mine"), page("theirs")


def sent(proxy: FaultProxy, method: str) -> int:
    return sum(request.method == method for request in proxy.requests)


def test_a_lost_reply_is_won_and_the_page_is_put_once(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    fault = proxy.inject(lost_reply, path=PAGE)
    assert proxied.put_new(PAGE, MINE) == Won()
    assert fault.hits == 1
    assert (sent(proxy, "PUT"), sent(proxy, "GET")) == (1, 1)
    assert proxied.get(PAGE) == MINE


def test_an_answer_that_outlasts_the_time_out_is_settled_by_reading(
    proxy: FaultProxy, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3._READ_TIMEOUT_S, Sender.DECIDING, 1)
    store = seaweedfs.behind(proxy.url).open(seaweedfs.new_bucket())
    never = threading.Event()
    fault = proxy.inject(answers_when(never), path=PAGE)
    assert store.put_new(PAGE, MINE) == Won()
    never.set()
    assert (fault.hits, sent(proxy, "PUT")) == (1, 1)


def test_ones_own_write_refused_as_existing_is_won(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    fault = proxy.inject(sent_twice, path=PAGE)
    assert proxied.put_new(PAGE, MINE) == Won()
    assert fault.hits == 1


def test_a_write_that_lands_after_it_read_as_missing_is_won_once(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    read_as_missing, landed = threading.Event(), threading.Event()

    def lands_late(exchange: Exchange) -> None:
        exchange.cut()
        assert read_as_missing.wait(20)
        assert exchange.forward().status == 200
        landed.set()

    def after_it_landed(exchange: Exchange) -> None:
        read_as_missing.set()
        assert landed.wait(20)
        answer = exchange.forward()
        assert answer.status == 412
        exchange.answer(answer)

    first = proxy.inject(lands_late, path=PAGE)
    second = proxy.inject(after_it_landed, path=PAGE)
    assert proxied.put_new(PAGE, MINE) == Won()
    assert (first.hits, second.hits) == (1, 1)
    assert proxied.get(PAGE) == MINE


def test_a_rival_that_wins_while_ones_own_write_is_in_doubt_makes_it_lost(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    def rival_lands_instead(exchange: Exchange) -> None:
        proxied.put_once(PAGE, THEIRS)
        exchange.cut()

    proxy.inject(rival_lands_instead, path=PAGE)
    assert proxied.put_new(PAGE, MINE) == Lost(THEIRS)


@pytest.mark.parametrize(
    "fault",
    [
        refuses(409, "ConditionalRequestConflict"),
        refuses(500, "InternalError"),
        refuses(503, "SlowDown"),
        refuses(502),
        throttles,
        Exchange.cut,
    ],
    ids=["409", "500", "503", "502 without code", "429 with HTML", "connection cut"],
)
def test_a_refusal_without_news_is_waited_out(
    proxied: SettlingStore, proxy: FaultProxy, fault: Fault
) -> None:
    on_put = proxy.inject(fault, count=2)
    assert proxied.put_new(PAGE, MINE) == Won()
    assert on_put.hits == 2

    again = proxy.inject(fault, count=2)
    proxied.put_once("blobs/00", b"body")
    assert again.hits == 2

    on_read = proxy.inject(fault, method="GET", count=4)
    assert proxied.get(PAGE) == MINE
    assert [entry.key for entry in proxied.list("blobs/")] == ["blobs/00"]
    assert on_read.hits == 4


def test_a_lost_reply_of_put_once_is_success(proxied: SettlingStore, proxy: FaultProxy) -> None:
    fault = proxy.inject(lost_reply, path="blobs/")
    proxied.put_once("blobs/00", b"body")
    assert fault.hits == 1
    assert proxied.get("blobs/00") == b"body"


def test_an_answer_cut_within_its_body_is_read_again(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    proxied.put_once("blobs/00", b"x" * 100_000)

    def cut_short(exchange: Exchange) -> None:
        exchange.answer_cut_short(exchange.forward())

    fault = proxy.inject(cut_short, method="GET", path="blobs/")
    assert proxied.get("blobs/00") == b"x" * 100_000
    assert fault.hits == 1


def stepped(proxy: FaultProxy, seaweedfs: Server) -> tuple[SettlingStore, SteppedClock]:
    """A store behind ``proxy`` whose waits take no time."""
    clock = SteppedClock()
    bucket = seaweedfs.new_bucket()
    store = open_store(
        f"s3://{bucket}",
        clock=clock,
        rng=random.Random(7),
        endpoint_url=proxy.url,
        region=REGION,
    )
    return store, clock


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.get(PAGE),
        lambda store: list(store.list("journal/")),
        lambda store: store.put_once(PAGE, MINE),
        lambda store: store.clock_ms(),
    ],
    ids=["get", "list", "put_once", "clock_ms"],
)
def test_a_store_that_only_throttles_is_transient_after_a_bounded_while(
    proxy: FaultProxy, seaweedfs: Server, ask: Callable[[SettlingStore], object]
) -> None:
    store, clock = stepped(proxy, seaweedfs)
    for method in ("GET", "PUT"):
        proxy.inject(refuses(429), method=method, count=None)
    with pytest.raises(TransientError, match="429"):
        ask(store)
    assert sum(clock.slept_ms) == NEWS_PATIENCE_MS


def test_put_new_in_doubt_beyond_its_patience_says_so(proxy: FaultProxy, seaweedfs: Server) -> None:
    store, clock = stepped(proxy, seaweedfs)
    fault = proxy.inject(Exchange.cut, count=None)
    with pytest.raises(InDoubtError, match=PAGE):
        store.put_new(PAGE, MINE, patience_ms=3_000)
    assert sum(clock.slept_ms) == 3_000
    fault.stop()
    assert store.put_new(PAGE, MINE) == Won()


def test_put_new_without_patience_asks_once_and_reads_once(
    proxy: FaultProxy, seaweedfs: Server
) -> None:
    store, clock = stepped(proxy, seaweedfs)
    proxy.inject(refuses(503, "SlowDown"), count=None)
    with pytest.raises(InDoubtError):
        store.put_new(PAGE, MINE, patience_ms=0)
    assert (sent(proxy, "PUT"), sent(proxy, "GET"), clock.slept_ms) == (1, 1, [])


def test_a_server_that_cannot_be_reached_leaves_nothing_in_doubt(
    seaweedfs: Server, s3_credentials: None
) -> None:
    with FaultProxy(seaweedfs.endpoint_url) as proxy:
        store, _ = stepped(proxy, seaweedfs)
    with pytest.raises(TransientError) as raised:
        store.put_new(PAGE, MINE)
    assert not isinstance(raised.value, InDoubtError)


def test_a_refusal_for_want_of_rights_ends_put_new_at_once(
    proxied: SettlingStore, proxy: FaultProxy
) -> None:
    proxy.inject(refuses(403, "AccessDenied"))
    with pytest.raises(RequestError, match="s3:PutObject"):
        proxied.put_new(PAGE, MINE)
    assert (sent(proxy, "PUT"), sent(proxy, "GET")) == (1, 0)


def test_a_throttled_probe_is_no_verdict(ceph: Server, s3_credentials: None) -> None:
    bucket = ceph.new_bucket()
    with FaultProxy(ceph.endpoint_url) as proxy:
        proxy.inject(throttles, path="/race/0003", count=4)
        store = ceph.behind(proxy.url).open(bucket)
        report = probe(store, clock=SystemClock(), rng=random.Random(1))
    assert report.refused is None
    assert report.undecided is not None
    assert report.undecided.name == "one winner"
    with pytest.raises(TransientError, match="try again"):
        report.require()


def test_a_probe_is_not_misled_by_a_gateway_that_sends_twice(
    ceph: Server, s3_credentials: None
) -> None:
    bucket = ceph.new_bucket()
    with FaultProxy(ceph.endpoint_url) as proxy:
        first = proxy.inject(sent_twice, path="/once/first")
        raced = proxy.inject(sent_twice, path="/race/", count=None)
        store = ceph.behind(proxy.url).open(bucket)
        report = probe(store, clock=SystemClock(), rng=random.Random(1))
    assert first.hits == 1
    assert raced.hits == 80
    report.require()
