"""Compiles and evaluates CEL conditions: typed variables in, True, False or None (no answer) out; and expressions for values.

The engine returns errors as *truthy strings*; here only the object True is true, only False is false, and
everything else is None, "could not answer". Whatever could weaken that is refused when a policy is loaded:
a type other than BOOL, doubles, `dyn`, `has(` (on dotted variables it answers false), and text of more than 2,000
characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from cel_expr_python import cel

from sentinel.policy.checked_tree import Node, NodeKind, NotCovered, checked_tree
from sentinel.policy.condition_function import AskEngine, condition_function
from sentinel.policy.constant_parts import find_failing_part
from sentinel.policy.expression_parts import CheckedExpression, checked_expression
from sentinel.policy.source import Scalar

MAX_TEXT = 2000
"""The most characters of an expression, counted as it is written in the file."""
TYPES = {
    "bool": cel.Type.BOOL,
    "int": cel.Type.INT,
    "string": cel.Type.STRING,
    "timestamp": cel.Type.TIMESTAMP,
}
"""The types a variable may have. There are no doubles, so no expression can mix them with amounts."""
_PYTHON_TYPES: dict[str, type] = {"string": str, "int": int, "bool": bool}

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>//[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<fraction>[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]+[uU]?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.ASCII,
)
_CEL_ERROR = re.compile(r"ERROR: <input>:(\d+):(\d+): (.+)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_MARK_HINTS = {"=": "== compares", "&": "&& is and", "|": "|| is or"}
_WORD_HINTS = {"and": "&& is and", "or": "|| is or", "not": "! is not"}
_REFUSED_CALLS = {
    "has": 'ask present.<fact> instead: "has" on a declared fact always answers false',
    "double": "amounts are whole minor units; there are no fractions here",
    "dyn": "it would remove the types that protect the rule",
}


class ConditionError(Exception):
    """A condition that is not accepted; `offset` counts characters from its start, `unknown` is a misspelt name."""

    def __init__(self, message: str, offset: int = 0, *, hint: str | None = None, unknown: str | None = None) -> None:
        super().__init__(message)
        self.message, self.offset, self.hint, self.unknown = message, offset, hint, unknown


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a condition: `kind` is "string", "number", "name" or "mark"."""

    kind: str
    text: str
    offset: int


def tokens(text: str) -> tuple[Token, ...]:
    """Return a condition's tokens without spaces and comments. Raises `ConditionError` on what we do not accept."""
    found = tuple(_scan(text))
    for before, token in pairwise(found):
        if before.kind in ("name", "string") and token.kind == "string":
            raise ConditionError("only plain quoted text is accepted", before.offset)
        if token.text == "(" and before.text in _REFUSED_CALLS:
            raise ConditionError(f'"{before.text}" is not accepted', before.offset, hint=_REFUSED_CALLS[before.text])
    return found


def written(parsed: Scalar) -> str:
    """Return the text of an expression in a YAML file; every reader of such a file must take the text from here.

    Raises `ConditionError` for more than `MAX_TEXT` characters, for a zero character, and for a comment where YAML
    joined several lines into one: it would silently cut off the rest. Only this function checks the length: the
    normalised text, which is compiled, stored and read back, has more spaces.
    """
    if len(parsed.text) > MAX_TEXT:
        raise ConditionError(f"longer than {MAX_TEXT} characters")
    if "\0" in parsed.text:
        # The engine would compare only the part before it, and PostgreSQL cannot read the recorded policy as JSON.
        raise ConditionError("a zero character is not accepted", parsed.text.index("\0"))
    is_joined = not parsed.one_line and parsed.style != "|"
    comment = next(_comments(parsed.text), None) if is_joined else None
    if comment is not None:
        message = "YAML joins these lines into one, and the comment would reach to its end"
        raise ConditionError(message, comment, hint='write it after "|", which keeps the lines, or without "//"')
    return parsed.text


def normalised(text: str) -> str:
    """Return the condition with one space between tokens and no comments: its layout is not part of the policy."""
    return _joined(tokens(text))


def _joined(parts: Iterable[Token]) -> str:
    pieces: list[str] = []
    for token in parts:
        glued = not pieces or token.text == "." or pieces[-1] == "."
        pieces += [token.text] if glued else [" ", token.text]
    return "".join(pieces)


def references(text: str, declared: Mapping[str, Any]) -> frozenset[str]:
    """Return the declared variables that a condition may read; names inside quoted text are not read."""
    read = _joined(replace(token, text='""') if token.kind == "string" else token for token in tokens(text))
    chains = re.findall(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*", read)
    return frozenset(name for chain in chains for name in _prefixes(chain) if name in declared)


class Condition:
    """One compiled condition. `tree` is its checked tree, None where the condition cannot be translated into Python."""

    __slots__ = ("_evaluate", "tree")

    def __init__(self, expression: Any, tree: Node | None = None) -> None:
        self._evaluate = expression.eval
        self.tree = tree

    def holds(self, activation: Any) -> bool | None:
        """Evaluate by the engine: True, False, or None where it could not answer."""
        try:
            value = self._evaluate(activation).value()
        except Exception:  # a budget or engine failure of any kind is "could not answer"
            return None
        # Identity, not truth: a failed evaluation's value is a non-empty string, and `if value` would fail open.
        if value is True:
            return True
        return False if value is False else None


class ValueExpression:
    """One compiled expression that gives a value; `kind` is "string", "int" or "bool"."""

    __slots__ = ("_evaluate", "kind")

    def __init__(self, expression: Any, kind: str) -> None:
        self._evaluate, self.kind = expression.eval, kind

    def value(self, activation: Any) -> str | int | bool | None:
        """Return the expression's value, or None where it has none."""
        try:
            result = self._evaluate(activation)
            # Ask the engine for the type, not Python: the value of a failed evaluation is text too.
            if result.type() != TYPES[self.kind]:
                return None
            value: str | int | bool = result.plain_value()
        except Exception:  # a budget or engine failure of any kind is "no value", as in `Condition.holds`
            return None
        return value if type(value) is _PYTHON_TYPES[self.kind] else None


class ConditionSet:
    """Several conditions of a policy, answered at once: by one Python function, and by the engine where that cannot
    answer.

    `by_engine` are the indexes of those that only the engine can answer.
    """

    __slots__ = ("_activation", "_conditions", "_function", "by_engine")

    def __init__(
        self, conditions: Sequence[Condition], activation: Callable[[Mapping[str, Any]], Any], types: Mapping[str, str]
    ) -> None:
        self._conditions, self._activation = tuple(conditions), activation
        trees = [condition.tree or _NO_ANSWER for condition in conditions]
        try:
            self._function = condition_function(trees, types)
            self.by_engine = frozenset(place for place, one in enumerate(conditions) if one.tree is None)
        except NotCovered:  # each can be translated, but all of them together are too much for one function
            self._function = condition_function((_NO_ANSWER,) * len(trees), types)
            self.by_engine = frozenset(range(len(trees)))

    def answers(self, values: Mapping[str, Any]) -> tuple[bool | None, ...]:
        """Return the answer of each condition, in order: True, False, or None where it could not answer."""
        try:
            found = self._function(values)
        except AskEngine:
            activation = self._activation(values)
            return tuple(condition.holds(activation) for condition in self._conditions)
        if not self.by_engine:
            return found
        activation = self._activation(values)
        return tuple(
            condition.holds(activation) if place in self.by_engine else answer
            for place, (condition, answer) in enumerate(zip(self._conditions, found, strict=True))
        )


_NO_ANSWER = Node(NodeKind.CONSTANT, False)
"""The placeholder in the function for a condition that the engine answers."""


class Conditions:
    """Compiles conditions over the variables of one policy, by name and type ("bool", "int", "string", "timestamp")."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._environment = cel.NewEnv(variables={name: TYPES[kind] for name, kind in variables.items()})

    def compile(self, text: str) -> Condition:
        """Compile a condition. Raises `ConditionError`: not CEL, misspelt, ill-typed, not BOOL, or refused by our rules."""
        expression = self._compiled(text)
        if expression.return_type() != cel.Type.BOOL:
            raise ConditionError(f"must be true or false, but is of type {expression.return_type().name()}")
        return Condition(expression, self._tree(expression))

    def compile_value(self, text: str) -> ValueExpression:
        """Compile an expression that gives text, a whole number or a boolean. Raises `ConditionError`."""
        expression = self._compiled(text)
        for kind in _PYTHON_TYPES:
            if expression.return_type() == TYPES[kind]:
                return ValueExpression(expression, kind)
        raise ConditionError(
            f"must be text, a whole number or true or false, but is of type {expression.return_type().name()}"
        )

    def parts(self, text: str) -> CheckedExpression:
        """Return all parts of a condition as it is written, even if it cannot be translated into Python. Raises `ConditionError`."""
        try:
            return checked_expression(self._as_written(text).serialize())
        except NotCovered as error:
            # A condition whose parts cannot be read cannot be checked, and an unchecked rule may be one that never
            # holds.
            raise ConditionError(f"cannot be checked: {error}") from error

    def check_constants(self, expression: CheckedExpression) -> None:
        """Raise `ConditionError` where a part can never have a value: `name.matches('(')`, `n / 0`,
        `timestamp('soon')`.

        This is separate from `compile`, because a policy that was recorded with such a part still has to be explained.
        """
        failing = find_failing_part(self._environment, expression)
        if failing is not None:
            raise ConditionError(f"this can never have a value: {failing.why}", failing.offset)

    def _compiled(self, text: str) -> Any:
        self._as_written(text)  # compiled only so that the offsets in error messages fit the text as written
        try:
            # What runs is the normalised text: exactly what the policy's digest covers.
            return self._environment.compile(normalised(text))
        except Exception as error:
            raise _explained(text, str(error)) from error

    def _as_written(self, text: str) -> Any:
        if not tokens(text):
            raise ConditionError("is empty")
        try:
            return self._environment.compile(text)
        except Exception as error:
            raise _explained(text, str(error)) from error

    def combined(self, conditions: Sequence[Condition]) -> ConditionSet:
        """Return a set of conditions compiled by this object, to be answered at once."""
        return ConditionSet(conditions, self.activation, self.variables)

    def _tree(self, expression: Any) -> Node | None:
        try:
            tree = checked_tree(expression.serialize())
            condition_function([tree], self.variables)
        except NotCovered:
            return None
        return tree

    def activation(self, values: Mapping[str, Any]) -> Any:
        """Return the engine's form of one request's values, made once and shared by all conditions of the policy.

        Raises `ValueError` on a text with a zero character: the engine would compare only the part before it.
        """
        if any(isinstance(value, str) and "\0" in value for value in values.values()):
            raise ValueError("a text with a zero character")
        return self._environment.Activation(values)


def _scan(text: str) -> Iterator[Token]:
    for found in _pieces(text):
        if found.lastgroup == "fraction":
            hint = "amounts are whole minor units; use numbers.…"
            raise ConditionError("a number with a fraction", found.start(), hint=hint)
        if found.lastgroup == "comment" and len(found[0].splitlines()) > 1:
            # CEL ends a comment at "\n" only: after another line break the text looks like condition but is still
            # comment.
            raise ConditionError("a comment with an unusual line break in it", found.start())
        if found.lastgroup not in ("space", "comment"):
            yield Token(str(found.lastgroup), found[0], found.start())


def _comments(text: str) -> Iterator[int]:
    """Yield the offsets at which comments begin; "//" in quoted text begins none."""
    return (found.start() for found in _pieces(text) if found.lastgroup == "comment")


def _pieces(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ConditionError(f'"{text[at]}" is not accepted here', at, hint=_MARK_HINTS.get(text[at]))
        yield found
        at = found.end()


def _prefixes(chain: str) -> list[str]:
    parts = chain.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _explained(text: str, engine_message: str) -> ConditionError:
    found = _CEL_ERROR.search(engine_message)
    if found is None:
        return ConditionError(engine_message.split("\n")[0][:200])
    lines = text.split("\n")
    offset = sum(len(line) + 1 for line in lines[: int(found[1]) - 1]) + int(found[2]) - 1
    message = re.sub(r" \(in container ''\)| \[INVALID_ARGUMENT\]", "", found[3])
    unknown = _UNDECLARED.search(message)
    if unknown:
        # The engine gives the offset of the last dot of a dotted name; people look for the name's start.
        start = text.rfind(unknown[1], 0, offset + len(unknown[1]))
        return ConditionError(message, start if start >= 0 else offset, unknown=unknown[1])
    return ConditionError(message[:200], offset, hint=_hint(text, message))


def _hint(text: str, message: str) -> str | None:
    """Return a hint at what is likely meant where the engine's own message is no help; else None."""
    if message.startswith("Syntax error"):
        words = [token.text for token in tokens(text) if token.kind == "name" and token.text.lower() in _WORD_HINTS]
        return _WORD_HINTS[words[0].lower()] if words else None
    if "select operation" in message and "'google.protobuf.Timestamp'" in message:
        return 'the hour of a time is now.getHours("Europe/Berlin")'
    if "select operation" in message or "'_[_]' applied to '(int, string)'" in message:
        return "numbers.<name> is the amount in the operation's currency already"
    return None
