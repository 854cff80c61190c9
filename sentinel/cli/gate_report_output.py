"""A launch-gate report for people: figures, what went wrong, which limits were tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from sentinel.cli.common import print_table, table_cell
from sentinel.core.wording import counted

_MOST_SHOWN = 20


def print_report(report: Mapping[str, Any]) -> None:
    """Print the report on standard output."""
    rate = report["correct"] / report["covered"] if report["covered"] else 0.0
    click.echo(
        f"{report['scenario']}: {counted(report['cases'], 'case')} of {report['cases_file']}, {report['policy_id']} {report['policy_digest'][:19]}…"
    )
    click.echo(f"correct           {report['correct']} of {report['covered']} covered, {rate:.2%}"
               f" (95 % interval {report['lower_bound']:.4f} to {report['upper_bound']:.4f})")  # fmt: skip
    click.echo(f"wrong executions  {len(report['wrong_executions'])}")
    click.echo(f"not covered       {report['not_covered']}{_reasons(report)}")
    if report["simulated"]:
        click.echo(f"simulated         {', '.join(report['simulated'])}")
    if report["sandbox"]:
        click.echo(f"sandboxes         {', '.join(report['sandbox'])}")
    if report["unproven"]:
        click.echo(f"unproven          {', '.join(report['unproven'])}: rows that settle there go to a person")
    _table("Wrong executions", report["wrong_executions"], ("case", "what", "detail"))
    wrong = [one for one in report["results"] if one["result"] == "incorrect"]
    _table("Incorrect", wrong, ("case", "wanted", "came_to", "where"))
    _boundaries(report["boundaries"])
    for problem in report["problems"]:
        click.echo(f"FAILED  {problem}", err=True)
    recorded = f", recorded as {report['report_id']}" if "report_id" in report else ", not recorded"
    click.echo(f"{'passed' if report['passed'] else 'not passed'} in {report['seconds']} s{recorded}")


def _reasons(report: Mapping[str, Any]) -> str:
    reasons = Counter(one["came_to"] for one in report["results"] if one["result"] == "not_covered")
    return f" ({', '.join(f'{number} × {why}' for why, number in reasons.items())})" if reasons else ""


def _boundaries(found: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per limit: its currencies, and whether both sides of its boundary were tried."""
    limits: dict[str, dict[str, list[str]]] = {}
    for side in found:
        mark = side["side"] if side["covered"] else f"NOT {side['side']}"
        limits.setdefault(side["limit"], {}).setdefault(side["currency"], []).append(mark)
    rows = [
        {
            "limit": limit,
            "sides": "; ".join(f"{currency} {', '.join(sides)}" for currency, sides in by_currency.items()),
        }
        for limit, by_currency in limits.items()
    ]
    _table("Boundaries", rows, ("limit", "sides"))


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows[:_MOST_SHOWN]:
        table.add_row(*(table_cell(str(row[name] if row[name] is not None else "–")) for name in columns))
    print_table(table)
    if len(rows) > _MOST_SHOWN:
        click.echo(f"… and {len(rows) - _MOST_SHOWN} more; see the report.")
