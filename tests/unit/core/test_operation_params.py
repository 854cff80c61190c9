"""What is refused in an operation's params because two places contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.core.errors import InvalidInput
from sentinel.core.operation import build_operation


def operation(params: dict[str, Any]) -> Any:
    return build_operation(agent_id="a", action="refund.create", idempotency_key="k", params=params)


def test_a_currency_beside_an_amount_that_names_another_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        operation({"amount": {"value": 1, "currency": "USD"}, "currency": "EUR"})
    assert refused.value.errors == {"params.currency": "contradicts params.amount.currency"}


@pytest.mark.parametrize("beside", [{}, {"currency": "USD"}, {"currency": None}])
def test_the_same_currency_twice_contradicts_nothing(beside: dict[str, Any]) -> None:
    assert operation({"amount": {"value": 1, "currency": "USD"}, **beside}).amount.currency == "USD"


def test_an_operation_is_told_by_its_key_and_content_and_not_by_its_evidence() -> None:
    def asked(key: str = "k", value: int = 1, **more: Any) -> Any:
        params = {"amount": {"value": value, "currency": "USD"}}
        return build_operation(agent_id="a", action="refund.create", idempotency_key=key, params=params, **more)

    assert asked() == asked(evidence={"seen": True})
    assert asked() != asked(key="other")
    assert asked() != asked(value=2)
    assert asked() != asked(resource="r")
    assert asked() != "an operation"
