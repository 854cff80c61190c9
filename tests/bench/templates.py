"""Requests with a place for a number and one for an account: the same texts for every generator of load.

Both places have a fixed width, so that a request's length never changes.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.bench.load import request_bytes
from tests.support.fixtures import guard_body

NUMBER, ACCOUNT = "<number>", "<account>"
_FILLED = {NUMBER: "0" * 10, ACCOUNT: "0" * 6}
ACCOUNTS = 100_000
STEP = 48_271
"""The account of request n is n times this, modulo the accounts: every account once before any comes again, in no order."""

GUARD, CHECK = "/api/sentinel/action/guard", "/api/sentinel/action/check"
CERBOS_CHECK = "/api/check/resources"


@dataclass(frozen=True)
class Template:
    """Whole requests taken in turn; after `wrap` requests (0: never) they come again."""

    requests: tuple[str, ...]
    wrap: int = 0

    def filled(self) -> Iterator[bytes]:
        """The requests, endlessly."""
        for number in itertools.count():
            place = number % self.wrap if self.wrap else number
            yield self.at(place)

    def at(self, number: int) -> bytes:
        """The request of one number."""
        text = self.requests[number % len(self.requests)]
        account = number * STEP % ACCOUNTS
        return text.replace(NUMBER, f"{number:010}").replace(ACCOUNT, f"{account:06}").encode()


def _request(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    text = json.dumps(body, separators=(",", ":"))
    full = text
    for marker, filled in _FILLED.items():
        full = full.replace(marker, filled)
    head = request_bytes(path, full.encode(), dict(headers)).partition(b"\r\n\r\n")[0].decode()
    return f"{head}\r\n\r\n{text}"


def guards(
    key: str, *, values: tuple[str, ...] = ("0.01",), account: str = f"acct_{ACCOUNT}", wrap: int = 0
) -> Template:
    """Guards under fresh idempotency keys, their amounts in turn."""
    run = os.urandom(4).hex()
    bodies = [guard_body(f"{run}{NUMBER}", value=value, params={"account_ref": account}) for value in values]
    return Template(tuple(_request(GUARD, body, {"X-API-Key": key}) for body in bodies), wrap)


def hot_guards(key: str) -> Template:
    """Guards of one account that nobody asked about before."""
    return guards(key, account=f"hot_{os.urandom(4).hex()}")


def mixed_guards(key: str) -> Template:
    """Of ten guards eight are allowed, one needs a person (more than 150.00) and one is denied (more than 1000.00)."""
    return guards(key, values=(*["0.01"] * 4, "200.00", *["0.01"] * 4, "2000.00"))


def checks(key: str) -> Template:
    """Questions about the same actions; nothing is recorded."""
    body = guard_body(f"{os.urandom(4).hex()}{NUMBER}", value="0.01", params={"account_ref": f"acct_{ACCOUNT}"})
    body = {name: body[name] for name in ("agent_id", "action", "params")}
    return Template((_request(CHECK, body, {"X-API-Key": key}),))


def cerbos_checks() -> Template:
    """The same refunds as Cerbos is asked: who, what it is, and the facts that the rules look at."""
    key = f"{os.urandom(4).hex()}{NUMBER}"
    body = guard_body(key, value="0.01", params={"account_ref": f"acct_{ACCOUNT}"})
    attributes = {**body["params"], "amount_minor": 1, "currency": "USD", "risk_class": body["risk_class"]}
    del attributes["amount"]
    refund = {"kind": "refund", "id": body["resource"], "attr": attributes}
    asked = {
        "requestId": key,
        "principal": {"id": body["agent_id"], "roles": ["agent"]},
        "resources": [{"resource": refund, "actions": [body["action"]]}],
    }
    return Template((_request(CERBOS_CHECK, asked, {}),))
