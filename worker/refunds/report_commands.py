"""`worker reports`: reports that the authority refused for good. A person reads why, and resends or discards them."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Callable, Sequence

import click
from msgspec.structs import asdict

from sentinel.core.wording import counted
from sentinel.platform.command_line import OneLineCommand, terminal_text
from worker.command_options import by_option, reason_option
from worker.refunds.build import open_ledger
from worker.refunds.ledger import Ledger
from worker.refunds.settings import read_settings
from worker.retail_refund_agent import FAILED, refusals


@click.group()
def reports() -> None:
    """Reports that the authority refused permanently; each waits for a person."""


@reports.command("list", cls=OneLineCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List them with the authority's answers."""
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        found = ledger.parked_reports()
    if as_json:
        click.echo(json.dumps([{name: _plain(value) for name, value in asdict(one).items()} for one in found]))
        return
    for one in found:
        told = (
            f"{one.outbox_id}  {one.created_at:%Y-%m-%d %H:%M} UTC  {one.outcome} of {one.ledger_entry_id}"
            f" ({one.status or 'no row'}), {counted(one.attempts, 'try', 'tries')}: {one.last_error or 'no reason given'}"
        )
        click.echo(terminal_text(told))
    if not found:
        click.echo("No refused report waits for a person.")


@reports.command(cls=OneLineCommand)
@click.argument("ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@reason_option("Reason; stored with the report.")
@by_option("Who does this")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resend(ids: tuple[uuid.UUID, ...], reason: str, by: str, as_json: bool) -> None:
    """Have the next worker resend refused reports, once the cause is fixed. Exit 1 if an ID is not a refused report.

    \b
    Example:
      worker reports resend 0190c0de-0000-7000-8000-000000000001 --reason "the authority's backup was replaced"
    """
    _act(Ledger.resend_reports, "sent again", ids, reason, by, as_json)


@reports.command("discard", cls=OneLineCommand)
@click.argument("ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@reason_option("Reason; stored with the report.")
@by_option("Who does this")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def discard(ids: tuple[uuid.UUID, ...], reason: str, by: str, as_json: bool) -> None:
    """Discard refused reports, so that they are not sent any more. Exit 1 if an ID is not a refused report.

    Who discarded them and why is kept with them. The authority does not learn the outcomes: if it has the operation
    in doubt, resolve it there (`sentinel in-doubt resolve`). A discarded success of a row in doubt counts against its
    order permanently, as handled.

    \b
    Example:
      worker reports discard 0190c0de-0000-7000-8000-000000000001 --reason "resolved there by hand, CASE-7"
    """
    _act(Ledger.discard_reports, "discarded", ids, reason, by, as_json)


def _act(
    verb: Callable[[Ledger, Sequence[uuid.UUID], str], list[uuid.UUID]], done: str, ids: Sequence[uuid.UUID], reason: str,
    by: str, as_json: bool,
) -> None:  # fmt: skip
    said = f"{done} by {by}: {reason}"[:300]
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        acted = set(verb(ledger, ids, said))
    others = [one for one in ids if one not in acted]
    if as_json:
        click.echo(
            json.dumps({"done": [str(one) for one in ids if one in acted], "refused": [str(one) for one in others]})
        )
    else:
        for one in others:
            click.echo(f"refused: {one}: no such report waits for a person", err=True)
        click.echo(f"{counted(len(acted), 'report')} {done}.")
    sys.exit(FAILED if others else 0)


def _plain(value: object) -> object:
    return value if isinstance(value, int | str) or value is None else str(value)
