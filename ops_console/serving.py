"""The console's processes: refuse to start unsafe, then serve operators and the public apart. In the foreground until SIGTERM.

Each face has a listener, processes, threads and database connections of its own: whatever the public does to its listener,
the kill switch is on the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from flask import Flask

from ops_console.gauge_sampler import start_sampler
from ops_console.listeners import Face
from ops_console.public_id_indexer import start_indexer
from ops_console.settings import ConsoleSettings
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.http.asgi import AsgiApp
from sentinel.platform.logs import configure_logs
from sentinel.platform.serving.process_group import run_side_by_side
from sentinel.platform.serving.server import Listener, Server, metrics_folder
from sentinel.store.database import CONSOLE
from sentinel.store.safety import require_board, require_ready

_BETWEEN_COUNTS_SECONDS = 0.3

log = structlog.get_logger("console")


def serve(
    settings: ConsoleSettings, *, faces: Sequence[Face] = (Face.OPERATORS, Face.PUBLIC), graceful_seconds: int = 5
) -> None:
    """Run the console until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="console")
    shares = [_SHARES[face](settings) for face in faces]
    for share in shares:
        share.listener.require()
    pools = sum(share.processes for share in shares)
    require_ready(settings.database_url, CONSOLE, connections=pools * settings.pool_size)
    if settings.ledger_url not in ("", settings.database_url):
        # Without the ledger the console still stops and decides.
        with contextlib.suppress(EngineUnavailable):
            require_ready(settings.ledger_url, CONSOLE, connections=pools * settings.pool_size)
    require_board(settings.board_database_url or settings.database_url, connections=pools * settings.board_pool_size)
    with metrics_folder():
        run_side_by_side([partial(_serve, settings, share, graceful_seconds) for share in shares])


@dataclass(frozen=True, slots=True)
class _Share:
    """What one face has of its own."""

    face: Face
    listener: Listener
    processes: int
    threads: int


def _operators(settings: ConsoleSettings) -> _Share:
    listener = Listener(
        settings.host, settings.port, settings.max_connections, settings.max_connections_per_address,
        "--port or SENTINEL_CONSOLE_PORT", "SENTINEL_CONSOLE_HEALTH_PORT", "SENTINEL_CONSOLE_MAX_CONNECTIONS",
        health=(settings.health_host, settings.health_port), behind_proxies=settings.trusted_proxies > 0,
    )  # fmt: skip
    return _Share(Face.OPERATORS, listener, settings.processes, settings.threads)


def _public(settings: ConsoleSettings) -> _Share:
    listener = Listener(
        settings.board_host, settings.board_port, settings.board_max_connections, settings.board_max_connections_per_address,
        "--board-port or SENTINEL_BOARD_PORT", "SENTINEL_BOARD_HEALTH_PORT", "SENTINEL_BOARD_MAX_CONNECTIONS",
        health=(settings.health_host, settings.board_health_port), behind_proxies=settings.trusted_proxies > 0,
    )  # fmt: skip
    return _Share(Face.PUBLIC, listener, settings.board_processes, settings.board_threads)


_SHARES = {Face.OPERATORS: _operators, Face.PUBLIC: _public}


def _serve(settings: ConsoleSettings, share: _Share, graceful_seconds: int) -> None:
    # What counts is imported only once the folder of the shared counters is there.
    from ops_console.app import create_app, create_edge

    def make_app(worker: Any) -> AsgiApp:
        def stopping() -> bool:
            return not worker.alive

        app = create_app(settings, face=share.face, stopping=stopping)
        if share.face is Face.OPERATORS:
            console = app.extensions["console"]
            start_sampler(console.pool, console.ledger, stopping=stopping)
            start_indexer(console, stopping=stopping)
        threading.Thread(target=_warm, args=(app,), name="warm", daemon=True).start()
        return create_edge(app, share.threads)

    log.info("serving", face=share.face.value, address=share.listener.url, process=os.getpid())
    Server(make_app, share.listener, processes=share.processes, graceful_seconds=graceful_seconds).run()


def _warm(app: Flask) -> None:
    """Compile the pages, read the policies and count the board's day before somebody waits for them."""
    for name in app.jinja_env.list_templates(extensions=["html"]):
        app.jinja_env.get_template(name)
    console = app.extensions["console"]
    console.book.read()
    while not console.board.counts.current().is_complete:
        time.sleep(_BETWEEN_COUNTS_SECONDS)
