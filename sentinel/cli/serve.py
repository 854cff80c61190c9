"""`sentinel serve`: the authority in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--host", help="Address to listen on.  [SENTINEL_HOST, default 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [SENTINEL_PORT, default 7860]")
@click.option("--processes", type=click.IntRange(1, 64), help="Server processes.  [SENTINEL_PROCESSES, default 1]")
@click.option(
    "--graceful-seconds",
    type=click.IntRange(0, 300),
    default=20,
    show_default=True,
    help="Seconds that requests in progress may take after SIGTERM.",
)
def command(graceful_seconds: int, **options: Any) -> None:
    """Run the authority until SIGTERM or Ctrl-C; SIGHUP reloads the policies.

    Uses SENTINEL_DATABASE_URL, or starts an embedded PostgreSQL in SENTINEL_DATA_DIR. Refuses to start on a schema that
    is not this program's (run `sentinel migrate`), on unsafe settings and on a taken port.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with contextlib.ExitStack() as stack:
        if not os.environ.get("SENTINEL_DATABASE_URL"):
            from sentinel.authority.settings import CHECKPOINTS, load_settings
            from sentinel.platform.settings import data_dir_secret
            from sentinel.store.address import data_dir, require_embedded_database

            load_settings(**options)  # what is malformed or unsafe is told before a database is started
            folder = data_dir()
            require_embedded_database(folder, "SENTINEL_DATABASE_URL")
            options["database_url"] = _database(stack, folder, stopping)
            kept = {
                "SENTINEL_SECRET_KEYS": data_dir_secret(folder),
                "SENTINEL_CHECKPOINT_FILE": str(folder / CHECKPOINTS),
            }
            os.environ.update({name: value for name, value in kept.items() if not os.environ.get(name)})
        _serve(graceful_seconds, stopping, options)


def _database(stack: contextlib.ExitStack, data_dir: Path, stopping: threading.Event) -> str:
    """Start the embedded server and return the authority's URL on it. Exits with status 0 when asked to stop during the start."""
    from sentinel.store.database import AUTHORITY
    from sentinel.store.embedded import StartGivenUp, supervised

    try:
        return stack.enter_context(supervised(data_dir, should_stop=stopping.is_set)).url(user=AUTHORITY)
    except StartGivenUp:
        sys.exit(0)


def _serve(graceful_seconds: int, stopping: threading.Event, options: dict[str, Any]) -> None:
    from sentinel.authority.serving import serve
    from sentinel.authority.settings import load_settings

    def leave(*_: Any) -> None:
        # Only once: a second signal must not interrupt the shutdown that the first one began.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        sys.exit(0)

    # Until the server sets its own handlers, only the database is running, and the caller stops it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    if stopping.is_set():
        leave()
    serve(load_settings(**options), graceful_seconds=graceful_seconds)
