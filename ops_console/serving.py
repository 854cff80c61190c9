"""The console's processes: refuse unsafe settings, then serve operators and the public separately. In the foreground
until SIGTERM.

Each audience has its own listener, processes, threads and database connections: load on the public listener cannot make
the kill switch, which is on the operators' listener, unreachable.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from flask import Flask

from ops_console.audience import Audience
from ops_console.periodic import start_connection_notes, start_indexer, start_sampler, start_sweeper
from ops_console.settings import ConsoleSettings
from sentinel.core.errors import EngineUnavailable
from sentinel.platform.http.asgi import Edge
from sentinel.platform.logs import configure_logs
from sentinel.platform.serving.process_group import run_side_by_side
from sentinel.platform.serving.server import Listener, Server, metrics_folder, require_listeners
from sentinel.store.safety import require_board, require_ready

_BETWEEN_COUNTS_SECONDS = 0.3

log = structlog.get_logger("console")


def serve(
    settings: ConsoleSettings,
    *,
    audiences: Sequence[Audience] = (Audience.OPERATORS, Audience.PUBLIC),
    graceful_seconds: int = 5,
) -> None:
    """Run the console until SIGTERM. Raises errors of one line each, for the command line, before anything listens."""
    configure_logs(settings.log_level)
    shares = [_SHARES[audience](settings) for audience in audiences]
    require_listeners(*(share.listener for share in shares))
    _require_databases(settings, shares)
    with metrics_folder():
        # The metrics may be imported only once the folder of the shared counters exists; in the parent process, so that
        # the servers share the imported code.
        import ops_console.app  # noqa: F401

        run_side_by_side([partial(_serve, settings, share, graceful_seconds) for share in shares])


def _require_databases(settings: ConsoleSettings, shares: Sequence[_Share]) -> None:
    """Raise unless each login exists, is safe, and is allowed as many connections as all processes together may open with it."""
    opened: Counter[str] = Counter()  # by address, because several pools may share a login
    for share in shares:
        login = settings.login_of(share.audience)
        opened[login.url] += share.processes * login.connections
        opened[settings.board_database_url or login.url] += share.processes * settings.board_pool_size
        if login.ledger_url:
            opened[login.ledger_url] += share.processes * login.connections
    for login in dict.fromkeys(settings.login_of(share.audience) for share in shares):
        require_ready(login.url, login.role, connections=opened[login.url])
        if login.ledger_url:
            # The ledger may be down: the console can still set halts and decide approvals without it.
            with contextlib.suppress(EngineUnavailable):
                require_ready(login.ledger_url, login.role, connections=opened[login.ledger_url])
        board_url = settings.board_database_url or login.url
        require_board(board_url, connections=opened[board_url])


@dataclass(frozen=True, slots=True)
class _Share:
    """One audience's own listener and number of processes."""

    audience: Audience
    listener: Listener
    processes: int


def _operators(settings: ConsoleSettings) -> _Share:
    listener = Listener(
        settings.host, settings.port, settings.max_connections, settings.max_connections_per_address,
        "--port or SENTINEL_CONSOLE_PORT", "SENTINEL_CONSOLE_HEALTH_PORT", "SENTINEL_CONSOLE_MAX_CONNECTIONS",
        health=(settings.health_host, settings.health_port), behind_proxies=settings.trusted_proxies > 0,
    )  # fmt: skip
    return _Share(Audience.OPERATORS, listener, settings.processes)


def _public(settings: ConsoleSettings) -> _Share:
    listener = Listener(
        settings.board_host, settings.board_port, settings.board_max_connections, settings.board_max_connections_per_address,
        "--board-port or SENTINEL_BOARD_PORT", "SENTINEL_BOARD_HEALTH_PORT", "SENTINEL_BOARD_MAX_CONNECTIONS",
        health=(settings.health_host, settings.board_health_port), behind_proxies=settings.trusted_proxies > 0,
    )  # fmt: skip
    return _Share(Audience.PUBLIC, listener, settings.board_processes)


_SHARES = {Audience.OPERATORS: _operators, Audience.PUBLIC: _public}


def _serve(settings: ConsoleSettings, share: _Share, graceful_seconds: int) -> None:
    from ops_console.app import create_app

    def make_app(worker: Any) -> Edge:
        def stopping() -> bool:
            return not worker.alive

        app = create_app(settings, audience=share.audience, stopping=stopping)
        console = app.flask.extensions["console"]
        start_connection_notes(console, stopping=stopping)
        if share.audience is Audience.OPERATORS:
            start_sampler(console.pool, console.ledger, stopping=stopping)
            start_indexer(console, stopping=stopping)
            start_sweeper(console.pool, stopping=stopping)
        threading.Thread(target=_warm, args=(app.flask, share.audience), name="warm", daemon=True).start()
        return app

    log.info("serving", audience=share.audience.value, address=share.listener.url, process=os.getpid())
    Server(make_app, share.listener, processes=share.processes, graceful_seconds=graceful_seconds).run()


_FOLDERS = {Audience.OPERATORS: ("pages/", "shared/"), Audience.PUBLIC: ("board/", "confirm/", "shared/")}
"""The template folders that each audience's pages use."""


def _warm(app: Flask, audience: Audience) -> None:
    """Compile the templates, load the policies in force and count the board's last day, so that no first request has to."""
    for name in app.jinja_env.list_templates(["html"]):
        if name.startswith(_FOLDERS[audience]):
            app.jinja_env.get_template(name)
    console = app.extensions["console"]
    if not audience.is_public:
        console.inspector.read(console.pool)
    while audience.is_public and not console.board.counts.current().is_complete:
        time.sleep(_BETWEEN_COUNTS_SECONDS)
