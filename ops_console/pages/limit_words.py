"""A policy's limit in words, for people who read policies: how much, for each what, and in which window.

Under which condition it counts is not said here: that stands beside the condition as it is written (`condition_words`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ops_console.pages.text import wire_money

_CALENDAR = {"calendar_day": "per calendar day", "calendar_month": "per calendar month"}


def cap_in_words(told: Mapping[str, Any], zone: str) -> str:
    """A limit as `describe` tells it → "at most 30.00 EUR, 30.00 USD for each account and currency in any 24 hours"."""
    amounts = ", ".join(wire_money({"value": text, "currency": currency}) for currency, text in told["cap"].items())
    return f"at most {amounts} for {each_in_words(told['per'])} {window_in_words(told['window'], told['window_seconds'], zone)}"


def each_in_words(per: Sequence[str]) -> str:
    """What each has a budget of its own: names stay the policy's, with blanks for their dots and strokes."""
    *others, last = (name.replace(".", " ").replace("_", " ") for name in per)
    return f"each {', '.join(others)} and {last}" if others else f"each {last}"


def window_in_words(window: str, seconds: int, zone: str) -> str:
    """In which window it counts; a calendar window's days and months are those of `zone`, and `seconds` is 0 for it."""
    if window in _CALENDAR:
        return f"{_CALENDAR[window]} in {zone}"
    is_days = seconds % 86400 == 0 and seconds > 86400
    return f"in any {seconds // 86400} days" if is_days else f"in any {seconds // 3600} hours"
