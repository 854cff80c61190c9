"""The console's process: refuse to start unsafe, then serve. In the foreground until SIGTERM."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import structlog
from flask import Flask

from ops_console.sampler import start_sampler
from ops_console.settings import ConsoleSettings
from sentinel.core.errors import EngineUnavailable
from sentinel.logs import configure_logs
from sentinel.server import Server, metrics_folder, require_free_port, require_open_files
from sentinel.store.database import CONSOLE
from sentinel.store.safety import require_board, require_ready

# Connections of requests, to the database, of the program itself.
_OTHER_FILES = 1500
_BETWEEN_COUNTS_SECONDS = 0.3

log = structlog.get_logger("console")


def serve(settings: ConsoleSettings, *, graceful_seconds: int = 5) -> None:
    """Run the console until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="console")
    require_free_port(settings.host, settings.port, "--console-port or SENTINEL_CONSOLE_PORT")
    require_open_files(settings.max_streams + _OTHER_FILES, "SENTINEL_CONSOLE_MAX_STREAMS")
    pools = settings.processes * settings.pool_size
    require_ready(settings.database_url, CONSOLE, connections=pools)
    if settings.ledger_url not in ("", settings.database_url):
        # Without the ledger the console still stops and decides.
        with contextlib.suppress(EngineUnavailable):
            require_ready(settings.ledger_url, CONSOLE, connections=pools)
    board_url = settings.board_database_url or settings.database_url
    require_board(board_url, connections=settings.processes * settings.board_pool_size)
    with metrics_folder():
        from ops_console.app import create_app

        def make_app(worker: Any) -> Any:
            def stopping() -> bool:
                return not worker.alive

            app = create_app(settings, stopping=stopping)
            console = app.extensions["console"]
            start_sampler(console.pool, console.ledger, stopping=stopping)
            threading.Thread(target=_warm, args=(app,), name="warm", daemon=True).start()
            return app

        log.info("serving", address=f"http://{settings.host}:{settings.port}", process=os.getpid())
        Server(
            make_app, host=settings.host, port=settings.port, processes=settings.processes, threads=settings.threads,
            graceful_seconds=graceful_seconds,
        ).run()  # fmt: skip


def _warm(app: Flask) -> None:
    """Compile the pages, read the policies and count the board's day before somebody waits for them."""
    for name in app.jinja_env.list_templates(extensions=["html"]):
        app.jinja_env.get_template(name)
    console = app.extensions["console"]
    console.book.read()
    while not console.board.counts.current().is_complete:
        time.sleep(_BETWEEN_COUNTS_SECONDS)
