"""A recording HTTP proxy in front of a real S3 server that plays faults on demand.

    with FaultProxy(server.endpoint_url) as proxy:
        proxy.inject(lost_reply, method="PUT", path="journal/")
        ...  # the next PUT below journal/ is stored, and its answer never arrives

Requests and the ``Host`` header go on unchanged, so that signatures hold. A fault is a
function of the ``Exchange`` in hand: it may forward it, answer it, cut it, in any order. An
exchange that a fault neither answers nor cuts is cut.
"""

from __future__ import annotations

import http.client
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from tests.waiting import wait_until

_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding"}
_UPSTREAM_TIMEOUT_S = 60
_POLL_S = 0.02


@dataclass(frozen=True)
class Request:
    """What a client sent; ``path`` is decoded, ``/bucket/key``, without the query."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        return next((text for key, text in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Exchange:
    """One request in the hands of a fault."""

    def __init__(self, request: Request, handler: _Handler) -> None:
        self.request = request
        self.is_over = False
        self._handler = handler

    def forward(self) -> Answer:
        """Send the request to the server and return its answer, which the client awaits."""
        return self._handler.ask_upstream(self.request)

    def answer(self, answer: Answer) -> None:
        self.is_over = True
        self._handler.send(answer)

    def answer_cut_short(self, answer: Answer) -> None:
        """Answer with only half of the body that the headers promise, and hang up."""
        self.is_over = True
        self._handler.send(answer, promised_bytes=2 * len(answer.body))
        self._handler.hang_up()

    def cut(self) -> None:
        """Close the client's connection; it never learns what became of its request."""
        self.is_over = True
        self._handler.hang_up()


Fault = Callable[[Exchange], None]


class Injection:
    """A fault that waits for its requests. ``hits`` counts those that it got."""

    def __init__(self, fault: Fault, method: str, path: str, count: int | None) -> None:
        self.hits = 0
        self._fault = fault
        self._method = method
        self._path = path
        self._left = count

    def find_fault(self, request: Request) -> Fault | None:
        """The fault if ``request`` is one of those meant; it counts as a hit then."""
        if self._left == 0 or request.method != self._method or self._path not in request.path:
            return None
        if self._left is not None:
            self._left -= 1
        self.hits += 1
        return self._fault

    def stop(self) -> None:
        """No further request is hit."""
        self._left = 0

    def wait_for_hits(self, count: int = 1, *, deadline_s: float = 20) -> None:
        wait_until(lambda: self.hits >= count, deadline_s=deadline_s, what=f"{count} faults hit")


class FaultProxy:
    """An HTTP proxy on a free port of 127.0.0.1; thread-safe."""

    def __init__(self, upstream_url: str) -> None:
        address = urlsplit(upstream_url)
        assert address.scheme == "http"
        assert address.hostname is not None
        self.upstream = (address.hostname, address.port or 80)
        self._lock = threading.Lock()
        self._injections: list[Injection] = []
        self._requests: list[Request] = []
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def requests(self) -> Iterable[Request]:
        """What came in so far, in order of arrival."""
        with self._lock:
            return tuple(self._requests)

    def inject(
        self, fault: Fault, *, method: str = "PUT", path: str = "", count: int | None = 1
    ) -> Injection:
        """Play ``fault`` on the next ``count`` requests (None: all) of ``method`` whose
        path contains ``path``. The injection made first is asked first."""
        injection = Injection(fault, method, path, count)
        with self._lock:
            self._injections.append(injection)
        return injection

    def handle(self, exchange: Exchange) -> None:
        with self._lock:
            self._requests.append(exchange.request)
            found = (injection.find_fault(exchange.request) for injection in self._injections)
            fault = next((fault for fault in found if fault is not None), _pass_on)
        fault(exchange)
        if not exchange.is_over:
            exchange.cut()


def _pass_on(exchange: Exchange) -> None:
    exchange.answer(exchange.forward())


def lost_reply(exchange: Exchange) -> None:
    """The server applies the request; the answer never reaches the client."""
    exchange.forward()
    exchange.cut()


def lands_after(release: threading.Event) -> Fault:
    """The client is cut off at once; the request reaches the server after ``release``."""

    def fault(exchange: Exchange) -> None:
        exchange.cut()
        if release.wait(_UPSTREAM_TIMEOUT_S):
            exchange.forward()

    return fault


def sent_twice(exchange: Exchange) -> None:
    """A gateway that repeats: the client sees the answer to the second sending."""
    exchange.forward()
    exchange.answer(exchange.forward())


def answers_when(release: threading.Event) -> Fault:
    """The request is applied at once, and its answer held back until ``release``."""

    def fault(exchange: Exchange) -> None:
        answer = exchange.forward()
        if release.wait(_UPSTREAM_TIMEOUT_S):
            exchange.answer(answer)

    return fault


def held_until(release: threading.Event) -> Fault:
    """The request waits for ``release`` before it reaches the server; then all is normal."""

    def fault(exchange: Exchange) -> None:
        if release.wait(_UPSTREAM_TIMEOUT_S):
            _pass_on(exchange)

    return fault


def refuses(status: int, code: str = "") -> Fault:
    """Nothing is applied; an S3 error of ``status`` and ``code`` is the answer."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>played</Message></Error>"
    answer = Answer(status, (("Content-Type", "application/xml"),), body.encode())
    return lambda exchange: exchange.answer(answer)


def throttles(exchange: Exchange) -> None:
    """429 with a page of HTML, as Hetzner's front end answers."""
    page = b"<html><head></head><body><h1>429 Too Many Requests</h1></body></html>"
    exchange.answer(Answer(429, (("Content-Type", "text/html"),), page))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone meanwhile is part of the play; the rest is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, tuple(self.headers.items()), body)
        self.server.proxy.handle(Exchange(request, self))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

    def ask_upstream(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(
            *self.server.proxy.upstream, timeout=_UPSTREAM_TIMEOUT_S
        )
        try:
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, text in request.headers:
                if name.lower() not in _HOP_HEADERS:
                    connection.putheader(name, text)
            connection.endheaders(request.body or None)
            response = connection.getresponse()
            return Answer(response.status, tuple(response.getheaders()), response.read())
        finally:
            connection.close()

    def send(self, answer: Answer, *, promised_bytes: int | None = None) -> None:
        self.send_response_only(answer.status)
        for name, text in answer.headers:
            if name.lower() not in {*_HOP_HEADERS, "content-length"}:
                self.send_header(name, text)
        length = len(answer.body) if promised_bytes is None else promised_bytes
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):  # the client may have hung up first
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """The recorded requests are the log."""
