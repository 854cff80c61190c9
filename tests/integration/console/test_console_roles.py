"""Which role may do what: every operator route × every role, as the table says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.console.page_roles import PAGES

NOTHING = "00000000-0000-7000-8000-000000000000"
ROLES = ("viewer", "approver", "admin")
LEAST: dict[tuple[str, str], str] = {
    ("GET", "/ops/api/session"): "viewer",
    ("DELETE", "/ops/api/session"): "viewer",
    ("POST", "/ops/api/session/step-up"): "viewer",
    ("POST", "/ops/api/session/password"): "viewer",
    ("GET", "/ops/api/tokens"): "viewer",
    ("POST", "/ops/api/tokens"): "viewer",
    ("DELETE", "/ops/api/tokens/<token_id>"): "viewer",
    ("GET", "/ops/api/approvals"): "viewer",
    ("GET", "/ops/api/approvals/<approval_id>"): "viewer",
    ("POST", "/ops/api/approvals/<approval_id>/approve"): "approver",
    ("POST", "/ops/api/approvals/<approval_id>/reject"): "approver",
    ("POST", "/ops/api/approvals/<approval_id>/handled"): "approver",
    ("GET", "/ops/api/halts"): "viewer",
    ("POST", "/ops/api/halts"): "approver",
    ("POST", "/ops/api/halts/<halt_id>/lift"): "admin",
    ("GET", "/ops/api/switches"): "viewer",
    ("POST", "/ops/api/switches/<name>/on"): "admin",
    ("POST", "/ops/api/switches/<name>/off"): "approver",
    ("GET", "/ops/api/in-doubt"): "viewer",
    ("POST", "/ops/api/in-doubt/<operation_id>/resolve"): "admin",
    ("GET", "/ops/api/webhooks"): "admin",
    ("GET", "/ops/api/webhooks/dead-letters"): "admin",
    ("POST", "/ops/api/webhooks/<endpoint_id>/disable"): "admin",
    ("POST", "/ops/api/webhooks/<endpoint_id>/resend"): "admin",
    ("GET", "/ops/api/public-ids/<public_id>"): "viewer",
    ("GET", "/ops/api/refunds/agent/status"): "viewer",
    ("GET", "/ops/api/refunds/ledger"): "viewer",
    ("POST", "/ops/api/refunds/process-once"): "approver",
    ("GET", "/ops/api/orders"): "viewer",
    ("GET", "/ops/api/orders/alerts"): "viewer",
    ("GET", "/ops/api/orders/<source>/<given_id:order_id>"): "viewer",
    ("POST", "/ops/api/orders/<source>/<given_id:order_id>/fulfil"): "approver",
    ("POST", "/ops/api/orders/<source>/<given_id:order_id>/refund"): "approver",
    ("POST", "/ops/api/orders/<source>/<given_id:order_id>/hold"): "approver",
    ("POST", "/ops/api/orders/<source>/<given_id:order_id>/retry"): "approver",
    **PAGES,
}
"""(method, route) → the least role. A route that is not here fails the test below."""
ENDS = (("DELETE", "/ops/api/session"), ("POST", "/ops/sign-out"))
FOR_ALL = {("POST", "/ops/api/session"), ("GET", "/ops/sign-in"), ("POST", "/ops/sign-in")}


def test_the_table_of_roles_names_every_operator_route(fixtures: Any) -> None:
    found = {
        (method, str(rule))
        for rule in fixtures.app().flask.url_map.iter_rules()
        if str(rule).startswith("/ops") and not str(rule).startswith("/ops/api/live/")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert found - FOR_ALL == LEAST.keys()


@pytest.mark.parametrize("role", ROLES)
def test_each_route_is_refused_below_its_role_and_only_there(fixtures: Any, role: str) -> None:
    person = fixtures.person("ann", role)
    for (method, route), least in sorted(LEAST.items(), key=lambda item: item[0] in ENDS):
        path = route.partition("<")[0] + NOTHING + route.partition(">")[2] if "<" in route else route
        # A body that breaks every schema: a role that is too low is told before anything is read.
        answer = person.client.open(path, method=method, json={"?": 1}, headers={"X-CSRF-Token": person.csrf})
        if (method, route) in ENDS:
            person = fixtures.sign_in(person.email, fixtures.opened[-1])
        refused = ROLES.index(role) < ROLES.index(least)
        assert (answer.status_code == 403) == refused, f"{method} {path} as {role}: {answer.status_code}"
        assert answer.status_code != 401
