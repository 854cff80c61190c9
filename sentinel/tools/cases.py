"""Runs `policies/tool_cases.yaml`: tool calls with the operation that they must become and the policies' decision on
it, or the refusal.

The decision in a case is that of the policies alone: no limit is counted. It is made at the moment of a policy case
without `at`, so that a case gives the same result at any hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.core.decision import Decision, no_matching_policy
from sentinel.core.errors import InvalidInput
from sentinel.policy.cases import NOW
from sentinel.policy.evaluate import decide
from sentinel.policy.facts import WORKER_REQUESTER, extract_facts
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.source import Node, Source, plain, read_source
from sentinel.tools.mapping import ToolCall, ToolRefused, ToolTable
from sentinel.tools.operations import operation_of
from sentinel.tools.parse import FILE_NAME, read_tool_table

CASES_FILE_NAME = "tool_cases.yaml"
_CASE = ("name", "server", "tool", "arguments", "facts", "want")
_WANT = ("refused", "unguarded", "action", "key", "resource", "params", "decision", "reason")
_AGENT = "case"


@dataclass(frozen=True, slots=True)
class ToolCase:
    """One case. `want` has only the fields that the file names; the others are not compared."""

    name: str
    where: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    facts: Mapping[str, Any]
    want: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCaseResult:
    """The result of a case; `problem` is empty when it passed."""

    name: str
    where: str
    problem: str


@dataclass(frozen=True, slots=True)
class ToolCaseReport:
    """All results, and the names of the mapped tools that no case is about."""

    results: tuple[ToolCaseResult, ...]
    unreached: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every case got what it wants."""
        return not any(result.problem for result in self.results)


def run_tool_cases(directory: Path, library: PolicyLibrary) -> ToolCaseReport:
    """Run the folder's cases; the report is empty where it has no table. Raises `PolicyError` on a bad file."""
    if not (directory / FILE_NAME).exists():
        return ToolCaseReport((), ())
    table, path = read_tool_table(directory / FILE_NAME, regular=True), directory / CASES_FILE_NAME
    cases = read_tool_cases(path) if path.exists() else ()
    results = tuple(ToolCaseResult(case.name, case.where, _problem(case, table, library)) for case in cases)
    reached = {(case.server, case.tool) for case in cases}
    unreached = tuple(one.name for one in table.mappings if (one.server, one.tool) not in reached)
    return ToolCaseReport(results, unreached)


def read_tool_cases(path: Path) -> tuple[ToolCase, ...]:
    """Read a cases file. Raises `PolicyError`."""
    source, root = read_source(path, regular=True)
    top = source.fields(root, "a cases file", known=("cases",), required=("cases",))
    return tuple(_case(source, node) for node in source.listing(top.entries["cases"], "cases"))


def policy_decision(call: ToolCall, library: PolicyLibrary, now: datetime) -> Decision:
    """Return the policies' decision at `now` on a guarded call made with a worker's key, without counting limits. Raises `InvalidInput`."""
    assert call.question is not None
    operation = operation_of(call.question, _AGENT)
    compiled = library.find(operation.action)
    if compiled is None:
        return no_matching_policy()
    return decide(compiled, extract_facts(compiled, operation.facts(), WORKER_REQUESTER), now)


def _case(source: Source, node: Node) -> ToolCase:
    table = source.fields(node, "a case", known=_CASE, required=("name", "server", "tool", "want"))
    name, server, tool = (source.text(table.entries[key], key) for key in ("name", "server", "tool"))
    view = source.within(name, "case")
    want = view.fields(table.entries["want"], "want", known=_WANT)
    if not want.entries:
        raise view.error(want.place, "want must not be empty")
    arguments, facts = (
        plain(view, view.table(table.entries[key], key)) if key in table.entries else {}
        for key in ("arguments", "facts")
    )
    return ToolCase(name, f"{source.name}:{table.place.line}", server, tool, arguments, facts, plain(view, want))


def _problem(case: ToolCase, table: ToolTable, library: PolicyLibrary) -> str:
    """Return the differences from what the case wants in one line; "" where there are none."""
    got: dict[str, Any]
    try:
        call = table.call(case.server, case.tool, case.arguments, case.facts)
    except ToolRefused as refused:
        got = {"refused": refused.reason_code}
    else:
        try:
            got = {"unguarded": True} if call.question is None else _operation(call, library)
        except InvalidInput as error:  # nothing is decided about it, so it is not what any case wants
            return f"the authority refuses the operation: {error.detail}"
    differing = [f"{key}: wanted {want}, got {got.get(key)}" for key, want in case.want.items() if got.get(key) != want]
    return "; ".join(differing)


def _operation(call: ToolCall, library: PolicyLibrary) -> dict[str, Any]:
    assert call.question is not None
    decision = policy_decision(call, library, NOW)
    params = {name: value for name, value in call.question["params"].items() if name != "tool_call"}
    return {
        "action": call.question["action"], "key": call.question["idempotency_key"], "resource": call.question.get("resource"),
        "params": params, "decision": decision.verdict.value, "reason": decision.reason_code,
    }  # fmt: skip
