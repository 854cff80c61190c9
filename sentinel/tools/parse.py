"""`policies/tools.yaml` → `ToolTable`. Every fault has its file, line, tool, field and rule; one run names all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.policy.conditions import ConditionError, Conditions, references, written
from sentinel.policy.errors import PolicyError, SourcePosition, nearest
from sentinel.policy.source import Node, Scalar, Source, Table, character_place, parse_source, read_source
from sentinel.tools.mapping import ToolTable
from sentinel.tools.model import (
    CALL_DIGEST,
    KINDS,
    ActionMapping,
    Amount,
    Argument,
    Expression,
    Injection,
    ProgramFact,
    ToolMapping,
    Unit,
)

FILE_NAME = "tools.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}", re.ASCII)
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63}){0,3}", re.ASCII)
_ACTION = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", re.ASCII)
_RISK_CLASS = re.compile(r"[A-Za-z0-9._:/@-]{1,64}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)
_OWN_HEADERS = frozenset({"authorization", "host", "content-length", "content-type", "cookie", "transfer-encoding"})
RESERVED_PARAM = "tool_call"
"""The param that is set for every mapped call: server, tool and the digest of its bound arguments."""

_GUARDED = ("action", "key", "resource", "risk_class", "params", "inject")
_TOOL = ("server", "tool", "arguments", "facts", "unguarded", "hidden", *_GUARDED)
_TYPES_OF_UNIT: Mapping[Unit, tuple[str, ...]] = {"minor": ("int",), "major": ("string", "int"), "stripe": ("int",)}
"""The units that an amount may be counted in, and the types that its expression may have."""
_BOUNDS = 2**53 - 1


def read_tool_table(path: Path, *, regular: bool = False) -> ToolTable:
    """Read the table of a file. Raises the first `PolicyError`, also for a missing or unreadable file.

    With `regular`, as for the file of a policies folder, a pipe or device is refused: to read one may take for ever.
    """
    return _first_or_table(*read_source(path, regular=regular))


def parse_tool_table(text: str, *, name: str = FILE_NAME) -> ToolTable:
    """Parse the table of a text; `name` is what errors call it. Raises the first `PolicyError`."""
    return _first_or_table(*parse_source(text, name=name))


def try_read_tool_table(path: Path) -> tuple[ToolTable | None, list[PolicyError]]:
    """Return the table, None where the file has a fault or is a pipe or device, and every fault of the file."""
    try:
        source, root = read_source(path, regular=True)
        table = _table(source, root)
    except PolicyError as error:
        return None, [error]
    return (None if source.errors else table), source.errors


def _first_or_table(source: Source, root: Node) -> ToolTable:
    table = _table(source, root)
    if source.errors:
        raise source.errors[0]
    return table


def _table(source: Source, root: Node) -> ToolTable:
    top = source.fields(root, "the file", known=("tools",), required=("tools",))
    found: dict[tuple[str, str], ToolMapping] = {}
    for node in source.listing(top.entries["tools"], "tools"):
        with source.collecting():
            mapping = _tool(source, node)
            if (mapping.server, mapping.tool) in found:
                earlier = found[mapping.server, mapping.tool].line
                raise source.within(mapping.name, "tool").error(
                    node.place, "is mapped twice", f"first on line {earlier}"
                )
            found[mapping.server, mapping.tool] = mapping
    return ToolTable(tuple(found.values()))


def _tool(source: Source, node: Node) -> ToolMapping:
    table = source.table(node, "a tool")
    server, tool = (_named(source, table, key) for key in ("server", "tool"))
    view = source.within(f"{server}/{tool}", "tool")
    entries = view.fields(table, "a tool", known=_TOOL).entries
    unguarded, hidden = _unguarded(view, table)
    facts = _each(view, entries, "facts", _fact)
    arguments = _each(view, entries, "arguments", _argument)
    action = None
    if unguarded is None and not hidden:
        action = _action(view, view.fields(table, "a tool", known=_TOOL, required=("action", "key")), arguments, facts)
    return ToolMapping(server, tool, arguments, facts, action, unguarded, hidden, node.place.line)


def _named(source: Source, table: Table, key: str) -> str:
    if key not in table.entries:
        raise source.error(table.place, f'a tool: "{key}" is missing')
    means = "an exact name (letters, digits and . _ : / @ -; there are no wildcards)"
    return source.text(table.entries[key], key, form=_NAME, means=means)


def _unguarded(source: Source, table: Table) -> tuple[str | None, bool]:
    """Return (why the tool may run unguarded, or None; whether it is hidden). Such a tool has no action."""
    entries = table.entries
    hidden = source.boolean(entries["hidden"], "hidden") if "hidden" in entries else False
    unguarded = source.text(entries["unguarded"], "unguarded") if "unguarded" in entries else None
    if unguarded is not None or hidden:
        for key in (*_GUARDED, "facts", "arguments"):
            if key in entries:
                raise source.error(
                    table.keys[key], f'"{key}" cannot be used with {"hidden" if hidden else "unguarded"}'
                )
    if unguarded is not None and hidden:
        raise source.error(table.keys["unguarded"], "a hidden tool is denied, so it cannot be unguarded")
    return unguarded, hidden


def _each(source: Source, entries: Mapping[str, Node], key: str, read: Callable[[Source, str, Node], Any]) -> dict[str, Any]:  # fmt: skip
    if key not in entries:
        return {}
    table, found = source.table(entries[key], key), {}
    for name, node in table.entries.items():
        with source.collecting():
            if not _ARGUMENT.fullmatch(name):
                raise source.error(table.keys[name], f'{key}: "{name}" is not a name of letters, digits and _')
            found[name] = read(source, name, node)
    return found


def _argument(source: Source, name: str, node: Node) -> Argument:
    what = f"arguments.{name}"
    entries = source.fields(
        node, what, known=("type", "required", "min", "max", "one_of", "bound"), required=("type",)
    ).entries
    kind = source.one_of(entries["type"], f"{what}.type", KINDS)
    for key, fits in (("min", "int"), ("max", "int"), ("one_of", "string")):
        if key in entries and kind != fits:
            raise source.error(entries[key].place, f"{what}.{key} can be used with type {fits} only")
    least, most = (
        source.integer(entries[key], f"{what}.{key}", least=-_BOUNDS, most=_BOUNDS) if key in entries else None
        for key in ("min", "max")
    )
    if least is not None and most is not None and least > most:
        raise source.error(entries["max"].place, f"{what}: no number is at least {least} and at most {most}")
    one_of = None
    if "one_of" in entries:
        items = source.listing(entries["one_of"], f"{what}.one_of")
        one_of = frozenset(source.text(item, f"{what}.one_of") for item in items)
    required, bound = (
        source.boolean(entries[key], f"{what}.{key}") if key in entries else True for key in ("required", "bound")
    )
    return Argument(name, kind, required, least, most, one_of, bound)


def _fact(source: Source, name: str, node: Node) -> ProgramFact:
    what = f"facts.{name}"
    entries = source.fields(node, what, known=("type", "from", "value"), required=("type", "from")).entries
    kind = source.one_of(entries["type"], f"{what}.type", ("string", "int", "bool"))
    origin = source.one_of(entries["from"], f"{what}.from", ("program", "table"))
    if (origin == "table") != ("value" in entries):
        raise source.error(node.place, f'{what}: "value" is required with "from: table" and cannot be used without it')
    if origin == "program":
        return ProgramFact(name, kind)
    value: str | int | bool
    if kind == "int":
        value = source.integer(entries["value"], f"{what}.value", least=-_BOUNDS, most=_BOUNDS)
    elif kind == "bool":
        value = source.boolean(entries["value"], f"{what}.value")
    else:
        value = source.text(entries["value"], f"{what}.value")
    return ProgramFact(name, kind, value)


def _action(
    source: Source, table: Table, arguments: Mapping[str, Argument], facts: Mapping[str, ProgramFact]
) -> ActionMapping:
    variables = {f"args.{name}": kind for name, one in arguments.items() if (kind := KINDS[one.kind])}
    variables |= {f"facts.{name}": one.kind for name, one in facts.items()} | {CALL_DIGEST: "string"}
    expressions = _Expressions(source, Conditions(variables), arguments)
    entries = table.entries
    means = 'an action like "refund.create"'
    action = source.text(entries["action"], "action", form=_ACTION, means=means)
    key = expressions.read(entries["key"], "key", "string")
    if not any(name == CALL_DIGEST or name.startswith("args.") for name in key.reads):
        raise source.error(
            entries["key"].place,
            "key must not be the same for every call; build it from the arguments that identify the effect",
        )
    return ActionMapping(
        action=action,
        key=key,
        params=_params(source, entries, expressions),
        conditions=expressions.conditions,
        resource=expressions.read(entries["resource"], "resource", "string") if "resource" in entries else None,
        risk_class=_risk_class(source, entries["risk_class"]) if "risk_class" in entries else None,
        injections=_injections(source, entries, arguments),
    )


def _risk_class(source: Source, node: Node) -> str:
    means = "an identifier of at most 64 characters (ASCII letters, digits, . _ : / @ -)"
    return source.text(node, "risk_class", form=_RISK_CLASS, means=means)


_ABSENT = (
    "an absent argument or fact leaves out the param that reads it; a key, resource or amount that reads it is refused"
)


class _Expressions:
    """Reads the expressions of one tool."""

    def __init__(self, source: Source, conditions: Conditions, arguments: Mapping[str, Argument]) -> None:
        self.source, self.conditions, self._arguments = source, conditions, arguments

    def read(self, node: Node, what: str, *kinds: str) -> Expression:
        """Compile the expression at `node`, which must be of one of these kinds. Raises `PolicyError`."""
        text = self.source.text(node, what)
        assert isinstance(node, Scalar)
        try:
            text = written(node)
            compiled = self.conditions.compile_value(text)
            self.conditions.check_constants(self.conditions.parts(text))
        except ConditionError as error:
            place = character_place(self.source, node, error.offset)
            hint = _ABSENT if error.hint is not None and "present." in error.hint else error.hint
            raise self.source.error(place, f"{what}: {error.message}", hint or self._hint(error.unknown)) from None
        if compiled.kind not in kinds:
            raise self.source.error(node.place, f"{what} must be {' or '.join(kinds)}, but is {compiled.kind}")
        reads = references(text, self.conditions.variables)
        unbound = sorted(name for name in reads if name.startswith("args.") and not self._arguments[name[5:]].bound)
        if unbound:
            # Another value is declared to be the same operation, and would make another one.
            raise self.source.error(node.place, f"{what} reads {unbound[0]}, which is not bound")
        return Expression(text, compiled, reads)

    def _hint(self, unknown: str | None) -> str | None:
        if unknown is None:
            return None
        opaque = self._arguments.get(unknown.removeprefix("args."))
        if opaque is not None and KINDS[opaque.kind] is None:
            return f'"{opaque.name}" has type json: no expression can read it, but {CALL_DIGEST} covers it'
        return nearest(unknown, self.conditions.variables) or "declare it under arguments: or facts:"


def _params(source: Source, entries: Mapping[str, Node], expressions: _Expressions) -> dict[tuple[str, ...], Any]:
    if "params" not in entries:
        return {}
    table = source.table(entries["params"], "params")
    found: dict[tuple[str, ...], Expression | Amount] = {}
    for name, node in table.entries.items():
        with source.collecting():
            path = _param_path(source, table.keys[name], name)
            if isinstance(node, Table):
                found[path] = _amount(source, node, f"params.{name}", expressions)
            else:
                found[path] = expressions.read(node, f"params.{name}", "string", "int", "bool")
            if path == ("amount",) and not isinstance(found[path], Amount):
                raise source.error(node.place, "params.amount needs minor:, major: or stripe:, and currency:")
    for path in found:
        if any(path != other and other[: len(path)] == path for other in found):
            raise source.error(table.place, f"params.{'.'.join(path)} cannot both be a value and have fields")
    return found


def _param_path(source: Source, place: SourcePosition, name: str) -> tuple[str, ...]:
    path = tuple(name.split("."))
    if not _PARAM.fullmatch(name) or path[0] == RESERVED_PARAM:
        raise source.error(place, f'params: "{name}" is not a name for a param')
    return path


def _amount(source: Source, node: Node, what: str, expressions: _Expressions) -> Amount:
    table = source.fields(node, what, known=(*_TYPES_OF_UNIT, "currency"), required=("currency",))
    units = [unit for unit in _TYPES_OF_UNIT if unit in table.entries]
    if len(units) != 1:
        raise source.error(table.place, f"{what} needs one of minor:, major: and stripe:")
    (unit,) = units
    currency = expressions.read(table.entries["currency"], f"{what}.currency", "string")
    return Amount(expressions.read(table.entries[unit], f"{what}.{unit}", *_TYPES_OF_UNIT[unit]), unit, currency)


def _injections(
    source: Source, entries: Mapping[str, Node], arguments: Mapping[str, Argument]
) -> tuple[Injection, ...]:
    if "inject" not in entries:
        return ()
    found = []
    for node in source.listing(entries["inject"], "inject"):
        table = source.fields(node, "inject", known=("header", "argument", "from"), required=("from",))
        if ("header" in table.entries) == ("argument" in table.entries):
            raise source.error(table.place, "inject needs either header: or argument:")
        place = "header" if "header" in table.entries else "argument"
        form = _HEADER if place == "header" else _ARGUMENT
        name = source.text(table.entries[place], f"inject.{place}", form=form, means="a name")
        if name.lower() in _OWN_HEADERS or (place == "argument" and name in arguments):
            raise source.error(table.entries[place].place, f'inject.{place}: "{name}" cannot be injected')
        origin = source.one_of(table.entries["from"], "inject.from", ("operation_id", "idempotency_key"))
        found.append(Injection(place, name, origin))  # type: ignore[arg-type]
    return tuple(found)
