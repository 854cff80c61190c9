"""`worker retry`: rows in ERROR back to NEW once their cause is fixed; never a row that may have been paid."""

from __future__ import annotations

import getpass
import json
import sys

import click

from sentinel.platform.command_line import OneLineCommand
from worker.refunds.build import open_ledger
from worker.refunds.settings import read_settings
from worker.retail_refund_agent import FAILED, refusals

REFUSALS = {
    "no_such_row": "there is no such row",
    "not_in_error": "it is not in ERROR",
    "executed": "it was executed",
    "started_elsewhere": "its operation was started by somebody else and may have been paid",
    "settlement_refused": "its start was redeemed; say what happened: `sentinel in-doubt list`",
    "start_in_doubt": "its start may have been redeemed and it may have been paid: `sentinel in-doubt list`",
    "effects_open": "something it began in an outside system is not taken back yet",
}
"""Why a row stays in ERROR, by the code of `refunds.retry_entries`."""


@click.command(cls=OneLineCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all-errors", is_flag=True, help="Every row in ERROR that can be tried again.")
@click.option("--reason", required=True, help="What was mended; kept with the row.")
@click.option("--by", metavar="NAME", help="Who does this; default: the account on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def retry(ids: tuple[str, ...], all_errors: bool, reason: str, by: str | None, as_json: bool) -> None:
    """Have rows in ERROR tried again, with attempts counted from zero. Exit 1 where a named row was refused.

    A row that may have been paid (executed, started, in doubt, effects open) is refused by the database, and named with
    the rule that keeps it.

    \b
    Examples:
      worker retry lge-17 lge-18 --reason "the order's amount was corrected"
      worker retry --all-errors --reason "the shop's interface is back"
    """
    if bool(ids) == all_errors:
        raise click.UsageError("name rows, or say --all-errors")
    if not reason.strip():
        raise click.UsageError("--reason must say something")
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        found = ledger.retry(None if all_errors else ids, who=by or getpass.getuser(), why=reason.strip()[:500])
    back = [entry for entry, refusal in found.items() if refusal is None]
    stays = {entry: refusal for entry, refusal in found.items() if refusal is not None}
    if as_json:
        click.echo(json.dumps({"retried": back, "refused": stays}))
    else:
        for entry, refusal in stays.items():
            click.echo(f"refused: {entry}: {refusal}: {REFUSALS.get(refusal, 'see its trail')}", err=True)
        click.echo(f"{len(back)} rows are NEW again, {len(stays)} stay as they are.")
    sys.exit(FAILED if stays and not all_errors else 0)
