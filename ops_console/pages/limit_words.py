"""A policy's limit in words, for people who read policies: how much, for each what; in which window says `describe`.

Under which condition it counts is not said here: that stands beside the condition as it is written (`condition_words`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ops_console.pages.text import wire_money


def cap_in_words(told: Mapping[str, Any]) -> str:
    """A limit as `describe` tells it → "at most 30.00 EUR, 30.00 USD for each account and currency in any 24 hours"."""
    amounts = ", ".join(wire_money({"value": text, "currency": currency}) for currency, text in told["cap"].items())
    return f"at most {amounts} for {each_in_words(told['per'])} {told['window_words']}"


def each_in_words(per: Sequence[str]) -> str:
    """What each has a budget of its own: names stay the policy's, with blanks for their dots and strokes."""
    *others, last = (name.replace(".", " ").replace("_", " ") for name in per)
    return f"each {', '.join(others)} and {last}" if others else f"each {last}"
