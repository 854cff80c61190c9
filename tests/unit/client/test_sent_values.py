"""What a client sends of the values that Python programs hold money in."""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from sentinel.client.calls import ClientCall, guard_call, report_call


def sent(amount: Any) -> Any:
    """The amount's value as the authority is sent it."""
    params = {"amount": {"value": amount, "currency": "USD"}}
    call = guard_call({"action": "refund.create", "params": params, "idempotency_key": "key"}, "agent")
    return json.loads(call.sent or b"")["params"]["amount"]["value"]


@pytest.mark.parametrize(
    ("amount", "written"),
    [(Decimal("12.50"), "12.50"), (Decimal("1E+2"), "100"), (Decimal("5E-2"), "0.05"), ("12.50", "12.50"), (12, 12)],
    ids=str,
)
def test_a_decimal_is_sent_as_its_digits(amount: Any, written: Any) -> None:
    assert sent(amount) == written


@pytest.mark.parametrize(
    "amount",
    [Decimal("NaN"), Decimal("Infinity"), Decimal("1E+100000000"), {1, 2}, object()],
    ids=lambda one: type(one).__name__,
)
def test_what_json_has_no_form_for_is_said_by_its_type_before_anything_is_sent(amount: Any) -> None:
    with pytest.raises(TypeError):
        sent(amount)


@dataclass
class Limits:
    """What orjson writes as an object."""

    most: float
    scale: InitVar[int] = field(kw_only=True)

    def __post_init__(self, scale: int) -> None:
        self.most *= scale


class Rate(Enum):
    """Values of which one is no number of JSON."""

    USUAL = 1.5
    UNBOUNDED = float("inf")


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"a": [1, None, (one,)]}], ids=["alone", "nested"])
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_float_that_is_no_number_is_not_sent_as_null(number: float, wrap: Any) -> None:
    with pytest.raises(ValueError):
        sent(wrap(number))


def test_nor_one_in_what_only_orjson_writes() -> None:
    assert sent([Limits(1.5, scale=2), None]) == [{"most": 3.0}, None]
    assert sent([Rate.USUAL, None]) == [1.5, None]
    for unbounded in (Limits(float("inf"), scale=2), Rate.UNBOUNDED, [Rate.UNBOUNDED]):
        with pytest.raises(ValueError):
            sent(unbounded)


def test_null_is_sent_as_null() -> None:
    assert sent({"a": [None, 1.5]}) == {"a": [None, 1.5]}


RESULTS: dict[str, tuple[Any, Any]] = {
    "beyond 64 bits": ({"id": 2**70}, {"id": 2**70}),
    "half of a pair": ({"\udc80": ["\ud800"]}, {"\udc80": ["\ud800"]}),
    "no number": ([float("nan"), {"a": (float("-inf"),)}], ["nan", {"a": ["-inf"]}]),
    "no form": ({1: {2}, "left": Decimal("NaN")}, {"1": "{2}", "left": "NaN"}),
}
"""What an effect gave back, and what is sent of it."""


def nested(levels: int) -> Any:
    result: Any = "["
    for _ in range(levels):
        result = [result]
    return result


def endless() -> Any:
    result: list[Any] = []
    result.append(result)
    return result


class Detached:
    """As an object of a database session that is over: what it would print can be read no more."""

    def __str__(self) -> str:
        raise LookupError("the session is closed")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (nested(12), nested(12)),
        (["[" * 99, '"{\\"'], ["[" * 99, '"{\\"']),
        (nested(13), {"omitted": "nested too deeply", "bytes": 29}),
        (nested(300), {"omitted": "nested too deeply", "bytes": 603}),
        (nested(100_000), {"omitted": "nested too deeply"}),
        (endless(), {"omitted": "nested too deeply"}),
        ("x" * 32_766, "x" * 32_766),
        ("x" * 32_767, {"omitted": "too large", "bytes": 32_769}),
        ({"order": Detached()}, {"omitted": "no form as text"}),
        ({"number": 10**5_000}, {"omitted": "no form as text"}),
    ],
    ids=["as deep as may be", "brackets in texts", "too deep", "deeper than orjson writes", "deeper than Python goes",
         "within itself", "as long as may be", "too long", "cannot be printed", "a number of too many digits"],
)  # fmt: skip
def test_a_result_that_the_authority_would_refuse_is_sent_as_its_size_and_digest(result: Any, said: Any) -> None:
    call = report_call({"idempotency_key": "k", "action": "a", "outcome": "success", "result": result}, "agent")
    found = json.loads(call.sent or b"")["result"]
    digest = found.pop("sha256", None) if isinstance(found, dict) else None
    assert found == said
    assert (digest is not None) == (isinstance(said, dict) and "bytes" in said)


def test_a_long_error_is_cut_as_the_authority_cuts_it() -> None:
    call = report_call({"idempotency_key": "k", "action": "a", "outcome": "error", "error": "é" * 100_000}, "agent")
    assert json.loads(call.sent or b"")["error"] == "é" * 4_000


@pytest.mark.parametrize("batch", [False, True], ids=["alone", "batch"])
@pytest.mark.parametrize(("result", "said"), RESULTS.values(), ids=RESULTS)
def test_a_result_is_reported_whatever_it_holds(result: Any, said: Any, batch: bool) -> None:
    """The finding: after the effect `report` raised, for numbers and texts that the contract takes."""
    call: Any = report_call(
        {"idempotency_key": "key", "action": "refund.create", "outcome": "success", "result": result}, "agent"
    )
    if batch:
        call = ClientCall("POST", f"{call.path}/batch", {"requests": [call.body]}, call.parse)
    found = json.loads(call.sent or b"")
    assert (found["requests"][0] if batch else found)["result"] == said
