"""Refuses a condition that compares a text with a value which it can never have: an action that the policy does not cover, `currency == "eur"`.

Such a rule is misspelt as much as one with an unknown name, and a DENY that never holds would loosen the policy silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sentinel.core.money import DIGITS
from sentinel.policy.checked_tree import Node, NodeKind
from sentinel.policy.conditions import ConditionError, tokens
from sentinel.policy.errors import nearest
from sentinel.policy.model import Policy, variable_name

_EQUALITY = ("equals", "not_equals")
_ACTION = (("action",),)


@dataclass(frozen=True, slots=True)
class ClosedValues:
    """The values that a text variable may have; one that ends in `.*` stands for all that begin so. `what` they are."""

    what: str
    values: tuple[str, ...]

    def has(self, value: str) -> bool:
        """Whether the variable may ever be `value`."""
        patterns = (known[:-1] for known in self.values if known.endswith(".*"))
        return value in self.values or any(value.startswith(pattern) for pattern in patterns)


def closed_values(policy: Policy) -> dict[str, ClosedValues]:
    """By variable: facts with `one_of`, a fact that is the action, and the currency."""
    found = {"currency": ClosedValues("an ISO 4217 currency", tuple(sorted(DIGITS)))}
    for fact in policy.facts:
        if fact.one_of is not None:
            found[variable_name(fact)] = ClosedValues(f'a value of "{fact.name}"', tuple(sorted(fact.one_of)))
        elif fact.paths == _ACTION:
            found[variable_name(fact)] = ClosedValues("an action of this policy", policy.actions)
    return found


def check_closed_values(text: str, tree: Node | None, closed: Mapping[str, ClosedValues]) -> None:
    """Raises `ConditionError` for the first comparison of `text` that can never hold; `tree` is the engine's, None if it is not read."""
    for name, value in _compared(tree) if tree is not None else ():
        among = closed.get(name)
        if among is not None and not among.has(value):
            hint = nearest(value, among.values) or nearest(value.upper(), among.values)
            if hint is None and len(among.values) < 12:
                hint = "known: " + ", ".join(among.values)
            raise ConditionError(f'"{value}" is not {among.what}', _offset(text, value), hint=hint)


def _compared(node: Node) -> Iterator[tuple[str, str]]:
    """Each variable and text that are compared with each other."""
    if node.kind is NodeKind.CALL and node.value in _EQUALITY:
        yield from _pairs(node.arguments[0], node.arguments[1])
        yield from _pairs(node.arguments[1], node.arguments[0])
    elif node.kind is NodeKind.CALL and node.value == "in_list":
        for member in node.arguments[1].arguments:
            yield from _pairs(node.arguments[0], member)
    for argument in node.arguments:
        yield from _compared(argument)


def _pairs(variable: Node, constant: Node) -> Iterator[tuple[str, str]]:
    is_compared = variable.kind is NodeKind.VARIABLE and constant.kind is NodeKind.CONSTANT
    if is_compared and isinstance(variable.value, str) and isinstance(constant.value, str):
        yield variable.value, constant.value


def _offset(text: str, value: str) -> int:
    quoted = (f'"{value}"', f"'{value}'")
    return next((token.offset for token in tokens(text) if token.kind == "string" and token.text in quoted), 0)
