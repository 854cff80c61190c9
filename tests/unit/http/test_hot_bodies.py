"""The quick way takes a body only as the strict reader and the documented schema take it: valid, mutated and hostile bodies."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.authority.api.guard import CHECK, GUARD, REPORT, START
from sentinel.authority.api.schemas import BatchRequestSchema
from sentinel.core.errors import SentinelError
from sentinel.platform.http import bodies as http_bodies
from sentinel.platform.http.bodies import BodyReader, load
from tests.support.fixtures import guard_body, start_body

SCALE = int(os.environ.get("SENTINEL_TEST_SCALE", "1"))
READERS: dict[str, BodyReader[Any]] = {"guard": GUARD, "check": CHECK, "start": START, "report": REPORT}
ANSWER = {"resource": "refund/rf_1", "risk_class": "standard", "permit_token": "AZ-_09." + "a" * 50}


def likely_bodies() -> dict[str, dict[str, Any]]:
    """One body of each route, as clients send them."""
    guard = guard_body("k1", value="12.50")
    bound = {name: guard[name] for name in ("agent_id", "action", "resource", "risk_class")}
    report = {
        "idempotency_key": "k1",
        "outcome": "error",
        "error": "no such é account",
        "result": {"a": [1, None, "x"]},
        "report_id": str(uuid.UUID(int=7)),
    }
    return {
        "guard": {**guard, "start_id": str(uuid.UUID(int=5)), "act_within_seconds": 60}, "start": start_body(guard, ANSWER),
        "check": {**bound, "params": guard["params"], "tenant_id": "t-1"}, "report": {**bound, **report, "permit_token": "a.b"},
    }  # fmt: skip


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([2**53, 10**16, 10**17, 10**18, -(10**17), 10**30, 86400, 86401]), st.floats(allow_nan=True),
    st.sampled_from(["", "x", "a b", "a\n", "é", "\U0001f600", "\u200b", "\x7f", "x" * 64, "x" * 65, "x" * 300, "success", "1" * 20, "12.50", '"', "\\", "\ud800", "\x00", str(uuid.UUID(int=9)),
                     uuid.UUID(int=9).hex, "{" + str(uuid.UUID(int=9)) + "}", "AB" * 16]), st.text(max_size=4),
)  # fmt: skip
VALUES = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "", "é", "value"]), inner, max_size=3)), max_leaves=6)  # fmt: skip
NAMES = ["agent_id", "action", "tenant_id", "resource", "risk_class", "evidence_context", "params", "context", "idempotency_key", "start_id", "act_within_seconds", "permit_token",
         "outcome", "error", "result", "report_id", "unknown", "requests"]  # fmt: skip

# What may be done to the text of a body; most of it breaks it, some only another reader would notice.
SPELLINGS: list[tuple[bytes, bytes]] = [
    (b'{"', b'{"action":"other","'), (b'"action"', b'"action":"x","action"'), (b'"risk"', b'"risk":{},"risk"'), (b'"params"', b'"params":null,"params"'),
    (b'"action"', b'"\\u0061ction"'), (b'"value"', b'"value":1,"value"'), (b'"a"', b'"b":1,"b"'), (b'"standard"', b'"st\\u0061ndard"'),
    (b": 1", b": 1.0"), (b": 1", b": 1e0"), (b": 1", b": -0"), (b": 1", b": 01"), (b": 1", b": +1"), (b": 1", b": 1" + b"0" * 17), (b": 1", b": 1" + b"0" * 18), (b": 1", b": 1" + b"0" * 40),
    (b": 60", b": 60.0"), (b": 60", b": 6e1"), (b": 60", b': "60"'), (b": false", b": 0"), (b": false", b": False"), (b": false", b": NaN"), (b": false", b": Infinity"), (b": false", b": null"),
    (b"}", b"},"), (b"}", b",}"), (b"{", b" \t\r\n{"), (b"{", b"\x0b{"), (b"{", b"\xef\xbb\xbf{"), (b'"acct', b'"\xffacct'), (b'"acct', b'"\xed\xa0\x80acct'), (b'"acct', b'"\x01acct'), (b'"acct', b'"\\ud83dacct'),
    (b'"', b"'"), (b": {", b": [{"), (b'"risk": {', b'"risk": {"x": ' + b"[" * 20 + b"]" * 20 + b", "), (b'"risk": {', b'"risk": {"x": ' + b"[" * 9 + b"]" * 9 + b", "), (b"[", b"[1.5, "),
]  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A route and a body for it, from as its clients send it to quite broken."""
    route = draw(st.sampled_from(sorted(READERS)))
    body = likely_bodies()[draw(st.sampled_from([route, route, route, *READERS]))]
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        params = body.get("params")
        risk = params.get("risk") if isinstance(params, dict) else None
        at: Any = draw(st.sampled_from([body, body, *(one for one in (params, risk) if isinstance(one, dict))]))
        name = draw(st.sampled_from([*NAMES, *at]))
        if draw(st.booleans()):
            at.pop(name, None)
        else:
            at[name] = draw(VALUES)
    raw = json.dumps(
        body, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([None, (",", ": "), (" , ", " :\n")]))
    )
    text = raw.encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        old, new = draw(st.sampled_from(SPELLINGS))
        text = text.replace(old, new, draw(st.sampled_from([1, 1, -1])))
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, max(0, len(text) - 1)))
        text = text[:place] + bytes([draw(st.integers(0, 255))]) + text[place + 1 :]
    return route, text


def documented(reader: BodyReader[Any], body: bytes) -> Any:
    """What the strict reader and the schema make of a body, or their refusal's type."""
    try:
        return reader.of_object(reader.read_object(body))
    except SentinelError as error:
        return type(error)


def exactly(value: Any) -> str:
    """Values of one spelling only: True is not 1, and names have an order."""
    return repr(msgspec.structs.asdict(value)) if isinstance(value, msgspec.Struct) else repr(value)


@settings(max_examples=1500 * SCALE)
@given(asked=bodies())
def test_what_the_quick_way_takes_is_what_the_schema_takes(asked: tuple[str, bytes]) -> None:
    route, body = asked
    quick = READERS[route].quick(body)
    if quick is not None:
        assert exactly(quick) == exactly(documented(READERS[route], body)), body


@settings(max_examples=300 * SCALE)
@given(data=st.data())
def test_what_the_quick_way_takes_of_a_batch_is_what_the_schema_takes(data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(sorted(READERS)))
    parts = data.draw(
        st.lists(
            st.one_of(st.just(json.dumps(likely_bodies()[route]).encode()), bodies().map(lambda one: one[1])),
            max_size=4,
        )
    )
    head, tail = data.draw(st.sampled_from([(b'{"requests": [', b"]}"), (b'{"requests": [], "requests": [', b"]}"), (b'{"more": 1, "requests": [', b"]}"),
                                            (b'{"requests": [', b'], "requests": [{}]}'), (b'{"\\u0072equests": [', b"]}"), (b"[", b"]")]))  # fmt: skip
    body = head + b", ".join(parts) + tail
    quick = READERS[route].quick_batch(body)
    if quick is not None:
        objects = load(BatchRequestSchema(), READERS[route].read_object(body))["requests"]
        assert [exactly(one) for one in quick] == [exactly(READERS[route].of_object(one)) for one in objects]


@pytest.mark.parametrize("route", sorted(READERS))
def test_what_clients_send_is_read_quickly_alone_and_in_a_batch(route: str) -> None:
    body, reader = likely_bodies()[route], READERS[route]
    for text in (
        json.dumps(body, ensure_ascii=False),
        json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        json.dumps(body, ensure_ascii=False, indent=2),
    ):
        assert reader.quick(text.encode()) is not None
        assert exactly(reader.read(text.encode())) == exactly(reader.of_object(body))
    batch = json.dumps({"requests": [body] * 64}, ensure_ascii=False).encode()
    found = reader.quick_batch(batch)
    assert found is not None and [exactly(one) for one in found] == [exactly(reader.of_object(body))] * 64


def test_a_member_that_is_null_is_absent_and_still_tells_of_a_start_step() -> None:
    body = guard_body("k1")
    for name in ("resource", "risk_class", "evidence_context"):
        del body[name]
    assert not GUARD.read(json.dumps(body).encode()).has_start_step
    for name in ("resource", "risk_class", "evidence_context"):
        assert GUARD.read(json.dumps({**body, name: None}).encode()).has_start_step
    assert not GUARD.read(json.dumps({**body, "start_id": None, "tenant_id": None}).encode()).has_start_step
    assert GUARD.read(json.dumps({**body, "start_id": str(uuid.UUID(int=1))}).encode()).has_start_step


# --- what turns red ------------------------------------------------------------------------------------------------------

_LIKELY = json.dumps(likely_bodies()["guard"])


@pytest.mark.parametrize(
    "mutant, body",
    [
        ("counts nothing", _LIKELY.replace('"risk_class"', '"risk_class": "high", "risk_class"')),
        ("counts nothing", '{"agent_id": "a", "action": "b", "idempotency_key": "k", "resource": null}'),
        ("takes escapes", _LIKELY.replace('"correlation_id"', '"c": "x", "c": "y", "q": "' + r"\u0022" * 4 + '", "d"')),
        ("takes long numbers", _LIKELY.replace('"correlation_id": "c"', '"n": 1000000000000000000')),
        ("takes fractions", _LIKELY.replace('"correlation_id": "c"', '"n": 1.0')),
        ("takes any text", _LIKELY.replace('"standard"', '"stand ard"')),
        ("takes any depth", _LIKELY.replace('"c"', "[" * 20 + "]" * 20)),
    ],
)  # fmt: skip
def test_a_quick_way_that_is_less_careful_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: str, body: str) -> None:
    careless: dict[str, Callable[[BodyReader[Any]], None]] = {
        "counts nothing": lambda one: setattr(one, "_encode", lambda found: body.encode()),
        "takes escapes": lambda one: monkeypatch.setattr(http_bodies, "_is_plain", lambda body: True),
        "takes long numbers": lambda one: monkeypatch.setattr(http_bodies, "_MANY_DIGITS", b"no such"),
        "takes fractions": lambda one: setattr(one, "_decode", msgspec.json.Decoder(type(GUARD.quick(_LIKELY.encode()))).decode),
        "takes any text": lambda one: setattr(one, "_is_sure", lambda found: True),
        "takes any depth": lambda one: None,
    }  # fmt: skip
    reader = BodyReader(type(GUARD.read(_LIKELY.encode())), GUARD.of_object, GUARD._is_sure)
    assert reader.quick(body.encode()) is None
    careless[mutant](reader)
    quick = reader.quick(body.encode(), depth=100)
    assert quick is not None and exactly(quick) != exactly(documented(GUARD, body.encode()))
