"""Money in and out: only canonical spellings, integers inside, exact in every currency."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.errors import InvalidInput
from sentinel.core.money import DIGITS, MAX_MINOR, Money, money_out, parse_money
from sentinel.platform.http.bodies import read_object
from tests.acceptance.hostile import hostile_amounts

CURRENCIES = st.sampled_from(sorted(DIGITS))


def accepted(read: Callable[[str], Any]) -> list[str]:
    """The hostile amounts (JSON texts) that a reader takes."""
    found = []
    for text in hostile_amounts():
        try:
            read(text)
        except (InvalidInput, ValueError, ArithmeticError, TypeError, AttributeError):
            continue
        found.append(text)
    return found


def ours(text: str) -> Money:
    body = read_object(b'{"value": ' + text.encode("utf-8", "surrogatepass") + b"}")
    return parse_money(body["value"], "USD")


def test_no_hostile_amount_is_read() -> None:
    assert len(hostile_amounts()) >= 200
    assert accepted(ours) == []


@pytest.mark.parametrize("lenient", [
    lambda text: float(json.loads(text)), lambda text: Decimal(str(json.loads(text))), lambda text: round(float(json.loads(text)) * 100),
    lambda text: int(json.loads(text)), lambda text: parse_money(json.loads(text).strip(), "USD"),
])  # fmt: skip
def test_the_same_corpus_catches_every_lenient_reader(lenient: Callable[[str], Any]) -> None:
    assert accepted(lenient)


@given(minor=st.integers(1, MAX_MINOR), currency=CURRENCIES)
def test_what_goes_out_comes_back_the_same(minor: int, currency: str) -> None:
    out = money_out(Money(minor, currency))
    assert parse_money(out["value"], out["currency"]) == Money(minor, currency)
    through_json = read_object(json.dumps(out).encode())
    assert parse_money(through_json["value"], through_json["currency"]).amount_minor == minor


@given(minor=st.integers(1, MAX_MINOR), currency=CURRENCIES)
def test_the_wire_form_is_the_shortest_exact_one(minor: int, currency: str) -> None:
    value = money_out(Money(minor, currency))["value"]
    digits = DIGITS[currency]
    assert isinstance(value, int) == (minor % 10**digits == 0)
    if isinstance(value, str):
        assert len(value.partition(".")[2]) == digits


@given(value=st.decimals(min_value=Decimal("0.001"), max_value=Decimal("999999"), places=3), currency=CURRENCIES)
def test_more_digits_than_the_currency_has_are_refused_and_never_rounded(value: Decimal, currency: str) -> None:
    text = format(value, "f")
    shown = len(text.partition(".")[2])
    if shown > DIGITS[currency]:
        with pytest.raises(InvalidInput):
            parse_money(text, currency)
    else:
        assert parse_money(text, currency).amount_minor == int(value.scaleb(DIGITS[currency]))


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        126.5,
        True,
        False,
        None,
        b"1",
        [1],
        {},
        float("nan"),
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("-1"),
        # Written out, each of these would be a gigabyte of digits.
        Decimal("1e999999999"),
        Decimal("1e-999999999"),
        -1,
        0,
        10**13,
    ],
)
def test_a_value_of_another_kind_or_out_of_range_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_money(value, "USD")


@pytest.mark.parametrize("value, currency, minor", [
    (126, "USD", 12600), ("126.50", "USD", 12650), (Decimal("126.5"), "USD", 12650), ("0.01", "EUR", 1), (5000, "JPY", 5000), ("1.234", "KWD", 1234), (MAX_MINOR // 100, "USD", MAX_MINOR),
])  # fmt: skip
def test_known_amounts(value: Any, currency: str, minor: int) -> None:
    assert parse_money(value, currency) == Money(minor, currency)
