"""Commands on the whole ledger: retry failed rows, record refunds that people handled, import orders, summarise, reconcile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import BinaryIO, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sentinel.core.errors import InvalidInput
from sentinel.core.operation import check_identifier
from sentinel.core.wording import counted
from sentinel.platform.command_line import OneLineCommand, terminal_text
from worker.command_options import by_option, reason_option
from worker.presentation import out, summary_json, summary_table
from worker.refunds.build import make_reconciler, open_client, open_ledger
from worker.refunds.enqueue import read_text
from worker.refunds.intake import lines_of
from worker.refunds.ledger import Ledger, LedgerUnavailable
from worker.refunds.online_retail import Imported, WrongColumns, read_orders
from worker.refunds.reconcile import MOST_BUDGETS
from worker.refunds.settings import read_settings
from worker.retail_refund_agent import FAILED, MISUSED, OUTSIDE, refusals
from worker.settlement.stripe_events import SettlementFindings

_STEP = 500
Found = TypeVar("Found")

REFUSALS = {
    "no_such_row": "there is no such row",
    "not_in_error": "it is not in ERROR",
    "executed": "it was executed",
    "handled": "it was executed or handled elsewhere, according to the authority",
    "started_elsewhere": "its operation was started by somebody else and may have been paid",
    "settlement_refused": "its start was redeemed and it may have been paid; resolve it first: `sentinel in-doubt list`",
    "start_in_doubt": "its start may have been redeemed and it may have been paid; resolve it first: `sentinel in-doubt list`",
    "not_executed": "a person resolved it as not executed, which is final; to pay it, enter it again under another ledger entry id",
    "effects_open": "an effect that it started in an outside system is not undone yet",
    "closed_by_analyst": "an analyst has since decided to hold its order, or to try again, which filed another row; see the order's page",
}
"""Why a row stays in ERROR, by the code of `refunds.retry_entries`."""

NOT_HANDLED = {
    "no_such_row": "there is no such row",
    "waits_for_person": "it waits for an approval: use `sentinel approvals handled`",
    "in_hand": "a worker holds it or has started it: its settlement system shows the outcome",
    "in_error": "it is in ERROR: use `worker retry` first, or `sentinel in-doubt resolve` if it may have been paid",
    "ended": "it has ended",
}
"""Why a row cannot be recorded as handled, by the code of `Ledger.handle`."""
_LONGEST_REFERENCE = 200


@click.command(cls=OneLineCommand)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all-errors", is_flag=True, help="Every row in ERROR that can be tried again.")
@reason_option("What was fixed; stored with the row.")
@by_option("Who does this")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def retry(ids: tuple[str, ...], all_errors: bool, reason: str, by: str, as_json: bool) -> None:
    """Retry rows in ERROR, with attempts counted from zero. Exit 1 if a named row was refused.

    The database refuses a row that may have been paid (executed, started, in doubt, effects open), that a person
    resolved as not executed, or whose order an analyst has since held or refunded by another row. Each refused row is
    printed with the reason.

    \b
    Examples:
      worker retry lge-17 lge-18 --reason "the order's amount was corrected"
      worker retry --all-errors --reason "the shop's interface is back"
    """
    if bool(ids) == all_errors:
        raise click.UsageError("give IDs of rows, or --all-errors")
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        found = ledger.retry(None if all_errors else ids, who=by, why=reason[:500])
    back = [entry for entry, refusal in found.items() if refusal is None]
    stays = {entry: refusal for entry, refusal in found.items() if refusal is not None}
    if as_json:
        click.echo(json.dumps({"retried": back, "refused": stays}))
    else:
        for entry, refusal in stays.items():
            click.echo(f"refused: {entry}: {refusal}: {REFUSALS.get(refusal, 'see its trail')}", err=True)
        click.echo(f"Back to NEW: {counted(len(back), 'row')}; unchanged: {len(stays)}.")
    sys.exit(FAILED if stays and not all_errors else 0)


@click.command(cls=OneLineCommand)
@click.argument("row", metavar="ID")
@click.option("--reference", required=True, help="Where it was done: a payment, a ticket; at most 200 characters.")
@reason_option("Reason; stored with the row.")
@by_option("Who handled it")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def handled(row: str, reference: str, reason: str, by: str, as_json: bool) -> None:
    """Record that a person handled row ID elsewhere: it ends as DENIED, permanently. Exit 1 if it was refused.

    Only for a row of which nothing was started, e.g. after a backup was restored. It counts against its order, and
    another row of the same refund is a duplicate. For a row that waits for an approval, use
    `sentinel approvals handled`.

    \b
    Example:
      worker handled lge-17 --reference re_3PqX --reason "paid on Tuesday, after the backup that was restored"
    """
    reference = reference.strip()
    if not reference or len(reference) > _LONGEST_REFERENCE:
        raise click.UsageError(f"--reference must be 1 to {_LONGEST_REFERENCE} characters")
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        refusal = ledger.handle(row, who=by, reference=reference, why=reason)
    if as_json:
        answer = {"ledger_entry_id": row, "handled": refusal is None}
        click.echo(json.dumps(answer if refusal is None else {**answer, "refused": refusal}))
    elif refusal is not None:
        click.echo(f"refused: {row}: {refusal}: {NOT_HANDLED.get(refusal, 'see its trail')}", err=True)
    else:
        click.echo(f"Recorded: {row} was handled elsewhere, under {reference}. The agent is denied it.")
    sys.exit(0 if refusal is None else FAILED)


@click.command("import-orders")
@click.argument("file", type=click.File("rb"))
@click.option("--source", default="", help="The shop of these orders, if there are several.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_orders(file: BinaryIO, source: str, as_json: bool) -> None:
    """Import the Online Retail CSV: invoices become order facts, cancellations become refund rows in GBP.

    Ids come from the invoice numbers, so a second import changes nothing. An order that is not in the file is unknown to
    the ledger; for it the shop's own booking counts, so its rows are entered with risk flags that are false.

    \b
    Example:
      worker import-orders online_retail.csv
    """
    with refusals():
        settings = read_settings(needs_authority=False)
    try:
        checked = check_identifier(source, "--source", 64) if source else ""
        imported = read_orders(lines_of(read_text(file)), checked, settings.agent_id)
    except (WrongColumns, InvalidInput) as error:
        click.echo(f"error: {terminal_text(str(error))}", err=True)
        sys.exit(MISUSED)
    with refusals(), open_ledger(settings) as ledger:
        orders, refunds = _store(ledger, imported)
    _say_imported(imported, orders, refunds, as_json)
    sys.exit(FAILED if imported.refused else 0)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def summary(as_json: bool) -> None:
    """Counts and sums of the ledger by state, decision and reason."""
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        lines = ledger.summary()
    if as_json:
        click.echo(json.dumps(summary_json(lines)))
    elif lines:
        out().print(summary_table(lines))
    else:
        click.echo("The ledger is empty.")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def reconcile(as_json: bool) -> None:
    """Compare every execution with what should have been paid. A wrong one switches its scenario off. Exit 1 if one is wrong.

    Also names the orders of which more was refunded, or may have been, than was paid (by a person by hand, or by a
    refund in doubt for which there was no room), or something in a currency that they were not paid in, with the parts
    of their budget.

    And what a settlement system reported afterwards: refunds that a bank sent back, and those made elsewhere; payments
    that it does not show, and refunds of another payment than the one that their order names now.

    A running worker does this for what is new, every few seconds. Each check may take five minutes. One that the
    database cannot finish is named, its list is null, and the others are still printed (exit 3, or 1 where the others
    found something).
    """
    with refusals():
        settings = read_settings()
        with open_ledger(settings) as ledger, open_client(settings, ledger.tenant_id) as client:
            reconciler = make_reconciler(settings, ledger, client)
            looks = Looks()
            settlements = SettlementFindings(ledger.pool, ledger.tenant_id, at_length=True)
            elsewhere = looks.at("settlement findings", settlements.all)
            budgets = looks.at("budgets of orders", reconciler.budgets)
            new = looks.at("executions since the last look", reconciler.look)
            found = looks.at("executions", lambda: reconciler.find(since_last=False))
    told = {(one.execution_id, one.finding) for one in new or ()}
    if as_json:
        lines = [
            {"ledger_entry_id": one.ledger_entry_id, "execution_id": str(one.execution_id), "finding": one.finding,
             "switch": one.switch, "new": (one.execution_id, one.finding) in told}
            for one in found or ()
        ]  # fmt: skip
        answer = {
            "wrong": None if found is None else lines,
            "orders": None if budgets is None else [asdict(one) for one in budgets],
            "settlement": None if elsewhere is None else [asdict(one) for one in elsewhere],
        }
        click.echo(json.dumps(answer))
    else:
        for one in (new or ()) if found is None else found:
            click.echo(terminal_text(f"wrong: {one}; its switch is {one.switch}"), err=True)
        for line in (*(budgets or ()), *(elsewhere or ())):
            click.echo(terminal_text(f"wrong: {line}"), err=True)
        if found is not None:
            click.echo(f"{counted(len(found), 'wrong execution')}." if found else "Every execution is correct.")
        if budgets:
            least = "At least " if len(budgets) >= MOST_BUDGETS else ""
            click.echo(f"{least}{counted(len(budgets), 'order')} whose budget a person must check.")
        if elsewhere:
            click.echo(f"{counted(len(elsewhere), 'refund')} at a settlement system that a person must check.")
    sys.exit(FAILED if found or new or budgets or elsewhere else OUTSIDE if looks.failed else 0)


class Looks:
    """Runs checks, each even if another one failed."""

    def __init__(self) -> None:
        self.failed = False

    def at(self, what: str, look: Callable[[], list[Found]]) -> list[Found] | None:
        """Run `look` and return what it found; None, with a message, if the database did not answer."""
        try:
            return look()
        except LedgerUnavailable as error:
            click.echo(f"error: {what} could not be checked: {error}", err=True)
            self.failed = True
            return None


def _store(ledger: Ledger, imported: Imported) -> tuple[int, int]:
    """(orders that changed anything, rows that are new); orders first, because rows take facts from them."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=Console(stderr=True), transient=True
    )  # fmt: skip
    orders = refunds = 0
    with progress:
        task = progress.add_task("orders", total=len(imported.orders))
        for start in range(0, len(imported.orders), _STEP):
            part = imported.orders[start : start + _STEP]
            orders += len(ledger.add_orders(part))
            progress.advance(task, len(part))
        task = progress.add_task("refund rows", total=len(imported.refunds))
        for start in range(0, len(imported.refunds), _STEP):
            rows = imported.refunds[start : start + _STEP]
            refunds += len(ledger.add_rows(rows))
            progress.advance(task, len(rows))
    return orders, refunds


def _say_imported(imported: Imported, orders: int, refunds: int, as_json: bool) -> None:
    if as_json:
        lines = [{"line": r.line, "invoice": r.invoice, "rule": r.rule} for r in imported.refused]
        counts = {"orders": len(imported.orders), "orders_changed": orders, "refunds": len(imported.refunds)}
        click.echo(json.dumps({**counts, "refunds_entered": refunds, "refused": lines}))
        return
    for refusal in imported.refused:
        click.echo(terminal_text(f"line {refusal.line} ({refusal.invoice}): {refusal.rule}"), err=True)
    if not orders and not refunds:
        click.echo(
            f"Nothing changed, all already known: {counted(len(imported.orders), 'order')}, {counted(len(imported.refunds), 'refund row')}."
        )
        return
    click.echo(
        f"{orders} of {counted(len(imported.orders), 'order')} new or corrected, {refunds} of"
        f" {counted(len(imported.refunds), 'refund row')} entered, {counted(len(imported.refused), 'invoice')} refused."
    )
