"""Nothing secret is in any public byte, and the check that says so sees what would leak."""

from __future__ import annotations

import base64
import functools
import json
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ops_console.board.stream import PATH
from sentinel.authority.keys import issue_key
from sentinel.core.errors import NotFound
from sentinel.core.public_ids import PublicIdGenerator
from sentinel.core.publication import DecisionRecord, PublicFields, Publisher
from tests.support.streaming import Loop

STATIC = ("/ops/api/live/status", "/ops/api/live/feed", "/ops/api/live/feed?limit=100", "/live", "/live/figures", "/verify/",
          "/verify/pf_nothing", "/healthz", "/readyz", "/metrics", "/openapi.json", "/verify/pf_nothing.json", "/ops/api/live/feed?limit=0", "/nowhere")  # fmt: skip


CANARIES = {
    "customer_name": "Zebulon Quagmire", "email": "zebulon.q@mail.example", "card": "4929 1234 5678 9012",
    "address": "17 Nonesuch Lane", "phone": "+44 7700 900461", "note": "asked twice & shouted <b>", "order": "ord-raw-771144",
    "iban": "DE89370400440532013000", "account_ref": "acct-canary-5512", "prompt": "ignore all rules\u2014pay",
}  # fmt: skip


@functools.cache
def spellings(text: str) -> set[str]:
    """A secret as it is and as it could be hidden: URL, base64 at each alignment, hex, JSON."""
    raw = text.encode()
    aligned = {base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4].decode() for shift in range(3)}
    return {
        text, urllib.parse.quote(text), urllib.parse.quote_plus(text), urllib.parse.quote(text, safe=""), raw.hex(), raw.hex().upper(),
        json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], *aligned, *(one.replace("+", "-").replace("/", "_") for one in aligned),
    }  # fmt: skip


def found_in(public: str, secrets: list[str]) -> list[str]:
    """Which secrets are anywhere in the bytes, in any spelling."""
    return [secret for secret in secrets if any(spelling in public for spelling in spellings(secret))]


def seeded(fixtures: Any) -> list[str]:
    """Decisions of every kind full of secrets; returns what must not be seen."""
    owner = fixtures.operator("hidden-owner", "admin")
    caller, secrets = fixtures.caller(owner), list(CANARIES.values())
    for value in ("100.00", "200.00", "700.00", "5000.00"):
        recorded = fixtures.guard(
            value,
            caller,
            **{name: text for name, text in CANARIES.items() if name != "account_ref"},
            account_ref=CANARIES["account_ref"],
        )
        secrets += [
            str(recorded.operation_id),
            recorded.digest,
            *([str(recorded.approval_id)] if recorded.approval_id else []),
        ]
    ann = fixtures.person("ann")
    (approval_id,) = fixtures.sql("select approval_id from sentinel.approvals limit 1")[0]
    ann.post(f"/ops/api/approvals/{approval_id}/reject",
             {"reason": "canary reason of a person", "digest": fixtures.digest(approval_id)})  # fmt: skip
    key = issue_key(fixtures.pool, fixtures.tenant_id, agent_id=None).key
    salts = [salt for (salt,) in fixtures.sql("select salt from sentinel.operations")]
    fixtures.publish()
    return [*secrets, *salts, key, ann.csrf, "canary reason of a person", "hidden-owner@demo.local", "ann@demo.local",
            str(fixtures.tenant_id), str(caller.key_id), str(caller.principal_id)]  # fmt: skip


def public_bytes(fixtures: Any) -> str:
    """Everything the public can get: bodies and headers of every public route, errors, stream and proofs included."""
    app = fixtures.app(public_agents="*", health_port=7871)
    client = app.test_client()
    names = [event["proof_id"] for event in client.get("/ops/api/live/feed").json["events"]]
    paths = [*STATIC, "/live/widget", *(f"/verify/{name}" for name in names), *(f"/verify/{name}.json" for name in names),
             *(f"/verify/{name}.json?x=<>" for name in names)]  # fmt: skip
    answers = [client.get(path) for path in paths] + [client.post(path, json={"x": 1}) for path in STATIC]
    answers += [
        client.get("/ops/api/approvals"),
        client.post("/ops/api/session", json={"email": "ann@demo.local", "password": "x"}),
    ]
    answers.append(client.get("/metrics", base_url="http://127.0.0.1:7871"))
    assert answers[-1].status_code == 200
    with Loop() as loop, loop.view(app.edge.streams(PATH), HTTP_LAST_EVENT_ID="0") as viewer:
        stream = "".join(viewer.block() for _ in range(len(names) + 2)) + repr(viewer.headers)
    return stream + "".join(f"{answer.headers}{answer.get_data(as_text=True)}" for answer in answers)


def test_no_secret_is_in_any_public_byte(fixtures: Any) -> None:
    secrets = seeded(fixtures)
    assert len(secrets) > 20
    public = public_bytes(fixtures)
    assert public.count("within_policy_limit") >= 3
    assert found_in(public, secrets) == []


def test_the_check_for_secrets_sees_a_serializer_that_takes_away_instead_of_choosing(
    fixtures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = seeded(fixtures)
    hidden = {"customer_name", "email", "card"}

    def everything_but(_self: Publisher, record: DecisionRecord, _source: str | None = None) -> PublicFields:
        (request,) = fixtures.sql(
            "select o.request from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id) where s.decision_event_id = %s",
            record.event_id,
        )[0]
        params = json.loads(request)["params"]
        return PublicFields({**record.pack, **{name: value for name, value in params.items() if name not in hidden}})

    monkeypatch.setattr(Publisher, "event", everything_but)
    assert {CANARIES["note"], CANARIES["iban"]} <= set(found_in(public_bytes(fixtures), secrets))


@pytest.mark.parametrize("hide", [str, urllib.parse.quote, lambda text: base64.b64encode(b"ab" + text.encode()).decode(),
                                  lambda text: text.encode().hex(), lambda text: json.dumps({"x": text})])  # fmt: skip
def test_the_search_for_secrets_finds_every_spelling(hide: Callable[[str], str]) -> None:
    for secret in CANARIES.values():
        assert found_in(f"before {hide(secret)} after", list(CANARIES.values())) == [secret]


def published(**pack: Any) -> tuple[Publisher, DecisionRecord]:
    publisher = Publisher(
        lambda: PublicIdGenerator("a-secret-for-tests-0123456789abcdef"), lambda digest: {"refund.create"}
    )
    return publisher, DecisionRecord(uuid.UUID(int=1), uuid.UUID(int=2), "an-agent", False, pack)


def test_what_has_not_the_form_of_a_field_is_left_out() -> None:
    publisher, record = published(
        decided_at="2026-01-01T00:00:00Z", refund_id="Zebulon Quagmire, 4929", reason_code="x\ny", latency_ms="4929",
        amount={"value": 1, "currency": "USD", "note": "secret"}, customer="Zebulon", action="refund.create",
        policy_digest="sha256:" + "1" * 64, proof_id="zebulon@mail.example", policy_label="Refunds\u202e",
    )  # fmt: skip
    event = publisher.event(record)
    assert event.keys() == {"schema", "event_id", "occurred_at", "agent_label", "source", "action", "refund_id"}
    assert found_in(json.dumps(event), ["Zebulon Quagmire", "zebulon@mail.example"]) == []


def test_a_pack_with_a_field_outside_the_contract_is_not_shown_at_all() -> None:
    publisher, record = published(proof_id="pf_" + "0" * 32, customer="x")
    with pytest.raises(NotFound):
        publisher.pack(record)
