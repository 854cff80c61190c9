"""An intake is ready with a key that the authority takes as its own, and with no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fixtures import add_tenant, unique
from tests.support.kept_answers import require_kept_answers
from tests.support.order_fixtures import OrderFixtures, make_intake
from tests.support.ports import free_port
from worker.orders import app, key_check


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that answers late counts as silent, and with a silent one an intake is ready."""
    monkeypatch.setattr(key_check, "_SECONDS", 60.0)


def readyz(orders: OrderFixtures, authority_url: str, key: str) -> tuple[int, dict[str, bool]]:
    """What an intake with this key says of itself."""
    made = make_intake(orders.fixtures, authority_url, api_key=key)
    try:
        answer = made.app.test_client().get("/readyz")
        return answer.status_code, answer.json["checks"]
    finally:
        made.close()


def revoked(orders: OrderFixtures) -> str:
    key = orders.fixtures.new_key(agent_id="order-review")
    orders.fixtures.admin.execute(
        "update sentinel.agent_keys set revoked_at = clock_timestamp()"
        " where key_id = (select key_id from sentinel.agent_keys order by created_at desc limit 1)"
    )
    return key


WRONG: dict[str, Callable[[OrderFixtures], str]] = {
    "of another agent": lambda orders: orders.fixtures.new_key(agent_id="retail-refund-agent"),
    "of another tenant": lambda orders: add_tenant(orders.fixtures.url, unique("other").replace("_", "-"))[1],
    "that may not ask for decisions": lambda orders: orders.fixtures.new_key(
        agent_id="order-review", scopes=("check", "report", "approvals:read")
    ),
    "that may not read which halts are in force": lambda orders: orders.fixtures.new_key(
        agent_id="order-review", scopes=("guard", "check", "report", "approvals:read")
    ),
    "that was revoked": revoked,
    "that nobody knows": lambda orders: "snt_live_nobody_knows_this_one_at_all_0123",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_intake_with_a_key_is_not_ready(orders: OrderFixtures, name: str) -> None:
    status, checks = readyz(orders, orders.authority_url, WRONG[name](orders))
    assert (status, checks["key"]) == (503, False)
    assert all(held for check, held in checks.items() if check != "key"), checks


@pytest.mark.parametrize("path", ["/api/sentinel", "/elsewhere"])
def test_an_intake_whose_address_leads_to_another_place_is_not_ready(orders: OrderFixtures, path: str) -> None:
    status, checks = readyz(orders, orders.authority_url + path, orders.key)
    assert (status, checks["key"]) == (503, False)


def test_with_its_own_key_it_is_ready_and_while_the_authority_is_silent_too(orders: OrderFixtures) -> None:
    """Then orders are stored, and decided once it answers."""
    for url in (orders.authority_url, f"http://127.0.0.1:{free_port()}"):
        status, checks = readyz(orders, url, orders.key)
        assert (status, set(checks.values())) == (200, {True}), checks


def test_what_an_intake_says_of_itself_costs_no_more_however_often_it_is_asked(
    orders: OrderFixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kept_answers(orders.app.test_client(), monkeypatch, app)
