"""Amounts of a policy in words, for people who read policies: a limit's cap, and the numbers that a condition names.

In which window a limit counts says `describe`; under which condition, the policy's own sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ops_console.pages.text import wire_money


def cap_in_words(told: Mapping[str, Any]) -> str:
    """A limit as `describe` tells it → "at most 30.00 EUR, 30.00 USD for each account and currency in any 24 hours"."""
    return f"at most {_amounts(told['cap'])} for {each_in_words(told['per'])} {told['window_words']}"


def each_in_words(per: Sequence[str]) -> str:
    """What each has a budget of its own: names stay the policy's, with blanks for their dots and strokes."""
    *others, last = (name.replace(".", " ").replace("_", " ") for name in per)
    return f"each {', '.join(others)} and {last}" if others else f"each {last}"


def named_amounts(condition: str, numbers: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The policy's numbers that a condition (CEL) names: "numbers.allow_up_to: 150.00 EUR, 150.00 USD", in its order."""
    names = dict.fromkeys(re.findall(r"\bnumbers\s*\.\s*(\w+)", condition))
    return [f"numbers.{name}: {_amounts(numbers[name])}" for name in names if name in numbers]


def _amounts(by_currency: Mapping[str, str]) -> str:
    return ", ".join(wire_money({"value": text, "currency": currency}) for currency, text in by_currency.items())
