"""`sentinel tools`: the table from tools to actions, and the operation that one call becomes. Needs no database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.table import Table

from sentinel.cli.common import json_option, print_json, print_table, show_rows, table_cell
from sentinel.cli.policy import DIRECTORY
from sentinel.core.errors import NotFound
from sentinel.platform.command_line import InvalidUsage
from sentinel.platform.resources import policies_dir
from sentinel.policy.errors import nearest
from sentinel.policy.library import PolicyLibrary
from sentinel.tools.arguments import parse_arguments
from sentinel.tools.cases import policy_decision
from sentinel.tools.mapping import ToolRefused, ToolTable
from sentinel.tools.model import ToolMapping
from sentinel.tools.parse import FILE_NAME, read_tool_table


@click.group()
def group() -> None:
    """List mapped tools and try a call. DIRECTORY defaults to SENTINEL_POLICIES_DIR, else to the shipped policies."""


@group.command("list")
@DIRECTORY
@json_option
def list_(directory: Path | None, as_json: bool) -> None:
    """List every mapped tool: its action, arguments, key and the facts that the program must give."""
    rows = [_row(one) for one in _table(directory).mappings]
    show_rows(rows, ("tool", "action", "arguments", "facts", "key"), as_json=as_json, empty="No tool is mapped.")


@group.command()
@click.argument("tool")
@click.argument("arguments", type=click.File("rb"))
@click.option("--facts", type=click.File("rb"), help="File with the facts that the program gives, as a JSON object.")
@DIRECTORY
@json_option
def explain(tool: str, arguments: BinaryIO, facts: BinaryIO | None, directory: Path | None, as_json: bool) -> None:
    """Show what a call of TOOL ("server/tool") becomes. ARGUMENTS: a file with a JSON object, - for standard input.

    The decision is that of the policies, with no limit counted and for a key whose facts count. Exit 1 where the table
    refuses the call.
    """
    table = _table(directory)
    found = _explained(table, tool, arguments.read(), facts.read() if facts else b"", directory or policies_dir())
    if as_json:
        print_json(found)
    else:
        _print_explained(found)
    if "refused" in found:
        raise SystemExit(1)


def _table(directory: Path | None) -> ToolTable:
    return read_tool_table((directory or policies_dir()) / FILE_NAME, regular=True)


def _explained(table: ToolTable, tool: str, arguments: bytes, facts: bytes, folder: Path) -> dict[str, Any]:
    server, slash, name = tool.partition("/")
    if not slash:
        raise InvalidUsage('TOOL must have the form "server/tool"')
    if table.find(server, name) is None:
        known = [one.name for one in table.mappings]
        raise NotFound(f"{tool} is not mapped: every call of it is denied ({nearest(tool, known) or ', '.join(known)})")
    try:
        call = table.call(server, name, parse_arguments(arguments), parse_arguments(facts))
    except ToolRefused as refused:
        return {"tool": tool, "refused": refused.reason_code, "detail": refused.reason}
    if call.question is None:
        return {"tool": tool, "unguarded": call.mapping.unguarded}
    decision = policy_decision(call, PolicyLibrary.load(folder), datetime.now(UTC))
    injected = {place: call.injected(place, operation_id="<operation id>") for place in ("argument", "header")}
    return {
        "tool": tool, "action": call.question["action"], "idempotency_key": call.question["idempotency_key"],
        "resource": call.question.get("resource", call.question["action"]), "params": call.question["params"],
        "inject": {place: names for place, names in injected.items() if names},
        "decision": decision.verdict.value, "reason_code": decision.reason_code, "reasons": list(decision.reasons),
        "policy": decision.policy_id,
    }  # fmt: skip


def _print_explained(found: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in found.items():
        if value not in ({}, []):
            shown = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
            table.add_row(name.replace("_", " "), table_cell(shown))
    print_table(table)


@dataclass(frozen=True, slots=True)
class _Row:
    tool: str
    action: str
    arguments: list[str]
    facts: list[str]
    key: str
    unguarded: str | None
    hidden: bool


def _row(one: ToolMapping) -> _Row:
    action = "hidden" if one.hidden else "unguarded" if one.action is None else one.action.action
    facts = [name for name, fact in one.facts.items() if fact.value is None]
    key = one.action.key.text if one.action else ""
    return _Row(one.name, action, list(one.arguments), facts, key, one.unguarded, one.hidden)
