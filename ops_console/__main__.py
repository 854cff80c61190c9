"""`python -m ops_console`: the console, and the public board on a listener of its own, in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import click

from sentinel.platform.command_line import OneLineCommand, one_line_errors
from sentinel.store.address import database_url
from sentinel.store.database import BOARD, PUBLIC


@click.command(name="ops_console", cls=OneLineCommand)
@click.option("--host", help="Address to listen on.  [SENTINEL_CONSOLE_HOST, default 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [SENTINEL_CONSOLE_PORT, default 7861]")
@click.option(
    "--board-port",
    type=click.IntRange(1, 65535),
    help="Port of the public board and the confirm page.  [SENTINEL_BOARD_PORT, default 7863]",
)
@click.option(
    "--only",
    type=click.Choice(["operators", "public"]),
    help="Serve only the operators' pages, or only the public board.",
)
@click.option(
    "--graceful-seconds",
    type=click.IntRange(0, 300),
    default=5,
    show_default=True,
    help="How long SIGTERM waits for requests in progress.",
)
@one_line_errors
def command(graceful_seconds: int, only: str | None, **options: Any) -> None:
    """Run the console and the public board on SENTINEL_DATABASE_URL, or on the embedded PostgreSQL of SENTINEL_DATA_DIR."""
    from ops_console.audience import Audience
    from ops_console.serving import serve
    from ops_console.settings import load_console_settings

    audiences = [Audience(only)] if only else [Audience.OPERATORS, Audience.PUBLIC]
    with _addresses(only) as addresses:
        settings = load_console_settings(**addresses, **options)
        serve(settings, audiences=audiences, graceful_seconds=graceful_seconds)


_PUBLIC = "SENTINEL_PUBLIC_DATABASE_URL"


@contextlib.contextmanager
def _addresses(only: str | None) -> Iterator[dict[str, str]]:
    """Yield the database URLs to override in the settings: none if the environment has them, else the embedded server's logins."""
    public, board = os.environ.get(_PUBLIC), os.environ.get("SENTINEL_BOARD_DATABASE_URL")
    if os.environ.get("SENTINEL_DATABASE_URL") or (only == "public" and public):
        yield {}
    else:
        own = _PUBLIC if only == "public" else "SENTINEL_DATABASE_URL"
        with (
            database_url(own_variable=own) as url, database_url(PUBLIC) as public_url, database_url(BOARD) as board_url
        ):  # fmt: skip
            yield {
                "database_url": url, "public_database_url": public or public_url, "board_database_url": board or board_url,
            }  # fmt: skip


if __name__ == "__main__":
    command()
