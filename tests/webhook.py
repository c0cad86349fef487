"""A web server that keeps what was posted to it, on a free port of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    """``answers`` are the status codes of the next requests; then all get 204."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.posts: list[dict[str, Any]] = []
        """Bodies, also of requests that were not answered with 2xx."""
        self.url = ""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                webhook.posts.append(json.loads(self.rfile.read(length)))
                code = webhook.answers.pop(0) if webhook.answers else 204
                self.send_response(code)
                if 300 <= code < 400:
                    self.send_header("Location", webhook.url)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A running one; it ends with the block."""
    hook = Webhook()
    server = ThreadingHTTPServer(("127.0.0.1", 0), hook._handler())
    hook.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
