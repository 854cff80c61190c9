"""`worker order-review`: serve the intake, send orders to it, draw the lanes.

Exit status: 0 all well, 1 something was refused or failed, 2 usage or settings, 3 no database.
"""

from __future__ import annotations

from typing import Any

import click

from sentinel.platform.command_line import OneLineCommand, one_line_errors
from worker.diagrams import draw_command, order_lanes
from worker.orders.replay_cli import replay_orders, sign_webhook, sources
from worker.orders.reports_cli import reports


@click.group()
def order_review() -> None:
    """Order review: orders from webhooks are fulfilled, queued for an analyst, or held."""


@order_review.command(cls=OneLineCommand)
@click.option("--host", help="Address to listen on.  [SENTINEL_ORDERS_HOST, default 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on.  [SENTINEL_ORDERS_PORT, default 7862]")
@click.option(
    "--graceful-seconds", type=click.IntRange(0, 300), default=20, show_default=True,
    help="How long SIGTERM waits for orders in progress.",
)  # fmt: skip
@one_line_errors
def serve(graceful_seconds: int, **options: Any) -> None:
    """Run the intake until SIGTERM or Ctrl-C, on ORDERS_DATABASE_URL, SENTINEL_DATABASE_URL or the embedded PostgreSQL."""
    from sentinel.store.address import database_url
    from sentinel.store.database import ORDERS
    from worker.orders.serving import serve as run
    from worker.orders.settings import load_order_settings

    with database_url(ORDERS, own_variable="ORDERS_DATABASE_URL") as url:
        run(load_order_settings(database_url=url, **options), graceful_seconds=graceful_seconds)


@order_review.group()
def lanes() -> None:
    """The table of an order's lanes."""


lanes.add_command(draw_command("the lanes", order_lanes))


for command in (replay_orders, sign_webhook, sources, reports):
    order_review.add_command(command)
