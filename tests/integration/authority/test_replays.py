"""G8, G9: one operation per key. The same question gets the recorded decision, another one is refused and named."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from sentinel.authority.app import create_app
from sentinel.authority.keys import DEFAULT_SCOPES
from sentinel.authority.settings import Settings
from sentinel.platform.http.rate_limit import SharedRateLimit
from sentinel.store.batch_commit import BatchCommitter
from tests import mutants
from tests.support.asgi_client import InProcessApp
from tests.support.commits import record_decisions
from tests.support.fixtures import AGENT, Fixtures, four_keys, guard_body, make_fixtures, unique
from tests.support.harness import at_once, decide, dump, scaled

pytestmark = pytest.mark.usefixtures("patient")
Body = dict[str, Any]


def ask(fixtures: Fixtures, body: Body) -> Any:
    """One guard over HTTP, from any thread."""
    return fixtures.app.test_client().post("/api/sentinel/action/guard", json=body, headers={"X-API-Key": fixtures.key})


# G8


def more_than_one_decision(fixtures: Fixtures, body: Body, number: int = 64) -> list[str]:
    """Asks the same thing `number` times at once; what is wrong with the answers or behind them."""
    answers = at_once([lambda: ask(fixtures, body) for _ in range(number)])
    broken = [repr(answer) for answer in answers if isinstance(answer, BaseException)]
    if broken:
        return broken
    found = [] if {answer.status_code for answer in answers} == {200} else ["not all were answered"]
    packs = {answer.data[answer.data.index(b'"proof_pack"') : answer.data.index(b'"hash"')] for answer in answers}
    stories = {
        (answer.json["operation_id"], answer.json["decision_event_id"], answer.json.get("permit_token"))
        for answer in answers
    }
    fresh = sum("Idempotent-Replayed" not in answer.headers for answer in answers)
    if (len(packs), len(stories), fresh) != (1, 1, 1):
        found.append(f"{len(packs)} packs, {len(stories)} decisions, {fresh} said to be new")
    if fixtures.one("select count(*) from sentinel.operations where tenant_id = %s", fixtures.tenant_id) != 1:
        found.append("more than one operation")
    if (
        fixtures.one(
            "select count(*) from sentinel.events where kind = 'decision' and tenant_id = %s", fixtures.tenant_id
        )
        != 1
    ):
        found.append("more than one proof pack")
    return found + fixtures.broken_invariants()


@pytest.mark.parametrize("value", [10, 400, 5000])
def test_64_identical_requests_at_once_get_one_decision_and_one_proof_pack(fixtures: Fixtures, value: int) -> None:
    print("N=64")
    assert more_than_one_decision(fixtures, guard_body(value=value)) == []
    held = fixtures.one("select coalesce(max(held_minor), 0) from sentinel.usage")
    assert held == (1000 if value == 10 else 0), "the budget moved once, and only with a permit"


def test_mutant_that_does_not_find_the_key_decides_twice_and_is_caught(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        mutants.forgets_keys(fixtures)
        assert "more than one operation" in more_than_one_decision(fixtures, guard_body(), 8)
    finally:
        fixtures.close()


def test_a_replay_is_marked_and_carries_the_same_permit_and_pack(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    first, again = ask(fixtures, body), ask(fixtures, body)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.data == first.data


def test_a_replay_keeps_the_recorded_decision_and_only_the_status_moves_on(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    first = fixtures.guard(body)
    fixtures.start(body, first)
    started = fixtures.guard(body)
    fixtures.report(body)
    done = fixtures.guard(body)
    assert [answer["status"] for answer in (first, started, done)] == ["allowed", "already_started", "completed"]
    assert done["outcome"] == "success"
    assert "permit_token" not in started | done
    for name in (
        "decision",
        "reason_code",
        "operation_id",
        "decision_event_id",
        "proof_pack",
        "policy_version",
        "decided_at",
    ):
        assert first[name] == started[name] == done[name], name


def test_the_answer_says_when_it_was_decided_as_the_proof_pack_and_the_event_do(fixtures: Fixtures) -> None:
    for value in (40, 300, 5000):
        answer = fixtures.guard(guard_body(value=value))
        assert answer["decided_at"] == answer["proof_pack"]["decided_at"]
        moment = datetime.fromisoformat(answer["decided_at"])
        assert moment == fixtures.one(
            "select occurred_at from sentinel.events where event_id = %s", [answer["decision_event_id"]]
        )


def test_the_two_prefixes_share_keys(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    first = fixtures.post("action/guard", body)
    other = fixtures.post("action/guard", body, prefix="/api/haltstate/sentinel")
    assert other.data == first.data
    assert other.headers["Idempotent-Replayed"] == "true"


# G9: every single-field mutation is refused


def changed(path: str, value: Any) -> Callable[[Body], Body]:
    """A mutation that sets (or with `...` removes) one field, by its dotted path."""

    def mutate(body: Body) -> Body:
        body = copy.deepcopy(body)
        *inside, last = path.split(".")
        place = body
        for name in inside:
            place = place[name]
        if value is ...:
            del place[last]
        else:
            place[last] = value
        return body

    return mutate


MUTATIONS: list[tuple[str, Callable[[Body], Body]]] = [
    ("agent_id", changed("agent_id", "another-agent")),
    ("action", changed("action", "refund.create2")),
    ("action", changed("action", "gift_card.issue")),
    ("resource", changed("resource", "refund/other")),
    ("resource", changed("resource", ...)),
    ("resource", changed("resource", None)),
    ("risk_class", changed("risk_class", "high")),
    ("risk_class", changed("risk_class", "Standard")),
    ("params.amount", changed("params.amount.value", 41)),
    ("params.amount", changed("params.amount.value", "40.01")),
    ("params.amount", changed("params.amount.value", "400")),
    ("params.amount", changed("params.amount.currency", "EUR")),
    ("params.amount", changed("params.amount", ...)),
    ("params.refund_id", changed("params.refund_id", "rf_other")),
    ("params.refund_id", changed("params.refund_id", ...)),
    ("params.account_ref", changed("params.account_ref", "acct_other")),
    ("params.ledger_entry_id", changed("params.ledger_entry_id", "lge_other")),
    ("params.risk.duplicate_refund", changed("params.risk.duplicate_refund", True)),
    ("params.risk.stale_window", changed("params.risk.stale_window", ...)),
    ("params.risk.customer_attempts_24h", changed("params.risk.customer_attempts_24h", 2)),
    ("params.risk", changed("params.risk", ...)),
    ("params.note", changed("params.note", "something new")),
    ("params.channel", changed("params.channel", "phone")),
    ("params.list", changed("params.list", [1])),
]  # fmt: skip


def not_refused(fixtures: Fixtures, body: Body, mutations: list[tuple[str, Callable[[Body], Body]]]) -> list[str]:
    """What is wrong with the answers to mutated repeats of a recorded request."""
    before, found = dump(fixtures.admin), []
    for field, mutate in mutations:
        answer = ask(fixtures, mutate(body))
        told = answer.json
        if (answer.status_code, told.get("type")) != (422, "urn:sentinel:problem:idempotency-key-reused"):
            found.append(f"{field}: {answer.status_code} {told}")
        elif list(told["errors"]) != [field]:
            found.append(f"{field}: named {list(told['errors'])}")
    if dump(fixtures.admin) != before:
        found.append("something changed")
    return found


def test_a_worker_is_told_who_asked_first_under_its_key_and_others_are_not(fixtures: Fixtures) -> None:
    agents = fixtures.new_key(agent_id="my-agent", scopes=DEFAULT_SCOPES)
    name = "refund:k1"
    first = fixtures.post("action/guard", guard_body(name, agent_id="my-agent", action="x.y"), key=agents).get_json()
    assert first["decision"] == "DENY"
    counted = REGISTRY.get_sample_value("sentinel_keys_taken_total") or 0.0

    def refused(key: str, body: Body) -> str:
        answer = fixtures.post("action/guard", body, key=key)
        assert (answer.status_code, answer.get_json()["type"]) == (422, "urn:sentinel:problem:idempotency-key-reused")
        return str(answer.get_json()["detail"])

    plain = "This idempotency key belongs to another operation: action differs."
    said = refused(fixtures.key, guard_body(name))
    assert said.startswith("Another API key used it first, in the name of the agent my-agent, at 20")
    assert said.endswith(f"(operation {first['operation_id']}). {plain}")
    assert REGISTRY.get_sample_value("sentinel_keys_taken_total") == counted + 1
    batch = fixtures.post("action/guard/batch", {"requests": [guard_body(name)]}).get_json()["answers"]
    assert (batch[0]["status"], batch[0]["body"]["detail"]) == (422, said)

    assert refused(fixtures.new_key(scopes=DEFAULT_SCOPES), guard_body(name)) == plain
    fixtures.guard(guard_body("order:shop:k2"))
    assert refused(fixtures.key, guard_body("order:shop:k2", action="x.y")) == plain, "its own key"
    assert refused(fixtures.new_key(), guard_body("order:shop:k2", action="x.y")) != plain
    assert REGISTRY.get_sample_value("sentinel_keys_taken_total") == counted + 3


def test_the_document_names_the_headers_that_a_client_acts_on(fixtures: Fixtures) -> None:
    document = fixtures.client.get("/openapi.json").get_json()
    answers = document["paths"]["/api/sentinel/action/guard"]["post"]["responses"]
    assert {status: list(answer["headers"]) for status, answer in answers.items() if "headers" in answer} == {
        "200": ["Idempotent-Replayed"], **{status: ["Retry-After"] for status in ("409", "429", "503")},
    }  # fmt: skip


def first_asked(answer: Any) -> dict[str, Any]:
    """What a conflict says of the question that was first asked under its key."""
    told = answer.get_json()
    assert (answer.status_code, told["type"]) == (422, "urn:sentinel:problem:idempotency-key-reused")
    return {name: told[name] for name in ("recorded_params", "tightened") if name in told}


def test_who_asked_first_is_told_what_it_asked_and_another_key_is_not(fixtures: Fixtures) -> None:
    body = guard_body("k1", value="40.50")
    fixtures.guard(body)
    other = changed("params.risk.customer_attempts_24h", 2)(body)
    recorded = {"recorded_params": body["params"]}
    assert first_asked(ask(fixtures, other)) == recorded
    assert first_asked(fixtures.post("action/guard", other, key=fixtures.new_key(agent_id=AGENT))) == recorded
    assert first_asked(fixtures.post("action/guard", other, key=fixtures.new_key())) == {}
    batch = fixtures.post("action/guard/batch", {"requests": [other]}, key=fixtures.new_key()).get_json()["answers"]
    assert "recorded_params" not in batch[0]["body"]
    batch = fixtures.post("action/guard/batch", {"requests": [other, other]}).get_json()["answers"]
    assert [one["body"]["recorded_params"] for one in batch] == [body["params"]] * 2
    again = ask(fixtures, {**other, "params": first_asked(ask(fixtures, other))["recorded_params"]})
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")


TIGHTENED: list[tuple[str, Any, tuple[str, str] | None]] = [
    ("params.risk.customer_attempts_24h", 2, None),
    ("params.risk.customer_attempts_24h", 0, None),
    ("params.note", "another", None),
    ("params.risk.customer_attempts_24h", 3, ("APPROVAL_REQUIRED", "repeated_attempts")),
    ("params.risk.customer_attempts_24h", 6, ("DENY", "too_many_attempts")),
    ("params.risk.stale_window", True, ("DENY", "stale_window")),
    ("params.risk.stale_window", ..., ("DENY", "fact_missing")),
    ("params.refund_id", "another", ("", "once_key_changed")),
    ("params.account_ref", "another", ("", "limit_exceeded")),
    ("params.amount.value", 1000, ("APPROVAL_REQUIRED", "amount_needs_approval")),  # of two people
]
"""The member, its value now, and how the policy is stricter about it; "" is the first decision itself."""


@pytest.mark.parametrize("value", [40, 400])
def test_a_conflict_says_whether_the_policy_is_stricter_about_what_is_asked_now(fixtures: Fixtures, value: int) -> None:
    """Also where a person had to decide already, with whose reason the new one could be confused."""
    body = guard_body(value=value)
    recorded = fixtures.guard(body)["decision"]
    for member, now, stricter in TIGHTENED:
        told = first_asked(ask(fixtures, changed(member, now)(body))).get("tightened")
        if stricter is None:
            assert told is None, member
        else:
            assert (told["decision"], told["reason_code"]) == (stricter[0] or recorded, stricter[1]), member
            assert told["reason"].endswith(".")


def test_what_a_permission_holds_makes_nothing_stricter(fixtures: Fixtures) -> None:
    """A check of the same would be denied: its once-key and its budget are taken, by itself."""
    body = guard_body(value=150)
    fixtures.guard(body)
    check = {name: body[name] for name in ("agent_id", "action", "params")}
    assert fixtures.post("action/check", check).get_json()["reason_code"] == "duplicate_resource"
    assert "tightened" not in first_asked(ask(fixtures, changed("params.risk.customer_attempts_24h", 2)(body)))


def test_a_tool_calls_key_that_was_taken_is_no_refund_or_order_that_was(fixtures: Fixtures) -> None:
    """A proxy of tools has the scope of a worker too; the alert says that a refund or an order was taken, and to revoke the agent's key."""
    agents = fixtures.new_key(agent_id="my-agent", scopes=DEFAULT_SCOPES)
    assert (
        fixtures.post("action/guard", guard_body("call-1", agent_id="my-agent", action="x.y"), key=agents).status_code
        == 200
    )
    counted = REGISTRY.get_sample_value("sentinel_keys_taken_total")
    with capture_logs() as logged:
        answer = fixtures.post("action/guard", guard_body("call-1"), key=fixtures.key)
    assert answer.status_code == 422 and "in the name of the agent my-agent" in answer.get_json()["detail"]
    assert "idempotency_key_taken" in [line["event"] for line in logged]
    assert REGISTRY.get_sample_value("sentinel_keys_taken_total") == counted


@pytest.mark.parametrize("value", [40, 400, 4000])
def test_the_same_key_with_one_field_changed_is_refused_and_changes_nothing(fixtures: Fixtures, value: int) -> None:
    body = guard_body(value=value)
    fixtures.guard(body)
    wrong = [pair for pair in MUTATIONS if pair[0] != "params.amount"] if value != 40 else MUTATIONS
    print(f"N={len(wrong)}")
    assert not_refused(fixtures, body, wrong) == []
    assert ask(fixtures, body).status_code == 200


def test_a_changed_repeat_is_refused_in_every_later_state_too(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    answer = fixtures.guard(body)
    other = changed("params.amount.value", 50)(body)
    fixtures.start(body, answer)
    assert ask(fixtures, other).status_code == 422
    fixtures.report(body)
    assert ask(fixtures, other).status_code == 422
    assert fixtures.broken_invariants() == []


def test_mutant_without_the_digest_gives_anothers_permit_and_is_caught(fixtures: Fixtures) -> None:
    pool = fixtures.authority.pool

    async def commit(rows: Any, wait: float, executed: Any) -> Any:
        same = [msgspec.structs.replace(row, digest="sha256:" + "1" * 64, packed=None) for row in rows]
        return await asyncio.to_thread(record_decisions, pool, same, wait)

    authority = replace(fixtures.authority, decisions=BatchCommitter(commit))
    fixtures.app.close()
    fixtures.app = InProcessApp(create_app(Settings(), authority, SharedRateLimit(per_second=1000, burst=1000)))
    body = guard_body(value=40)
    assert ask(fixtures, body).status_code == 200
    found = not_refused(fixtures, body, MUTATIONS)
    assert len(found) >= len(MUTATIONS)
    assert [one for one in found if ": 200 " in one and "'permit_token'" in one], found


# Equal operations in other clothes


def swapped(body: Body, value: Any) -> Body:
    return changed("params.amount.value", value)(body)


def beside(body: Body) -> Body:
    body = copy.deepcopy(body)
    body["params"] |= {"amount": 40, "currency": "USD"}
    return body


def as_context(body: Body) -> Body:
    body = copy.deepcopy(body)
    body["context"] = body.pop("params")
    return body


EQUAL: dict[str, Callable[[Body], Body]] = {
    "the amount as text": lambda body: swapped(body, "40.00"),
    "the amount with one digit": lambda body: swapped(body, "40.0"),
    "amount and currency side by side": beside,
    "other order of fields": lambda body: (
        dict(reversed(body.items())) | {"params": dict(reversed(body["params"].items()))}
    ),
    "null for absent": lambda body: body | {"tenant_id": None, "params": body["params"] | {"note": None}},
    "null inside an object": changed("params.risk.reason", None),
    "context for params": as_context,
    "other evidence context": changed("evidence_context", {"correlation_id": "other", "n": 7}),
    "no evidence context": changed("evidence_context", ...),
}


@pytest.mark.parametrize("name", EQUAL)
def test_the_same_operation_in_other_clothes_is_a_replay(fixtures: Fixtures, name: str) -> None:
    body = guard_body(value=40)
    first = ask(fixtures, body)
    again = ask(fixtures, EQUAL[name](body))
    assert again.status_code == 200, again.text
    assert (again.data, again.headers["Idempotent-Replayed"]) == (first.data, "true")


def test_a_number_with_a_fraction_is_the_same_amount_as_its_text(fixtures: Fixtures) -> None:
    body = guard_body(value="40.50")
    first = ask(fixtures, body)
    raw = json.dumps(body).replace('"40.50"', "40.5")
    again = fixtures.client.post(
        "/api/sentinel/action/guard", data=raw, content_type="application/json", headers={"X-API-Key": fixtures.key}
    )
    assert (again.status_code, again.data) == (200, first.data)


def test_a_client_that_upgrades_to_the_start_step_keeps_its_operation(fixtures: Fixtures) -> None:
    body = four_keys(guard_body(value=40))
    first = fixtures.guard(body)
    upgraded = body | {"resource": body["action"], "risk_class": "standard", "evidence_context": {"a": 1}}
    again = fixtures.guard(upgraded)
    assert (first["status"], again["status"]) == ("allowed", "already_started")
    assert again["operation_id"] == first["operation_id"]


def test_distinct_keys_are_distinct_operations(fixtures: Fixtures) -> None:
    number = scaled(20)
    bodies = [guard_body(value=1, params={"account_ref": unique("a")}) for _ in range(number)]
    answers = at_once([lambda body=body: ask(fixtures, body) for body in bodies])
    assert len({answer.json["operation_id"] for answer in answers}) == number  # type: ignore[union-attr]


def test_the_same_key_of_two_tenants_is_two_operations(fixtures: Fixtures) -> None:
    from tests.support.fixtures import add_tenant

    _, key, _ = add_tenant(fixtures.url, unique("tenant").replace("_", "-"))
    body = guard_body(value=40)
    mine, theirs = fixtures.guard(body), fixtures.post("action/guard", body, key=key).get_json()
    assert mine["operation_id"] != theirs["operation_id"]
    assert (
        "Idempotent-Replayed" not in fixtures.post("action/guard", guard_body(value=41, key=unique()), key=key).headers
    )


# The life of a replayed operation


def test_a_decided_approval_moves_the_replay_on(fixtures: Fixtures) -> None:
    body = guard_body(value=200)
    first = fixtures.guard(body)
    assert (first["decision"], first["status"], first["reason_code"]) == (
        "APPROVAL_REQUIRED",
        "pending",
        "amount_needs_approval",
    )
    assert fixtures.guard(body)["approval_id"] == first["approval_id"]
    decide(fixtures, first["approval_id"])
    approved = fixtures.guard(body)
    assert (approved["decision"], approved["status"]) == ("APPROVAL_REQUIRED", "approved")
    assert approved["approver"].startswith("approver@")
    assert approved["approved_at"].endswith("Z")
    assert approved["proof_pack"] == first["proof_pack"]
    assert fixtures.start(body, approved).status_code == 200
    assert fixtures.report(body).status_code == 200
    assert fixtures.broken_invariants() == []
