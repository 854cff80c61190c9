"""The table as values: what arguments a tool takes, which action it is, and how its arguments become that action's params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sentinel.policy.conditions import ValueExpression

KINDS = {"string": "string", "int": "int", "bool": "bool", "decimal": "string", "json": None}
"""The types of an argument, and the type of its variable in expressions. `decimal` is an amount in major units, which
expressions see as text; `json` is any value, which no expression sees."""

CALL_DIGEST = "call.digest"
"""In expressions: 32 hex digits over the tool and all bound arguments, for a key where no argument names the effect."""

Unit = Literal["minor", "major", "stripe"]
"""The unit that an amount is counted in."""

ParamPath = tuple[str, ...]
"""Where a param goes within params, one key per step: ("risk", "duplicate_refund")."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that the tool may be called with. `bound`: another value makes another operation."""

    name: str
    kind: str
    required: bool = True
    minimum: int | None = None
    maximum: int | None = None
    one_of: frozenset[str] | None = None
    bound: bool = True


@dataclass(frozen=True, slots=True)
class ProgramFact:
    """A fact that the program around the tool gives, or the table itself if it has a `value`; never from the model's arguments."""

    name: str
    kind: str
    value: str | int | bool | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression and what it reads: "args.amount", "facts.currency", "call.digest"."""

    text: str
    compiled: ValueExpression
    reads: frozenset[str]


@dataclass(frozen=True, slots=True)
class Amount:
    """Money and its currency: `value` in the currency's minor units or in Stripe's (whole numbers), or in major units (decimal text
    or a whole number)."""

    value: Expression
    unit: Unit
    currency: Expression


@dataclass(frozen=True, slots=True)
class Injection:
    """A value that is sent along to the provider, in an argument of the tool or in a header of the provider's request."""

    place: Literal["argument", "header"]
    name: str
    source: Literal["operation_id", "idempotency_key"]


@dataclass(frozen=True, slots=True)
class ActionMapping:
    """How a call of the tool becomes one operation. `conditions` has the variables that its expressions see."""

    action: str
    key: Expression
    params: Mapping[ParamPath, Expression | Amount]
    conditions: Any
    resource: Expression | None = None
    risk_class: str | None = None
    injections: tuple[Injection, ...] = ()

    @property
    def reads(self) -> set[str]:
        """The variables that its expressions read, e.g. "args.amount"."""
        sources = [self.key, *([self.resource] if self.resource else [])]
        for one in self.params.values():
            sources += [one.value, one.currency] if isinstance(one, Amount) else [one]
        return {name for source in sources for name in source.reads}

    @property
    def changing_params(self) -> set[ParamPath]:
        """The params that only facts are read for, and that are numbers or true or false: they may change while a call
        waits. A text names whom or what a call is about, an amount what it costs."""
        return {
            path for path, one in self.params.items()
            if isinstance(one, Expression) and one.compiled.kind in ("int", "bool")
            and one.reads and all(name.startswith("facts.") for name in one.reads)
        }  # fmt: skip

    @property
    def injected_arguments(self) -> set[str]:
        """The names of the arguments into which something is injected."""
        return {one.name for one in self.injections if one.place == "argument"}


@dataclass(frozen=True, slots=True)
class ToolMapping:
    """One tool of one server. Without `action` it runs unguarded, for the reason given; `hidden`: not listed, and denied."""

    server: str
    tool: str
    arguments: Mapping[str, Argument]
    facts: Mapping[str, ProgramFact]
    action: ActionMapping | None
    unguarded: str | None = None
    hidden: bool = False
    line: int = 0

    @property
    def program_facts(self) -> set[str]:
        """The names of the facts that the program may give; an unguarded tool has none."""
        return {name for name, fact in self.facts.items() if fact.value is None}

    @property
    def name(self) -> str:
        """ "server/tool"."""
        return f"{self.server}/{self.tool}"
