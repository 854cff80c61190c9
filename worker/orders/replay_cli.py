"""`worker order-review replay`, `sign` and `sources`: send orders as a source, from a file or by hand."""

from __future__ import annotations

import json
import random
import shlex
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sentinel.core.errors import SentinelError
from sentinel.core.wording import counted
from sentinel.platform.command_line import REFUSED, WRONG_USE, FiniteRange, terminal_text
from sentinel.platform.http.bodies import read_object
from sentinel.platform.resources import policies_dir
from worker.orders.online_retail import payload_of, read_retail_orders
from worker.orders.replay import ReplayedDelivery, ReplaySummary, Sender, replay
from worker.orders.settings import MOST_BODY_BYTES
from worker.orders.sources import FILE_NAME, OrderSource, Sources
from worker.orders.try_payload import show_trial, try_payload
from worker.presentation import cell, out
from worker.refunds.intake import lines_of
from worker.refunds.online_retail import WrongColumns

_SEED = 20101201
_CONNECT_SECONDS = 5.0

_url = click.option(
    "--url",
    default="http://127.0.0.1:7862",
    show_default=True,
    help="The intake's address.",
)
_source = click.option("--source", "name", default="demo", show_default=True, help="The source to sign as.")
_policies = click.option(
    "--policies", type=click.Path(path_type=Path, file_okay=False, exists=True), envvar="SENTINEL_POLICIES_DIR",
    default=policies_dir, help="Folder with order_sources.yaml.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command("replay")
@click.argument("file", type=click.File("rb"))
@_source
@_url
@_policies
@click.option(
    "--rate", type=FiniteRange(min=0.1, max=10_000), default=20.0, show_default=True, help="Deliveries per second."
)
@click.option("--redeliver", is_flag=True, help="Send each order twice, out of order and concurrently.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many orders.")
@click.option(
    "--seed", type=int, default=_SEED, show_default=True, help="Seed for the order in which --redeliver sends."
)
@_json
def replay_orders(
    file: BinaryIO, name: str, url: str, policies: Path, rate: float, redeliver: bool, limit: int | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Post the orders of the Online Retail CSV as signed webhooks; print lanes, latencies and conflicts.

    Exits with 1 unless every order has exactly one lane. A second run is answered from what the first one recorded.

    \b
    Examples:
      worker order-review replay online_retail.csv
      worker order-review replay online_retail.csv --redeliver --rate 100
    """
    with _told():
        source = _open_source(policies, name)
        lines = list(lines_of(file.read().decode("utf-8-sig")))
        orders, imported = read_retail_orders(lines, name)
    deliveries = [ReplayedDelivery(o.order_id, orjson.dumps(payload_of(o, source.fields))) for o in orders[:limit]]
    if redeliver:
        deliveries = deliveries * 2
        random.Random(seed).shuffle(deliveries)
    _require_somebody(url)
    tally = _run(Sender(url, source), deliveries, rate)
    if as_json:
        click.echo(json.dumps({**tally.as_json(), "not_sent": len(imported.refunds), "refused": len(imported.refused)}))
    else:
        _print_summary(tally)
    sys.exit(0 if tally.is_good else REFUSED)


def _require_somebody(url: str) -> None:
    """Fail at once if nothing listens at the intake's address; an intake that goes away later is retried instead."""
    try:
        address = urlsplit(url)
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"no answer from {url}: {error}; start `worker order-review serve` or name the intake's address with --url"
        ) from None


def _run(sender: Sender, deliveries: list[ReplayedDelivery], rate: float) -> ReplaySummary:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("orders", total=len(deliveries))
        return replay(
            deliveries, sender.send, per_second=rate, threads=min(32, max(4, int(rate))),
            on_answer=lambda answer: progress.advance(task), stop=sender.stop,
        )  # fmt: skip


def _print_summary(tally: ReplaySummary) -> None:
    found = tally.as_json()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("lane", "orders"):
        table.add_column(heading)
    for lane, count in found["lanes"].items():
        table.add_row(cell(lane), str(count))
    out().print(table)
    click.echo(
        f"{counted(found['deliveries'], 'delivery', 'deliveries')} of {counted(found['orders'], 'order')} in {found['seconds']:.1f} s."
    )
    for title, key in (("first", "latency_ms"), ("replayed", "replay_latency_ms")):
        if found[key]:
            click.echo(f"{title}: " + ", ".join(f"{name} {value:g} ms" for name, value in found[key].items()))
    names = ("replays", "in_flight", "other_body", "rate_limited", "unavailable")
    click.echo(", ".join(f"{name.replace('_', ' ')} {found[name]}" for name in names) + ".")
    if odd := {status: n for status, n in found["statuses"].items() if status not in ("200", "202")}:
        click.echo("other answers: " + ", ".join(f"{status} × {n}" for status, n in odd.items()), err=True)


@click.command("sign")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@_source
@_url
@_policies
def sign_webhook(file: Path, name: str, url: str, policies: Path) -> None:
    """Print the curl line that posts FILE as a signed webhook.

    \b
    Example:
      worker order-review sign order.json | sh
    """
    with _told():
        source = _open_source(policies, name)
    headers = {"Content-Type": "application/json"}
    headers |= source.signing.sign(file.read_bytes(), datetime.now(UTC), f"msg_{uuid.uuid4().hex}")
    parts = ["curl", "--silent", "--show-error", "--request", "POST"]
    for key, value in headers.items():
        parts += ["--header", f"{key}: {value}"]
    parts += ["--data-binary", f"@{file}", f"{url.rstrip('/')}/webhooks/{name}/orders"]
    click.echo(shlex.join(parts))


@click.command("sources")
@click.option(
    "--try", "payload", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="FILE",
    help="Read this payload as each source would, or as --source: nothing is sent or stored.",
)  # fmt: skip
@click.option("--source", "name", help="Only this source.")
@_policies
@_json
def sources(payload: Path | None, name: str | None, policies: Path, as_json: bool) -> None:
    """List the sources of orders and whether each has a secret; with --try, show what a source reads from a payload, and the resulting lane."""
    with _told():
        found = Sources.load(policies / FILE_NAME)
    if name is not None and found.find(name) is None:
        raise click.UsageError(f"there is no source {name}; known: {', '.join(one.name for one in found.all)}")
    if payload is not None:
        with _told():
            content = read_object(payload.read_bytes(), MOST_BODY_BYTES)
            tried = [try_payload(policies, one, content) for one in found.all if name in (None, one.name)]
        show_trial(tried, as_json=as_json)
        return
    rows = [
        {"source": s.name, "scheme": str(s.signing.scheme), "open": s.is_open, "secrets": len(s.signing.secrets),
         "burst": s.rate.burst, "per_second": s.rate.per_second, "about": s.about}
        for s in found.all if name in (None, s.name)
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps({"sources": rows}))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("source", "scheme", "open", "per second", "about"):
        table.add_column(heading)
    for row in rows:
        table.add_row(*(cell(_value(row[key])) for key in ("source", "scheme", "open", "per_second", "about")))
    out().print(table)


def _value(value: Any) -> str:
    return ("yes" if value else "no: its secret is not set") if isinstance(value, bool) else str(value)


def _open_source(policies: Path, name: str) -> OrderSource:
    table = Sources.load(policies / FILE_NAME)
    source = table.find(name)
    if source is None:
        raise click.UsageError(f"there is no source {name}; known: {', '.join(one.name for one in table.all)}")
    if not source.is_open:
        raise click.UsageError(f"the source {name} has no secret: set the variable that {FILE_NAME} names for it")
    return source


@contextmanager
def _told() -> Iterator[None]:
    """Turn the error of an unusable file into one line and exit status 2."""
    try:
        yield
    except (SentinelError, WrongColumns, UnicodeDecodeError) as error:
        text = f"the file is not UTF-8 at byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
        click.echo(f"error: {terminal_text(text)}", err=True)
        sys.exit(WRONG_USE)
