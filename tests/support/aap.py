"""A client of the Agent Approval Protocol, and the tool calls that it submits."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from werkzeug.test import TestResponse

from tests.support.fixtures import Fixtures, unique

AGENT = "refund-bot"
REQUESTS = "/aap/v1/requests"
NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000
FACTS = {
    "currency": "USD",
    "account": "acct_1",
    "duplicate": False,
    "stale": False,
    "suspicious": False,
    "attempts_24h": 1,
}


@dataclass
class Instance:
    """A client of the protocol: a key that is bound to one agent."""

    fixtures: Fixtures
    key: str

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> TestResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        rest = {} if body is None else {"json": body}
        return self.fixtures.app.test_client().open(
            path, method=method, headers={"Authorization": f"Bearer {self.key}", **named}, **rest
        )  # fmt: skip

    def create(self, body: dict[str, Any], key: str | None = None) -> TestResponse:
        return self.ask("POST", REQUESTS, body, Idempotency_Key=key or unique("call"))

    def made(self, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
        found = self.create(body, key)
        assert found.status_code in (200, 201), found.text
        return dict(found.json)

    def show(self, request_id: str, wait: str = "") -> dict[str, Any]:
        found = self.ask("GET", f"{REQUESTS}/{request_id}{wait and '?wait=' + wait}")
        assert found.status_code == 200, found.text
        return dict(found.json)

    def consume(self, request_id: str, key: str | None = None) -> TestResponse:
        return self.ask("POST", f"{REQUESTS}/{request_id}/consume", Idempotency_Key=key or unique("consume"))

    def outcome(self, request_id: str, status: str, **note: str) -> TestResponse:
        return self.ask("POST", f"{REQUESTS}/{request_id}/outcome", {"status": status, **note})

    def approval_of(self, request_id: str) -> uuid.UUID:
        found: uuid.UUID = self.fixtures.one(
            "select s.approval_id from sentinel.aap_requests r join sentinel.operation_states s using (tenant_id, operation_id)"
            " where r.request_id = %s", request_id)  # fmt: skip
        return found


def call(amount: int = 5000, payment: str | None = None, **over: Any) -> dict[str, Any]:
    payment = payment or unique("pi")
    return {
        "tool": "create_refund", "server": "stripe", "arguments": {"payment_intent": payment, "amount": amount}, "timeout": "10m",
        "context": {"call_id": "thread:1", "facts": {**FACTS, "account": f"acct_{payment}"}, "weight": 0.25}, **over,
    }  # fmt: skip


def code(answer: TestResponse) -> tuple[int, str]:
    """The status and the protocol's error code."""
    error = answer.json["error"]
    assert set(error) == {"type", "code", "message", "request_id"}
    return answer.status_code, error["code"]


def operation(fixtures: Fixtures) -> tuple[str, str | None, Any]:
    row = fixtures.admin.execute("select status, outcome, start_id from sentinel.operation_states").fetchone()
    assert row is not None
    return str(row[0]), row[1], row[2]
