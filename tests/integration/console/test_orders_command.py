"""`sentinel orders`: the orders that wait, and a word on one in an operator's name, under every rule of the pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.console.test_operators_commands import refused, run, told
from tests.support.orders_console_world import held, queued, refused_by_shop, standing


def decide(world: Any, order_id: str, word: str, who: str = "ann@demo.local", reason: str = "by phone") -> Any:
    return run(
        world, "orders", "decide", "demo", order_id, word, "--as", who, "--reason", reason, "--tenant", "public-demo"
    )


def test_what_waits_is_listed_what_came_back_first(world: Any) -> None:
    assert run(world, "orders", "list").output == "No order waits for a person.\n"
    waiting, back = queued(world), refused_by_shop(world)
    held(world)
    found = told(world, "orders", "list")
    assert [(one["source"], one["order_id"], one["status"], one["lane"], one["amount"]) for one in found] == [
        ("demo", back, "SHOP_REFUSED", "low", "200.00 USD"), ("demo", waiting, "QUEUED", "medium", "200.00 USD"),
    ]  # fmt: skip
    assert [one["order_id"] for one in told(world, "orders", "list", "--limit", "1")] == [back]
    table = run(world, "orders", "list").output
    assert waiting in table and "SHOP_REFUSED" in table and "secret" not in table


@pytest.mark.parametrize(
    ("word", "status"), [("hold", ("HELD", "hold")), ("refund", ("REFUND_FILED", "refund")), ("fulfil", ("QUEUED", "fulfil"))]
)  # fmt: skip
def test_a_word_is_a_local_administrators_for_the_named_operator(
    world: Any, word: str, status: tuple[str, str]
) -> None:
    ann, order = world.operator("ann"), queued(world)
    done = decide(world, order, word)
    assert (done.exit_code, done.output) == (0, f"{word.capitalize()} as ann@demo.local (local administrator).\n"), (
        done.output
    )
    assert standing(world, order) == status
    assert world.sql("select operator_id, via, reason from orders.words") == [
        (ann.operator_id, "local_administrator", "by phone")
    ]
    refused(decide(world, order, word), 1, "")
    assert world.sql("select count(*) from orders.words") == [(1,)]


def test_of_what_came_back_a_retry_asks_the_shop_again(world: Any) -> None:
    world.operator("ann")
    order = refused_by_shop(world)
    refused(decide(world, order, "fulfil"), 1, "")
    done = decide(world, order, "retry")
    assert done.exit_code == 0, done.output
    assert standing(world, order)[0] == "STARTED"


def test_nobody_has_more_rights_here_than_on_the_pages(world: Any) -> None:
    world.operator("vic", "viewer")
    world.operator("eve", "approver", world.tenant("elsewhere"))
    order = queued(world)
    refused(decide(world, order, "hold", "vic@demo.local"), 1, "role")
    refused(decide(world, order, "hold", "nobody@demo.local"), 1, "not an operator")
    other = run(
        world,
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
    world.operator("ann")
    refused(decide(world, "no-such", "hold"), 1, "no order")
    refused(decide(world, order, "hold", reason=" "), 2, "")
    assert decide(world, order, "burn").exit_code == 2
    assert run(world, "orders", "decide", "demo", order, "hold", "--reason", "x").exit_code == 2
    assert standing(world, order) == ("QUEUED", None)
    assert world.sql("select count(*) from orders.words") == [(0,)]
