"""The bench's division of requests into polling and work, on requests that really passed."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.error import HTTPError

import pytest

from bench.requests import Meter, hourly, per_job
from tests.faults.proxy import FaultProxy

JOBS = 2


class _Bucket(BaseHTTPRequestHandler):
    """Answers 404 where ``missing`` is asked for, else 200."""

    def do_GET(self) -> None:
        self.send_response(404 if "missing" in self.path else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    server = HTTPServer(("127.0.0.1", 0), _Bucket)
    Thread(target=server.serve_forever, daemon=True).start()
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
        yield proxy
    server.shutdown()
    server.server_close()


def send(proxy: FaultProxy, method: str, target: str) -> None:
    request = urllib.request.Request(f"{proxy.url}/b/{target}", data=None, method=method)
    with suppress(HTTPError), urllib.request.urlopen(request, timeout=10):
        pass


def test_polling_is_told_from_work_and_from_polls_that_found_something(proxy: FaultProxy) -> None:
    meter = Meter(proxy, "b")
    for method, target in (
        ("GET", "?list-type=2&prefix=facts/"),
        ("GET", "journal/missing"),
        ("PUT", "beats/x"),
        ("GET", "beats/x"),
        ("GET", "journal/000000000001"),
        ("GET", "mailbox/n1-cpu0/00000000"),
        ("PUT", "facts/x"),
        ("GET", "facts/x"),
        ("PUT", "claims/x"),
    ):
        send(proxy, method, target)
    counted = per_job({"n1": meter}, JOBS)
    assert counted.beyond_polling == 3 / JOBS
    assert counted.found_by_polling == 2 / JOBS
    hour = hourly(meter.counts(), window_s=36)
    assert (hour.gets, hour.puts, hour.lists) == (500, 300, 100)


def test_what_commands_write_is_work_and_what_they_read_stands_apart(proxy: FaultProxy) -> None:
    meter = Meter(proxy, "b")
    send(proxy, "PUT", "facts/x")
    send(proxy, "GET", "journal/000000000001")
    send(proxy, "GET", "journal/missing")
    counted = per_job({"commands": meter}, JOBS)
    assert counted.beyond_polling == 1 / JOBS
    assert counted.read_by_commands == 2 / JOBS


def test_a_reset_meter_begins_anew(proxy: FaultProxy) -> None:
    meter = Meter(proxy, "b")
    send(proxy, "PUT", "facts/x")
    meter.reset()
    assert not meter.counts()
