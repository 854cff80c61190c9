"""Amounts as Stripe counts them: in some currencies in other units than the minor units of ISO 4217."""

from __future__ import annotations

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, Money

_DIGITS = {
    **dict.fromkeys(("BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"), 0),
    **dict.fromkeys(("ISK", "UGX"), 2),
}  # fmt: skip
"""Digits of an amount at Stripe where they are not, or might not be, those of ISO 4217."""
_WHOLE_TENS = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
"""Three digits, of which Stripe takes only multiples of ten."""


def stripe_amount(amount_minor: int, currency: str) -> int | None:
    """Our minor units → Stripe's; None for what Stripe cannot express."""
    ours, theirs = DIGITS[currency], _DIGITS.get(currency, DIGITS[currency])
    found, rest = divmod(amount_minor * _power(theirs - ours), _power(ours - theirs))
    return None if rest or (currency in _WHOLE_TENS and found % 10) else found


def our_amount(amount: int, currency: str) -> int:
    """Stripe's units → our minor units; an unknown currency's are taken as they are."""
    ours = DIGITS.get(currency, 2)
    theirs = _DIGITS.get(currency, ours)
    return amount * _power(ours - theirs) // _power(theirs - ours)


def money_of_stripe(amount: int, currency: str) -> Money:
    """What Stripe is asked for, exactly. Raises `InvalidInput` for what Stripe does not take, `KeyError` for an unknown currency."""
    money = Money(our_amount(amount, currency), currency)
    if stripe_amount(money.amount_minor, currency) != amount:
        raise InvalidInput.of("amount", f"Stripe takes no {amount} of its units of {currency}")
    return money


def _power(digits: int) -> int:
    return int(10 ** max(0, digits))
