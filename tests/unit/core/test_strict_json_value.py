"""Strict JSON: what two readers could read differently is refused, and nothing else is raised."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.strict_json import strict_json


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', '{"a": {"b": 1, "\\u0062": 2}}', "NaN", "[-Infinity]", "1e99999999999999999999", b"\xff", "", "{", "{} {}"],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        strict_json(text)


def test_fractions_are_exact() -> None:
    assert strict_json('{"a": [0.1, 1, true, null, "x"]}') == {"a": [Decimal("0.1"), 1, True, None, "x"]}


@given(st.binary(max_size=40) | st.text('{}[]",:0123456789eE.-+\\nulINatrefs ', max_size=40))
def test_no_text_raises_anything_else(text: str | bytes) -> None:
    try:
        strict_json(text)
    except (ValueError, RecursionError):
        pass
