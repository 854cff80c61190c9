"""The canonical form against an independent implementation of RFC 8785, and the operation's digest."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.canonical import MAX_SAFE_INTEGER, canonical_json, canonical_value
from sentinel.core.errors import InvalidInput
from sentinel.core.operation import (
    IDENTIFIER_PARAMS,
    UNSAFE_TEXT,
    build_operation,
    first_difference,
    params_text,
    request_template,
)

KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).filter(
    lambda text: not UNSAFE_TEXT.search(text)
)
LEAVES = st.none() | st.booleans() | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
PARAMS = st.dictionaries(KEYS.filter(lambda key: key not in {"amount", "risk", *IDENTIFIER_PARAMS}), VALUES, max_size=5)


def operation(params: dict[str, Any], **over: Any) -> Any:
    return build_operation(**{"idempotency_key": "k", "agent_id": "a", "action": "b", "params": params, **over})


@given(value=VALUES)
def test_our_canonical_form_is_the_rfc_8785_result(value: Any) -> None:
    assert canonical_json(value).encode() == rfc8785.dumps(value)


def test_the_oracle_catches_a_form_that_is_only_almost_canonical() -> None:
    value = {"b": [1, "é"], "a": None}
    for almost in (
        json.dumps(value),
        json.dumps(value, sort_keys=True),
        json.dumps(value, sort_keys=True, separators=(",", ":")),
    ):
        assert almost.encode() != rfc8785.dumps(value)


@given(value=VALUES.filter(lambda value: value is not None))
def test_what_params_may_hold_has_the_canonical_form_that_it_has_in_params(value: Any) -> None:
    """So that the digest of a report is what it was while a result had to keep the rules of params."""
    assert canonical_json(canonical_value(value)) == canonical_json(operation({"x": value}).params["x"])


ANY_LEAF = (
    LEAVES
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.from_regex(r"-?[0-9]{1,30}\.[0-9]{1,30}([eE][+-]?[0-9]{1,30})?", fullmatch=True).map(msgspec.Raw)
)


@given(
    value=st.recursive(
        ANY_LEAF,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=12,
    )
)
def test_any_json_has_a_canonical_form(value: Any) -> None:
    found = canonical_value(value)
    assert canonical_json(found).encode() == rfc8785.dumps(found)


@given(params=PARAMS)
def test_the_digest_does_not_depend_on_key_order_or_nulls(params: dict[str, Any]) -> None:
    shuffled = dict(random.Random(0).sample(list(params.items()), len(params)))
    assert operation(params).digest == operation({**shuffled, "absent": None}).digest


@given(params=PARAMS)
def test_normalising_twice_changes_nothing(params: dict[str, Any]) -> None:
    once = operation(params)
    assert operation(dict(once.params)).canonical == once.canonical


@given(params=PARAMS, name=st.sampled_from(["agent_id", "action", "resource", "risk_class"]))
def test_any_other_name_is_another_operation_and_the_difference_is_named(params: dict[str, Any], name: str) -> None:
    one, other = operation(params), operation(params, **{name: "changed"})
    assert one.digest != other.digest
    assert first_difference(one.canonical, other.canonical) == name


@pytest.mark.parametrize(("one", "other"), [(True, 1), (False, 0), ([True], [1]), ({"in": False}, {"in": 0})])
def test_where_a_truth_value_stands_for_the_number_that_equals_it_in_python_the_param_is_named(
    one: Any, other: Any
) -> None:
    name = "params.x.in" if isinstance(one, dict) else "params.x"
    assert first_difference(operation({"x": one}).canonical, operation({"x": other}).canonical) == name


@pytest.mark.parametrize(
    "amount",
    [
        {"amount": 40, "currency": "USD"},
        {"amount": "40.00", "currency": "USD"},
        {"amount": {"value": "40.0", "currency": "USD"}},
        {"currency": "USD", "amount": 40},
    ],
)
def test_the_spellings_of_one_amount_have_one_digest(amount: dict[str, Any]) -> None:
    assert operation(amount).digest == operation({"amount": {"value": 40, "currency": "USD"}}).digest


@pytest.mark.parametrize(
    "params",
    [
        {"x": 0.5},
        {"x": MAX_SAFE_INTEGER + 1},
        {"x": "a\u200b"},
        {"x": "\ud800"},
        {"é": 1},
        {"": 1},
        {"x" * 129: 1},
        {"refund_id": "a b"},
        {"risk": []},
        {"risk": {"stale_window": 1}},
        {"amount": 1},
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        operation(params)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["%", "%1$s", 'a"b', "50%%"]
)


@given(names=st.tuples(WORDS, WORDS, WORDS), resource=WORDS, params=PARAMS)
def test_a_request_is_its_template_with_params_and_resource(
    names: tuple[str, str, str], resource: str, params: dict[str, Any]
) -> None:
    action, agent_id, risk_class = names
    asked = operation(params, agent_id=agent_id, action=action, resource=resource, risk_class=risk_class)
    kept = params_text(asked)
    assert (kept is None) is (canonical_json(resource) != f'"{resource}"')
    if kept is not None:
        places = {"%%": "%", "%1$s": kept, "%2$s": resource}
        filled = re.sub(r"%(?:%|\d\$s)", lambda found: places[found[0]], request_template(asked))
        assert filled == asked.canonical
