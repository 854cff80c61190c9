"""Checks `tools.yaml` and `tool_cases.yaml` of a policies folder against its policies.

Beyond the form of the files it checks that a policy covers every action, that a param which must be an identifier is
text, and that no param whose fact a worker or the authority vouches for is made from the model's arguments.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from sentinel.core.operation import IDENTIFIER_PARAMS
from sentinel.policy.errors import PolicyError, SourcePosition, first_fault
from sentinel.policy.library import PolicyLibrary
from sentinel.policy.model import Voucher
from sentinel.policy.source import Source, Table, read_source
from sentinel.tools.cases import CASES_FILE_NAME, read_tool_cases
from sentinel.tools.mapping import ToolTable
from sentinel.tools.model import CALL_DIGEST, ActionMapping, Amount, ParamPath
from sentinel.tools.parse import FILE_NAME, try_read_tool_table


def check_tools(folder: Path, library: PolicyLibrary | None) -> list[PolicyError]:
    """Return every fault of the two files; a missing file has none. Without a library only their own form is checked."""
    path, cases = folder / FILE_NAME, folder / CASES_FILE_NAME
    errors: list[PolicyError] = []
    if path.exists():
        table, errors = try_read_tool_table(path)
        if table is not None and library is not None:
            errors = _against_policies(path, table, library)
    if cases.exists():
        errors += first_fault(partial(read_tool_cases, cases))
    return errors


def _against_policies(path: Path, table: ToolTable, library: PolicyLibrary) -> list[PolicyError]:
    source, root = read_source(path, regular=True)
    nodes = source.listing(source.table(root, "the file").entries["tools"], "tools")
    for mapping, node in zip(table.mappings, nodes, strict=True):
        if mapping.action is not None:
            view = source.within(mapping.name, "tool")
            with source.collecting():
                _check_action(view, mapping.action, view.table(node, "a tool"), library)
    return source.errors


def _check_action(source: Source, action: ActionMapping, table: Table, library: PolicyLibrary) -> None:
    policy = library.find(action.action)
    if policy is None:
        raise source.error(
            table.entries["action"].place, f'action: no policy covers "{action.action}"', "every call would be denied"
        )
    vouched = {
        path[1:]: fact
        for fact in policy.policy.facts
        for path in fact.paths
        if fact.vouched_by is not Voucher.AGENT and path[0] == "params" and not fact.is_asked
    }
    for path, origin in action.params.items():
        is_text = len(path) == 1 and not isinstance(origin, Amount) and origin.compiled.kind == "string"
        if path[0] in IDENTIFIER_PARAMS and not is_text:
            message = f"params.{path[0]} is an identifier, so it must be text"
            raise source.error(_param_place(source, table, path), message, "every call would be refused")
        reads = origin.value.reads | origin.currency.reads if isinstance(origin, Amount) else origin.reads
        # The digest is made of the arguments, so the model chooses it too.
        told = sorted(name for name in reads if name == CALL_DIGEST or name.startswith("args."))
        # Money may also be written by its members, e.g. `order.paid.value`: they are the fact too.
        facts = [fact for place, fact in vouched.items() if path[: len(place)] == place]
        if told and facts:
            raise _told_by_model(source, table, path, told[0], str(facts[0].vouched_by), policy.policy.policy_id)


def _told_by_model(
    source: Source, table: Table, path: ParamPath, read: str, voucher: str, policy_id: str
) -> PolicyError:
    return source.error(
        _param_place(source, table, path), f'params.{".".join(path)}: reads {read}, but in policy "{policy_id}" the {voucher} must vouch for it',
        "the model chooses the arguments; read it from facts: instead",
    )  # fmt: skip


def _param_place(source: Source, table: Table, path: ParamPath) -> SourcePosition:
    return source.table(table.entries["params"], "params").keys[".".join(path)]
