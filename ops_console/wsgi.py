"""The console's process: refuse to start unsafe, then serve. In the foreground until SIGTERM."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import structlog

from ops_console.settings import ConsoleSettings
from sentinel.core.errors import SentinelError
from sentinel.logs import configure_logs
from sentinel.server import Server, metrics_folder
from sentinel.store.database import CONSOLE, describe, first_line, with_role
from sentinel.store.migrate import require_head
from sentinel.store.safety import require_safe
from sentinel.wsgi import require_free_port

log = structlog.get_logger("console")


class ConsoleCannotServe(SentinelError):
    """The database cannot be used; `detail` is one line."""

    code = "cannot-serve"


def require_ready_database(settings: ConsoleSettings) -> None:
    """Raise unless the database is reachable, at head and safe, as the console's own role."""
    try:
        with psycopg.connect(with_role(settings.database_url, CONSOLE), autocommit=True) as connection:
            require_head(connection)
            require_safe(connection)
    except psycopg.OperationalError as error:
        reason = first_line(error)
        if f'role "{CONSOLE}"' in reason:
            reason = "its roles are missing: run `sentinel migrate` first"
        raise ConsoleCannotServe(f"cannot use the database at {describe(settings.database_url)}: {reason}") from error


def serve(settings: ConsoleSettings, *, graceful_seconds: int = 5) -> None:
    """Run the console until it is told to stop. Raises one-line refusals before anything listens."""
    configure_logs(settings.log_level, program="console")
    require_free_port(settings.host, settings.port, "--console-port or SENTINEL_CONSOLE_PORT")
    require_ready_database(settings)
    with metrics_folder():
        from ops_console.app import create_app

        def make_app(worker: Any) -> Any:
            return create_app(settings, stopping=lambda: not worker.alive)

        log.info("serving", address=f"http://{settings.host}:{settings.port}", process=os.getpid())
        Server(
            make_app, host=settings.host, port=settings.port, processes=settings.processes, threads=settings.threads,
            graceful_seconds=graceful_seconds,
        ).run()  # fmt: skip
