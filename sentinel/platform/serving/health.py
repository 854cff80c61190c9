"""A listener for /healthz, /readyz and /metrics, for supervisors and Prometheus, of a program that serves nothing else.

Its threads are separate from the program's work, so that it answers even while the database does not.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import TCPServer
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flask import Flask, Response
from prometheus_client.exposition import ThreadingWSGIServer

from sentinel.platform.http import problems
from sentinel.platform.http.readiness import Readiness, alive, exposition_answer, readiness_answer
from sentinel.platform.serving.server import require_free_port

_CLIENT_SECONDS = 5.0
"""A client that sends nothing for so long is disconnected."""


def create_app(name: str, readiness: Readiness, exposition: Callable[[], bytes]) -> Flask:
    """The three routes of a program of that name; everything else is 404."""
    app = Flask(name, static_folder=None)
    app.add_url_rule("/healthz", "healthz", alive)
    app.add_url_rule("/readyz", "readyz", lambda: readiness_answer(readiness))

    def metrics() -> Response:
        return exposition_answer(exposition())

    app.add_url_rule("/metrics", "metrics", metrics)
    problems.register(app)
    return app


@contextmanager
def serving(app: Flask, host: str, port: int, variable: str) -> Iterator[None]:
    """Serve for the block. Raises `CannotServe`, naming the `variable`, when the address is taken."""
    require_free_port(host, port, variable)
    server = make_server(host, port, app, _server_of(host), handler_class=_Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True, name="health")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server_of(host: str) -> type[ThreadingWSGIServer]:
    class HealthServer(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def server_bind(self) -> None:
            # Not as `HTTPServer` does, which also looks the address up: where no name server answers, that takes half a minute.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = host, self.server_address[1]
            self.setup_environ()

    return HealthServer


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
