"""Reading JSON in exactly one way, and the quick way of loading a body against the library's own."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError

from sentinel.authority.api.schemas import (
    CheckReportRequestSchema,
    CheckRequestSchema,
    GuardRequestSchema,
    ReportRequestSchema,
    StartRequestSchema,
)
from sentinel.core.errors import BodyTooLarge, InvalidInput
from sentinel.platform.http.bodies import MAX_BYTES, MAX_DEPTH, _quick_load, load, read_object
from tests.acceptance.hostile import nested

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
)
OBJECTS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.recursive(
        LEAVES,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text("abc", max_size=3), x, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)
SCHEMAS = [
    GuardRequestSchema(),
    CheckRequestSchema(),
    StartRequestSchema(),
    ReportRequestSchema(),
    CheckReportRequestSchema(),
]
NAMES = sorted({name for schema in SCHEMAS for name in schema.load_fields} | {"unknown"})
LIKELY = (
    st.sampled_from(
        ["a", "refund.create", "success", "ALLOW", "01a20065-2645-786c-b6c2-c53e6e92b13d", "", "a b", "x" * 300]
    )
    | LEAVES
    | st.just({})
    | st.just({"a": 1})
    | st.just([])
)


@given(value=OBJECTS)
def test_good_json_reads_as_the_standard_reader_reads_it(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1)):
        assert read_object(text.encode()) == value


@given(data=st.binary(max_size=300))
def test_any_bytes_are_an_object_or_a_refusal_and_never_another_error(data: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        assert isinstance(read_object(data), dict)


@given(
    parts=st.lists(st.sampled_from(["\\ud800", "\\uDFFF", "\\ud83d\\ude00", "a", "é", "\\u0041"]), max_size=5),
    as_name=st.booleans(),
)
def test_what_is_read_can_be_written_again_whatever_was_escaped(parts: list[str], as_name: bool) -> None:
    text = "".join(parts)
    body = f'{{"{text}": 1}}' if as_name else f'{{"a": [{{"b": "{text}"}}]}}'
    with contextlib.suppress(InvalidInput):
        json.dumps(read_object(body.encode()), ensure_ascii=False).encode()


@given(text=st.text('{}[]":,\\ 0123456789.eE+-tfnaul\n', max_size=60))
def test_what_is_read_is_never_anything_that_the_standard_reader_refuses(text: str) -> None:
    try:
        found = read_object(text.encode())
    except InvalidInput:
        return
    assert found == json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize("depth, good", [(MAX_DEPTH, True), (MAX_DEPTH + 1, False), (100, False), (8000, False)])
@pytest.mark.parametrize("kind", ["object", "list"])
def test_depth_has_a_limit_that_still_passes(depth: int, good: bool, kind: str) -> None:
    text = nested(depth) if kind == "object" else '{"a":' + nested(depth - 1, "list") + "}"
    if good:
        read_object(text.encode())
    else:
        with pytest.raises(InvalidInput):
            read_object(text.encode())


def test_brackets_inside_a_text_are_no_depth() -> None:
    assert read_object(json.dumps({"a": "[" * 100 + '\\"{' * 50}).encode())["a"].startswith("[")


def test_size_has_a_limit_that_still_passes() -> None:
    assert read_object(b"{}" + b" " * (MAX_BYTES - 2)) == {}
    with pytest.raises(BodyTooLarge):
        read_object(b"{}" + b" " * (MAX_BYTES - 1))


def test_a_fraction_is_exact_and_never_a_binary_float() -> None:
    assert read_object(b'{"a": 0.1}')["a"] == Decimal("0.1")
    assert isinstance(read_object(b'{"a": 126.50}')["a"], Decimal)


@given(schema=st.sampled_from(SCHEMAS), value=st.dictionaries(st.sampled_from(NAMES), LIKELY, max_size=8))
def test_the_quick_load_is_the_librarys_load(schema: Any, value: dict[str, Any]) -> None:
    given_value = {name: member for name, member in value.items() if member is not None}
    try:
        slow = schema.load(given_value)
    except ValidationError:
        assert _quick_load(schema, given_value) is None
        with pytest.raises(InvalidInput):
            load(schema, given_value)
        return
    assert _quick_load(schema, given_value) == slow
    assert load(schema, given_value) == slow
