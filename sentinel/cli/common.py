"""Shared by the commands: database, tenant, acting operator, table or JSON output, and one-line errors.

Exit codes: 0 done, 1 refused or not found, 2 wrong use or configuration, 3 the database cannot be reached.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from marshmallow import ValidationError

from ops_console.accounts.operator_changes import known_operator
from sentinel.authority.actor import LOCAL_ADMINISTRATOR, Actor, local_administrator
from sentinel.authority.tenants import list_tenants
from sentinel.core.errors import InvalidInput, NotFound
from sentinel.platform.command_line import Command, InvalidUsage, terminal_text
from sentinel.platform.http.bodies import Text
from sentinel.store.address import database_url
from sentinel.store.database import CONSOLE, Pool, with_role
from sentinel.store.safety import require_schema

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText


def import_paths() -> str:
    """Return the `PYTHONPATH` with which a Python child process finds the same modules as this one."""
    return os.pathsep.join(path for path in sys.path if path)


def json_option(command: Command) -> Command:
    """Add `--json`: one JSON document on standard output, for scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)


class FreeText(click.ParamType[str]):
    """Free text under the same rule as over HTTP: bounded, only visible characters, and not empty unless `least` is 0."""

    name = "text"

    def __init__(self, most: int, *, least: int = 1) -> None:
        self._rule = Text(most=most, least=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged; a text that the rule refuses is wrong use of the command."""
        try:
            return str(self._rule.deserialize(value))
        except ValidationError as error:
            self.fail(" ".join(error.messages), param, ctx)


def reason_option(about: str, name: str = "--reason", *, most: int = 2000) -> Callable[[Command], Command]:
    """Return the decorator that adds a required option of free text, which is recorded: `--reason`, or another name."""
    return click.option(name, required=True, type=FreeText(most), help=about)


def as_option(about: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the decorator that adds `--as`: the address of the person who acts (`acting_as`)."""
    return click.option("--as", "email", required=required, metavar="EMAIL", help=about)


def tenant_option(command: Command) -> Command:
    """Add `--tenant`: whose records; needed only where there are several tenants."""
    return click.option(
        "--tenant",
        metavar="LABEL|ID",
        envvar="SENTINEL_TENANT_ID",
        help="The tenant; not needed when there is only one.",
    )(command)


def policies_option(command: Command) -> Command:
    """Add `--policies`: where else to look for the policy of a recorded decision."""
    return click.option(
        "--policies",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="SENTINEL_POLICIES_DIR",
        help="Folder of policy files, for a policy that no authority has declared yet.",
    )(command)


@contextlib.contextmanager
def open_pool(*, login: str = CONSOLE) -> Iterator[Pool]:
    """Yield a pool of the console's role on `SENTINEL_DATABASE_URL`, else on the embedded server of
    `SENTINEL_DATA_DIR`, there with the login `login`. Raises the errors of `require_schema`, and `EmbeddedError` where
    there is no embedded database.
    """
    with database_url(login) as url, contextlib.ExitStack() as stack:
        require_schema(url, CONSOLE)
        pool = Pool(with_role(url, CONSOLE, application_name="sentinel-cli"), size=1)
        stack.callback(pool.close)
        yield pool


def tenant_of(pool: Pool, tenant: str | None) -> uuid.UUID:
    """Return the tenant named by label or id, else the only one. Raises `NotFound` or `InvalidUsage`."""
    known = list_tenants(pool)
    if tenant:
        named = [one.tenant_id for one in known if tenant in (one.label, str(one.tenant_id))]
        if len(named) != 1:
            raise NotFound(f"there is no tenant {tenant}" if not named else f"several tenants have the label {tenant}")
        return named[0]
    if not known:
        raise NotFound("there is no tenant yet: create one with `sentinel tenants create LABEL`")
    if len(known) > 1:
        raise InvalidUsage(
            f"there are several tenants, choose one with --tenant: {', '.join(one.label for one in known)}"
        )
    return known[0].tenant_id


def acting_as(pool: Pool, tenant_id: uuid.UUID, email: str | None) -> Actor:
    """Return a local administrator acting for the named operator with that operator's role, or for no operator. Raises `NotFound`."""
    if email is None:
        return local_administrator(tenant_id)
    operator = known_operator(pool, tenant_id, email)
    if not operator.active:
        raise NotFound(f"{email} is deactivated")
    return Actor(tenant_id, operator.operator_id, operator.email, operator.role, LOCAL_ADMINISTRATOR)


def as_uuid(text: str, what: str) -> uuid.UUID:
    """Parse an id typed by a person. Raises `InvalidInput`."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise InvalidInput.of(what, "must be an id (a UUID)") from None


def show(value: Any, as_json: bool, text: str = "") -> None:
    """Print one result: as JSON, or the sentence for people."""
    print_json(value) if as_json else click.echo(terminal_text(text))


def show_secret(value: Any, as_json: bool, secret: str, note: str) -> None:
    """Print a secret that was just created: as JSON, or the secret alone on standard output, which may be redirected
    into a key file, and the note on standard error.
    """
    show(value, as_json, secret)
    if not as_json:
        click.echo(f"\n{note}", err=True)


def print_json(value: Any) -> None:
    """Print one line of JSON; the value may contain dataclasses, ids and times (UTC, with Z)."""
    click.echo(orjson.dumps(value, option=orjson.OPT_UTC_Z).decode())


def show_rows(
    rows: Sequence[Any], columns: Sequence[str], *, as_json: bool, empty: str, limit: int | None = None, most: int | None = None
) -> None:  # fmt: skip
    """Print rows (dataclasses): all fields as JSON, or the named columns as a table.

    At most `limit` rows are printed; a note on standard error says that there are more, and names the option that shows
    them unless `limit` is already the `most` that it takes.
    """
    if limit is not None and len(rows) > limit:
        rows = rows[:limit]
        click.echo(f"There are more than these {limit}{'' if limit == most else '; --limit shows more'}.", err=True)
    if as_json:
        print_json(list(rows))
    elif not rows:
        click.echo(empty)
    else:
        _table(rows, columns)


def _table(rows: Sequence[Any], columns: Sequence[str]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        # Ids must be copyable, so they are never broken over lines.
        table.add_column(name.replace("_", " "), overflow="fold", no_wrap=name.endswith("_id"))
    for row in rows:
        table.add_row(*(table_cell(_cell(getattr(row, name))) for name in columns))
    print_table(table)


def table_cell(text: str) -> RichText:
    """Return text from outside as a cell of a table."""
    from rich.text import Text

    # Text, not markup: what agents and operators wrote is shown and never interpreted.
    return Text(terminal_text(text))


def print_table(table: RichTable) -> None:
    """Print a table, 200 columns wide where there is no terminal; nothing where standard output is closed, as `click.echo`."""
    from rich.console import Console

    if sys.stdout is not None:
        Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:%Y-%m-%d %H:%M:%S}Z" if hasattr(value, "strftime") else str(value)
