"""`sentinel export`: the sender of events in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import click


@click.command()
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    help="Receivers sent to at the same time.  [SENTINEL_EXPORT_THREADS, default 4]",
)
def command(**options: Any) -> None:
    """Send events to their receivers until SIGTERM or Ctrl-C.

    Webhooks are managed with `sentinel webhooks`. Uses SENTINEL_EXPORT_DATABASE_URL, or SENTINEL_DATABASE_URL, or the
    embedded PostgreSQL in SENTINEL_DATA_DIR. Several may run at the same time, and may be ended at any moment: nothing
    is lost.
    """
    from sentinel.export.build import run
    from sentinel.export.settings import SECRET_FILE, load_export_settings
    from sentinel.platform.logs import configure_logs
    from sentinel.platform.settings import data_dir_secret
    from sentinel.store.address import data_dir, embedded_server
    from sentinel.store.database import EXPORTER

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.ExitStack() as stack:
        url = os.environ.get("SENTINEL_EXPORT_DATABASE_URL") or os.environ.get("SENTINEL_DATABASE_URL") or ""
        if not url:
            variables = ("SENTINEL_EXPORT_DATABASE_URL", "SENTINEL_DATABASE_URL")
            url = stack.enter_context(embedded_server(data_dir(), *variables)).url(user=EXPORTER)
            data_dir_secret(data_dir(), SECRET_FILE)
        settings = load_export_settings(database_url=url, **{name: value for name, value in options.items() if value})
        configure_logs(settings.log_level)
        run(settings, stop)
