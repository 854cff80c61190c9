"""Amounts in Stripe's units, which in some currencies differ from the minor units of ISO 4217."""

from __future__ import annotations

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, Money

_DIGITS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("ISK", "UGX"), 2),
}  # fmt: skip
"""Decimal digits that Stripe uses in currencies where they differ, or might differ, from ISO 4217."""
_WHOLE_TENS = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
"""Currencies with three digits in which Stripe accepts only multiples of ten."""


def stripe_amount(amount_minor: int, currency: str) -> int | None:
    """Convert our minor units to Stripe's; None for an amount that Stripe cannot express."""
    ours, theirs = DIGITS[currency], _DIGITS.get(currency, DIGITS[currency])
    found, rest = divmod(amount_minor * _power(theirs - ours), _power(ours - theirs))
    return None if rest or (currency in _WHOLE_TENS and found % 10) else found


def our_amount(amount: int, currency: str) -> int:
    """Convert Stripe's units to our minor units, rounded down; those of an unknown currency are returned unchanged."""
    ours = DIGITS.get(currency, 2)
    theirs = _DIGITS.get(currency, ours)
    return amount * _power(ours - theirs) // _power(theirs - ours)


def money_of_stripe(amount: int, currency: str) -> Money:
    """Return an amount in Stripe's units as `Money`, exactly. Raises `InvalidInput` for one that Stripe refuses,
    `KeyError` for an unknown currency."""
    money = Money(our_amount(amount, currency), currency)
    if stripe_amount(money.amount_minor, currency) != amount:
        raise InvalidInput.of("amount", f"Stripe does not accept an amount of {amount} in its units of {currency}")
    return money


def _power(digits: int) -> int:
    return int(10 ** max(0, digits))
