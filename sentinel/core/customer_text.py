"""Text for customers: choice of language, money and times in it, and text from outside with invisible characters made
visible.

Every translation catalogue has exactly the languages listed here; tests check that.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime

from sentinel.core.money import DIGITS
from sentinel.core.operation import UNSAFE_TEXT

DEFAULT_LANGUAGE = "en"
LANGUAGES = ("en", "de")

_NBSP = "\N{NO-BREAK SPACE}"
# language → (decimal separator, thousands separator, format with a currency sign, format with a currency code)
_NUMBERS = {
    "en": (".", ",", "{sign}{number}", "{number}" + _NBSP + "{code}"),
    "de": (",", ".", "{number}" + _NBSP + "{sign}", "{number}" + _NBSP + "{code}"),
}
_SIGNS = {"en": {"EUR": "€", "GBP": "£", "USD": "US$"}, "de": {"EUR": "€", "GBP": "£", "USD": "US-$"}}
_MONTHS = {
    "en": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    "de": [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ],
}
_MOMENTS = {
    "en": "{day} {month} {year}, {hour:02}:{minute:02} UTC",
    "de": "{day}. {month} {year}, {hour:02}:{minute:02} Uhr UTC",
}
# Hidden in addition to `UNSAFE_TEXT`: invisible characters, fillers, variation selectors, and tabs and line ends, with
# which foreign text could look like a line of our own.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff\t\n\r]"
)
_MOST_SHOWN = 200


def language_of(*wishes: str | None) -> str:
    """Return the primary language of the first BCP 47 tag that is supported, else English."""
    for wish in wishes:
        primary = (wish or "").partition("-")[0].lower()
        if primary in LANGUAGES:
            return primary
    return DEFAULT_LANGUAGE


def money_text(amount_minor: int, currency: str, language: str) -> str:
    """Format minor units: 98000, "EUR", "de" → "980,00 €", always with the currency's digits, nothing rounded."""
    decimal, thousands, with_sign, with_code = _NUMBERS[language]
    digits = DIGITS.get(currency, 2)
    whole, rest = divmod(amount_minor, 10**digits)
    number = f"{whole:,}".replace(",", thousands) + (f"{decimal}{rest:0{digits}d}" if digits else "")
    sign = _SIGNS[language].get(currency)
    return with_sign.format(number=number, sign=sign) if sign else with_code.format(number=number, code=currency)


def moment_text(moment: datetime, language: str) -> str:
    """Format a moment the way the language writes it, in UTC and marked as UTC."""
    at = moment.astimezone(UTC)
    month = _MONTHS[language][at.month - 1]
    return _MOMENTS[language].format(day=at.day, month=month, year=at.year, hour=at.hour, minute=at.minute)


def visible_text(text: str) -> str:
    """Return text from outside for display on one line, with invisible and reordering characters as their code points.

    Longer text is cut to 200 characters. It is not escaped for HTML: the template does that.
    """
    cut = text[:_MOST_SHOWN] + ("…" if len(text) > _MOST_SHOWN else "")
    shown = _HIDDEN.sub(_code_point, UNSAFE_TEXT.sub(_code_point, cut))
    return "".join(code_point(c) if is_stacked(shown, place) else c for place, c in enumerate(shown))


def is_stacked(text: str, place: int) -> bool:
    """Whether `place` is at least the third combining mark in a row: no language needs it, and many would cover nearby text."""
    return place >= 2 and all(unicodedata.combining(c) for c in text[place - 2 : place + 1])


def _code_point(found: re.Match[str]) -> str:
    return code_point(found[0])


def code_point(character: str) -> str:
    """Return a character as its code point, for display: `[U+202E]`."""
    return f"[U+{ord(character):04X}]"
