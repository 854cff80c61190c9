"""`sentinel serve`: the authority in the foreground."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--host", help="Address to listen on.  [SENTINEL_HOST, default 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [SENTINEL_PORT, default 7860]")
@click.option("--processes", type=click.IntRange(1, 64), help="Server processes.  [SENTINEL_PROCESSES, default 2]")
@click.option(
    "--graceful-seconds",
    type=click.IntRange(0, 300),
    default=20,
    show_default=True,
    help="How long SIGTERM waits for requests in hand.",
)
def command(graceful_seconds: int, **options: Any) -> None:
    """Run the authority until SIGTERM or Ctrl-C; SIGHUP reloads the policies.

    Uses SENTINEL_DATABASE_URL, or starts an embedded PostgreSQL in SENTINEL_DATA_DIR. Refuses to start on a schema that
    is not this program's (run `sentinel migrate`), on unsafe settings and on a taken port.
    """
    from sentinel.settings import load_settings
    from sentinel.store.embedded import kept_running
    from sentinel.wsgi import serve

    with contextlib.ExitStack() as stack:
        if not os.environ.get("SENTINEL_DATABASE_URL"):
            data_dir = Path(os.environ.get("SENTINEL_DATA_DIR", "var"))
            server = stack.enter_context(kept_running(data_dir))
            options["database_url"] = server.admin_url
            os.environ.setdefault("SENTINEL_SECRET_KEYS", kept_secret(data_dir))
        serve(load_settings(**options), graceful_seconds=graceful_seconds)


def kept_secret(data_dir: Path, name: str = "secret_key") -> str:
    """A signing secret that belongs to an embedded database: made once, readable by its owner only."""
    path = data_dir / name
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text().strip()
