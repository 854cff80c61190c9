"""Builders for tests of the analysts' side of order review: orders in the queue, on a console's fixtures."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from sentinel.core.operation import build_operation
from tests.support.verbs import guarded
from worker.orders.order import ACTION, AGENT_ID, order_key, resource_of

SOURCE = "demo"
_numbers = itertools.count(1)
SIGNALS = '[{"code": "country_mismatch", "detail": "billing GB, shipping NG"}]'


def queued(fixtures: Any, order_id: str | None = None, *, owner: Any = None, people: int = 1) -> str:
    """The id of a medium order that waits for so many analysts, 200.00 USD, asked about with a key of `owner`'s."""
    order_id = order_id or f"ord-{next(_numbers)}"
    approval_id = _asked(fixtures, order_id, owner)
    if people != 1:
        fixtures.sql("update sentinel.approvals set required_people = %s where approval_id = %s", people, approval_id)
    review_id = _scored(fixtures, order_id, "medium", model="not_asked")
    operation = fixtures.sql("select operation_id from sentinel.approvals where approval_id = %s", approval_id)[0][0]
    _move(fixtures, review_id, "needs_analyst", "DECIDED",
          f"lane = 'medium', decision = 'APPROVAL_REQUIRED', reason_code = 'needs_analyst', operation_id = '{operation}',"
          f" approval_id = '{approval_id}', decided_at = clock_timestamp()")  # fmt: skip
    _move(fixtures, review_id, "queued", "QUEUED", "due_at = clock_timestamp() + interval '1 day'")
    return order_id


def approval_of(fixtures: Any, order_id: str) -> uuid.UUID:
    """The approval that an order waits for."""
    found: uuid.UUID = fixtures.sql("select approval_id from orders.reviews where order_id = %s", order_id)[0][0]
    return found


def held(fixtures: Any, order_id: str | None = None) -> str:
    """The id of a high order that was held."""
    order_id = order_id or f"ord-{next(_numbers)}"
    review_id = _scored(fixtures, order_id, "high", model="raised")
    _move(fixtures, review_id, "denied", "DECIDED",
          f"lane = 'high', decision = 'DENY', reason_code = 'high_risk', operation_id = '{uuid.uuid4()}'")  # fmt: skip
    _move(fixtures, review_id, "held", "HELD", "last_error = null")
    return order_id


def never_asked(fixtures: Any) -> str:
    """The id of an order that the authority refuses to be asked about: it has no lane, and a person may hold it."""
    order_id = f"ord-{next(_numbers)}"
    review_id = _received(fixtures, order_id)
    _move(fixtures, review_id, "scored", "SCORED",
          "band = 'low', signals = '[]', model = 'not_asked', guard_params = '{}', last_error = '422: another question'")  # fmt: skip
    fixtures.sql("insert into orders.alerts (tenant_id, kind, source, order_id, summary) values (%s, 'question_refused', %s, %s, 'refused')",
              fixtures.tenant_id, SOURCE, order_id)  # fmt: skip
    return order_id


def refused_by_shop(fixtures: Any, order_id: str | None = None) -> str:
    """The id of a low order that its shop refused to fulfil: a person decides what now."""
    order_id = order_id or f"ord-{next(_numbers)}"
    review_id = _received(fixtures, order_id)
    fixtures.sql(
        "set session_replication_role = replica; update orders.reviews set status = 'SHOP_REFUSED', lane = 'low', band = 'low',"
        " decision = 'ALLOW', reason_code = 'low_risk', signals = '[]', model = 'not_asked', guard_params = '{}',"
        f" operation_id = gen_random_uuid(), start_id = gen_random_uuid(), decided_at = clock_timestamp() where review_id = '{review_id}';"
        " set session_replication_role = origin"
    )
    return order_id


def _asked(fixtures: Any, order_id: str, owner: Any) -> uuid.UUID:
    """The approval of an order, asked for as the intake asks."""
    operation = build_operation(
        idempotency_key=order_key(SOURCE, order_id), agent_id=AGENT_ID, action=ACTION, resource=resource_of(SOURCE, order_id),
        params={"amount": {"value": "200.00", "currency": "USD"}, "band": "medium", "order_key": f"{SOURCE}:{order_id.encode().hex()}"},
    )  # fmt: skip
    recorded = guarded(fixtures.authority, fixtures.caller(owner, agent_id=AGENT_ID), operation)
    assert recorded.status == "pending" and recorded.approval_id is not None, recorded
    return recorded.approval_id


def _received(fixtures: Any, order_id: str) -> uuid.UUID:
    review_id = uuid.uuid4()
    fixtures.sql(
        "insert into orders.reviews (tenant_id, review_id, source, order_id, body_sha256, amount_minor, currency, account_ref,"
        " order_facts) values (%s, %s, %s, %s, sha256('x'), 20000, 'USD', 'acct-secret', '{\"email\": \"secret@x.example\"}')",
        fixtures.tenant_id, review_id, SOURCE, order_id,
    )  # fmt: skip
    return review_id


def _scored(fixtures: Any, order_id: str, band: str, *, model: str) -> uuid.UUID:
    review_id = _received(fixtures, order_id)
    more = f"band = '{band}', signals = '{SIGNALS}', model = '{model}', guard_params = '{{}}'"
    _move(fixtures, review_id, "scored", "SCORED", more)
    return review_id


def _move(fixtures: Any, review_id: uuid.UUID, event: str, status: str, more: str) -> None:
    fixtures.sql(
        f"update orders.reviews set last_event = '{event}', status = '{status}', {more} where review_id = %s", review_id
    )


def status_and_resolution(fixtures: Any, order_id: str) -> tuple[str, str | None]:
    """(status, resolution) as stored."""
    found = fixtures.sql("select status, resolution from orders.reviews where order_id = %s", order_id)
    return found[0]
