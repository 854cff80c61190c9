"""Reading JSON in exactly one way, and the quick way of loading a body against the library's own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
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


def cost_of(body: bytes) -> float:
    """CPU seconds of reading a body that is refused, the best of three."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(InvalidInput):
            read_object(body)
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.parametrize(
    "hostile",
    [
        lambda size: b'{"a":' + b"[" * 17 + b'"' + b'\\"' * (size // 2),
        lambda size: b'{"a":' + b"[" * 17 + b'"' + b'\\"' * (size // 2) + b"\\",
        lambda size: b'{"a":' + b"[" * 17 + b'"' + b"\\" * size,
        lambda size: b"{" + b",".join(b'"%04x":0' % n for n in range(size // 9)) + b',"%04x":0}' % (size // 9 - 1),
    ],
    ids=["string-without-end", "string-that-ends-in-an-escape", "backslashes-without-end", "last-name-twice"],
)
def test_eight_times_the_bytes_cost_about_eight_times_the_time(hostile: Callable[[int], bytes]) -> None:
    size = MAX_BYTES // 9
    # In the square it would be 64 times; what is added keeps apart what is too small to be timed.
    assert cost_of(hostile(8 * size)) < 16 * cost_of(hostile(size)) + 0.05


class Twice(Exception):
    """A name that came twice in one object."""


def slow_reading(text: str) -> tuple[str, Any]:
    """What is to become of a text, a character and a name after the other: "deep", "twice" and the name, "not JSON", or its value."""
    depth, deepest, in_string, place = 0, 0, False, 0
    while place < len(text):
        character = text[place]
        if in_string and character == "\\":
            place += 1
        elif character == '"':
            in_string = not in_string
        elif not in_string:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(character, 0)
            deepest = max(deepest, depth)
        place += 1

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise Twice(name)
        return dict(pairs)

    if deepest > MAX_DEPTH:
        return "deep", None
    try:
        value = json.loads(text, object_pairs_hook=each_once)
    except Twice as twice:
        return "twice", str(twice)
    except ValueError:
        return "not JSON", None
    return ("read", value) if isinstance(value, dict) else ("not JSON", None)


DEEP = st.integers(MAX_DEPTH - 2, MAX_DEPTH + 2).flatmap(
    lambda n: st.sampled_from(["[" * n, '{"a":' * n, "[" * n + "]" * n])
)
PIECES = st.sampled_from(
    ['"', '\\"', "\\\\", "\\", "[", "]", "{", "}", ",", ":", '"a":', '"b":', '"a"', "true", "null", " ", "\n", "é"]
)
TEXTS = st.lists(PIECES | DEEP, max_size=30).map("".join)
NESTED = st.recursive(
    st.just("null") | st.text(st.sampled_from('[]{}"\\a'), max_size=8).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda found: f"[{','.join(found)}]")
        | st.lists(st.tuples(st.sampled_from(['"a"', '"b"', '"\\""']), inner), max_size=3).map(
            lambda found: "{" + ",".join(f"{name}:{member}" for name, member in found) + "}"
        )
    ),
    max_leaves=30,
)


@given(
    text=TEXTS
    | st.builds(lambda deep, text: f'{{"a":{deep}{text}', DEEP, TEXTS)
    | NESTED.map(lambda one: f'{{"x":{one}}}')
)
def test_what_is_read_and_what_is_refused_is_what_a_slow_reader_says(text: str) -> None:
    outcome, value = slow_reading(text)
    if outcome == "read":
        assert read_object(text.encode()) == value
        return
    with pytest.raises(InvalidInput) as refused:
        read_object(text.encode())
    if outcome == "deep":
        assert "nested deeper" in refused.value.detail
    elif outcome == "twice":
        assert refused.value.errors == {value: "appears twice in one object"}


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
