"""Tables and summary lines for operators. Values come from outside, so nothing in them is read as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sentinel.core.money import Money, major_text
from sentinel.core.wording import counted
from sentinel.platform.command_line import terminal_text
from worker.refunds.rows import NewRow, OpenCounts, SummaryLine, WithoutAccount
from worker.refunds.workflow.runner import RowResult, RunResult
from worker.refunds.workflow.simulation import OverdrawnOrder, Simulation

_COLOURS = {"EXECUTED": "green", "DENIED": "red", "ERROR": "bold red", "APPROVAL_REQUIRED": "yellow"}


def run_table(rows: Sequence[RowResult]) -> Table:
    """The table of processed rows: amount, decision, reason, state and what happens next."""
    table = _table("Row", "Amount", "Decision", "Reason", "State", "Next")
    for row in rows:
        what_next = f"{row.what_next}: {row.detail}" if row.detail else row.what_next
        table.add_row(
            cell(row.ledger_entry_id), Text(str(row.money), justify="right"), cell(row.decision or "-"),
            cell(row.reason_code or "-"), cell(row.state, style=_COLOURS.get(row.state, "")), cell(what_next),
        )  # fmt: skip
    return table


BY_ITSELF = "Each row was simulated alone: what several rows together use of an account's budget, a limit or a breaker is not counted."


def print_simulation(rows: Sequence[Simulation], overdrawn: Sequence[OverdrawnOrder]) -> None:
    """Print the table of simulated rows, the orders that they would overdraw together, and what the simulation does not count."""
    out().print(simulation_table(rows))
    for order in overdrawn:
        out().print(cell(str(order), style="yellow"))
    out().print(BY_ITSELF)
    out().print("Nothing was changed.")


def simulation_table(rows: Sequence[Simulation]) -> Table:
    """The table of simulated rows: amount, expected decision, and the step at which the row would end."""
    table = _table("Row", "Amount", "Would be", "Reason", "Ends at")
    for row in rows:
        table.add_row(
            cell(row.ledger_entry_id), Text(str(row.money), justify="right"), cell(row.decision or "no answer"),
            cell(": ".join(part for part in (row.reason_code, row.detail) if part) or "-"), cell(row.step or "-"),
        )  # fmt: skip
    return table


def summary_table(lines: Iterable[SummaryLine]) -> Table:
    """The table of counts and sums by state, decision, reason and currency."""
    table = _table("State", "Decision", "Reason", "Entries", "Sum")
    for line in lines:
        table.add_row(
            cell(line.status, style=_COLOURS.get(line.status, "")), cell(line.decision or "-"), cell(line.reason_code or "-"),
            Text(str(line.entries), justify="right"), Text(str(Money(line.amount_minor, line.currency)), justify="right"),
        )  # fmt: skip
    return table


def new_rows_table(rows: Sequence[NewRow]) -> Table:
    """The table of rows that were read from a file and are not in the ledger yet."""
    table = _table("Row", "Refund", "Amount", "Channel", "Scenario", "Account", "Order")
    for row in rows:
        order = f"{row.source}:{row.order_ref}" if row.source else row.order_ref
        table.add_row(
            cell(row.ledger_entry_id), cell(row.refund_id), Text(str(Money(row.amount_minor, row.currency)), justify="right"),
            cell(row.channel), cell(row.scenario), cell(row.account_ref or "-"), cell(order or "-"),
        )  # fmt: skip
    return table


def run_lines(outcome: RunResult) -> list[str]:
    """The closing lines of a run: rows by state, reports, and what is still open."""
    states = Counter(str(row.state) for row in outcome.rows)
    by_state = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing was due"
    lines = [f"{counted(len(outcome.rows), 'row')}: {by_state}. Reports received: {outcome.reported}."]
    if outcome.open is not None:
        lines += _open_lines(outcome.open)
    return lines


def run_json(outcome: RunResult) -> dict[str, Any]:
    """A run as one JSON object."""
    counts = None if outcome.open is None else {
        name: getattr(outcome.open, name) for name in ("due", "paused", "waiting", "held", "unreported", "put_off")
    }  # fmt: skip
    return {
        "rows": [row.as_json() for row in outcome.rows], "states": dict(Counter(str(row.state) for row in outcome.rows)),
        "reported": outcome.reported, "open": counts, "trouble": outcome.why_outside, "failed": outcome.failed,
    }  # fmt: skip


def summary_json(lines: Iterable[SummaryLine]) -> list[dict[str, Any]]:
    """The summary as JSON; amounts as decimal text in major units."""
    return [
        {"status": line.status, "decision": line.decision, "reason_code": line.reason_code, "currency": line.currency,
         "entries": line.entries, "sum": major_text(line.amount_minor, line.currency)}
        for line in lines
    ]  # fmt: skip


def shared_budget_line(found: Sequence[WithoutAccount]) -> str | None:
    """The warning about rows that name no account; None where every row does."""
    if not found:
        return None
    asked = ", ".join(str(Money(one.amount_minor, one.currency)) for one in found)
    count = sum(one.entries for one in found)
    return (
        f"warning: {counted(count, 'row')} without account_ref ({asked} in all), whose orders name none either: denied permanently as"
        " fact_missing under the shipped policies, unless risk.customer_attempts_24h is given; then such rows share the budget of"
        " one account, and rows beyond it wait for a person as account_unknown"
    )


def unknown_order_line(count: int) -> str | None:
    """The warning about `count` rows whose order the ledger does not know; None for zero."""
    if not count:
        return None
    return (
        f"warning: {counted(count, 'row')} whose order the ledger does not know: denied permanently as fact_missing under the shipped"
        " policies, unless the order is entered (worker facts) before the worker processes the row"
    )


def cell(text: str, style: str = "") -> Text:
    """Return text from outside as a cell of a table or a line of its own, as `terminal_text`: rich drops some control characters."""
    return Text(terminal_text(text), style=style)


class _SafeConsole(Console):
    """A console that prints everything as `terminal_text`, also what was not made by `cell`.

    rich itself passes ESC and direction-changing characters to the terminal. It adds its own colours after this step.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to print."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=terminal_text(part.text))


def out() -> Console:
    """The console for tables; without a terminal it is 200 columns wide, so that pipes get whole lines."""
    console = _SafeConsole(markup=False, highlight=False)
    return console if console.is_terminal else _SafeConsole(markup=False, highlight=False, width=200)


def _open_lines(counts: OpenCounts) -> list[str]:
    said = (
        (counts.due, "still due"),
        (counts.paused, "paused after a failure"),
        (counts.waiting, "waiting for a person or a customer"),
        (counts.held, "held by a claim that is active or about to expire"),
        (counts.unreported, "ended but not yet acknowledged by the authority"),
    )
    return [f"{count} {what}." for count, what in said if count]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in ("Amount", "Entries", "Sum") else "left", overflow="fold")
    return table
