"""`sentinel orders`: the orders that wait, and deciding on one in an operator's name, under every rule of the pages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.console.test_operators_commands import printed_json, refused, run
from tests.support.orders_console_fixtures import held, queued, refused_by_shop, status_and_resolution


def decide(
    fixtures: Any, order_id: str, decision: str, who: str = "ann@demo.local", reason: str = "by phone", *more: str
) -> Any:
    named = ("--as", who, "--reason", reason, "--tenant", "public-demo", *more)
    return run(fixtures, "orders", "decide", "demo", order_id, decision, *named)


def test_what_waits_is_listed_what_came_back_first(fixtures: Any) -> None:
    assert run(fixtures, "orders", "list").output == "No order waits for a person.\n"
    waiting, back = queued(fixtures), refused_by_shop(fixtures)
    held(fixtures)
    found = printed_json(fixtures, "orders", "list")
    assert [(one["source"], one["order_id"], one["status"], one["lane"], one["amount"]) for one in found] == [
        ("demo", back, "SHOP_REFUSED", "low", "200.00 USD"), ("demo", waiting, "QUEUED", "medium", "200.00 USD"),
    ]  # fmt: skip
    assert [one["order_id"] for one in printed_json(fixtures, "orders", "list", "--limit", "1")] == [back]
    table = run(fixtures, "orders", "list").output
    assert waiting in table and "SHOP_REFUSED" in table and "secret" not in table


@pytest.mark.parametrize(
    ("decision", "status"), [("hold", ("HELD", "hold")), ("refund", ("REFUND_FILED", "refund")), ("fulfil", ("QUEUED", "fulfil"))]
)  # fmt: skip
def test_a_decision_is_a_local_administrators_for_the_named_operator(
    fixtures: Any, decision: str, status: tuple[str, str]
) -> None:
    ann, order = fixtures.operator("ann"), queued(fixtures)
    done = decide(fixtures, order, decision)
    assert (done.exit_code, done.output) == (
        0,
        f"{decision.capitalize()} as ann@demo.local (local administrator).\n",
    ), done.output
    assert status_and_resolution(fixtures, order) == status
    assert fixtures.sql("select operator_id, via, reason from orders.analyst_decisions") == [
        (ann.operator_id, "local_administrator", "by phone")
    ]
    refused(decide(fixtures, order, decision), 1, "")
    assert fixtures.sql("select count(*) from orders.analyst_decisions") == [(1,)]


def test_the_first_of_two_people_is_told_so_and_lets_nothing_go_yet(fixtures: Any) -> None:
    fixtures.operator("ann"), fixtures.operator("ben")
    order, vic = queued(fixtures, people=2), fixtures.browser("vic", "viewer")

    def titles() -> list[str]:
        return re.findall(r"An analyst (?:voted to release|released) it", vic.get(f"/ops/orders/demo/{order}").text)

    first = decide(fixtures, order, "fulfil")
    assert first.output == "Recorded as ann@demo.local (local administrator): 1 of 2 people have approved.\n"
    assert status_and_resolution(fixtures, order) == ("QUEUED", None)
    assert titles() == ["An analyst voted to release it"]
    second = decide(fixtures, order, "fulfil", "ben@demo.local")
    assert second.output == "Fulfil as ben@demo.local (local administrator).\n"
    assert status_and_resolution(fixtures, order) == ("QUEUED", "fulfil")
    assert titles() == ["An analyst voted to release it", "An analyst released it"]


def test_of_what_came_back_a_retry_of_the_status_that_it_has_asks_the_shop_again(fixtures: Any) -> None:
    fixtures.operator("ann")
    order = refused_by_shop(fixtures)
    refused(decide(fixtures, order, "fulfil"), 1, "")
    refused(decide(fixtures, order, "retry"), 2, "status")
    retry = ("retry", "ann@demo.local", "by phone", "--status")
    refused(decide(fixtures, order, *retry, "REFUND_REFUSED"), 1, "has changed since")
    assert status_and_resolution(fixtures, order)[0] == "SHOP_REFUSED"
    done = decide(fixtures, order, *retry, "SHOP_REFUSED")
    assert done.exit_code == 0, done.output
    assert status_and_resolution(fixtures, order)[0] == "STARTED"


def test_nobody_has_more_rights_here_than_on_the_pages(fixtures: Any) -> None:
    fixtures.operator("vic", "viewer")
    fixtures.operator("eve", "approver", fixtures.tenant("elsewhere"))
    order = queued(fixtures)
    refused(decide(fixtures, order, "hold", "vic@demo.local"), 1, "role")
    refused(decide(fixtures, order, "hold", "nobody@demo.local"), 1, "not an operator")
    other = run(
        fixtures,
        "orders",
        "decide",
        "demo",
        order,
        "hold",
        "--as",
        "eve@demo.local",
        "--reason",
        "x",
        "--tenant",
        "elsewhere",
    )
    refused(other, 1, "no order")
    fixtures.operator("ann")
    refused(decide(fixtures, "no-such", "hold"), 1, "no order")
    refused(decide(fixtures, order, "hold", reason=" "), 2, "")
    assert decide(fixtures, order, "burn").exit_code == 2
    assert run(fixtures, "orders", "decide", "demo", order, "hold", "--reason", "x").exit_code == 2
    assert status_and_resolution(fixtures, order) == ("QUEUED", None)
    assert fixtures.sql("select count(*) from orders.analyst_decisions") == [(0,)]
