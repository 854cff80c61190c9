"""Finds the parts of a condition that can never have a value, whatever the request: they fail because of a constant.

`timestamp('soon')`, `1 / 0`, `{'a': 1}.b`, and operations that fail by a constant whatever the other side is: `n / 0`,
`name.matches('(')`, `now.getHours('Nowhere')`. The engine itself evaluates each such part of its checked tree, so that
exactly the patterns, times and zones pass that it accepts at a request. Parts of any other form are not checked here
and fail only at a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sentinel.policy.checked_tree import as_message, fields
from sentinel.policy.expression_parts import CALL, CONSTANT, EXPRESSION, PARTS, CheckedExpression, ExpressionPart


@dataclass(frozen=True, slots=True)
class FailingPart:
    """A part that can never have a value: why, in the engine's words, and its offset in characters of the condition."""

    why: str
    offset: int


def find_failing_part(environment: Any, expression: CheckedExpression) -> FailingPart | None:
    """Return the first failing part of a condition that compiles, the innermost of nested ones; None where there is none."""
    for part in _inside_out(expression.root):
        asked = _to_be_asked(part, expression.overload(part))
        why = None if asked is None else _failure(environment, _with_root(expression, asked))
        if why is not None:
            named = part.parts[-1] if part.kind == CALL and part.parts else part
            return FailingPart(why, expression.offset(named))
    return None


def _inside_out(part: ExpressionPart) -> Iterator[ExpressionPart]:
    for one in part.parts:
        yield from _inside_out(one)
    yield part


def _to_be_asked(part: ExpressionPart, overload: str) -> bytes | None:
    """Return the expression to evaluate in place of this part; None where whether it fails depends on variables."""
    if part.is_constant:
        return None if part.kind == CONSTANT else part.expression
    if part.kind != CALL or len(part.parts) != 2 or not part.parts[-1].is_constant:
        return None
    sample = _sample_for_first(overload)
    return None if sample is None else _with_first(part, sample)


def _sample_for_first(overload: str) -> bytes | None:
    """Return a harmless first operand for an operation of two that can fail by its last operand alone; None for any other."""
    if overload in ("divide_int64", "modulo_int64"):
        return _written(CONSTANT, _number(3, 1))
    if overload in ("divide_uint64", "modulo_uint64"):
        return _written(CONSTANT, _number(4, 1))
    if overload in ("matches", "matches_string"):
        return _written(CONSTANT, _written(6, b""))
    if overload.endswith("_with_tz"):
        moment = _written(CONSTANT, _written(6, b"2000-01-01T00:00:00Z"))
        return _written(CALL, _written(2, b"timestamp") + _written(3, moment))
    return None


def _with_first(part: ExpressionPart, first: bytes) -> bytes:
    """Return the call with another first operand."""
    replaced = part.parts[0].expression
    body = b"".join(
        _written(number, first if value == replaced and number in PARTS[CALL] else as_message(value))
        for number, value in fields(part.body)
    )
    return _number(2, part.node_id) + _written(CALL, body)


def _with_root(expression: CheckedExpression, root: bytes) -> bytes:
    """Return the serialised checked expression with another root."""
    checked = [(number, as_message(value)) for number, value in fields(expression.checked) if number != EXPRESSION]
    kept = b"".join(_written(number, value) for number, value in checked)
    return _written(1, expression.type_name) + _written(2, kept + _written(EXPRESSION, root))


def _failure(environment: Any, serialized: bytes) -> str | None:
    """Return why the engine has no value for the expression; None where it has one, or does not accept the expression."""
    try:
        result = environment.deserialize(serialized).eval(environment.Activation({}))
        return str(result.value()).partition(": ")[2][:200] if result.type().name() == "ERROR" else None
    except Exception:  # that the engine refuses an expression built here says nothing about the condition
        return None


def _written(number: int, value: bytes) -> bytes:
    """Encode a field of a protobuf message that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    """Encode a field of a protobuf message that holds a number."""
    return _varint(number << 3) + _varint(value)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
