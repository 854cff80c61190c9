"""Refuses a condition that compares a variable with a text that it can never be, e.g. `currency == "eur"`.

Such a text, or an action that the policy does not cover, is as much a misspelling as an unknown name, and a DENY that
never holds would silently loosen the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sentinel.core.money import DIGITS
from sentinel.policy.conditions import ConditionError
from sentinel.policy.errors import nearest
from sentinel.policy.expression_parts import CheckedExpression, ExpressionPart
from sentinel.policy.model import Policy, variable_name

_EQUALITY = ("equals", "not_equals")
_ACTION = (("action",),)


@dataclass(frozen=True, slots=True)
class ClosedValues:
    """The texts that a variable may be: `values`, and whatever begins with one of the `prefixes`. `what` describes them in messages."""

    what: str
    values: tuple[str, ...]
    prefixes: tuple[str, ...] = ()

    def has(self, value: str) -> bool:
        """Whether the variable may ever be `value`. A pattern ("email.*") begins with its own prefix, but is no action."""
        return value in self.values or (value.startswith(self.prefixes) and "*" not in value)

    @property
    def known(self) -> tuple[str, ...]:
        """The values, and each prefix as a pattern, for messages."""
        return (*self.values, *(f"{prefix}*" for prefix in self.prefixes))


def closed_values(policy: Policy) -> dict[str, ClosedValues]:
    """Return the closed values by variable: facts with `one_of`, a fact that is the action, and the currency."""
    found = {"currency": ClosedValues("an ISO 4217 currency", tuple(sorted(DIGITS)))}
    for fact in policy.facts:
        if fact.one_of is not None:
            found[variable_name(fact)] = ClosedValues(f'a value of "{fact.name}"', tuple(sorted(fact.one_of)))
        elif fact.paths == _ACTION:
            names = tuple(name for name in policy.actions if not name.endswith(".*"))
            prefixes = tuple(name[:-1] for name in policy.actions if name.endswith(".*"))
            found[variable_name(fact)] = ClosedValues("an action of this policy", names, prefixes)
    return found


def check_closed_values(expression: CheckedExpression, closed: Mapping[str, ClosedValues]) -> None:
    """Raise `ConditionError` for the first text in a condition that its variable can never be."""
    for name, constant in _compared(expression, expression.root, frozenset()):
        among, value = closed.get(name), str(constant.text)
        if among is not None and not among.has(value):
            raise ConditionError(
                f'"{value}" is not {among.what}', expression.offset(constant), hint=_hint(name, value, among)
            )


def _hint(name: str, value: str, among: ClosedValues) -> str | None:
    if value.endswith("*") and value[:-1] in among.prefixes:
        return f'ask {name}.startsWith("{value[:-1]}")'
    hint = nearest(value, among.known) or nearest(value.upper(), among.known)
    return hint or ("known: " + ", ".join(among.known) if len(among.known) < 12 else None)


def _compared(
    expression: CheckedExpression, part: ExpressionPart, bound: frozenset[str]
) -> Iterator[tuple[str, ExpressionPart]]:
    """Yield each variable and constant text that are compared; `bound` are the variables of comprehensions around the part."""
    overload, bound = expression.overload(part), bound | part.bound
    if overload in _EQUALITY:
        yield from _pairs(part.parts[0], part.parts[1], bound)
        yield from _pairs(part.parts[1], part.parts[0], bound)
    elif overload == "in_list":
        for member in part.parts[1].parts:
            yield from _pairs(part.parts[0], member, bound)
    for inner in part.parts:
        yield from _compared(expression, inner, bound)


def _pairs(
    variable: ExpressionPart, constant: ExpressionPart, bound: frozenset[str]
) -> Iterator[tuple[str, ExpressionPart]]:
    name = variable.variable
    if name is not None and name.partition(".")[0] not in bound and constant.text is not None:
        yield name, constant
