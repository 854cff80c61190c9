"""One request to the fake authority on its way to an answer, well-formed or not, and the server that brings it."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Handler = Callable[["Exchange"], None]


class Exchange:
    """One request on its way to an answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        self.handler, self.body = handler, body
        self.is_answered = False
        self.path = urlsplit(handler.path).path

    def answer(self, status: int, body: Any, *, content_type: str = "application/json", **headers: str) -> None:
        """Send a whole answer in one write."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} x", f"Content-Type: {content_type}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode() + data)

    def problem(self, status: int, code: str, detail: str = "no", **members: Any) -> None:
        """Send a problem document."""
        body = {"type": f"https://sentinel.test/problems/{code}", "title": code, "status": status, "detail": detail}
        body |= members
        self.answer(status, body, content_type="application/problem+json")

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.is_answered = True
        with contextlib.suppress(OSError):
            self.handler.wfile.write(data)
            self.handler.wfile.flush()

    def hang_up(self) -> None:
        """Close without another byte."""
        self.is_answered = True
        self.handler.close_connection = True


class Part(Exchange):
    """One request of a batch; its answer is kept for the batch's."""

    def __init__(self, whole: Exchange, body: dict[str, Any]) -> None:
        super().__init__(whole.handler, body)
        self.path = self.path.removesuffix("/batch")
        self.whole = whole
        self.said: Any = None

    def answer(self, status: int, body: Any, *, content_type: str = "application/json", **headers: str) -> None:
        if isinstance(body, bytes) or "json" not in content_type:
            self.whole.answer(status, body, content_type=content_type, **headers)
        else:
            self.said = {"status": status, "replayed": "Idempotent_Replayed" in headers, "body": body}

    def raw(self, data: bytes) -> None:
        self.whole.raw(data)

    def hang_up(self) -> None:
        self.whole.hang_up()


class FakeServer(ThreadingHTTPServer):
    """Takes a crowd, and stops at once: a server for each test is cheap."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.failures: list[str] = []
        """What was raised while a request was answered, of which its sender learns no more than that no answer came."""
        super().__init__(address, handler)

    def serve_forever(self, poll_interval: float = 0) -> None:
        """Take connections until `shutdown`, which no waiting for an interval delays."""
        while True:
            try:
                link, address = self.get_request()
            except OSError:
                return
            self.process_request(link, address)

    def shutdown(self) -> None:
        """Take no connection any more; what is connected stays so."""
        with contextlib.suppress(OSError):  # closed before
            self.socket.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed in the middle is what these tests are about; everything else is a fault, here or in the test."""
        if not isinstance(sys.exception(), ConnectionError):
            self.failures.append(traceback.format_exc())


def handler_for(handle: Handler) -> type[BaseHTTPRequestHandler]:
    """What the server does with each request: `handle` it as an exchange."""

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # killed in the middle of its question
                self.close_connection = True
                return
            handle(Exchange(self, json.loads(body)))

        def do_GET(self) -> None:
            handle(Exchange(self, None))

        def log_message(self, *_: Any) -> None:
            pass

    return Requests
