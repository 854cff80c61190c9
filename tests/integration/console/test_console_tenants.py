"""Tenants are invisible to each other over every route of the console, whatever id they know."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from sentinel.authority import approval_queue
from sentinel.authority.public_ids import index_public_ids, load_public_id_generators
from sentinel.core.public_ids import Kind
from sentinel.store.ids import new_id


@dataclass
class Other:
    """A tenant with one of everything, and a stranger from public-demo who knows all its ids."""

    ids: dict[str, str]
    texts: list[str]


@pytest.fixture
def other(fixtures: Any) -> Other:
    """The other tenant's belongings."""
    tenant_id = fixtures.tenant("other")
    owner = fixtures.operator("olga", "admin", tenant_id)
    app = fixtures.app()
    olga = fixtures.sign_in(owner, app)
    approval_id = fixtures.approval(tenant_id=tenant_id)
    caller = fixtures.caller(tenant_id=tenant_id)
    doubt = fixtures.guard("90.00", caller)
    fixtures.sql(
        "update sentinel.operation_states set status = 'in_doubt', started_at = clock_timestamp(),"
        " in_doubt_since = clock_timestamp(), in_doubt_reason = 'no_report' where operation_id = %s",
        doubt.operation_id,
    )
    halt_id = olga.post("/ops/api/halts", {"scope": "agent", "target": "olgas-agent", "reason": "olgas reason"}).json[
        "halt_id"
    ]
    token_id = olga.post("/ops/api/tokens", {"label": "olgas token"}).json["token_id"]
    fixtures.sql(
        "insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, amount_minor, currency)"
        " values (%s, 'olgas_entry', 'olgas_refund', 12600, 'USD')",
        tenant_id,
    )
    fixtures.sql(
        "insert into refunds.workers (tenant_id, worker_id, agent_id, mode, status) values (%s, 'olgas_worker', 'retail-refund-agent', 'loop', 'running')",
        tenant_id,
    )
    endpoint_id = fixtures.sql(
        "insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, position, global_position)"
        " values (%s, gen_random_uuid(), 'webhook', 'https://olgas.example/events', 0, 0) returning endpoint_id",
        tenant_id,
    )[0][0]
    fixtures.sql(
        "insert into sentinel.dead_letters (tenant_id, endpoint_id, event_id, feed_tenant_id, position, attempts, last_error)"
        " values (%s, %s, %s, %s, 1, 3, 'olgas receiver refused it')",
        tenant_id,
        endpoint_id,
        doubt.decision_event_id,
        tenant_id,
    )
    ((session_id,),) = fixtures.sql(
        "select session_id from sentinel.operator_sessions where operator_id = %s", owner.operator_id
    )
    fixtures.publish()
    minter = load_public_id_generators(fixtures.pool, ())[0]
    assert index_public_ids(fixtures.pool, tenant_id, minter)
    refund_id = json.loads(doubt.pack)["refund_id"]
    ids = {
        "public_id": minter.mint(Kind.REFUND, tenant_id, refund_id),
        "approval_id": str(approval_id), "operation_id": str(doubt.operation_id), "halt_id": halt_id, "token_id": token_id,
        "endpoint_id": str(endpoint_id), "proof_id": "pf_" + doubt.decision_event_id.hex, "name": "nobodys.switch", "source": "nobodys", "given_id:order_id": "nobodys/1",
        "operator_id": str(owner.operator_id), "session_id": str(session_id), "key_id": str(caller.key_id), "event_id": str(doubt.decision_event_id),
        "given_id:ledger_entry_id": "olgas_entry",
    }  # fmt: skip
    return Other(
        ids,
        [
            *(value for name, value in ids.items() if name not in ("name", "source", "given_id:order_id")),
            "olga",
            str(tenant_id),
            "olgas",
        ],
    )


def leaks(fixtures: Any, other: Other) -> list[str]:
    """Routes that told the stranger something of the other tenant, or did something to it."""
    app, found = fixtures.app(public_agents="*"), []
    ann = fixtures.person("ann", "admin", app)
    # The pages' forms look no further without a proof.
    fixtures.sql("update sentinel.operator_sessions set stepped_up_at = clock_timestamp()")
    before = fixtures.sql(SNAPSHOT)
    bodies: dict[str, Any] = {
        "approve": {"reason": "x", "digest": "d"}, "reject": {"reason": "x", "digest": "d"}, "lift": {"reason": "x"}, "resolve": {"executed": False, "evidence": "x"},
        "handled": {"reason": "x", "reference": "x", "digest": "d"}, "on": {"canary_percent": 5, "reason": "x"}, "off": {"reason": "x"},
        "resend": {}, **{word: {"reason": "x", "digest": "d"} for word in ("fulfil", "refund", "hold")},
        "retry": {"reason": "x", "status": "HELD"}, "role": {"role": "viewer", "seen": "admin"}, "password": {"password": "correct horse, another battery"},
        "rotate": {"key_id": str(new_id()), "overlap_hours": "1"},
    }  # fmt: skip
    for rule in app.flask.url_map.iter_rules():
        path = str(rule)
        for name, value in other.ids.items():
            path = path.replace(f"<{name}>", value)
        assert set(re.findall("<([^>]+)>", path)) <= NOBODYS, f"nothing of the other tenant is asked for at {path}"
        if path == "/ops/api/live/stream":
            continue
        for method in (rule.methods or set()) & {"GET", "POST", "DELETE"}:
            if (path == "/ops/api/session" and method != "GET") or path in ("/ops/sign-in", "/ops/sign-out"):
                continue
            body = bodies.get(path.rpartition("/")[2]) if method == "POST" else None
            sent = {"json": body} if path.startswith("/ops/api/") else {"data": body}
            answer = ann.client.open(path, method=method, headers={"X-CSRF-Token": ann.csrf}, **sent)
            told = answer.get_data(as_text=True)
            hides = answer.status_code == 404 or "<" not in str(rule) or (method, str(rule)) == LISTS
            if any(text in told for text in other.texts) or not hides:
                found.append(f"{method} {path}: {answer.status_code}")
    if fixtures.sql(SNAPSHOT) != before:
        found.append("an effect")
    return found


NOBODYS = {"policy_id", "anything:token", "anything:rest", "path:name", "path:filename"}
"""What a path is told that is no tenant's own."""
LISTS = ("GET", "/ops/keys/<key_id>/rotate")
"""Shows the stranger's own keys, with the form of the one that is named opened."""
SNAPSHOT = """
select (select string_agg(a::text, ';' order by approval_id) from sentinel.approvals a),
       (select string_agg(h::text, ';' order by halt_id) from sentinel.halts h),
       (select string_agg(s::text, ';' order by operation_id) from sentinel.operation_states s),
       (select string_agg(t::text, ';' order by token_id) from sentinel.operator_tokens t where label = 'olgas token'),
       (select string_agg(e::text, ';' order by endpoint_id) from sentinel.event_endpoints e),
       (select string_agg(d::text, ';' order by event_id) from sentinel.dead_letters d),
       (select string_agg(o::text, ';') from sentinel.operators o where email = 'olga@demo.local'),
       (select string_agg(s::text, ';' order by session_id) from sentinel.operator_sessions s
        join sentinel.operators o using (tenant_id, operator_id) where o.email = 'olga@demo.local'),
       (select string_agg(concat_ws(' ', k.key_id, k.expires_at, k.revoked_at), ';' order by k.key_id) from sentinel.agent_keys k
        join sentinel.tenants t using (tenant_id) where t.label = 'other'),
       (select count(*) from refunds.process_requests)
"""


def test_no_route_shows_or_changes_anything_of_another_tenant(fixtures: Any, other: Other) -> None:
    assert leaks(fixtures, other) == []


def test_the_check_for_leaks_sees_a_query_that_forgets_the_tenant(
    fixtures: Any, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = approval_queue.list_sql

    def forgetful(**options: Any) -> str:
        text = composed(**options)
        assert "a.tenant_id = %(tenant_id)s" in text
        return text.replace("a.tenant_id = %(tenant_id)s", "a.tenant_id <> %(tenant_id)s")

    monkeypatch.setattr(approval_queue, "list_sql", forgetful)
    assert "GET /ops/api/approvals: 200" in leaks(fixtures, other)


def test_an_unknown_id_and_another_tenants_id_are_one_answer(fixtures: Any, other: Other) -> None:
    ann, told = fixtures.person("ann", "admin"), set()
    for approval_id in (other.ids["approval_id"], str(new_id()), "not-an-id"):
        answer = ann.get(f"/ops/api/approvals/{approval_id}")
        told.add((answer.status_code, answer.json["detail"]))
    assert len(told) == 1 and next(iter(told))[0] == 404


def test_the_public_board_shows_one_tenant(fixtures: Any, other: Other) -> None:
    mine = fixtures.guard("10.00")
    fixtures.publish()
    client = fixtures.app(public_agents="*").test_client()
    assert [one["event_id"] for one in client.get("/ops/api/live/feed").json["events"]] == [str(mine.decision_event_id)]
    shown = fixtures.app(public_tenant="other").test_client()
    assert str(mine.decision_event_id) not in shown.get("/ops/api/live/feed").get_data(as_text=True)
    assert shown.get("/ops/api/live/status").json["tenant"] == "other"
