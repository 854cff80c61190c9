"""`worker enqueue` and `worker facts`: rows and facts from files into the ledger, good lines kept, bad ones named.

Exit status: 0 all well, 1 something was refused, 2 usage or settings, 3 no database.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sentinel.core.errors import SentinelError
from sentinel.core.utf8 import faulty_line
from sentinel.core.wording import counted
from sentinel.platform.command_line import terminal_text
from worker.presentation import new_rows_table, out, shared_budget_line, unknown_order_line
from worker.refunds.build import open_ledger
from worker.refunds.csv_rows import CsvFormat, WrongMapping, pairs, read_csv
from worker.refunds.facts_file import read_facts, store_facts
from worker.refunds.intake import Accepted, Refusal, read_objects, rows_of
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.rows import NewRow
from worker.refunds.settings import read_settings
from worker.refunds.workflow.routes import MAY_BE_UNKNOWN
from worker.retail_refund_agent import FAILED, MISUSED, refusals

_SHOWN, _STEP = 10, 1000


_ROW_FILE = (
    click.argument("file", type=click.File("rb")),
    click.option(
        "--format", "form", type=click.Choice(["auto", "json", "jsonl", "csv"]), default="auto", show_default=True,
        help="auto: CSV if FILE ends in .csv or .tsv, or a mapping is given; json and jsonl mean the same.",
    ),
    click.option(
        "--map", "maps", multiple=True, metavar="FIELD=COLUMN", help="CSV: the column of a field, e.g. amount=Total."
    ),
    click.option(
        "--set", "constants", multiple=True, metavar="FIELD=VALUE", help="CSV: one value of a field for every row, e.g. currency=EUR."
    ),
    click.option("--delimiter", help="CSV: one character, or tab; default: detected from the header."),
    click.option("--decimal-comma", is_flag=True, help="CSV: amounts are written 12,50."),
)  # fmt: skip


def reads_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command FILE of refund rows and the options of its format; `found` has every row, good or refused.

    A row that names no agent gets the worker's (`WORKER_AGENT_ID`): a worker whose key is bound to its agent takes no
    other rows.
    """

    @functools.wraps(command)
    def reading(
        file: BinaryIO, form: str, maps: tuple[str, ...], constants: tuple[str, ...], delimiter: str | None,
        decimal_comma: bool, **options: Any,
    ) -> None:  # fmt: skip
        try:
            mapping = CsvFormat(pairs(maps, "--map"), pairs(constants, "--set"), delimiter, decimal_comma)
            with refusals():
                agent_id = read_settings(needs_authority=False).agent_id
            found = list(rows_of(_objects(file, form, mapping), agent_id))
        except WrongMapping as error:
            click.echo(f"error: {terminal_text(str(error))}", err=True)
            sys.exit(MISUSED)
        command(found=found, **options)

    for option in reversed(_ROW_FILE):
        reading = option(reading)
    return reading


@click.command()
@reads_rows
@click.option("--dry-run", is_flag=True, help="Show what would be entered; no database is used.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def enqueue(found: Sequence[Accepted | Refusal], dry_run: bool, as_json: bool) -> None:
    """Enter refund rows from FILE: JSON lines, one object, an array, or a CSV; - reads standard input.

    Good rows are entered, the others are named line by line: the field, the rule, and for an unknown channel, scenario
    or mode the nearest known name. Rows without an account or a known order are counted: the shipped policies deny
    them. In a CSV a column named like a field is that field; --map and --set give the others.

    \b
    Examples:
      worker enqueue rows.jsonl
      worker enqueue - < row.json
      worker enqueue refunds.csv --map ledger_entry_id=Id --map refund_id=Id --map amount=Total --set currency=EUR --dry-run
    """
    refused = [each for each in found if isinstance(each, Refusal)]
    good = [each for each in found if isinstance(each, Accepted)]
    if dry_run:
        _say_dry_run(good, refused, as_json)
        sys.exit(FAILED if refused else 0)
    added: set[str] = set()
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        try:
            _add_rows(ledger, [each.row for each in good], added)
            nameless = ledger.without_account(added)
            orderless = ledger.without_order(added, MAY_BE_UNKNOWN)
        except (LedgerUnavailable, SentinelError):
            if added:
                click.echo(f"{counted(len(added), 'row was', 'rows were')} entered before this error:", err=True)
            raise
    refused += [
        Refusal(each.line, "ledger_entry_id", "is already in the ledger", each.row.ledger_entry_id)
        for each in good
        if each.row.ledger_entry_id not in added
    ]
    for warning in (shared_budget_line(nameless), unknown_order_line(orderless)):
        if warning is not None:
            click.echo(warning, err=True)
    _say_stored(
        len(added), sorted(refused, key=lambda refusal: refusal.line), as_json, what="row", done="entered",
        without_account=sum(one.entries for one in nameless), without_order=orderless,
    )  # fmt: skip
    sys.exit(FAILED if refused else 0)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def facts(file: BinaryIO, as_json: bool) -> None:
    """Store facts of FILE (JSON lines) in the ledger: orders, complaints, delays, blacklisted accounts, proof images.

    \b
    Examples of lines:
      {"kind": "order", "channel": "private", "order_ref": "o-1", "account_ref": "acct-1", "ordered_at":
       "2026-11-01T10:00:00Z", "paid": "90.00", "currency": "EUR", "shipping_fee": "4.90"}
      {"kind": "complaint", "channel": "private", "order_ref": "o-1"}
      {"kind": "delay", "channel": "private", "order_ref": "o-1", "closed": true}
      {"kind": "blacklist", "channel": "private", "account_ref": "acct-9"}
      {"kind": "image", "ledger_entry_id": "lge-1", "file": "receipt.png"}
    """
    folder = Path(getattr(file, "name", ".")).parent
    found = list(read_facts(read_text(file), folder))
    refused = [each for each in found if isinstance(each, Refusal)]
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        told = store_facts(ledger, [each for each in found if not isinstance(each, Refusal)])
    _say_stored(told, refused, as_json, what="fact", done="stored")
    sys.exit(FAILED if refused else 0)


def read_text(file: BinaryIO) -> str:
    """Return the file as text; exits with 2 if it is not UTF-8."""
    data = file.read()
    try:
        text: str = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = faulty_line(data, error)
        said = "is UTF-16" if line is None else f"is not UTF-8 on line {line}, at byte {error.start}"
        click.echo(f"error: the file {said}; save it as UTF-8", err=True)
        sys.exit(MISUSED)
    return text


def _objects(file: BinaryIO, form: str, mapping: CsvFormat) -> Iterable[tuple[int, Any]]:
    """Return the file's values as (line, value or Refusal). Raises `WrongMapping`."""
    is_named_csv = str(getattr(file, "name", "")).lower().endswith((".csv", ".tsv"))
    is_csv = form == "csv" or (form == "auto" and (is_named_csv or mapping != CsvFormat()))
    if not is_csv:
        if mapping != CsvFormat():
            raise WrongMapping("--map, --set, --delimiter and --decimal-comma are for a CSV")
        return read_objects(read_text(file))
    source = read_csv(read_text(file), mapping)
    if source.unread:
        click.echo(terminal_text("columns that nothing reads: " + ", ".join(source.unread)), err=True)
    return source.objects


def _add_rows(ledger: Ledger, rows: Sequence[NewRow], added: set[str]) -> None:
    """Enter rows, with a progress bar where there are many, and put the ids that were not there before into `added`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=len(rows) <= _STEP) as progress:
        task = progress.add_task("rows", total=len(rows))
        for start in range(0, len(rows), _STEP):
            part = rows[start : start + _STEP]
            added |= ledger.add_rows(part)
            progress.advance(task, len(part))


def _say_dry_run(good: Sequence[Accepted], refused: Sequence[Refusal], as_json: bool) -> None:
    if not as_json and good:
        out().print(new_rows_table([each.row for each in good[:_SHOWN]]))
        if len(good) > _SHOWN:
            click.echo(f"… and {len(good) - _SHOWN} more.")
    _say_stored(len(good), refused, as_json, what="row", done="would be entered", name="would_enter")


def _say_stored(
    stored: int, refused: Sequence[Refusal], as_json: bool, *, what: str, done: str, name: str = "entered", **counts: int
) -> None:  # fmt: skip
    if as_json:
        lines = [
            {"line": r.line, "ledger_entry_id": r.ledger_entry_id, "field": r.field, "rule": r.rule} for r in refused
        ]
        click.echo(json.dumps({name: stored, **counts, "refused": lines}))
        return
    say_refused(refused)
    click.echo(f"{counted(stored, what)} {done}, {len(refused)} refused.")


def say_refused(refused: Sequence[Refusal]) -> None:
    """Print a line on standard error for each refusal."""
    for refusal in refused:
        entry = f" ({refusal.ledger_entry_id})" if refusal.ledger_entry_id else ""
        click.echo(terminal_text(f"line {refusal.line}{entry}: {refusal.field}: {refusal.rule}"), err=True)
