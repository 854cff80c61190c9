"""Reads the checked tree of a condition: what the engine parsed, with every overload resolved by types.

The engine hands it out as a serialised `cel.expr.CheckedExpr` (github.com/google/cel-spec, proto/cel/expr/checked.proto and
syntax.proto). The few fields that matter here are read from the protobuf encoding; anything unexpected raises `NotCovered`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_SIGN, _WRAP = 1 << 63, 1 << 64


class NotCovered(Exception):
    """The engine has to evaluate this condition: it contains something that cannot be translated."""


class NodeKind(Enum):
    """The kind of a node; the node's `value` is a constant, a variable's name or an overload's id, and None for a list."""

    CONSTANT = "constant"
    VARIABLE = "variable"
    CALL = "call"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Node:
    """One node; `arguments` are a call's target, if any, and arguments, or a list's elements."""

    kind: NodeKind
    value: bool | int | str | None
    arguments: tuple[Node, ...] = ()


def checked_tree(serialized: bytes) -> Node:
    """Return the tree of a serialised expression. Raises `NotCovered`."""
    checked = only_field(serialized, 2)  # google.protobuf.Any: its value
    return _node(only_field(checked, 4), overloads_by_id(checked))


def overloads_by_id(checked: bytes) -> dict[int, tuple[str, ...]]:
    """Return the overloads that the checker found, by node id of a `CheckedExpr`; a resolved variable has none."""
    return dict(_reference(entry) for number, entry in fields(checked) if number == 2)


def _reference(entry: bytes | int) -> tuple[int, tuple[str, ...]]:
    found = [(number, value) for number, value in fields(only_field(as_message(entry), 2)) if number == 3]
    return number_field(entry, 1), tuple(as_message(value).decode() for _, value in found)


def _node(expression: bytes, references: dict[int, tuple[str, ...]]) -> Node:
    parts = dict(fields(expression))
    node_id = parts.pop(2, 0)
    if len(parts) != 1 or not isinstance(node_id, int):
        raise NotCovered("a node of an unknown shape")
    ((number, value),) = parts.items()
    match number:
        case 3:
            return Node(NodeKind.CONSTANT, _constant(as_message(value)))
        case 4:
            return Node(NodeKind.VARIABLE, only_field(value, 1).decode())
        case 6:
            return _call(as_message(value), references.get(node_id, ()), references)
        case 7:
            return _list(as_message(value), references)
    raise NotCovered("a select, a message or a comprehension")


def _call(call: bytes, overloads: tuple[str, ...], references: dict[int, tuple[str, ...]]) -> Node:
    if len(overloads) != 1:
        raise NotCovered("a call whose types are known only when it is made")
    # The target has a lower field number than the arguments, so sorting puts it first, whatever the order in the
    # encoding.
    parts = sorted((part for part in fields(call) if part[0] != 2), key=lambda part: part[0])
    return Node(NodeKind.CALL, overloads[0], tuple(_node(as_message(value), references) for _, value in parts))


def _list(elements: bytes, references: dict[int, tuple[str, ...]]) -> Node:
    found = list(fields(elements))
    if any(number != 1 for number, _ in found):
        raise NotCovered("optional elements")
    return Node(NodeKind.LIST, None, tuple(_node(as_message(value), references) for _, value in found))


def _constant(constant: bytes) -> bool | int | str:
    ((number, value),) = tuple(fields(constant)) or ((0, 0),)
    match number:
        case 2:
            return bool(value)
        case 3 if isinstance(value, int):
            return value - _WRAP if value & _SIGN else value
        case 6:
            return as_message(value).decode()
    raise NotCovered("a constant that is no bool, int or string")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message as (number, value): varints and bytes. Raises `NotCovered` for other encodings."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            end = at + value
            if end > len(message):
                raise NotCovered("a cut message")
            yield tag >> 3, message[at:end]
            at = end
        elif tag & 7 == 0:
            yield tag >> 3, value
        else:
            raise NotCovered("a fixed-size field")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise NotCovered("a cut number")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def only_field(message: bytes | int, wanted: int) -> bytes:
    """Return the one field of this number, which must hold bytes. Raises `NotCovered`."""
    found = [value for number, value in fields(as_message(message)) if number == wanted]
    if len(found) != 1:
        raise NotCovered(f"field {wanted} is not there once")
    return as_message(found[0])


def number_field(message: bytes | int, wanted: int) -> int:
    """Return the one field of this number, which must hold a number. Raises `NotCovered`."""
    found = [value for number, value in fields(as_message(message)) if number == wanted]
    if len(found) != 1 or not isinstance(found[0], int):
        raise NotCovered(f"field {wanted} is not there once")
    return found[0]


def as_message(value: bytes | int) -> bytes:
    """Return a field's value, which must be bytes. Raises `NotCovered` on a number."""
    if not isinstance(value, bytes):
        raise NotCovered("a number where a message belongs")
    return value
