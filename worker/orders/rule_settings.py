"""Reads `policies/order_signals.yaml`: the thresholds and word lists of the scoring rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, parse_money
from sentinel.policy.errors import nearest
from sentinel.policy.source import Node, Source, Table, read_source
from worker.orders.order import Band

FILE_NAME = "order_signals.yaml"
Amounts = Mapping[str, int]
"""Currency → amount in minor units."""

_RULES = (
    "country_mismatch",
    "value_for_account_age",
    "rush_on_resellable",
    "disposable_mail",
    "failed_payments",
    "velocity",
)
_BANDS = ("medium", "high")
_UNKNOWN = {"ignore": Band.LOW, "medium": Band.MEDIUM}


@dataclass(frozen=True, slots=True)
class FixedBandRule:
    """A rule with one band; `unknown` is its band where the fact it needs is missing."""

    band: Band
    unknown: Band


@dataclass(frozen=True, slots=True)
class AgeStep:
    """The band for accounts younger than this many days, for orders of at least these amounts."""

    younger_than_days: int
    at_least: Amounts
    band: Band


@dataclass(frozen=True, slots=True)
class ValueForAgeRule:
    """The steps by account age, of which the strictest that applies counts; `unknown_from` are the amounts for an unknown age."""

    steps: tuple[AgeStep, ...]
    unknown_from: Amounts


@dataclass(frozen=True, slots=True)
class FastShippingRule:
    """The band for fast shipping from these amounts on; `speeds` are words of fast shipping, in lower case without - and _."""

    band: Band
    at_least: Amounts
    speeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountRule:
    """A rule that compares a count with two thresholds; `unknown` is its band where the count is missing."""

    medium_from: int
    high_from: int
    unknown: Band


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The whole file; immutable."""

    high_from_signals: int
    country: FixedBandRule
    value_for_age: ValueForAgeRule
    rush: FastShippingRule
    resellable_words: tuple[str, ...]
    mail: FixedBandRule
    mail_domains: tuple[str, ...]
    failed_payments: CountRule
    velocity: CountRule
    velocity_amount: Amounts

    @classmethod
    def load(cls, path: Path) -> RuleSettings:
        """Read the file. Raises the first `PolicyError` in it."""
        source, root = read_source(path, regular=True)
        keys = ("high_from_signals", *_RULES)
        at = source.fields(root, "the file", known=keys, required=keys).entries
        country = _rule(source, at, "country_mismatch", ("band", "unknown"))
        rush = _rule(source, at, "rush_on_resellable", ("band", "from", "speeds", "words"))
        mail = _rule(source, at, "disposable_mail", ("band", "unknown", "domains"))
        velocity = _rule(source, at, "velocity", ("medium_from", "high_from", "medium_amount_from", "unknown"))
        failed = _rule(source, at, "failed_payments", ("medium_from", "high_from", "unknown"))
        return cls(
            source.integer(at["high_from_signals"], "high_from_signals", least=2, most=20),
            FixedBandRule(_band(source, country), _unknown(source, country)),
            _value_for_age(source, at),
            FastShippingRule(
                _band(source, rush), _amounts(source, rush["from"], "from"), _words(source, rush, "speeds")
            ),
            _words(source, rush, "words"),
            FixedBandRule(_band(source, mail), _unknown(source, mail)),
            tuple(word.lower() for word in _words(source, mail, "domains", plain=False)),
            _counted(source, failed),
            _counted(source, velocity),
            _amounts(source, velocity["medium_amount_from"], "medium_amount_from"),
        )

    def all_amounts(self) -> Iterator[Amounts]:
        """Yield every table of amounts; a currency is covered only where it is in all of them."""
        yield from (step.at_least for step in self.value_for_age.steps)
        yield self.value_for_age.unknown_from
        yield self.rush.at_least
        yield self.velocity_amount


def _rule(source: Source, at: Mapping[str, Node], name: str, keys: tuple[str, ...]) -> Mapping[str, Node]:
    return source.fields(at[name], name, known=keys, required=keys).entries


def _value_for_age(source: Source, at: Mapping[str, Node]) -> ValueForAgeRule:
    rule = _rule(source, at, "value_for_account_age", ("steps", "unknown_from"))
    steps = [_step(source, node) for node in source.listing(rule["steps"], "steps")]
    return ValueForAgeRule(tuple(steps), _amounts(source, rule["unknown_from"], "unknown_from"))


def _step(source: Source, node: Node) -> AgeStep:
    keys = ("younger_than_days", "from", "band")
    at = source.fields(node, "a step", known=keys, required=keys).entries
    days = source.integer(at["younger_than_days"], "younger_than_days", least=1, most=3650)
    return AgeStep(days, _amounts(source, at["from"], "from"), _band(source, at))


def _counted(source: Source, at: Mapping[str, Node]) -> CountRule:
    medium = source.integer(at["medium_from"], "medium_from", least=1, most=1000)
    return CountRule(
        medium, source.integer(at["high_from"], "high_from", least=medium, most=1000), _unknown(source, at)
    )


def _band(source: Source, at: Mapping[str, Node]) -> Band:
    return Band(source.one_of(at["band"], "band", _BANDS))


def _unknown(source: Source, at: Mapping[str, Node]) -> Band:
    return _UNKNOWN[source.one_of(at["unknown"], "unknown", tuple(_UNKNOWN))]


def _words(source: Source, at: Mapping[str, Node], key: str, *, plain: bool = True) -> tuple[str, ...]:
    texts = [source.text(node, key) for node in source.listing(at[key], key)]
    return tuple(text.casefold().replace("_", " ").replace("-", " ") if plain else text for text in texts)


def _amounts(source: Source, node: Node, what: str) -> Amounts:
    table: Table = source.table(node, what)
    if not table.entries:
        raise source.error(node.place, f"{what} must not be empty")
    found = {}
    for currency, value in table.entries.items():
        if currency not in DIGITS:
            raise source.error(
                table.keys[currency], f'{what}: "{currency}" is not a currency', nearest(currency, DIGITS)
            )
        try:
            found[currency] = parse_money(source.text(value, f"{what} {currency}"), currency).amount_minor
        except InvalidInput as error:
            raise source.error(value.place, f"{what} {currency}: {error.detail}") from error
    return found
