"""Reads the engine's checked trees of a policy's conditions and translates them into one Python function of the variables.

A checked tree is what the engine parsed, with every overload resolved by types. The engine hands it out as a serialised
`cel.expr.CheckedExpr` (github.com/google/cel-spec, proto/cel/expr/checked.proto and syntax.proto). The few fields that matter here
are read from the protobuf encoding; anything unexpected raises `NotCovered`.

The function is built of `ast` nodes and never of source text: what a policy says reaches it only as constants. It answers as the
engine does, True, False or None where the engine has an error, for values of the declared types. For a value of another kind it
raises `AskEngine`, and a condition with a construct that is not here raises `NotCovered` when it is translated: the engine
answers those. See docs/decisions/0051-conditions-as-python.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from types import CodeType, FunctionType
from typing import Any

Answers = Callable[[Mapping[str, Any]], tuple[bool | None, ...]]

LEAST, MOST = -(2**63), 2**63 - 1
"""The engine's integers: what passes them is an error."""

_DEPTH = 40
_MISSING = object()
_DURATION = re.compile(r"([0-9]{1,7})(h|m|s)")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_SIGN, _WRAP = 1 << 63, 1 << 64


class NotCovered(Exception):
    """The engine has to evaluate this condition: it holds something that is not translated."""


class NodeKind(Enum):
    """What a node is: `value` of the node is a constant, a variable's name, or an overload's id; a list has none."""

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


class AskEngine(Exception):
    """A value is not of its variable's declared kind: the engine knows what that means."""


def condition_function(trees: Sequence[Node], types: Mapping[str, str]) -> Answers:
    """A function of the variables that gives an answer for each tree; `types` are the variables' types. Raises `NotCovered`."""
    writer = _Writer(types)
    answers = []
    for tree in trees:
        found = writer.expression(tree)
        if found.kind != "bool":
            raise NotCovered("a condition that is no bool")
        answers.append(found.code)
    return _function([*writer.reading(), ast.Return(ast.Tuple(answers, ast.Load()))], writer.durations)


def _function(body: list[ast.stmt], durations: Mapping[str, timedelta]) -> Answers:
    arguments = ast.arguments([], [ast.arg("variables")], None, [], [], None, [])
    getting = ast.Assign([ast.Name("get", ast.Store())], ast.Attribute(_name("variables"), "get", ast.Load()))
    module = ast.Module([ast.FunctionDef("answers", arguments, [getting, *body], [])], [])
    try:
        code = compile(ast.fix_missing_locations(module), "<policy>", "exec")
    except (RecursionError, MemoryError, ValueError, SyntaxError) as error:
        raise NotCovered("more than the compiler takes") from error
    (made,) = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return FunctionType(made, {**_GLOBALS, **durations, "__builtins__": {}})


def _text(value: Any) -> str | None:
    """A string that is not plain ASCII, read; `AskEngine` for any value of another kind."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise AskEngine from None
        return value
    raise AskEngine


def _other(value: Any) -> None:
    """`AskEngine` for a value that is there and of another kind."""
    raise AskEngine


def _moment(value: Any) -> datetime | None:
    if value is _MISSING:
        return None
    # At the ends of time the engine's range and Python's may differ, and without a zone their meaning.
    if type(value) is datetime and value.tzinfo is not None and 2 <= value.year <= 9998:
        return value.astimezone(timezone.utc)  # noqa: UP017 - also in the client's wheel, which runs on Python 3.10
    raise AskEngine


def _whole(value: int) -> int | None:
    return value if LEAST <= value <= MOST else None


def _divided(one: int, other: int) -> int | None:
    """Towards zero, as the engine does; no answer for a division by zero."""
    if other == 0:
        return None
    found = abs(one) // abs(other)
    return _whole(found if (one < 0) == (other < 0) else -found)


def _remainder(one: int, other: int) -> int | None:
    quotient = _divided(one, other)
    return None if quotient is None else one - quotient * other


_GLOBALS: dict[str, Any] = {
    "_missing": _MISSING, "_text": _text, "_other": _other, "_moment": _moment, "_whole": _whole, "_divided": _divided,
    "_remainder": _remainder, "len": len, "type": type, "int": int, "str": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Code:
    """An expression, its kind, and whether it may be None, which stands for the engine's error."""

    code: ast.expr
    kind: str
    may_fail: bool


_COMPARED = {
    "less": ast.Lt, "less_equals": ast.LtE, "greater": ast.Gt, "greater_equals": ast.GtE,
}  # fmt: skip
_KINDS = {"bool": "bool", "int64": "int", "string": "string", "timestamp": "timestamp", "duration": "duration"}
_COMPARISONS: dict[str, tuple[type[ast.cmpop], str]] = {
    f"{name}_{engine}": (operator, kind) for name, operator in _COMPARED.items() for engine, kind in _KINDS.items()
}
_METHODS = {"starts_with_string": "startswith", "ends_with_string": "endswith"}
_ARITHMETIC: dict[str, type[ast.operator]] = {
    "add_int64": ast.Add, "subtract_int64": ast.Sub, "multiply_int64": ast.Mult,
}  # fmt: skip
_DIVISIONS = {"divide_int64": "_divided", "modulo_int64": "_remainder"}


class _Writer:
    """Writes expressions, and remembers which variables they read; `durations` are the values of names that stand for them."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.durations: dict[str, timedelta] = {}
        self._types = types
        self._read: dict[str, str] = {}
        self._temporaries = 0

    def expression(self, node: Node, depth: int = 0) -> _Code:
        """The code of a node. Raises `NotCovered`."""
        if depth > _DEPTH:
            raise NotCovered("nested too deeply")
        match node.kind:
            case NodeKind.CONSTANT:
                return _Code(ast.Constant(node.value), _kind_of(node.value), may_fail=False)
            case NodeKind.VARIABLE:
                return self._variable(str(node.value))
            case NodeKind.CALL:
                return self._call(str(node.value), node.arguments, depth + 1)
        raise NotCovered("a list by itself")

    def reading(self) -> list[ast.stmt]:
        """The statements that read every variable once and see that it is of its kind."""
        return [
            statement for name, local in self._read.items() for statement in _reading(name, local, self._types[name])
        ]

    def _variable(self, name: str) -> _Code:
        if name not in self._types:
            raise NotCovered("a name that is no variable")
        local = self._read.setdefault(name, f"v{len(self._read)}")
        return _Code(_name(local), self._types[name], may_fail=True)

    def _call(self, overload: str, arguments: tuple[Node, ...], depth: int) -> _Code:
        if overload == "in_list":
            return self._in_list(arguments[0], arguments[1], depth)
        if overload == "string_to_duration":
            name = f"d{len(self.durations)}"
            self.durations[name] = _duration(arguments)
            return _Code(_name(name), "duration", may_fail=False)
        parts = [self.expression(argument, depth) for argument in arguments]
        kinds = [part.kind for part in parts]
        if overload in ("logical_and", "logical_or") and kinds == ["bool", "bool"]:
            return self._joined(parts[0], parts[1], decides=overload == "logical_or")
        if overload == "conditional" and kinds[0] == "bool" and kinds[1] == kinds[2]:
            return self._chosen(*parts)
        return self._strict(_operation(overload, kinds), parts)

    def _strict(self, operation: tuple[Callable[..., ast.expr], str, bool], parts: Sequence[_Code]) -> _Code:
        """An operation that fails where one of its parts does."""
        build, kind, may_fail = operation
        kept = [self._kept(part) for part in parts]
        code = build(*[value for _, value in kept])
        failing = [_is_none(test) for test, _ in kept if test is not None]
        if failing:
            code = ast.IfExp(_any(failing), ast.Constant(None), code)
        return _Code(code, kind, may_fail or bool(failing))

    def _kept(self, part: _Code) -> tuple[ast.expr | None, ast.expr]:
        """What to test for None, if it may be, and how to name the value after it."""
        if not part.may_fail:
            return None, part.code
        if isinstance(part.code, ast.Name):
            return part.code, part.code
        self._temporaries += 1
        name = f"t{self._temporaries}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), part.code), _name(name)

    def _joined(self, one: _Code, other: _Code, *, decides: bool) -> _Code:
        """`&&` and `||`: the value that decides wins over an error on the other side (`decides` is True for `||`)."""
        first, one_value = self._kept(one)
        decided = ast.Constant(decides)
        if first is None:
            code = ast.IfExp(one_value, *((decided, other.code) if decides else (other.code, decided)))
            return _Code(code, "bool", other.may_fail)
        second, other_value = self._kept(other)
        rest: ast.expr = ast.IfExp(_is_none(one_value), ast.Constant(None), other_value)
        return _Code(
            ast.IfExp(_is(first, decides), decided, ast.IfExp(_is(second or other_value, decides), decided, rest)),
            "bool", may_fail=True,
        )  # fmt: skip

    def _chosen(self, condition: _Code, one: _Code, other: _Code) -> _Code:
        test, value = self._kept(condition)
        code: ast.expr = ast.IfExp(value, one.code, other.code)
        if test is not None:
            code = ast.IfExp(_is_none(test), ast.Constant(None), code)
        return _Code(code, one.kind, test is not None or one.may_fail or other.may_fail)

    def _in_list(self, member: Node, among: Node, depth: int) -> _Code:
        found = self.expression(member, depth)
        values = [one.value for one in among.arguments if one.kind is NodeKind.CONSTANT]
        if among.kind is not NodeKind.LIST or len(values) < len(among.arguments):
            raise NotCovered("a list of other than constants")
        if any(_kind_of(value) != found.kind for value in values):
            raise NotCovered("a list of another kind")
        listed = ast.Tuple([ast.Constant(value) for value in values], ast.Load())
        return self._strict((lambda one: ast.Compare(one, [ast.In()], [listed]), "bool", False), [found])


def _operation(overload: str, kinds: Sequence[str]) -> tuple[Callable[..., ast.expr], str, bool]:
    """How an overload is written, the kind of its value, and whether it can fail by itself."""
    if overload == "logical_not" and kinds == ["bool"]:
        return (lambda one: ast.UnaryOp(ast.Not(), one)), "bool", False
    if overload in ("equals", "not_equals") and kinds[0] == kinds[1]:
        return _comparing(ast.Eq if overload == "equals" else ast.NotEq), "bool", False
    if overload in _COMPARISONS and list(kinds) == [_COMPARISONS[overload][1]] * 2:
        return _comparing(_COMPARISONS[overload][0]), "bool", False
    if list(kinds) == ["int", "int"]:
        return _integers(overload), "int", True
    if overload == "negate_int64":
        return (lambda one: _calling("_whole", ast.UnaryOp(ast.USub(), one))), "int", True
    if list(kinds) == ["string", "string"]:
        return _strings(overload)
    if overload in ("size_string", "string_size"):
        return (lambda one: _calling("len", one)), "int", False
    if overload == "subtract_timestamp_timestamp":
        return (lambda one, other: ast.BinOp(one, ast.Sub(), other)), "duration", False
    raise NotCovered(f"{overload} is not translated")


def _comparing(operator: type[ast.cmpop]) -> Callable[..., ast.expr]:
    return lambda one, other: ast.Compare(one, [operator()], [other])


def _integers(overload: str) -> Callable[..., ast.expr]:
    if overload in _DIVISIONS:
        return lambda one, other: _calling(_DIVISIONS[overload], one, other)
    if overload in _ARITHMETIC:
        return lambda one, other: _calling("_whole", ast.BinOp(one, _ARITHMETIC[overload](), other))
    raise NotCovered(f"{overload} is not translated")


def _strings(overload: str) -> tuple[Callable[..., ast.expr], str, bool]:
    if overload in _METHODS:
        return (
            (lambda one, other: ast.Call(ast.Attribute(one, _METHODS[overload], ast.Load()), [other], [])), "bool", False
        )  # fmt: skip
    if overload == "contains_string":
        return (lambda one, other: ast.Compare(other, [ast.In()], [one])), "bool", False
    if overload == "add_string":
        return (lambda one, other: ast.BinOp(one, ast.Add(), other)), "string", False
    raise NotCovered(f"{overload} is not translated")


def _reading(name: str, local: str, kind: str) -> list[ast.stmt]:
    """`local = get(name, _missing)`, and what happens where it is not of its kind."""
    read = ast.Assign([ast.Name(local, ast.Store())], _calling("get", ast.Constant(name), _name("_missing")))
    value = _name(local)
    match kind:
        case "bool":
            return [read, _unless(_any([_is(value, True), _is(value, False)]), local, "_other")]
        case "int":
            in_range = ast.Compare(ast.Constant(LEAST), [ast.LtE(), ast.LtE()], [value, ast.Constant(MOST)])
            return [read, _unless(ast.BoolOp(ast.And(), [_is_type(value, "int"), in_range]), local, "_other")]
        case "string":
            ascii_only = ast.Call(ast.Attribute(value, "isascii", ast.Load()), [], [])
            return [read, _unless(ast.BoolOp(ast.And(), [_is_type(value, "str"), ascii_only]), local, "_text")]
        case "timestamp":
            return [read, ast.Assign([ast.Name(local, ast.Store())], _calling("_moment", value))]
    raise NotCovered("a variable of another type")


def _unless(test: ast.expr, local: str, reader: str) -> ast.stmt:
    missing = ast.Compare(_name(local), [ast.Is()], [_name("_missing")])
    value = ast.IfExp(missing, ast.Constant(None), _calling(reader, _name(local)))
    return ast.If(ast.UnaryOp(ast.Not(), test), [ast.Assign([ast.Name(local, ast.Store())], value)], [])


def _duration(arguments: Sequence[Node]) -> timedelta:
    value = arguments[0].value
    found = _DURATION.fullmatch(value) if isinstance(value, str) and arguments[0].kind is NodeKind.CONSTANT else None
    if found is None:
        raise NotCovered("a duration that is not one whole number of hours, minutes or seconds")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def _kind_of(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _calling(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_name(name), list(arguments), [])


def _is(value: ast.expr, constant: bool) -> ast.expr:
    return ast.Compare(value, [ast.Is()], [ast.Constant(constant)])


def _is_none(value: ast.expr) -> ast.expr:
    return ast.Compare(value, [ast.Is()], [ast.Constant(None)])


def _is_type(value: ast.expr, name: str) -> ast.expr:
    return ast.Compare(_calling("type", value), [ast.Is()], [_name(name)])


def _any(tests: list[ast.expr]) -> ast.expr:
    return tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)


def checked_tree(serialized: bytes) -> Node:
    """The tree of a serialised expression. Raises `NotCovered`."""
    checked = _one(serialized, 2)  # google.protobuf.Any: its value
    references = dict(_reference(entry) for number, entry in _fields(checked) if number == 2)
    return _node(_one(checked, 4), references)


def _reference(entry: bytes | int) -> tuple[int, tuple[str, ...]]:
    """A node's id, and the overloads that the checker found for it; a resolved variable has none."""
    found = [(number, value) for number, value in _fields(_one(_bytes(entry), 2)) if number == 3]
    return _number(entry, 1), tuple(_bytes(value).decode() for _, value in found)


def _node(expression: bytes, references: dict[int, tuple[str, ...]]) -> Node:
    parts = dict(_fields(expression))
    node_id = parts.pop(2, 0)
    if len(parts) != 1 or not isinstance(node_id, int):
        raise NotCovered("a node of an unknown shape")
    ((number, value),) = parts.items()
    match number:
        case 3:
            return Node(NodeKind.CONSTANT, _constant(_bytes(value)))
        case 4:
            return Node(NodeKind.VARIABLE, _one(value, 1).decode())
        case 6:
            return _call(_bytes(value), references.get(node_id, ()), references)
        case 7:
            return _list(_bytes(value), references)
    raise NotCovered("a select, a message or a comprehension")


def _call(call: bytes, overloads: tuple[str, ...], references: dict[int, tuple[str, ...]]) -> Node:
    if len(overloads) != 1:
        raise NotCovered("a call whose types are known only when it is made")
    # The target is a field of a lower number than the arguments, and stands before them however it was written.
    parts = sorted((part for part in _fields(call) if part[0] != 2), key=lambda part: part[0])
    return Node(NodeKind.CALL, overloads[0], tuple(_node(_bytes(value), references) for _, value in parts))


def _list(elements: bytes, references: dict[int, tuple[str, ...]]) -> Node:
    found = list(_fields(elements))
    if any(number != 1 for number, _ in found):
        raise NotCovered("optional elements")
    return Node(NodeKind.LIST, None, tuple(_node(_bytes(value), references) for _, value in found))


def _constant(constant: bytes) -> bool | int | str:
    ((number, value),) = tuple(_fields(constant)) or ((0, 0),)
    match number:
        case 2:
            return bool(value)
        case 3 if isinstance(value, int):
            return value - _WRAP if value & _SIGN else value
        case 6:
            return _bytes(value).decode()
    raise NotCovered("a constant that is no bool, int or string")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protobuf message by number: varints and bytes."""
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


def _one(message: bytes | int, wanted: int) -> bytes:
    found = [value for number, value in _fields(_bytes(message)) if number == wanted]
    if len(found) != 1:
        raise NotCovered(f"field {wanted} is not there once")
    return _bytes(found[0])


def _number(message: bytes | int, wanted: int) -> int:
    found = [value for number, value in _fields(_bytes(message)) if number == wanted]
    if len(found) != 1 or not isinstance(found[0], int):
        raise NotCovered(f"field {wanted} is not there once")
    return found[0]


def _bytes(value: bytes | int) -> bytes:
    if not isinstance(value, bytes):
        raise NotCovered("a number where a message belongs")
    return value
