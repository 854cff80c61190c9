"""Strict JSON: refuses every text that two parsers could read differently."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any


def strict_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, numbers with a fraction or exponent as `Decimal`.

    Raises `ValueError` (also for a name twice in an object, NaN and Infinity) or `RecursionError`.
    """
    whole = text.decode("utf-8") if isinstance(text, bytes) else text
    return STRICT.decode(whole)


_MOST_PLACES = 400
"""The largest decimal exponent of a number, more than a double has: a few characters with an exponent could become gigabytes of digits."""


def _fraction(text: str) -> Decimal:
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise ValueError("a number is out of range") from None
    if abs(found.adjusted()) > _MOST_PLACES:
        raise ValueError("a number is out of range")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_fraction, parse_constant=_no_constant)
"""The decoder of `strict_json`, for callers that decode only a part of a text."""
