"""Money: integers in minor units with an ISO 4217 currency. No binary float on the way.

Rules of `docs/CONTRACT.md` §1: a value is an integer, or a decimal string or number in major units with at
most the currency's digits. The range is 0.01 to 10^12 minor units; nothing is rounded, ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sentinel.core.errors import InvalidInput

MAX_MINOR = 10**12
"""Largest amount of one operation, in minor units; far under 2^53, so every reader keeps it exact."""

_TWO = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CNY "
    "COP CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF "
    "IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR "
    "MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD "
    "SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD UYU UZS VED VES WST XCD YER "
    "ZAR ZMW"
)
_ZERO = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_THREE = "BHD IQD JOD KWD LYD OMR TND"
DIGITS: dict[str, int] = {
    **dict.fromkeys(_TWO.split(), 2),
    **dict.fromkeys(_ZERO.split(), 0),
    **dict.fromkeys(_THREE.split(), 3),
}
"""ISO 4217 minor-unit digits of the currencies we know; any other code is refused."""
CURRENCY_RULE = "must be an ISO 4217 code in capital letters"

_MOST_PLACES = 30
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,15})(?:\.([0-9]{1,6}))?")
_LONG = re.compile(r"[1-9][0-9]{15,60}(\.[0-9]{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Money:
    """`amount_minor` units of `currency`; 12600 USD is 126.00 dollars."""

    amount_minor: int
    currency: str

    def __str__(self) -> str:
        return f"{major_text(self.amount_minor, self.currency)} {self.currency}"


def parse_money(value: Any, currency: Any, *, field: str = "amount") -> Money:
    """A value in major units and its currency → `Money`. Raises `InvalidInput` naming field and rule.

    `value` is an int, a `Decimal` (how the strict JSON reader hands over a number with a fraction)
    or a plain decimal string; a bool, a float, a sign, an exponent or a foreign digit is refused.
    """
    if not isinstance(currency, str) or currency not in DIGITS:
        raise InvalidInput.of(f"{field}.currency", CURRENCY_RULE)
    minor = _minor_units(value, DIGITS[currency], field)
    if not 0 < minor <= MAX_MINOR:
        raise InvalidInput.of(f"{field}.value", f"must be more than 0 and at most {MAX_MINOR} minor units")
    return Money(minor, currency)


def _minor_units(value: Any, digits: int, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        raise InvalidInput.of(f"{field}.value", "must be an integer or a decimal number")
    if isinstance(value, int):
        return value * 10**digits if abs(value) <= MAX_MINOR else -1
    # A few characters with an exponent could otherwise become gigabytes of digits.
    if isinstance(value, Decimal) and abs(value.adjusted()) > _MOST_PLACES:
        raise InvalidInput.of(f"{field}.value", "is out of range")
    # A Decimal comes from JSON number text; its own text form keeps every digit, so both kinds are parsed as text.
    text = value if isinstance(value, str) else format(value, "f")
    found = _DECIMAL.fullmatch(text)
    if found is None and _LONG.fullmatch(text):
        return MAX_MINOR + 1
    if found is None:
        raise InvalidInput.of(f"{field}.value", "must be a plain decimal number without sign, spaces or exponent")
    whole, fraction = found[1], found[2] or ""
    if len(fraction) > digits:
        raise InvalidInput.of(f"{field}.value", f"has more than {digits} decimal digits")
    return int(whole + fraction.ljust(digits, "0"))


def major_text(amount_minor: int, currency: str) -> str:
    """Format minor units as major units: 12650, "USD" → "126.50", always with the currency's digits; for people and CSV."""
    digits = DIGITS[currency]
    if digits == 0:
        return str(amount_minor)
    whole, rest = divmod(abs(amount_minor), 10**digits)
    return f"{'-' if amount_minor < 0 else ''}{whole}.{rest:0{digits}d}"


def money_out(money: Money) -> dict[str, int | str]:
    """Return the wire form, the shortest exact one (`docs/CONTRACT.md` §1): `{"value": 126 or "126.50", "currency": "USD"}`."""
    whole, rest = divmod(money.amount_minor, 10 ** DIGITS[money.currency])
    value: int | str = whole if rest == 0 else major_text(money.amount_minor, money.currency)
    return {"value": value, "currency": money.currency}
