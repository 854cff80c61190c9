"""Checks the amount: against the order ($980 for $98) and against amounts that the customer's text names.

Integers in minor units only. A text is read generously ("9,80 €", "USD 1,234.50", "80 cents"): where it can be read in two
ways, it contradicts the request only if both do.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass

from sentinel.core.money import DIGITS, MAX_MINOR, Money
from worker.critic.case import CriticCase

_DOLLARS = frozenset({"USD", "CAD", "AUD", "NZD", "SGD", "HKD", "MXN", "CLP", "COP", "TWD"})
_MARKS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("$", "dollar", "dollars", "bucks"), _DOLLARS),
    **dict.fromkeys(("€", "euro", "euros"), frozenset({"EUR"})),
    **dict.fromkeys(("£", "quid"), frozenset({"GBP", "EGP"})),
    **dict.fromkeys(("¥", "yen", "yuan"), frozenset({"JPY", "CNY"})),
    "franken": frozenset({"CHF"}),
}
_SMALL = frozenset({"cent", "cents", "pence", "rappen"})
# Codes that are words ("all 3 of them", "try 2") name no currency, and pounds may be a weight.
_WORDS = frozenset({"ALL", "BAM", "BOB", "CUP", "GEL", "LAK", "MAD", "MOP", "PEN", "RON", "SOS", "TOP", "TRY"})
_CODES = "|".join(sorted(code.lower() for code in DIGITS.keys() - _WORDS))
_NUMBER = r"\d{1,12}(?:[.,'’ ]\d{3}(?!\d)){0,4}(?:[.,]\d{1,3})?(?!\d)"
_NAMED = re.compile(
    rf"(?P<before>[$€£¥]|(?<!\w)(?:{_CODES}))\s?(?P<first>{_NUMBER})"
    rf"|(?<![\w.,])(?P<second>{_NUMBER})\s?(?P<after>[$€£¥]|(?:{_CODES}|dollars?|bucks|euros?|quid|yen|yuan|franken|cents?|pence"
    r"|rappen)\b)"
)
_BARE = re.compile(r"(?<![\w.,:/-])\d{1,9}[.,]\d{2}(?![\w:/-]|[.,]\d)")
_MOST_NAMED = 8
_SLIPS = (10, 100, 1000)
_FEW = range(2, 10)
_LONGEST_TEXT = 4000


@dataclass(frozen=True, slots=True)
class NamedAmount:
    """An amount that a text names: every way to read it in minor units, and the currencies it may be in."""

    readings: frozenset[int]
    currencies: frozenset[str]


def amount_detail(case: CriticCase) -> str:
    """What is wrong with the amount (snake_case); "" if nothing speaks against it."""
    return _against_facts(case) or _against_words(case.requested, case.reason or "")


def _against_facts(case: CriticCase) -> str:
    asked = case.requested
    known = [(name, fact) for name, fact in _references(case) if fact is not None]
    if any(fact.currency != asked.currency for _, fact in known):
        return "other_currency"
    over = [(name, fact) for name, fact in known if asked.amount_minor > fact.amount_minor]
    if not over:
        return ""
    if any(asked.amount_minor == fact.amount_minor * slip for _, fact in over for slip in _SLIPS):
        return "slip_of_ten"
    if over[0][0] == "item" and case.paid is not None and asked == case.paid:
        return "order_total_for_one_item"
    return f"over_{over[0][0]}"


def _references(case: CriticCase) -> tuple[tuple[str, Money | None], ...]:
    """What the amount may not pass. A shipping fee has nothing to do with what the item cost."""
    if case.scenario == "fee":
        return (("paid", case.paid), ("shipping_fee", case.shipping_fee))
    return (("paid", case.paid), ("item", case.item_paid))


def _against_words(asked: Money, text: str) -> str:
    text = unicodedata.normalize("NFKC", text[:_LONGEST_TEXT])[:_LONGEST_TEXT].casefold()
    bare = _bare_amounts(_NAMED.sub(" ", text), asked.currency)
    named = named_amounts(text, asked.currency)
    if asked.amount_minor in bare or len(named) > _MOST_NAMED:
        return ""
    # A number without a currency says nothing, except when exactly ten, a hundred or a thousand times it is asked.
    if any(asked.amount_minor == minor * slip for minor in bare for slip in _SLIPS):
        return "text_names_a_tenth"
    mine = [each for each in named if asked.currency in each.currencies]
    if named and not mine:
        return "text_names_other_currency"
    return "" if not mine or _may_be_meant(asked.amount_minor, mine) else "text_names_less"


def named_amounts(text: str, currency: str) -> list[NamedAmount]:
    """The first marked amounts in a lower-case text (one more than are weighed), read with the digits of `currency`."""
    readable = (_named(found, currency) for found in _NAMED.finditer(text))
    return list(itertools.islice(filter(None, readable), _MOST_NAMED + 1))


def _named(found: re.Match[str], currency: str) -> NamedAmount | None:
    number = found["first"] or found["second"]
    mark = found["before"] or found["after"]
    readings = frozenset(_readings(number, 0 if mark in _SMALL else DIGITS[currency]))
    currencies = frozenset({currency}) if mark in _SMALL else _MARKS.get(mark) or frozenset({mark.upper()})
    return NamedAmount(readings, currencies) if readings else None


def _bare_amounts(text: str, currency: str) -> set[int]:
    found = itertools.islice(_BARE.finditer(text), _MOST_NAMED)
    return {minor for each in found for minor in _readings(each[0], DIGITS[currency])}


def _readings(number: str, digits: int) -> set[int]:
    """ "1.234" is a thousand and more, or one and a bit; "9,8" is 9.80. In minor units, those within range."""
    bare = re.sub(r"['’ ]", "", number)
    whole = re.sub(r"[.,]", "", bare)
    found = set()
    head, separator, tail = _last_separator(bare)
    if not separator or len(tail) == 3:
        found.add(int(whole) * 10**digits)
    if separator and len(tail) <= digits:
        found.add(int(re.sub(r"[.,]", "", head) or "0") * 10**digits + int(tail.ljust(digits, "0")))
    return {minor for minor in found if 0 < minor <= MAX_MINOR}


def _last_separator(bare: str) -> tuple[str, str, str]:
    place = max(bare.rfind("."), bare.rfind(","))
    return (bare[:place], bare[place], bare[place + 1 :]) if place >= 0 else (bare, "", "")


def _may_be_meant(asked_minor: int, named: list[NamedAmount]) -> bool:
    """Not more than something named, a few times it, or the sum of some of it: then the words do not contradict."""
    sums = {0}
    for each in named:
        sums |= {old + reading for old in sums for reading in each.readings}
    times = {reading * number for each in named for reading in each.readings for number in _FEW}
    return asked_minor in sums | times or any(asked_minor <= max(each.readings) for each in named)
