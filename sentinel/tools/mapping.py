"""Maps a tool call to the operation to ask about. Anything that is not mapped exactly is refused; nothing is guessed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sentinel.client.calls import FirstAsked, GuardQuestion
from sentinel.client.errors import ActionDenied, KeyConflict
from sentinel.core.errors import InvalidInput
from sentinel.core.money import Money, major_text, money_out, parse_money
from sentinel.core.stripe_units import money_of_stripe
from sentinel.tools.model import (
    CALL_DIGEST,
    ActionMapping,
    Amount,
    Argument,
    Expression,
    ParamPath,
    ToolMapping,
    Unit,
)

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:/@-]{1,200}", re.ASCII)
_DIGEST_CHARACTERS = 32
_MAX_DEPTH = 16
_MOST_PLACES = 400
_FRACTION = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)
_MONEY_OF_UNIT: Mapping[Unit, Callable[[Any, str], Money]] = {
    "minor": Money,
    "major": parse_money,
    "stripe": money_of_stripe,
}
_WHOLE_MOST = 2**53 - 1


class ToolRefused(ActionDenied):
    """The table does not permit this call; the authority was not asked.

    `reason_code`: unmapped_tool, unmapped_argument, missing_argument, malformed_argument, missing_fact, malformed_fact,
    mapping_failed. Adapters and the proxy also raise facts_unavailable, which is not final; the proxy raises
    input_not_accepted.
    """


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as mapped by the table. `question` is the operation to ask about; None: the tool runs unguarded.

    `arguments` are those that the question is about; the tool must run with exactly these and the injected ones.
    """

    mapping: ToolMapping
    question: GuardQuestion | None
    arguments: Mapping[str, Any]

    def as_first_asked(self, conflict: KeyConflict) -> FirstAsked:
        """Return the question with the facts of the call's first time. Raises `conflict` where they are unknown or not
        what differs.

        Whatever else differs from the first time stays a conflict: the authority compares the whole question again.
        """
        recorded = conflict.recorded_params
        if recorded is None or self.question is None or self.mapping.action is None:
            raise conflict
        params = _with_recorded(self.mapping.action, self.question["params"], recorded)
        if params == self.question["params"]:
            raise conflict
        worse = None
        if conflict.tightened is not None:
            why = f"what the program knows has changed since this was first asked: {conflict.tightened['reason']}"
            is_denied = conflict.tightened["decision"] == "DENY"
            code = conflict.tightened["reason_code"] if is_denied else "facts_changed"
            worse = ActionDenied(code, why, is_final=False)
        question: GuardQuestion = {**self.question, "params": params}
        return FirstAsked(question, worse)

    def injected(self, place: str, *, operation_id: str) -> dict[str, str]:
        """Return the values to inject for the provider, by name; `place` is "argument" or "header"."""
        if self.question is None or self.mapping.action is None:
            return {}
        values = {"operation_id": operation_id, "idempotency_key": self.question["idempotency_key"]}
        return {one.name: values[one.source] for one in self.mapping.action.injections if one.place == place}


class ToolTable:
    """Every mapped tool, by server and name. Immutable."""

    def __init__(self, mappings: tuple[ToolMapping, ...]) -> None:
        self.mappings = mappings
        self._by_name = {(one.server, one.tool): one for one in mappings}

    def find(self, server: str, tool: str) -> ToolMapping | None:
        """Return the mapping of exactly this tool, or None."""
        return self._by_name.get((server, tool))

    def call(
        self, server: str, tool: str, arguments: Mapping[str, Any], facts: Mapping[str, Any] | None = None
    ) -> ToolCall:
        """Return the operation that this call is. `facts` are the program's, never the model's. Raises `ToolRefused`.

        A null argument makes another call than an absent one, since a tool may do something else with it: it is bound
        as null, and refused where an expression reads it. A caller that runs the tool itself asks about
        `own_arguments`, which has no nulls.
        """
        mapping = self._mapped(server, tool)
        if mapping.action is None:
            return ToolCall(mapping, None, arguments)
        checked, known = _arguments(mapping, mapping.action, arguments), _facts(mapping, facts or {})
        amounts = _amounts(mapping, mapping.action, _values(mapping, checked) | known)
        same = _canonical(mapping, mapping.action, checked, amounts)
        digest = _digest(mapping, same)
        values = _values(mapping, same) | known | {CALL_DIGEST: digest[:_DIGEST_CHARACTERS]}
        return ToolCall(mapping, _question(mapping, mapping.action, values, amounts, digest), arguments)

    def own_arguments(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to ask about and then run the tool with: a private copy, without nulls. Raises
        `ToolRefused`.

        A null for an unmapped argument is refused like any other value, except under the name of an injected argument.
        Arguments that are not bound, and those of an unguarded tool, may be anything and are not copied.
        """
        mapping = self._mapped(server, tool)
        if mapping.action is None:
            return dict(arguments)
        injected = mapping.action.injected_arguments
        _refuse_unmapped(mapping, [name for name in arguments if name not in injected])
        given = {name: value for name, value in arguments.items() if value is not None}
        return {name: _copied(mapping, name, value) for name, value in given.items()}

    def _mapped(self, server: str, tool: str) -> ToolMapping:
        mapping = self.find(server, tool)
        if mapping is None or mapping.hidden:
            raise ToolRefused("unmapped_tool", f"the tool {server}/{tool} is not mapped to an action")
        return mapping


def _arguments(mapping: ToolMapping, action: ActionMapping, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, each checked to be of its declared type or null. Raises `ToolRefused`."""
    said = {name: value for name, value in given.items() if value is not None or name not in action.injected_arguments}
    _refuse_unmapped(mapping, said)
    for name, argument in mapping.arguments.items():
        if argument.required and said.get(name) is None:
            raise ToolRefused("missing_argument", f"{mapping.name}: the argument {name} is missing")
    nulls = {name for name, value in said.items() if value is None}
    for name in sorted(nulls):
        if f"args.{name}" in action.reads:
            raise ToolRefused("malformed_argument", f"{mapping.name}: the argument {name} is null: leave it out")
    return {
        name: value if name in nulls else _checked(mapping, mapping.arguments[name], value)
        for name, value in said.items()
    }


def _refuse_unmapped(mapping: ToolMapping, names: Iterable[str]) -> None:
    for name in names:
        if name not in mapping.arguments:
            raise ToolRefused("unmapped_argument", f"{mapping.name}: the argument {str(name)[:64]!r} is not mapped")


def _copied(mapping: ToolMapping, name: str, value: Any) -> Any:
    if name not in mapping.arguments or not mapping.arguments[name].bound:
        return value
    try:
        return _copy(value, 1)
    except (TypeError, ValueError):
        raise ToolRefused("malformed_argument", f"{mapping.name}: the argument {name} is not JSON") from None


def _copy(value: Any, depth: int) -> Any:
    """Copy a value that JSON has a form for. Raises `TypeError` for anything else, `ValueError` for one nested too deeply."""
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is not text")
        return {key: _copy(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_copy(item, depth + 1) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if value is None or isinstance(value, (str, int, float, Decimal)):
        return value
    raise TypeError(type(value).__name__)


def _checked(mapping: ToolMapping, argument: Argument, value: Any) -> Any:
    if argument.kind == "decimal":
        value = _decimal_text(value)
    if not _is_of(argument.kind, value) or not _is_within(argument, value):
        raise ToolRefused(
            "malformed_argument", f"{mapping.name}: the argument {argument.name} must be {_wanted(argument)}"
        )
    return value


def _wanted(argument: Argument) -> str:
    """Return what an argument may be, in the words of the table; without the value that was given."""
    if argument.one_of is not None:
        return "one of " + ", ".join(sorted(argument.one_of))
    bounds = [
        f"{name} {value}" for name, value in (("min", argument.minimum), ("max", argument.maximum)) if value is not None
    ]
    return ", ".join([f"of type {argument.kind}", *bounds])


def _is_of(kind: str, value: Any) -> bool:
    if kind == "json":
        return True
    if kind == "int":
        return type(value) is int and abs(value) <= _WHOLE_MOST
    # No store takes a text with a zero character, and the CEL engine would read only the part before it.
    return type(value) is bool if kind == "bool" else type(value) is str and "\0" not in value


def _is_within(argument: Argument, value: Any) -> bool:
    if argument.one_of is not None:
        return value in argument.one_of
    low, high = argument.minimum, argument.maximum
    return (low is None or value >= low) and (high is None or value <= high)


def _decimal_text(value: Any) -> Any:
    """Return a number as plain decimal text. A float becomes its shortest text, which is what the model wrote.

    Other values, and numbers that are not finite or have an extreme exponent, are returned unchanged; the type check
    refuses those that are not text.
    """
    if isinstance(value, (float, Decimal)) or type(value) is int:
        # A subclass of float, e.g. NumPy's, may have any text as its `repr`.
        number = Decimal(float.__repr__(value)) if isinstance(value, float) else Decimal(value)
        # A few characters with an exponent could otherwise become gigabytes of digits.
        if not number.is_finite() or abs(number.adjusted()) > _MOST_PLACES:
            return value
        value = format(number, "f")
    return value


def _canonical(
    mapping: ToolMapping, action: ActionMapping, checked: dict[str, Any], amounts: Mapping[ParamPath, Money]
) -> dict[str, Any]:
    """Return the arguments in one spelling, so that 40, "40.0" and "40.00" dollars, in "usd" or "USD", give one key."""
    found = {
        name: _without_zeros(value) if mapping.arguments[name].kind == "decimal" and value is not None else value
        for name, value in checked.items()
    }
    for path, money in amounts.items():
        source = action.params[path]
        assert isinstance(source, Amount)
        text = major_text(money.amount_minor, money.currency)
        for read, spelled in ((source.value, text), (source.currency, money.currency)):
            name = read.text.strip().removeprefix("args.")
            if (
                name in found
                and read.reads == {f"args.{name}"}
                and mapping.arguments[name].kind in ("decimal", "string")
            ):
                found[name] = spelled
    return found


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if _FRACTION.fullmatch(text) else text


def _values(mapping: ToolMapping, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that expressions see of the arguments: all but nulls and those of type json."""
    return {
        f"args.{name}": value for name, value in arguments.items()
        if value is not None and mapping.arguments[name].kind != "json"
    }  # fmt: skip


def _facts(mapping: ToolMapping, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known facts. One that the program does not give is left out: then the policy can only tighten."""
    for name in given:
        if name not in mapping.facts:
            raise ToolRefused("malformed_fact", f"{mapping.name}: the fact {str(name)[:64]!r} is not declared")
    found = {}
    for name, fact in mapping.facts.items():
        value = fact.value if fact.value is not None else given.get(name)
        if value is None:
            continue
        if not _is_of(fact.kind, value):
            raise ToolRefused("malformed_fact", f"{mapping.name}: the fact {name} is not of type {fact.kind}")
        found[f"facts.{name}"] = value
    return found


def _digest(mapping: ToolMapping, arguments: Mapping[str, Any]) -> str:
    bound = {name: value for name, value in arguments.items() if mapping.arguments[name].bound}
    try:
        _refuse_depth(bound)
        text = json.dumps(
            [mapping.server, mapping.tool, bound],
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
            default=_plain,
        )
    except (TypeError, ValueError, RecursionError):
        raise ToolRefused("malformed_argument", f"{mapping.name}: an argument is not JSON") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_depth(value: Any, depth: int = 0) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is not text")
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _refuse_depth(item, depth + 1)


def _plain(value: Any) -> Any:
    """Convert a `Decimal` to a float, so that a number with a fraction gives the same digest whichever parser read it."""
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)


class _Reader:
    """Evaluates the expressions of one tool on the values of one call."""

    def __init__(self, mapping: ToolMapping, action: ActionMapping, values: Mapping[str, Any]) -> None:
        self._name, self._values = mapping.name, values
        try:
            self._activation = action.conditions.activation(values)
        except ValueError:
            raise ToolRefused(
                "malformed_argument", f"{mapping.name}: an argument has a value that no condition can read"
            ) from None

    def value(self, what: str, one: Expression) -> Any:
        """Evaluate one expression. Raises `ToolRefused` where something that it reads is missing, or it has no value."""
        missing = sorted(one.reads - self._values.keys())
        if missing:
            code = "missing_fact" if missing[0].startswith("facts.") else "missing_argument"
            raise ToolRefused(code, f"{self._name}: {what} needs {missing[0]}")
        found = one.compiled.value(self._activation)
        if found is None:
            raise ToolRefused("mapping_failed", f"{self._name}: {what} has no value for these arguments")
        return found


def _question(
    mapping: ToolMapping, action: ActionMapping, values: Mapping[str, Any], amounts: Mapping[ParamPath, Money], digest: str
) -> GuardQuestion:  # fmt: skip
    read = _Reader(mapping, action, values).value
    params: dict[str, Any] = {}
    for path, source in action.params.items():
        if isinstance(source, Amount):
            _put(params, path, money_out(amounts[path]))
        elif source.reads <= values.keys():
            # A param that reads an absent optional argument or an unknown fact is left out, and the policy tightens.
            # Amounts, above, are never left out.
            _put(params, path, read(_param(path), source))
    params["tool_call"] = {"server": mapping.server, "tool": mapping.tool, "arguments_digest": f"sha256:{digest}"}
    question: GuardQuestion = {
        "action": action.action,
        "params": params,
        "idempotency_key": _identifier(mapping, "key", read("key", action.key)),
    }
    if action.resource is not None:
        question["resource"] = _identifier(mapping, "resource", read("resource", action.resource))
    if action.risk_class is not None:
        question["risk_class"] = action.risk_class
    return question


def _with_recorded(action: ActionMapping, asked: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params as asked, but those that may change (`ActionMapping.changing_params`) as recorded, or absent."""
    changing, params = action.changing_params, dict[str, Any]()
    for path in action.params:
        value = _at(recorded if path in changing else asked, path)
        if value is not None:
            _put(params, path, value)
    return {**params, "tool_call": asked["tool_call"]}


def _at(params: Any, path: ParamPath) -> Any:
    for step in path:
        params = params.get(step) if isinstance(params, Mapping) else None
    return params


def _param(path: ParamPath) -> str:
    return "params." + ".".join(path)


def _amounts(mapping: ToolMapping, action: ActionMapping, values: Mapping[str, Any]) -> dict[ParamPath, Money]:
    """Return the amounts of money, read as written: "40.000" is refused as an amount of dollars, although it is 40."""
    read = _Reader(mapping, action, values).value
    return {
        path: _money(
            mapping, path, source, read(_param(path), source.value), read(f"{_param(path)}.currency", source.currency)
        )
        for path, source in action.params.items()
        if isinstance(source, Amount)
    }


def _money(mapping: ToolMapping, path: ParamPath, source: Amount, value: Any, code: str) -> Money:
    # ASCII alone: "u\u017fd", with a long s, is USD in capital letters, but not to the tool, which gets what was written.
    currency = code.upper() if code.isascii() else code
    try:
        money = _MONEY_OF_UNIT[source.unit](value, currency)
        # Parsed whatever the unit, to check that the currency is known and the amount within bounds.
        return parse_money(money_out(money)["value"], currency)
    except (InvalidInput, KeyError) as error:
        why = (
            "; ".join(error.errors.values())
            if isinstance(error, InvalidInput)
            else f"{currency} is not a known currency"
        )
        raise ToolRefused(
            "mapping_failed", f"{mapping.name}: {_param(path)} is not an amount of money: {why}"
        ) from None


def _identifier(mapping: ToolMapping, what: str, text: str) -> str:
    if not _IDENTIFIER.fullmatch(text):
        raise ToolRefused(
            "mapping_failed", f"{mapping.name}: {what} is not an identifier (ASCII letters, digits, . _ : / @ -)"
        )
    return text


def _put(params: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        params = params.setdefault(step, {})
    params[path[-1]] = value
