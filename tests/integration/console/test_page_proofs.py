"""A decision's proof on operators' pages: its events always, and the public board only where that shows the decision."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.store.ids import proof_id_of
from tests.support.orders_console_fixtures import approval_of, queued
from tests.support.ports import free_port


def pages_of(fixtures: Any, agent_id: str) -> tuple[list[str], str]:
    """The pages that name a proof of `agent_id`: an approval, an order and a ledger row; and the proof's name."""
    order_id = queued(fixtures)
    approval_id = approval_of(fixtures, order_id)
    (operation_id, event_id) = fixtures.sql("select operation_id, decision_event_id from sentinel.operation_states")[0]
    proof_id = proof_id_of(event_id)
    fixtures.sql(
        "set session_replication_role = replica;"
        f" update sentinel.operation_rows set agent_id = '{agent_id}';"
        f" update sentinel.approvals set agent_id = '{agent_id}';"
        f" update sentinel.event_rows set agent_id = '{agent_id}' where operation_id is not null;"
        f" update orders.reviews set proof_id = '{proof_id}';"
        " insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, agent_id, action, amount_minor, currency,"
        f" operation_id, proof_id) values ('{fixtures.tenant_id}', 'lge', 'rf', '{agent_id}', 'refund.create', 100, 'USD',"
        f" '{operation_id}', '{proof_id}')"
    )
    return [f"/ops/approvals/{approval_id}", f"/ops/orders/demo/{order_id}", "/ops/ledger/lge"], proof_id


def leads_to(browser: Any, pages: list[str], wanted: str) -> list[bool]:
    """Whether each page has a link to this address."""
    return [f'href="{wanted}"' in browser.get(page).text for page in pages]


@pytest.mark.parametrize(
    ("shown", "agent_id", "is_public"),
    [("", "order-review", False), ("", "retail-refund-agent", True), ("*", "order-review", True)],
)
def test_the_board_is_linked_only_where_it_shows_the_proof(
    fixtures: Any, shown: str, agent_id: str, is_public: bool
) -> None:
    settings = {"public_agents": shown} if shown else {}
    ann = fixtures.browser("ann", app=fixtures.app(**settings))
    pages, proof_id = pages_of(fixtures, agent_id)
    fixtures.publish()
    assert leads_to(ann, pages, f"/ops/events?operation={proof_id}") == [True] * 3
    assert "decision" in ann.get(f"/ops/events?operation={proof_id}").text
    assert leads_to(ann, pages, f"/verify/{proof_id}") == [is_public] * 3
    assert ann.get(f"/verify/{proof_id}").status_code == (200 if is_public else 404)


def test_another_tenants_proof_is_on_no_public_page(fixtures: Any) -> None:
    fixtures.tenant("shown")
    ann = fixtures.browser("ann", app=fixtures.app(public_tenant="shown"))
    pages, proof_id = pages_of(fixtures, "retail-refund-agent")
    assert leads_to(ann, pages, f"/ops/events?operation={proof_id}") == [True] * 3
    assert leads_to(ann, pages, f"/verify/{proof_id}") == [False] * 3


def test_a_board_whose_database_is_away_keeps_no_page_from_opening(fixtures: Any) -> None:
    ann = fixtures.browser("ann", app=fixtures.app(board_database_url=f"postgresql://127.0.0.1:{free_port()}/x"))
    pages, proof_id = pages_of(fixtures, "retail-refund-agent")
    assert leads_to(ann, pages, f"/ops/events?operation={proof_id}") == [True] * 3
