"""The parts of any checked expression, for the checks that are made when a policy is loaded.

`checked_tree` reads what can be translated into Python and refuses the rest; here every kind of expression is read, so
that a check also covers conditions of which only the engine can evaluate some part. See `checked_tree` for the
serialised form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sentinel.policy.checked_tree import NotCovered, as_message, fields, number_field, only_field, overloads_by_id

EXPRESSION, _SOURCE, _POSITIONS = 4, 5, 4  # fields of CheckedExpr and SourceInfo
CONSTANT, VARIABLE, CALL, LIST, STRUCT, COMPREHENSION = 3, 4, 6, 7, 8, 9
PARTS = {5: (1,), CALL: (1, 3), LIST: (1,), STRUCT: (3, 4), COMPREHENSION: (2, 4, 5, 6, 7)}
"""The kinds of an expression that have parts, and the numbers of the fields that hold them."""
_BOUND = (1, 3, 8)  # the fields of a comprehension that name its own variables
_BOOL, _STRING = 2, 6  # fields of a constant


@dataclass(frozen=True, slots=True)
class ExpressionPart:
    """An expression of the tree; `parts` are those directly within it, `is_constant` that it contains no variable."""

    expression: bytes
    node_id: int
    kind: int
    body: bytes
    parts: tuple[ExpressionPart, ...]
    is_constant: bool

    @property
    def variable(self) -> str | None:
        """The name, if it is a variable."""
        return only_field(self.body, 1).decode() if self.kind == VARIABLE else None

    @property
    def text(self) -> str | None:
        """The value, if it is a constant text."""
        found = dict(fields(self.body)) if self.kind == CONSTANT else {}
        return as_message(found[_STRING]).decode() if _STRING in found else None

    @property
    def truth(self) -> bool | None:
        """The value, if it is a constant true or false."""
        found = dict(fields(self.body)) if self.kind == CONSTANT else {}
        return bool(found[_BOOL]) if _BOOL in found else None

    @property
    def bound(self) -> frozenset[str]:
        """The names of a comprehension's own variables."""
        if self.kind != COMPREHENSION:
            return frozenset()
        return frozenset(as_message(value).decode() for number, value in fields(self.body) if number in _BOUND)


@dataclass(frozen=True, slots=True)
class CheckedExpression:
    """A checked expression: its parts under `root`; `checked` is the serialised message that they are read from, of type `type_name`."""

    type_name: bytes
    checked: bytes
    root: ExpressionPart
    overloads: Mapping[int, tuple[str, ...]]
    positions: Mapping[int, int]

    def overload(self, part: ExpressionPart) -> str:
        """Return the overload that a call resolved to; "" for what is no call, and for a call resolved only at run time."""
        found = self.overloads.get(part.node_id, ()) if part.kind == CALL else ()
        return found[0] if len(found) == 1 else ""

    def offset(self, part: ExpressionPart) -> int:
        """Return the part's offset, in characters of the text that was compiled."""
        return self.positions.get(part.node_id, 0)


def checked_expression(serialized: bytes) -> CheckedExpression:
    """Read the parts of a serialised expression. Raises `NotCovered` for an unknown encoding."""
    type_name, checked = only_field(serialized, 1), only_field(serialized, 2)  # google.protobuf.Any
    root = _part(only_field(checked, EXPRESSION))
    return CheckedExpression(type_name, checked, root, overloads_by_id(checked), _positions(checked))


def _positions(checked: bytes) -> Mapping[int, int]:
    listed = [as_message(value) for number, value in fields(only_field(checked, _SOURCE)) if number == _POSITIONS]
    return {number_field(entry, 1): number_field(entry, 2) for entry in listed}


def _part(expression: bytes) -> ExpressionPart:
    found = dict(fields(expression))
    node_id = found.pop(2, 0)
    if len(found) != 1 or not isinstance(node_id, int):
        raise NotCovered("a node of an unknown shape")
    ((kind, value),) = found.items()
    body = as_message(value)
    parts = tuple(_part(one) for one in _expressions(kind, body))
    is_constant = kind not in (VARIABLE, COMPREHENSION) and all(part.is_constant for part in parts)
    return ExpressionPart(expression, node_id, kind, body, parts, is_constant)


def _expressions(kind: int, body: bytes) -> Iterator[bytes]:
    wanted = PARTS.get(kind, ())
    if kind == STRUCT:
        for number, entry in fields(body):
            if number == 2:
                yield from (as_message(value) for inner, value in fields(as_message(entry)) if inner in wanted)
        return
    # The target of a call has a lower field number than its arguments, so sorting puts it first, whatever the order in
    # the encoding.
    for _, value in sorted(((one, value) for one, value in fields(body) if one in wanted), key=lambda found: found[0]):
        yield as_message(value)
