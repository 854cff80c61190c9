"""The output of `sentinel demo` once it is ready: one JSON line, or tables."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.demo.orders import DemoOrderSource, curl_line

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything a visitor needs to go on; addresses begin with http://."""

    authority_url: str
    console_url: str
    orders_url: str
    board_url: str
    tenant_id: str
    agent_api_key: str
    operators: Sequence[Mapping[str, str]]
    order_source: DemoOrderSource
    database_url: str
    database_urls: Mapping[str, str]


def reloaded_text(directory: Path, database_url: str) -> str:
    """Return what a reload of this folder does: the versions in force, or the fault for which the last good ones stay.

    `database_url` is the authority's database; the policies' time zones are checked against it, as the authority does.
    """
    from sentinel.authority.policies import refuse_unknown_zones_at
    from sentinel.policy.errors import PolicyError
    from sentinel.policy.library import PolicyLibrary
    from sentinel.store.database import AUTHORITY, with_role

    try:
        library = PolicyLibrary.load(directory)
        refuse_unknown_zones_at(with_role(database_url, AUTHORITY), directory, library)
    except PolicyError as error:
        return f"{error.explain()}\nThe policies were not reloaded; the last valid ones stay in force."
    return "Policies reloaded: " + ", ".join(one.policy.version for one in library.policies)


def print_stopped() -> None:
    """Print the last line of `--once`."""
    click.echo(
        "The ledger was processed once, and everything is stopped. Without --once `sentinel demo` keeps running."
    )


def print_ready(ready: Ready, metrics: Mapping[str, str], *, as_json: bool) -> None:
    """Print the summary on standard output, nothing where that is closed; the URLs of the `metrics` of each program are not
    part of the JSON.
    """
    if sys.stdout is None:
        return
    if as_json:
        click.echo(json.dumps(asdict(ready)))
        sys.stdout.flush()
        return
    from rich.console import Console

    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print("[bold]sentinel is running[/]")
    # No table: in a narrow terminal it would cut keys and addresses, which are there to be copied.
    for name, value in _addresses(ready):
        click.echo(f"{name:<16} {value}")
    out.print(_table("Metrics, for monitoring only", (), list(metrics.items())))
    out.print(_people(ready))
    out.print("Sign and post an order; in the low lane it is fulfilled, in the other lanes it is shown in the console:")
    # Printed as it is: a line that is folded or coloured cannot be copied.
    click.echo(curl_line(ready.order_source))
    activate = Path(sys.prefix) / "bin" / "activate"
    if activate.is_file():
        out.print("To put sentinel, worker and retail-refund-agent on the PATH of another terminal:")
        click.echo(f". {shlex.quote(str(activate))}")
    out.print("Ctrl-C stops everything; starting again continues with the same data.")


def _addresses(ready: Ready) -> Sequence[tuple[str, str]]:
    authority, console, board = ready.authority_url, ready.console_url, ready.board_url
    return (
        ("Authority", authority), ("  documentation", f"{authority}/docs"), ("Public board", f"{board}/live"),
        ("  feed", f"{board}/ops/api/live/feed"), ("Console", f"{console}/ops"),
        ("Order intake", ready.order_source.url), ("  source", ready.order_source.name), ("  secret", ready.order_source.secret),
        ("Tenant", ready.tenant_id), ("Agent key", ready.agent_api_key), ("Database", ready.database_url),
    )  # fmt: skip


def _people(ready: Ready) -> Table:
    rows = [(person["role"], person["email"], person["password"]) for person in ready.operators]
    return _table("Sign-ins", ("role", "e-mail", "password"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    return table
