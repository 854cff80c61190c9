"""Events reach a webhook: all of them, in the feed's order, signed, and with no word that anybody wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sentinel.authority.actor import Actor
from sentinel.authority.approvals import resolve_approval
from sentinel.authority.halts import lift_halt, set_halt
from sentinel.authority.webhooks import list_endpoints, rotate_secret
from tests.support.event_receiver import EventReceiver
from tests.support.export_fixtures import Export, exporting
from tests.support.fixtures import Fixtures, guard_body


@pytest.fixture
def export(fixtures: Fixtures) -> Iterator[Export]:
    with exporting(fixtures) as made:
        yield made


def administrator(fixtures: Fixtures) -> Actor:
    return Actor(fixtures.tenant_id, fixtures.operators["admin"], "admin@tests.example", "admin")


def test_a_refund_is_told_from_decision_to_outcome(export: Export) -> None:
    body = guard_body(value="126.50")
    answer = export.fixtures.guard(body)
    export.fixtures.start(body, answer)
    export.fixtures.report(body)
    export.send()
    decision, start, outcome = export.receiver.taken
    assert export.receiver.types == [f"dev.sentinel.{kind}.v1" for kind in ("decision", "start", "outcome")]
    assert decision.get_id() == answer["decision_event_id"]
    assert {one.get_subject() for one in export.receiver.taken} == {answer["operation_id"]}
    assert {one.get_source() for one in export.receiver.taken} == {f"/tenants/{export.fixtures.tenant_id}"}
    data = decision.get_data()
    assert data["amount"] == {"value": "126.50", "currency": "USD"}
    assert (data["decision"], data["reason_code"]) == ("ALLOW", answer["reason_code"])
    assert start.get_data()["event"] == "start" and outcome.get_data()["outcome"] == "success"
