"""The console's processes: refuse to start unsafe, then serve operators and the public apart. In the foreground until SIGTERM.

Each face has a listener, processes, threads and database connections of its own: whatever the public does to its listener,
the kill switch is on the other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog
from flask import Flask

from ops_console.face import Face
from ops_console.indexer import start_indexer
from ops_console.sampler import start_sampler
from ops_console.settings import ConsoleSettings
from sentinel.core.errors import EngineUnavailable
from sentinel.http.asgi import AsgiApp
from sentinel.logs import configure_logs
from sentinel.server import (
    OTHER_FILES,
    Server,
    metrics_folder,
    require_free_health_port,
    require_free_port,
    require_open_files,
)
from sentinel.side_by_side import run_side_by_side
from sentinel.store.database import CONSOLE
from sentinel.store.safety import require_board, require_ready

_BETWEEN_COUNTS_SECONDS = 0.3

log = structlog.get_logger("console")


def serve(
    settings: ConsoleSettings, *, faces: Sequence[Face] = (Face.OPERATORS, Face.PUBLIC), graceful_seconds: int = 5
) -> None:
    """Run the console until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="console")
    if Face.OPERATORS in faces:
        require_free_port(settings.host, settings.port, "--port or SENTINEL_CONSOLE_PORT")
        require_free_health_port((settings.health_host, settings.health_port), "SENTINEL_CONSOLE_HEALTH_PORT")
    if Face.PUBLIC in faces:
        require_free_port(settings.board_host, settings.board_port, "--board-port or SENTINEL_BOARD_PORT")
        require_free_health_port((settings.health_host, settings.board_health_port), "SENTINEL_BOARD_HEALTH_PORT")
    most = max(settings.max_connections, settings.board_max_connections)
    require_open_files(most + OTHER_FILES, "SENTINEL_CONSOLE_MAX_CONNECTIONS or SENTINEL_BOARD_MAX_CONNECTIONS")
    pools = (settings.processes if Face.OPERATORS in faces else 0) + (
        settings.board_processes if Face.PUBLIC in faces else 0
    )
    require_ready(settings.database_url, CONSOLE, connections=pools * settings.pool_size)
    if settings.ledger_url not in ("", settings.database_url):
        # Without the ledger the console still stops and decides.
        with contextlib.suppress(EngineUnavailable):
            require_ready(settings.ledger_url, CONSOLE, connections=pools * settings.pool_size)
    require_board(settings.board_database_url or settings.database_url, connections=pools * settings.board_pool_size)
    run = {Face.OPERATORS: _serve_operators, Face.PUBLIC: _serve_public}
    with metrics_folder():
        run_side_by_side([partial(run[face], settings, graceful_seconds) for face in faces])


def _serve_operators(settings: ConsoleSettings, graceful_seconds: int) -> None:
    def make_app(worker: Any) -> AsgiApp:
        def stopping() -> bool:
            return not worker.alive

        app, edge = _made(settings, Face.OPERATORS, stopping)
        console = app.extensions["console"]
        start_sampler(console.pool, console.ledger, stopping=stopping)
        start_indexer(console, stopping=stopping)
        return edge

    log.info("serving", address=f"http://{settings.host}:{settings.port}", process=os.getpid())
    Server(
        make_app, host=settings.host, port=settings.port, health=(settings.health_host, settings.health_port), processes=settings.processes, connections=settings.max_connections,
        connections_per_address=settings.max_connections if settings.trusted_proxies else settings.max_connections_per_address,
        graceful_seconds=graceful_seconds,
    ).run()  # fmt: skip


def _serve_public(settings: ConsoleSettings, graceful_seconds: int) -> None:
    def make_app(worker: Any) -> AsgiApp:
        return _made(settings, Face.PUBLIC, lambda: not worker.alive)[1]

    log.info("serving_public", address=f"http://{settings.board_host}:{settings.board_port}", process=os.getpid())
    Server(
        make_app, host=settings.board_host, port=settings.board_port, health=(settings.health_host, settings.board_health_port), processes=settings.board_processes,
        connections=settings.board_max_connections, graceful_seconds=graceful_seconds,
        connections_per_address=settings.board_max_connections if settings.trusted_proxies else settings.board_max_connections_per_address,
    ).run()  # fmt: skip


def _made(settings: ConsoleSettings, face: Face, stopping: Callable[[], bool]) -> tuple[Flask, AsgiApp]:
    # What counts is imported only once the folder of the shared counters is there.
    from ops_console.app import create_app, create_edge

    app = create_app(settings, face=face, stopping=stopping)
    threading.Thread(target=_warm, args=(app,), name="warm", daemon=True).start()
    return app, create_edge(app, settings.threads if face is Face.OPERATORS else settings.board_threads)


def _warm(app: Flask) -> None:
    """Compile the pages, read the policies and count the board's day before somebody waits for them."""
    for name in app.jinja_env.list_templates(extensions=["html"]):
        app.jinja_env.get_template(name)
    console = app.extensions["console"]
    console.book.read()
    while not console.board.counts.current().is_complete:
        time.sleep(_BETWEEN_COUNTS_SECONDS)
