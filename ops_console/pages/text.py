"""How pages write values: foreign text with deceptive characters made visible, money, moments, shortened ids.

Everything is escaped. A character that is invisible, that moves others, or that is stacked upon them, is shown as its
code point, so that two texts that differ never look the same and none covers another (`GUARANTEES.md` G13, G38). A
policy's amounts are put in words: a limit's cap, and the numbers that a condition names.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from sentinel.authority.reasons import trouble_text
from sentinel.core.customer_text import is_stacked
from sentinel.core.money import DIGITS, major_text
from sentinel.core.wording import counted
from sentinel.platform.outbound.failures import failure_text

_MOST_SHOWN = 2000
_ODD = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# These look blank although Unicode classifies them as letters, marks or symbols.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_PADDING = re.compile(r"^ +| +$| {2,}")


def visible(value: object) -> Markup:
    """Return foreign text for a page: escaped, cut to 2000 characters, invisible and direction-changing ones as code points."""
    text = str(value)
    shown = whole(text[:_MOST_SHOWN])
    return shown + _odd("…", counted(len(text) - _MOST_SHOWN, "more character")) if len(text) > _MOST_SHOWN else shown


def whole(text: str) -> Markup:
    """Return the same as `visible` without the cut, for text that somebody decides about."""
    return Markup("").join(_shown(part) for part in re.split(r"(^ +| +$| {2,})", text) if part)


def _shown(part: str) -> Markup:
    if _PADDING.fullmatch(part):
        return _odd("·" * min(len(part), 20), counted(len(part), "space"))
    if part.isascii() and part.isprintable():
        # The fast path for text without odd characters, which nearly all text is; a page has hundreds.
        return escape(part)
    return Markup("").join(
        _odd(*_named(c)) if _is_odd(c) or is_stacked(part, place) else escape(c) for place, c in enumerate(part)
    )


def _is_odd(character: str) -> bool:
    category = unicodedata.category(character)
    is_space = category == "Zs" and character != " "
    return category in _ODD or is_space or character in _BLANK or "\ufe00" <= character <= "\ufe0f"


def _named(character: str) -> tuple[str, str]:
    return f"U+{ord(character):04X}", unicodedata.name(character, "control character")


def _odd(text: str, title: str) -> Markup:
    return Markup('<span class="odd" title="{}">{}</span>').format(title, text)


def money(amount_minor: int | None, currency: str | None) -> str:
    """Format an amount: 12600, "USD" → "126.00 USD", exact, with the currency's digits; "–" if there is none."""
    if amount_minor is None or currency is None:
        return "–"
    return _grouped(major_text(amount_minor, currency), currency)


def wire_money(amount: Mapping[str, Any] | None) -> str:
    """Format the wire's {"value": 126, "currency": "USD"} as `money` does; "" if there is no amount."""
    if not amount:
        return ""
    whole, _, rest = str(amount["value"]).partition(".")
    digits = DIGITS.get(amount["currency"], len(rest))
    return _grouped(f"{whole}.{rest.ljust(digits, '0')}" if digits else whole, amount["currency"])


def _grouped(value: str, currency: str) -> str:
    sign, (whole, dot, rest) = "-" if value.startswith("-") else "", value.removeprefix("-").partition(".")
    return f"{sign}{int(whole):,}{dot}{rest} {currency}"


def when(moment: datetime | None) -> Markup:
    """Format a moment as a `<time>` element, UTC to the second; "–" if there is none."""
    if moment is None:
        return Markup("–")
    at = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.isoformat().replace("+00:00", "Z"),
        at.strftime("%Y-%m-%d %H:%M:%S.%f UTC"),
        at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    )


def span(seconds: float | None) -> str:
    """Format a duration with at most two units: 0.4 → "0.4 s", 95 → "1 min 35 s", 90000 → "1 d 1 h"; "–" if there is none."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"
    parts = _divided(int(seconds), ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")))
    return " ".join(parts[:2])


def _divided(rest: int, units: tuple[tuple[int, str], ...]) -> list[str]:
    parts: list[str] = []
    for size, name in units:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}")
    return parts


def short(identifier: object) -> Markup:
    """Shorten an id to its end, with the whole id as the title: ids made at the same time share their beginning."""
    text = str(identifier)
    return (
        Markup('<code class="id" title="{}">…{}</code>').format(text, text[-8:])
        if len(text) > 12
        else Markup("<code>{}</code>").format(text)
    )


FILTERS = {
    "visible": visible,
    "whole": whole,
    "failure": failure_text,
    "trouble": trouble_text,
    "when": when,
    "span": span,
    "short": short,
}
FUNCTIONS = {
    "counted": counted, "money": money, "wire_money": wire_money,
    # For scripts that format money as `wire_money` does: the currencies whose number of decimal digits is not 2.
    "other_digits": json.dumps({currency: digits for currency, digits in DIGITS.items() if digits != 2}),
}  # fmt: skip


def cap_in_words(limit: Mapping[str, Any]) -> str:
    """Put a limit of `describe` in words: "at most 30.00 EUR, 30.00 USD for each account and currency in any 24 hours"."""
    return f"at most {_amounts(limit['cap'])} for {each_in_words(limit['per'])} {limit['window_words']}"


def each_in_words(per: Sequence[str]) -> str:
    """Put the subject of a limit in words, such as "each account and currency"; dots and underscores of names become spaces."""
    *others, last = (name.replace(".", " ").replace("_", " ") for name in per)
    return f"each {', '.join(others)} and {last}" if others else f"each {last}"


def named_amounts(condition: str, numbers: Mapping[str, Mapping[str, str]]) -> list[str]:
    """List the policy's numbers that a condition (CEL) names, in its order: "numbers.allow_up_to: 150.00 EUR, 150.00 USD"."""
    names = dict.fromkeys(re.findall(r"\bnumbers\s*\.\s*(\w+)", condition))
    return [f"numbers.{name}: {_amounts(numbers[name])}" for name in names if name in numbers]


def _amounts(by_currency: Mapping[str, str]) -> str:
    return ", ".join(wire_money({"value": text, "currency": currency}) for currency, text in by_currency.items())
