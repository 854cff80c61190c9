"""The worker's own listener: /healthz, /readyz and /metrics, for supervisors and Prometheus. No row, no customer, no key.

Served by threads apart from the rows: it answers while the authority or the database do not.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flask import Flask, Response
from prometheus_client.exposition import ThreadingWSGIServer

from sentinel.platform.http import problems
from sentinel.platform.http.readiness import alive, database_checks, exposition_answer, readiness_answer
from sentinel.platform.serving.server import require_free_port
from sentinel.store.database import WORKER
from sentinel.store.safety import database_status
from worker.key_check import KeyCheck
from worker.refunds.ledger import Ledger

_CLIENT_SECONDS = 5.0
"""A client that says nothing for so long is hung up on."""


def create_app(checks: Callable[[], Mapping[str, bool]], exposition: Callable[[], bytes]) -> Flask:
    """The three routes; everything else is 404."""
    app = Flask("worker.refunds.health", static_folder=None)
    app.add_url_rule("/healthz", "healthz", alive)
    app.add_url_rule("/readyz", "readyz", lambda: readiness_answer(checks()))

    def metrics() -> Response:
        return exposition_answer(exposition())

    app.add_url_rule("/metrics", "metrics", metrics)
    problems.register(app)
    return app


def readiness_of(ledger: Ledger, key: KeyCheck) -> Callable[[], Mapping[str, bool]]:
    """What /readyz asks: the database and its schema, and whether the authority takes the key as ours."""

    def checks() -> Mapping[str, bool]:
        fault = key.fault()
        standing = database_checks(lambda: database_status(ledger.pool, WORKER))
        return {**standing, "authority": fault is None or fault.answered, "key": fault is None}

    return checks


@contextmanager
def serving(app: Flask, host: str, port: int) -> Iterator[None]:
    """Serve for the block. Raises `CannotServe` when the address is taken."""
    require_free_port(host, port, "WORKER_HEALTH_PORT")
    server = make_server(host, port, app, _server_of(host), handler_class=_Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True, name="health")
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _server_of(host: str) -> type[ThreadingWSGIServer]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return type("HealthServer", (ThreadingWSGIServer,), {"address_family": family, "daemon_threads": True})


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
