"""AuthZEN evaluations of money: recorded under the key of their effect, never true while a person is owed, and true once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.api import authzen
from sentinel.authority.api.authority_calls import AuthorityCalls
from sentinel.authority.halts import set_halt
from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.settings import Settings
from sentinel.core.errors import StillDeciding
from sentinel.platform.http.openapi import PROBLEM
from sentinel.platform.resources import policies_dir
from sentinel.policy.library import ReloadablePolicies
from tests.support.fixtures import AGENT, SECRET, Fixtures, guard_body, served, start_body, unique
from tests.support.harness import at_once, decide, let_leave_end, refused
from tests.support.not_executed import say

ONE, MANY = "/access/v1/evaluation", "/access/v1/evaluations"
FACTS = {
    "currency": "USD", "account": "acct_1", "duplicate": False, "stale": False, "suspicious": False, "attempts_24h": 1,
}  # fmt: skip
NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000


def refund(amount: int = 5000, payment: str | None = None, *, agent: str = AGENT, **context: Any) -> dict[str, Any]:
    """An evaluation of a tool that `policies/tools.yaml` maps to a refund."""
    arguments = {"payment_intent": payment or unique("pi"), "amount": amount}
    return {
        "subject": {"type": "agent", "id": agent}, "action": {"name": "tool_call.execute"},
        "resource": {"type": "mcp_tool", "id": "stripe/create_refund", "properties": {"arguments": arguments}},
        "context": {"facts": {**FACTS, "account": f"acct_{arguments['payment_intent']}"}, **context},
    }  # fmt: skip


def plain(key: str | None, *, value: Any = 1, **over: Any) -> dict[str, Any]:
    """An evaluation that names the action and its params itself."""
    body = guard_body(key or unique("key"), value=value)
    asked = {
        "subject": {"type": "agent", "id": AGENT}, "action": {"name": body["action"], "properties": body["params"]},
        "resource": {"type": "refund", "id": body["resource"]},
    }  # fmt: skip
    return {**asked, "context": {"idempotency_key": key} if key else {}, **over}


def evaluate(fixtures: Fixtures, body: dict[str, Any], *, key: str | None = None, path: str = ONE) -> dict[str, Any]:
    found = fixtures.client.post(path, json=body, headers={"Authorization": f"Bearer {key or fixtures.key}"})
    assert found.status_code == 200, found.text
    return dict(found.json)


def answered(fixtures: Fixtures, body: dict[str, Any]) -> tuple[bool, str]:
    found = evaluate(fixtures, body)
    return found["decision"], found["context"]["reason_code"]


def statuses(fixtures: Fixtures) -> list[str]:
    rows = fixtures.admin.execute("select status from sentinel.operation_states order by operation_id").fetchall()
    return [str(row[0]) for row in rows]


def test_a_mapped_tool_is_guarded_by_the_key_of_its_effect_and_told_true_once(fixtures: Fixtures) -> None:
    body = refund(payment="pi_1")
    first = evaluate(fixtures, body)
    assert first["decision"] is True
    assert first["context"]["idempotency_key"] == "stripe-refund:pi_1:5000"
    assert "permit_token" not in first["context"], "whoever redeems no permit is handed none"
    assert statuses(fixtures) == ["started"]
    assert answered(fixtures, body) == (False, "already_started")
    report = {
        "idempotency_key": "stripe-refund:pi_1:5000",
        "action": "refund.create",
        "agent_id": AGENT,
        "outcome": "success",
    }
    assert fixtures.post("action/guard/report", report).status_code == 200
    assert answered(fixtures, body) == (False, "completed")
    assert fixtures.one("select max(captured_minor) from sentinel.usage") == 5000
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("start_step", [False, True])
def test_what_its_start_and_its_report_must_name_is_in_the_answer(fixtures: Fixtures, start_step: bool) -> None:
    """Of a mapped tool the table makes it: a PEP's own names are refused."""
    body = refund(payment="pi_1")
    told = evaluate(fixtures, {**body, "context": {**body["context"], "start_step": start_step}})["context"]
    bound = {name: told[name] for name in ("idempotency_key", "action", "agent_id", "resource", "risk_class")}
    if start_step:
        start = {**bound, "permit_token": told["permit_token"], "start_id": str(uuid.uuid4())}
        assert fixtures.post("action/guard/start", start).status_code == 200
    assert fixtures.post("action/guard/report", {**bound, "outcome": "success"}).status_code == 200
    assert answered(fixtures, body) == (False, "completed")


def test_of_many_at_once_one_is_told_true(fixtures: Fixtures) -> None:
    body, headers = refund(), {"X-API-Key": fixtures.key}
    answers = at_once(
        [lambda: fixtures.app.test_client().post(ONE, json=body, headers=headers).json["decision"] for _ in range(12)]
    )
    assert sorted(answers) == [False] * 11 + [True]  # type: ignore[type-var]
    assert fixtures.broken_invariants() == []


def test_it_is_never_true_while_a_person_is_owed(fixtures: Fixtures) -> None:
    body = refund(NEEDS_PERSON)
    for more in (
        {},
        {},
        {"start_step": True},
        {"start_id": str(uuid.uuid4())},
        {"approval": {"id": str(uuid.uuid4())}},
    ):
        found = evaluate(fixtures, {**body, "context": {**body["context"], **more}})
        assert (found["decision"], found["context"]["status"]) == (False, "pending"), more
        assert "permit_token" not in found["context"]
    decide(fixtures, found["context"]["approval_id"])
    assert evaluate(fixtures, body)["decision"] is True
    assert answered(fixtures, body) == (False, "already_started")


def test_the_mutant_that_takes_pending_for_permitted_is_seen(
    fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authzen, "may_act", lambda question, found: found.status in ("allowed", "approved", "pending"))
    with pytest.raises(AssertionError):
        test_it_is_never_true_while_a_person_is_owed(fixtures)


def test_what_a_person_rejected_or_a_policy_denies_is_false_for_good(fixtures: Fixtures) -> None:
    body = refund(NEEDS_PERSON)
    decide(fixtures, evaluate(fixtures, body)["context"]["approval_id"], "reject")
    assert answered(fixtures, body) == (False, "approval_rejected")
    assert answered(fixtures, refund(OVER_LIMIT)) == (False, "over_limit")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "stripe/pay_out"}, "unmapped_tool"), ({"id": "create_refund"}, "unmapped_tool"),
        ({"id": "stripe/cancel_subscription"}, "unmapped_tool"), ({"properties": {}}, "missing_argument"),
        ({"properties": {"arguments": {"payment_intent": "pi_1", "amount": 1, "to": "me"}}}, "unmapped_argument"),
        ({"properties": {"arguments": {"payment_intent": "pi_1", "amount": "***"}}}, "malformed_argument"),
    ],
)  # fmt: skip
def test_what_the_table_does_not_map_is_false_and_nothing_is_asked(
    fixtures: Fixtures, change: dict[str, Any], reason: str
) -> None:
    body = refund()
    body["resource"] = {**body["resource"], **change}
    assert answered(fixtures, body) == (False, reason)
    assert statuses(fixtures) == []


def test_an_unguarded_tool_is_true_without_being_asked_about(fixtures: Fixtures) -> None:
    body = {**refund(), "resource": {"type": "tool", "id": "stripe/list_customers"}}
    assert answered(fixtures, body) == (True, "unguarded") and statuses(fixtures) == []


def test_facts_count_by_whose_word_the_key_is(fixtures: Fixtures) -> None:
    agents_own = fixtures.new_key(agent_id=AGENT, scopes=("guard",))
    found = evaluate(fixtures, refund(), key=agents_own)
    assert (found["decision"], found["context"]["reason_code"]) == (False, "fact_not_vouched")
    body = refund()
    del body["context"]["facts"]["duplicate"]
    assert answered(fixtures, body) == (False, "fact_missing")


def test_what_would_be_reserved_is_not_true_on_a_mere_check(fixtures: Fixtures) -> None:
    assert answered(fixtures, plain(None)) == (False, authzen.UNRECORDED)
    assert answered(fixtures, plain(None, value=5000)) == (False, "over_limit")
    assert statuses(fixtures) == []


def test_under_a_key_of_its_own_it_is_guarded(fixtures: Fixtures) -> None:
    body = plain("k1")
    assert evaluate(fixtures, body)["decision"] is True
    assert evaluate(fixtures, body)["decision"] is False
    assert answered(fixtures, plain("k1", value=2)) == (False, "idempotency_key_reused")
    assert statuses(fixtures) == ["started"]


def test_who_redeems_permits_is_handed_one_and_starts(fixtures: Fixtures) -> None:
    body = plain("k2")
    body["context"]["start_step"] = True
    found = evaluate(fixtures, body)["context"]
    assert evaluate(fixtures, body)["context"]["permit_token"] == found["permit_token"], "the same until it is redeemed"
    bound = {"idempotency_key": "k2", "action": "refund.create", "agent_id": AGENT}
    answer = {"resource": body["resource"]["id"], "risk_class": "standard", "permit_token": found["permit_token"]}
    assert fixtures.post("action/guard/start", start_body(bound, answer)).status_code == 200
    assert answered(fixtures, body) == (False, "already_started")


def test_who_names_a_start_is_told_of_it_again_and_nobody_else(fixtures: Fixtures) -> None:
    start_id, body = str(uuid.uuid4()), refund()
    mine = {**body, "context": {**body["context"], "start_id": start_id}}
    assert [evaluate(fixtures, mine)["decision"] for _ in range(3)] == [True] * 3
    other = {**body, "context": {**body["context"], "start_id": str(uuid.uuid4())}}
    assert answered(fixtures, other) == (False, "already_started")
    assert answered(fixtures, body) == (False, "already_started")


@pytest.mark.parametrize("path", [ONE, MANY])
def test_who_names_a_start_is_not_told_true_again_of_what_was_done(fixtures: Fixtures, path: str) -> None:
    body = refund(payment="pi_1", start_id=str(uuid.uuid4()))
    asked = body if path == ONE else {"evaluations": [body, body]}

    def answers() -> list[tuple[bool, str]]:
        found = evaluate(fixtures, asked, path=path)
        several = [found] if path == ONE else found["evaluations"]
        return [(one["decision"], one["context"]["reason_code"]) for one in several]

    assert answers()[0][0] is True
    named = {"idempotency_key": "stripe-refund:pi_1:5000", "action": "refund.create", "agent_id": AGENT}
    assert fixtures.post("action/guard/report", {**named, "outcome": "error"}).status_code == 200
    assert answers()[0][0] is True, "what may have failed is tried again under its start"
    let_leave_end(fixtures)
    say(fixtures, named, executed=True)
    assert set(answers()) == {(False, "completed")}


@pytest.mark.parametrize("is_again", [True, False])
def test_who_names_a_start_is_told_false_after_a_person_said_not_executed(fixtures: Fixtures, is_again: bool) -> None:
    start_id = str(uuid.uuid4())
    body = refund(payment="pi_1", start_id=start_id)
    named = {"idempotency_key": "stripe-refund:pi_1:5000"}
    assert evaluate(fixtures, body)["decision"] is True
    run_housekeeping(fixtures.authority.pool, 0)
    let_leave_end(fixtures)
    assert evaluate(fixtures, body)["decision"] is True
    assert refused(lambda: say(fixtures, named, executed=False)) == "still-acting"
    let_leave_end(fixtures)
    say(fixtures, named, executed=False)
    body["context"]["start_id"] = start_id if is_again else str(uuid.uuid4())
    assert answered(fixtures, body) == (False, "resolved_not_executed")


def test_a_key_bound_to_an_agent_speaks_for_no_other(fixtures: Fixtures) -> None:
    bound = fixtures.new_key(agent_id="agent-1")
    headers = {"X-API-Key": bound}
    assert fixtures.client.post(ONE, json=refund(agent="agent-2"), headers=headers).status_code == 403
    person = {**plain("k3"), "subject": {"type": "user", "id": "alice@example.com"}}
    found = evaluate(fixtures, person, key=bound)
    agent = fixtures.one(
        "select agent_id from sentinel.operations where operation_id = %s", found["context"]["operation_id"]
    )
    assert agent == "agent-1"


def test_a_halt_makes_it_false(fixtures: Fixtures) -> None:
    actor = local_administrator(fixtures.tenant_id)
    set_halt(fixtures.console_pool, actor, scope="agent", target=AGENT, reason="drill")
    assert answered(fixtures, refund()) == (False, "halted")


def test_in_a_batch_each_tool_is_guarded_and_a_stop_asks_no_further(fixtures: Fixtures) -> None:
    items = [refund(payment=f"pi_{n}", amount=amount) for n, amount in enumerate((100, NEEDS_PERSON, 200))]
    body = {"evaluations": items, "options": {"evaluations_semantic": "deny_on_first_deny"}}
    assert [one["decision"] for one in evaluate(fixtures, body, path=MANY)["evaluations"]] == [True, False]
    assert statuses(fixtures) == ["started", "pending"]
    whole = evaluate(fixtures, {"evaluations": items}, path=MANY)["evaluations"]
    assert [one["decision"] for one in whole] == [False, False, True], "the first was told true before"
    assert fixtures.broken_invariants() == []


def test_a_null_context_in_a_batch_drops_nothing_that_all_have_in_common(fixtures: Fixtures) -> None:
    """The finding: of a null the common context was dropped, with the evidence in it that asks for a person."""
    effect = refund()
    common = {**effect.pop("context"), "escalation": "open_complaint"}
    found = evaluate(fixtures, {"context": common, "evaluations": [{**effect, "context": None}]}, path=MANY)
    (one,) = found["evaluations"]
    assert (one["decision"], one["context"]["reason_code"]) == (False, "open_complaint")
    assert statuses(fixtures) == ["pending"]


@pytest.mark.parametrize("semantic", ["execute_all", "deny_on_first_deny"])
@pytest.mark.parametrize("is_common", [True, False])
def test_one_start_id_in_a_batch_is_told_true_once_of_an_effect(
    fixtures: Fixtures, semantic: str, is_common: bool
) -> None:
    effect, other = refund(), refund()
    context = {**effect["context"], "start_id": str(uuid.uuid4())}
    items = [{**one, "context": context} for one in (effect, other, effect, effect)]
    if is_common:
        items = [{"resource": one["resource"]} for one in items]
    shared = {**effect, "context": context} if is_common else {}
    body = {**shared, "evaluations": items, "options": {"evaluations_semantic": semantic}}
    wanted = [True, True, False, False] if semantic == "execute_all" else [True, True, False]
    for _ in range(2):  # the whole request may be asked again
        found = evaluate(fixtures, body, path=MANY)["evaluations"]
        assert [one["decision"] for one in found] == wanted
        assert found[2]["context"]["reason_code"] == "already_started"
        assert found[2]["context"]["operation_id"] == found[0]["context"]["operation_id"]
    assert statuses(fixtures) == ["started", "started"]


def test_a_start_id_twice_in_a_batch_is_answered_as_the_first_where_that_is_no(fixtures: Fixtures) -> None:
    body = refund(NEEDS_PERSON, start_id=str(uuid.uuid4()))
    first, second = evaluate(fixtures, {"evaluations": [body, body]}, path=MANY)["evaluations"]
    assert first == second
    assert (first["decision"], first["context"]["status"]) == (False, "pending")


def test_an_authority_without_its_database_says_nothing_that_reads_as_yes(fixtures: Fixtures) -> None:
    from jsonschema import validate

    settings = Settings(database_url="postgresql://nobody@127.0.0.1:9/x", secret_keys=(SECRET,), pool_size=2)
    with served(settings, ReloadablePolicies(policies_dir())) as (_, app):
        for path in (ONE, MANY):
            found = app.test_client().post(path, json=refund(), headers={"X-API-Key": fixtures.key})
            assert found.status_code == 503 and found.json.get("decision", False) is False
            validate(found.json, PROBLEM)


def test_what_is_still_being_decided_is_asked_again(fixtures: Fixtures, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: Any, **__: Any) -> None:
        raise StillDeciding("somebody holds its lock")

    monkeypatch.setattr(AuthorityCalls, "guard", busy)
    headers = {"X-API-Key": fixtures.new_key(agent_id=AGENT), "Idempotency-Key": "k"}
    call = {
        "tool": "create_refund",
        "server": "stripe",
        "arguments": {"payment_intent": "pi", "amount": 5},
        "timeout": "1m",
        "context": {"facts": FACTS},
    }
    for path, body in ((ONE, refund()), ("/aap/v1/requests", call)):
        found = fixtures.client.post(path, json=body, headers=headers)
        assert (found.status_code, found.headers["Retry-After"]) == (503, "1"), (
            "clients retry it, and take 409 for final"
        )
        assert "decision" not in found.json
    one = evaluate(fixtures, {"evaluations": [refund()]}, path=MANY)["evaluations"][0]
    assert (one["decision"], one["context"]["error"]["status"]) == (False, 503)
