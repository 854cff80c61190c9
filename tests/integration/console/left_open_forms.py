"""What each form of the operators' pages shows again after its session was renewed elsewhere: one entry a route.

A form that is posted with the token of a session that was replaced is not carried out; its own page comes back, says so, and
has in it what was typed, but for passwords and codes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from sentinel.authority.keys import issue_key
from tests.integration.console.test_page_in_doubt import doubted
from tests.integration.console.test_page_policies import FEE, record
from tests.support.orders_console_fixtures import refused_by_shop

WORDS = "five minutes of <b>thinking</b>"
SHOWN = "five minutes of &lt;b&gt;thinking&lt;/b&gt;"
HIDDEN = "a secret that nobody reads again"
"""Typed wherever a password or a code is."""


@dataclass(frozen=True)
class Form:
    """A form's route: the title of the page it comes back on, what is typed, and what of the page's HTML shows that again.

    `unproved` is the title where the new session has yet to prove who holds it, if that is another page.
    """

    title: str
    typed: Mapping[str, str] = field(default_factory=dict)
    back: tuple[str, ...] = ()
    unproved: str = ""


_REASON = {"reason": WORDS}
_VALUE = f'value="{SHOWN}"'
_VOTE = {"verdict": "handled", "reason": WORDS, "reference": "ticket 7"}
_ACCOUNT, _PERSON = Form("Your account"), Form("bob@demo.local")
FORMS: dict[str, Form] = {
    "/ops/halts": Form(
        "Halts", {"scope": "agent", "target": "a-b", "level": "pause", **_REASON},
        ('value="agent" selected', 'value="a-b"', 'value="pause" selected', _VALUE),
    ),
    "/ops/halts/<halt_id>/lift": Form("Halts", _REASON, (_VALUE,)),
    "/ops/account/prove": Form("Confirm it is you", {"next": "/ops/keys"}, ('"/ops/keys"',)),
    "/ops/account/password": Form("Your account", {"old": HIDDEN, "new": HIDDEN, "again": HIDDEN}),
    "/ops/account/sessions/<session_id>/end": _ACCOUNT,
    "/ops/account/sessions/end-others": _ACCOUNT,
    "/ops/account/tokens": Form("Your account", {"token_id": "<token_id>", "label": WORDS, "expires_days": "77"}, (_VALUE, 'value="77"')),
    "/ops/account/tokens/<token_id>/revoke": _ACCOUNT,
    "/ops/account/second-factor": _ACCOUNT,
    "/ops/account/second-factor/confirm": Form("Second factor", {"code": HIDDEN}, unproved="Your account"),
    "/ops/account/second-factor/remove": _ACCOUNT,
    "/ops/operators": Form(
        "Operators", {"email": WORDS, "role": "approver", "password": HIDDEN}, (_VALUE, 'value="approver" selected')
    ),
    "/ops/operators/<operator_id>/role": Form(
        "bob@demo.local", {"role": "admin", "seen": "viewer"}, ('value="admin" selected',)
    ),
    "/ops/operators/<operator_id>/password": Form("bob@demo.local", {"password": HIDDEN}),
    "/ops/operators/<operator_id>/deactivate": _PERSON,
    "/ops/operators/<operator_id>/reactivate": _PERSON,
    "/ops/operators/<operator_id>/end-sessions": _PERSON,
    "/ops/operators/<operator_id>/reset-second-factor": _PERSON,
    "/ops/operators/<operator_id>/confirm": _PERSON,
    "/ops/policies/switches/<name>/on": Form(
        f"Switch {FEE}", {"canary_percent": "63", **_REASON}, ('value="63"', _VALUE)
    ),
    "/ops/policies/switches/<name>/off": Form(f"Switch {FEE}", _REASON, (_VALUE,)),
    "/ops/in-doubt/<operation_id>/resolve": Form(
        "Operation in doubt", {"executed": "no", "evidence": WORDS, "in_doubt_since": "<in_doubt_since>"},
        ('value="no" checked', f">{SHOWN}<"),
    ),
    "/ops/keys": Form(
        "Keys",
        {"label": WORDS, "agent_id": "a-b", "owner": "bob@demo.local", "expires_days": "77", "scopes": "approvals:read", "test": "yes"},
        (_VALUE, 'value="a-b"', 'value="bob@demo.local" selected', 'value="77"', 'value="approvals:read" checked', 'value="yes" checked'),
    ),
    "/ops/keys/<key_id>/rotate": Form(
        "Keys", {"overlap_hours": "55", "expires_days": "77"}, ('value="55"', 'value="77"')
    ),
    "/ops/keys/<key_id>/revoke": Form("Keys"),
    "/ops/webhooks/<endpoint_id>/disable": Form("Webhooks"),
    "/ops/webhooks/<endpoint_id>/enable": Form("Webhooks"),
    "/ops/webhooks/<endpoint_id>/resend/<event_id>": Form("Webhooks"),
    "/ops/approvals/batch": Form(
        "Decide these", {"id": "<approval_id>", "digest": "<digest>", **_VOTE}, ('value="handled" selected', _VALUE, 'value="ticket 7"')
    ),
    "/ops/approvals/<approval_id>": Form(
        "Approval of refund/", {"digest": "<digest>", **_VOTE}, ('value="handled" required checked', _VALUE, 'value="ticket 7"')
    ),
    "/ops/approvals/<approval_id>/collect": Form("Approval of refund/"),
    "/ops/orders/<source>/<given_id:order_id>": Form(
        "Order ord-back", {"decision": "hold", "seen": "SHOP_REFUSED", **_REASON},
        ('value="hold" required checked', 'name="seen" value="SHOP_REFUSED"', f">{SHOWN}<"),
    ),
    "/ops/ledger": Form("Ledger", {"request_id": "<approval_id>"}),
}  # fmt: skip
"""POST route → its form. A route of the pages that stands neither here nor below turns the test red."""
NOTHING_TO_SHOW = {
    "/ops/sign-out": "a button of every page that has no page of its own and nothing to type; the answer has the same button",
}
"""POST route → why no page shows its form again."""


def things(fixtures: Any, browser: Any) -> dict[str, str]:
    """Something for each form to be about, by the placeholder in its route or its fields."""
    token, halt = "018f0000-0000-7000-8000-000000000001", "018f0000-0000-7000-8000-000000000002"
    approval, operation = fixtures.approval("220.00"), doubted(fixtures, "9.00", 1)
    bob = fixtures.operator("bob", "viewer")
    key = issue_key(fixtures.pool, fixtures.tenant_id, agent_id="an-agent", label="of the test")
    record(fixtures)
    fixtures.sql(
        "insert into sentinel.switches (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)"
        " values (%s, %s, true, 5, now(), 'x', 'x')", fixtures.tenant_id, FEE,
    )  # fmt: skip
    fixtures.sql(
        "insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at)"
        " values (%s, %s, 'agent', 'another', 'kill', 'x', 'x', now())", fixtures.tenant_id, halt,
    )  # fmt: skip
    fixtures.sql(
        "insert into sentinel.operator_tokens (tenant_id, token_id, token_hash, operator_id, expires_at)"
        " select tenant_id, %s, '\\x00', operator_id, now() + interval '1 day' from sentinel.operators where email = %s",
        token, browser.email,
    )  # fmt: skip
    endpoint, event = webhook_with_dead_letter(fixtures)
    order = refused_by_shop(fixtures, "ord-back")
    ((since,),) = fixtures.sql(
        "select in_doubt_since from sentinel.operation_states where operation_id = %s", operation
    )
    (digest,) = fixtures.sql("select digest from sentinel.approvals")[0]
    fixtures.at_page(browser.email)
    ((session,),) = fixtures.sql("select session_id from sentinel.operator_sessions order by created_at desc limit 1")
    return {
        "halt_id": halt, "session_id": str(session), "token_id": token, "operator_id": str(bob.operator_id), "name": FEE,
        "operation_id": operation, "in_doubt_since": since.astimezone(UTC).isoformat(), "key_id": str(key.key_id), "approval_id": str(approval), "digest": digest,
        "source": "demo", "given_id:order_id": order, "order_id": order, "endpoint_id": endpoint, "event_id": event,
    }  # fmt: skip


def webhook_with_dead_letter(fixtures: Any) -> tuple[str, str]:
    """A webhook, and an event that it did not take in time."""
    endpoint, event = str(uuid.uuid4()), str(uuid.uuid4())
    fixtures.sql(
        "insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, position, global_position)"
        " values (%s, %s, 'webhook', 'https://siem.shop.example/events', 0, 0)", fixtures.tenant_id, endpoint)  # fmt: skip
    fixtures.sql(
        "insert into sentinel.dead_letters (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error)"
        " values (%s, %s, %s, %s, 1, 9, 'http_500')", fixtures.tenant_id, endpoint, event, fixtures.tenant_id)  # fmt: skip
    return endpoint, event


def filled(text: str, about: Mapping[str, str]) -> str:
    """A route or a field with its placeholder replaced."""
    for name, value in about.items():
        text = text.replace(f"<{name}>", value)
    return text
