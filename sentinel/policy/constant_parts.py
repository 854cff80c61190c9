"""Finds what a condition says that can never have a value, whatever is asked: a part without variables that fails.

`timestamp('soon')`, `1 / 0`, and operations that fail by a constant whatever the other side is: `n / 0`, `name.matches('(')`,
`now.getHours('Nowhere')`. Each such part of the engine's checked tree is asked of the engine itself, so that what counts as a pattern,
a time or a zone is what it takes at a request. What is not read here is left alone: a request then decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.policy.checked_tree import NotCovered, as_message, fields, number_field, only_field, overloads_by_id

_EXPRESSION, _SOURCE, _POSITIONS = 4, 5, 4  # fields of CheckedExpr and SourceInfo
_CONSTANT, _VARIABLE, _CALL, _LIST, _STRUCT, _COMPREHENSION = 3, 4, 6, 7, 8, 9
_PARTS = {5: (1,), _CALL: (1, 3), _LIST: (1,), _STRUCT: (3, 4), _COMPREHENSION: (2, 4, 5, 6, 7)}
"""The kinds of an expression that have parts, and the fields that they stand in."""


@dataclass(frozen=True, slots=True)
class FailingPart:
    """A part that can never have a value: why, in the engine's words, and where, in characters of the condition."""

    why: str
    offset: int


@dataclass(frozen=True, slots=True)
class _Part:
    """An expression of the tree; `parts` are those within it, `is_constant` says that no variable is among them."""

    expression: bytes
    node_id: int
    kind: int
    body: bytes
    parts: tuple[_Part, ...]
    is_constant: bool


def find_failing_part(environment: Any, text: str) -> FailingPart | None:
    """The first of a condition that compiles, the innermost where they are nested; None where there is none."""
    serialized = environment.compile(text).serialize()
    try:
        checked = only_field(serialized, 2)
        overloads, positions = overloads_by_id(checked), _positions(checked)
        for part in _inside_out(_part(only_field(checked, _EXPRESSION))):
            asked = _to_be_asked(part, overloads.get(part.node_id, ()))
            why = None if asked is None else _failure(environment, _with_root(serialized, checked, asked))
            if why is not None:
                return FailingPart(why, positions.get((part.parts or (part,))[-1].node_id, 0))
    except NotCovered:
        return None
    return None


def _positions(checked: bytes) -> Mapping[int, int]:
    listed = [as_message(value) for number, value in fields(only_field(checked, _SOURCE)) if number == _POSITIONS]
    return {number_field(entry, 1): number_field(entry, 2) for entry in listed}


def _part(expression: bytes) -> _Part:
    found = dict(fields(expression))
    node_id = found.pop(2, 0)
    if len(found) != 1 or not isinstance(node_id, int):
        raise NotCovered("a node of an unknown shape")
    ((kind, value),) = found.items()
    body = as_message(value)
    parts = tuple(_part(one) for one in _expressions(kind, body))
    is_constant = kind not in (_VARIABLE, _COMPREHENSION) and all(part.is_constant for part in parts)
    return _Part(expression, node_id, kind, body, parts, is_constant)


def _expressions(kind: int, body: bytes) -> Iterator[bytes]:
    wanted = _PARTS.get(kind, ())
    if kind == _STRUCT:
        for number, entry in fields(body):
            if number == 2:
                yield from (as_message(value) for inner, value in fields(as_message(entry)) if inner in wanted)
        return
    # The target of a call is a field of a lower number than its arguments, and stands before them however it was written.
    for _, value in sorted(((one, value) for one, value in fields(body) if one in wanted), key=lambda found: found[0]):
        yield as_message(value)


def _inside_out(part: _Part) -> Iterator[_Part]:
    for one in part.parts:
        yield from _inside_out(one)
    yield part


def _to_be_asked(part: _Part, overloads: tuple[str, ...]) -> bytes | None:
    """The expression to ask in place of this part; None where its value depends on variables."""
    if part.kind != _CALL:
        return None
    if part.is_constant:
        return part.expression
    if len(part.parts) != 2 or not part.parts[-1].is_constant or len(overloads) != 1:
        return None
    sample = _sample_for_first(overloads[0])
    return None if sample is None else _with_first(part, sample)


def _sample_for_first(overload: str) -> bytes | None:
    """What may stand first in an operation of two that fails by its last part alone; None for any other."""
    if overload in ("divide_int64", "modulo_int64"):
        return _written(_CONSTANT, _number(3, 1))
    if overload in ("divide_uint64", "modulo_uint64"):
        return _written(_CONSTANT, _number(4, 1))
    if overload in ("matches", "matches_string"):
        return _written(_CONSTANT, _written(6, b""))
    if overload.endswith("_with_tz"):
        moment = _written(_CONSTANT, _written(6, b"2000-01-01T00:00:00Z"))
        return _written(_CALL, _written(2, b"timestamp") + _written(3, moment))
    return None


def _with_first(part: _Part, first: bytes) -> bytes:
    """The call with another first part."""
    replaced = part.parts[0].expression
    body = b"".join(
        _written(number, first if value == replaced and number in _PARTS[_CALL] else as_message(value))
        for number, value in fields(part.body)
    )
    return _number(2, part.node_id) + _written(_CALL, body)


def _with_root(serialized: bytes, checked: bytes, expression: bytes) -> bytes:
    """The serialised checked expression with another root."""
    kept = [_written(number, as_message(value)) for number, value in fields(checked) if number != _EXPRESSION]
    root = b"".join([*kept, _written(_EXPRESSION, expression)])
    return _written(1, only_field(serialized, 1)) + _written(2, root)


def _failure(environment: Any, serialized: bytes) -> str | None:
    """Why the engine has no value for it; None where it has one, or does not take it."""
    try:
        result = environment.deserialize(serialized).eval(environment.Activation({}))
        return str(result.value()).partition(": ")[2][:200] if result.type().name() == "ERROR" else None
    except Exception:  # an expression that it does not take from us says nothing about the condition
        return None


def _written(number: int, value: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    """A field of a protobuf message that holds a number."""
    return _varint(number << 3) + _varint(value)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
