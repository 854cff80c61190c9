"""Translates the checked trees of a policy's conditions into one Python function of the variables.

The function is built of `ast` nodes and never of source text: text of a policy reaches it only as constants. For values
of the declared types it answers as the engine does: True, False, or None where the engine has an error. The engine
itself answers for a value of another type and for times further apart than it can count (the function raises
`AskEngine`), and for a condition with a construct that is not translated (`NotCovered` is raised at its translation).
See docs/decisions/0051-conditions-as-python.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from types import CodeType, FunctionType
from typing import Any

from sentinel.policy.checked_tree import Node, NodeKind, NotCovered

Answers = Callable[[Mapping[str, Any]], tuple[bool | None, ...]]

LEAST, MOST = -(2**63), 2**63 - 1
"""The bounds of the engine's integers; a result beyond them is an error."""

_DEPTH = 40
_MISSING = object()
_DURATION = re.compile(r"([0-9]{1,7})(h|m|s)")
_UNITS = {"h": 3600, "m": 60, "s": 1}
_LONGEST = timedelta(days=106_751)
"""The most whole days that fit into a signed 64-bit number of nanoseconds."""


class AskEngine(Exception):
    """The engine has to answer: a value is not of its variable's declared kind, or a difference of times is too long."""


def condition_function(trees: Sequence[Node], types: Mapping[str, str]) -> Answers:
    """Return a function of the variables that gives one answer per tree; `types` are the variables' types. Raises `NotCovered`."""
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
    """Return a string that is not plain ASCII if it is valid Unicode; raise `AskEngine` for any other value."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise AskEngine from None
        return value
    raise AskEngine


def _other(value: Any) -> None:
    """Raise `AskEngine`, for a value that is present and of another kind than declared."""
    raise AskEngine


def _moment(value: Any) -> datetime | None:
    if value is _MISSING:
        return None
    # Near the first and last year the engine's range and Python's may differ; without a zone they may read the time
    # differently.
    if type(value) is datetime and value.tzinfo is not None and 2 <= value.year <= 9998:
        return value.astimezone(timezone.utc)  # noqa: UP017 - also in the client's wheel, which runs on Python 3.10
    raise AskEngine


def _difference(one: datetime, other: datetime) -> timedelta:
    found = one - other
    # The engine counts a difference in 64-bit nanoseconds, and has an error where that overflows.
    if -_LONGEST <= found <= _LONGEST:
        return found
    raise AskEngine


def _whole(value: int) -> int | None:
    return value if LEAST <= value <= MOST else None


def _divided(one: int, other: int) -> int | None:
    """Divide towards zero, as the engine does; None, no answer, for a division by zero."""
    if other == 0:
        return None
    found = abs(one) // abs(other)
    return _whole(found if (one < 0) == (other < 0) else -found)


def _remainder(one: int, other: int) -> int | None:
    quotient = _divided(one, other)
    return None if quotient is None else one - quotient * other


_GLOBALS: dict[str, Any] = {
    "_missing": _MISSING, "_text": _text, "_other": _other, "_moment": _moment, "_difference": _difference, "_whole": _whole, "_divided": _divided,
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
    """Writes expressions, and remembers which variables they read; `durations` are the values of the names used for constant durations."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.durations: dict[str, timedelta] = {}
        self._types = types
        self._read: dict[str, str] = {}
        self._temporaries = 0

    def expression(self, node: Node, depth: int = 0) -> _Code:
        """Return the code of a node. Raises `NotCovered`."""
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
        """Return the statements that read every variable once and check that it is of its kind."""
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
        """Write an operation that fails where one of its parts fails."""
        build, kind, may_fail = operation
        kept = [self._kept(part) for part in parts]
        code = build(*[value for _, value in kept])
        failing = [_is_none(test) for test, _ in kept if test is not None]
        if failing:
            code = ast.IfExp(_any(failing), ast.Constant(None), code)
        return _Code(code, kind, may_fail or bool(failing))

    def _kept(self, part: _Code) -> tuple[ast.expr | None, ast.expr]:
        """Return (the expression to test for None, or None if it cannot fail; the expression for its value after that test)."""
        if not part.may_fail:
            return None, part.code
        if isinstance(part.code, ast.Name):
            return part.code, part.code
        self._temporaries += 1
        name = f"t{self._temporaries}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), part.code), _name(name)

    def _joined(self, one: _Code, other: _Code, *, decides: bool) -> _Code:
        """Write `&&` or `||`: the deciding value wins over an error on the other side (`decides` is True for `||`)."""
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
    """Return (how an overload is written, the kind of its value, whether it can fail by itself). Raises `NotCovered`."""
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
        return (lambda one, other: _calling("_difference", one, other)), "duration", False
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
    """Return the statements `local = get(name, _missing)` and the check that the value is of its kind."""
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
