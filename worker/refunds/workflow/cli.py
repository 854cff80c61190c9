"""`worker workflow`: draw the graph, explain a row's path through it, simulate rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from worker.diagrams import draw_command, refund_workflow
from worker.presentation import cell, out, print_simulation
from worker.refunds.build import open_client, open_ledger, open_simulator
from worker.refunds.enqueue import reads_rows, say_refused
from worker.refunds.intake import Accepted, Refusal
from worker.refunds.settings import read_settings
from worker.retail_refund_agent import FAILED, OUTSIDE, refusals


@click.group()
def workflow() -> None:
    """The refund workflow: its graph, a row's path through it, and where rows would end."""


workflow.add_command(draw_command("the graph", refund_workflow))


@workflow.command()
@click.argument("row")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(row: str, as_json: bool) -> None:
    """Print the history of ROW (a ledger entry id): its events, and the steps that led to each.

    \b
    Example:
      worker workflow explain lge_demo_low_001
    """
    with refusals(), open_ledger(read_settings(needs_authority=False)) as ledger:
        found = ledger.explain(row)
    if found is None:
        click.echo(f"error: there is no ledger entry {row}", err=True)
        sys.exit(FAILED)
    entry, events = found
    if as_json:
        click.echo(json.dumps({"row": _shown(entry), "life": [_shown(event) for event in events]}, default=str))
    else:
        out().print(_tree(entry, events))


@workflow.command()
@reads_rows
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every row's trail.")
def simulate(found: Sequence[Accepted | Refusal], as_json: bool) -> None:
    """Show where the rows of FILE would end now. Nothing is entered, recorded, sent or paid.

    FILE and its options are as for `worker enqueue`, a CSV too, and lines are refused as there; a row that is in the ledger
    already is simulated from its present state.

    Each row is simulated by itself: what several rows together take from an account, a limit or a breaker is not
    counted. Orders of which the rows together would take more than is left are listed too. Exit 1 if a line was refused,
    3 if a row has no answer, as without the authority.

    \b
    Examples:
      worker workflow simulate rows.jsonl
      worker workflow simulate refunds.csv --map amount=Total --set currency=EUR
    """
    refused = [each for each in found if isinstance(each, Refusal)]
    rows = [each.row for each in found if isinstance(each, Accepted)]
    settings = None
    with refusals():
        settings = read_settings()
        with (
            open_ledger(settings) as ledger,
            open_client(settings, ledger.tenant_id) as client,
            open_simulator(settings, ledger, client) as simulator,
        ):
            seen = simulator.simulate_new(rows) if rows else []
            overdrawn = simulator.overdrawn_orders(seen)
    say_refused(refused)
    if as_json:
        found_out = {
            "rows": [each.as_json() for each in seen],
            "overdrawn_orders": [each.as_json() for each in overdrawn],
        }
        click.echo(json.dumps(found_out, default=str))
    else:
        print_simulation(seen, overdrawn)
    sys.exit(FAILED if refused else OUTSIDE if any(each.decision is None for each in seen) else 0)


_HIDDEN = ("permit_token",)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """The fields to show: without empty ones, and without the permit token."""
    return {name: value for name, value in found.items() if value is not None and name not in _HIDDEN}


def _tree(entry: dict[str, Any], events: list[dict[str, Any]]) -> Tree:
    waiting = f", waits for the {entry['waiting_for']}" if entry["waiting_for"] else ""
    title = f"{entry['ledger_entry_id']}  {entry['channel']}/{entry['scenario']}  {entry['status']}{waiting}"
    tree = Tree(cell(title, style="bold"))
    for event in events:
        when = event["occurred_at"].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        if event["kind"] == "event":
            reason = f"  {event['reason_code']}" if event["reason_code"] else ""
            why = f"  by {event['worker']}: {event['note']}" if event["note"] else ""
            tree.add(cell(f"{when}  {event['title']}  ({event['event']}){reason}{why}", style="cyan"))
        else:
            run = tree.add(cell(f"{when}  run of claim {event['claim_epoch']}"))
            for step in event["steps"]:
                run.add(_step_line(step))
    return tree


def _step_line(step: dict[str, Any]) -> Text:
    facts = ", ".join(f"{name} {value}" for name, value in step.get("output", {}).items())
    parts = [
        f"{step['at_ms']:>8.2f} ms  {step['step']}",
        f"→ {step['next']}" if "next" in step else "ends here",
        f"[{step['message']}]" if step.get("message") else "",
        facts,
        f"by {step['tool']}" if step.get("tool") else "",
    ]
    style = "yellow" if step.get("next") == "transfer_to_human" else ""
    return cell("  ".join(part for part in parts if part), style=style)
