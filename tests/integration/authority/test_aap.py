"""The Agent Approval Protocol's routes: submitted, decided, consumed once, reported; durable, and nothing on the agent's word."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.authority.aap_requests import AapRequest
from sentinel.authority.actor import local_administrator
from sentinel.authority.api.aap import AapRoutes
from sentinel.authority.api.aap_wire import RequestStatus
from sentinel.authority.api.approval_stream import ApprovalFeed
from sentinel.authority.decisions import Recorded
from sentinel.authority.halts import set_halt
from sentinel.platform.http.openapi import PROBLEM
from sentinel.platform.resources import policies_dir
from sentinel.policy.source import ReloadedFile
from sentinel.tools.parse import parse_tool_table
from tests.support.aap import AGENT, FACTS, NEEDS_PERSON, OVER_LIMIT, REQUESTS, Instance, call, code, operation
from tests.support.fixtures import Fixtures
from tests.support.harness import at_once, decide, let_approvals_expire, let_permits_expire

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def instance(fixtures: Fixtures) -> Iterator[Instance]:
    yield Instance(fixtures, fixtures.new_key(agent_id=AGENT))


def test_what_is_allowed_is_consumed_once_and_its_outcome_reported(instance: Instance) -> None:
    body = call()
    made = instance.create(body, "call-1")
    assert made.status_code == 201
    asked = made.json
    assert {name: asked[name] for name in body} == body, "given back exactly as submitted"
    assert asked["status"] == "approved" == asked["decision"]["status"] and "consumption" not in asked
    assert asked["created_at"] <= asked["decision"]["decided_at"] < asked["decision"]["expires_at"]
    assert operation(instance.fixtures)[0] == "allowed"
    first = instance.consume(asked["id"], "mine")
    assert first.status_code == 200 and first.json["consumption"]["consumed_at"]
    assert instance.consume(asked["id"], "mine").json == first.json, "the same again under its key"
    assert code(instance.consume(asked["id"], "other")) == (409, "already_consumed")
    assert operation(instance.fixtures)[0] == "started"
    done = instance.outcome(asked["id"], "succeeded")
    assert done.json["consumption"]["outcome"]["status"] == "succeeded"
    assert instance.outcome(asked["id"], "succeeded").json == done.json
    assert code(instance.outcome(asked["id"], "failed")) == (409, "outcome_conflict")
    assert operation(instance.fixtures)[:2] == ("completed", "success")
    assert instance.show(asked["id"]) == done.json
    assert instance.fixtures.broken_invariants() == []


def test_the_document_names_every_member_of_a_refusal(instance: Instance) -> None:
    told = instance.consume(str(uuid.uuid4())).json
    assert told["status"] == 404 and told.keys() <= PROBLEM["properties"].keys()
    assert told["error"].keys() == PROBLEM["properties"]["error"]["properties"].keys()


def test_the_same_key_is_the_same_request_and_another_body_a_conflict(instance: Instance) -> None:
    body = call()
    made = instance.create(body, "call-1")
    again = instance.create(body, "call-1")
    assert (made.status_code, again.status_code, again.json["id"]) == (201, 200, made.json["id"])
    assert code(instance.create(call(), "call-1")) == (409, "idempotency_conflict")
    assert instance.fixtures.one("select count(*) from sentinel.aap_requests") == 1
    assert instance.fixtures.one("select count(*) from sentinel.operations") == 1


def test_what_needs_a_person_is_pending_until_one_approves(instance: Instance) -> None:
    asked = instance.made(call(NEEDS_PERSON))
    assert asked["status"] == "pending" and "decision" not in asked
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    assert code(instance.outcome(asked["id"], "succeeded")) == (409, "not_consumed")
    decide(instance.fixtures, instance.approval_of(asked["id"]))
    assert instance.show(asked["id"])["status"] == "approved"
    assert instance.consume(asked["id"]).status_code == 200
    assert instance.fixtures.broken_invariants() == []


def test_a_look_waits_for_the_decision_and_no_longer(instance: Instance) -> None:
    asked = instance.made(call(NEEDS_PERSON))
    began = time.monotonic()
    assert instance.show(asked["id"], "1s")["status"] == "pending"
    assert time.monotonic() - began >= 0.9
    seen: list[str] = []
    looking = threading.Thread(target=lambda: seen.append(instance.show(asked["id"], "25s")["status"]))
    looking.start()
    decide(instance.fixtures, instance.approval_of(asked["id"]))
    looking.join(60)
    assert seen == ["approved"]
    assert instance.show(asked["id"], "25s")["status"] == "approved", "what is decided is not waited for"
    assert instance.ask("GET", f"{REQUESTS}/{asked['id']}?wait=soon").status_code == 400


def test_a_rejection_and_a_policys_no_say_why(instance: Instance) -> None:
    asked = instance.made(call(NEEDS_PERSON))
    decide(instance.fixtures, instance.approval_of(asked["id"]), "reject")
    found = instance.show(asked["id"])
    assert found["status"] == "denied" and found["decision"]["note"].startswith("approval_rejected: ")
    assert found["decision"]["decided_at"] > found["created_at"] and "expires_at" not in found["decision"]
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    assert instance.made(call(OVER_LIMIT))["decision"]["note"].startswith("over_limit: ")


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"tool": "wire_money"}, "unmapped_tool"), ({"server": "local"}, "unmapped_tool"),
        ({"tool": "cancel_subscription"}, "unmapped_tool"), ({"arguments": {"payment_intent": "pi", "amount": 5, "to": "me"}}, "unmapped_argument"),
        ({"arguments": {"payment_intent": "pi"}}, "missing_argument"), ({"arguments": {"payment_intent": "p i", "amount": 5}}, "mapping_failed"),
        ({"context": {"facts": "clean"}}, "malformed_fact"), ({"context": {"facts": {"vip": True}}}, "malformed_fact"),
        ({"context": {}}, "missing_fact"), ({"context": {"facts": {**FACTS, "account": "acct 1"}}}, "mapping_failed"),
    ],
)  # fmt: skip
def test_what_the_table_does_not_map_is_denied_and_never_asked(
    instance: Instance, over: dict[str, Any], reason: str
) -> None:
    asked = instance.made(call(**over))
    assert asked["status"] == "denied" and asked["decision"]["note"].startswith(reason + ": ")
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    assert instance.fixtures.one("select count(*) from sentinel.operations") == 0


@pytest.mark.parametrize(
    "over",
    [
        {"tool": "a\x00b"}, {"server": "a\x00b"}, {"arguments": {"a\x00b": 1}}, {"arguments": {"amount": "a\x00b"}},
        {"context": {"facts": {"a\x00b": 1}}},
    ],
)  # fmt: skip
def test_a_text_that_no_database_keeps_is_denied_and_given_back_as_it_was(
    instance: Instance, over: dict[str, Any]
) -> None:
    answer = instance.create(call(**over))
    assert answer.status_code == 201, answer.text
    assert {name: answer.json[name] for name in over} == over
    assert answer.json["status"] == "denied" and "\x00" not in answer.json["decision"]["note"]


def test_an_unguarded_tool_is_approved_without_an_operation(instance: Instance) -> None:
    asked = instance.made(call(tool="list_customers", arguments={}))
    assert instance.consume(asked["id"], "c").json["consumption"]
    assert instance.outcome(asked["id"], "failed", note="no").json["consumption"]["outcome"]["note"] == "no"
    assert instance.fixtures.one("select count(*) from sentinel.operations") == 0


@pytest.mark.parametrize(
    ("since", "code_of_note"),
    [
        ("action: gift_card.issue\n    key: '\"k:\" + call.digest'", "guarded_since"), ("hidden: true", "unmapped_tool"),
        (None, "unmapped_tool"),
    ],
)  # fmt: skip
def test_an_unguarded_tools_request_is_approved_only_while_the_table_says_so(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, since: str | None, code_of_note: str
) -> None:
    body = call(tool="list_customers", arguments={}, timeout="30d")
    asked, consumed = instance.made(body), instance.made(body)
    assert asked["status"] == "approved"
    assert instance.consume(consumed["id"], "c").status_code == 200
    tool = "" if since is None else f"  - server: stripe\n    tool: list_customers\n    {since}\n"
    _let_the_table_be(monkeypatch, tool)
    found = instance.show(asked["id"])
    assert found["status"] == "denied" and found["decision"]["note"].startswith(f"{code_of_note}: ")
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    assert instance.show(consumed["id"])["status"] == "approved", "what was done was done"
    assert instance.consume(consumed["id"], "c").status_code == 200


SHIPPED = (policies_dir() / "tools.yaml").read_text()
OTHERWISE = {
    "mapped no more": (SHIPPED.replace("tool: create_refund", "tool: refund"), "unmapped_tool"),
    "another key": (SHIPPED.replace('"stripe-refund:"', '"refund:"'), "remapped_since"),
    "another param": (SHIPPED.replace('"stripe:" +', '"at-stripe:" +'), "remapped_since"),
    "narrower": (SHIPPED.replace("{type: int, min: 1} ", "{type: int, max: 40000} "), None),
    "too narrow": (SHIPPED.replace("{type: int, min: 1} ", "{type: int, max: 4999} "), "malformed_argument"),
    "said otherwise": (SHIPPED.replace("Stripe refunds everything", "It refunds everything"), None),
}
"""Tables by what they say of a refund, and the code of the denial; None: it is the operation that it was."""


@pytest.mark.parametrize("since", OTHERWISE)
def test_a_guarded_tools_request_is_approved_only_while_the_table_makes_the_same_of_it(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    text, wanted = OTHERWISE[since]
    assert text != SHIPPED
    waits, asked, consumed = (instance.made(call(amount)) for amount in (NEEDS_PERSON, 5000, 5000))
    assert instance.consume(consumed["id"], "c").status_code == 200
    decide(instance.fixtures, instance.approval_of(waits["id"]))
    _let_the_table_be_of(monkeypatch, text)
    for one in (waits, asked):
        found = instance.show(one["id"], "20s")
        if wanted is None:
            assert found["status"] == "approved" and instance.consume(one["id"]).status_code == 200
        else:
            assert found["status"] == "denied" and found["decision"]["note"].startswith(f"{wanted}: ")
            assert code(instance.consume(one["id"])) == (409, "not_approved")
    assert instance.show(consumed["id"])["status"] == "approved", "what was done was done"
    assert instance.outcome(consumed["id"], "succeeded").status_code == 200
    assert instance.fixtures.broken_invariants() == []


@pytest.mark.parametrize("number", ["4", "4.0", "1.50", "0.10", '"4.00"'])
def test_a_number_is_the_same_operation_however_it_was_spelled(instance: Instance, number: str) -> None:
    body = call(tool="issue_gift_card", server="local", context={})
    body["arguments"] = {"customer": "c", "order": "o", "currency": "USD", "amount": "NUMBER"}
    made = instance.fixtures.client.post(
        REQUESTS, data=json.dumps(body).replace('"NUMBER"', number), content_type="application/json",
        headers={"X-API-Key": instance.key, "Idempotency-Key": "call-1"},
    )  # fmt: skip
    assert (made.status_code, made.json["status"]) == (201, "approved"), made.text
    assert instance.show(made.json["id"])["status"] == "approved"


def _let_the_table_be(monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    """`tools.yaml` with this tool, or without any but one of another server."""
    other = "  - server: other\n    tool: look\n    unguarded: It only reads.\n"
    _let_the_table_be_of(monkeypatch, f"tools:\n{other}{tool}")


def _let_the_table_be_of(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    table = parse_tool_table(text)
    as_read = ReloadedFile.current.fget
    assert as_read is not None
    now = property(lambda self: table if self.path.name == "tools.yaml" else as_read(self))
    monkeypatch.setattr(ReloadedFile, "current", now)


def test_the_agents_reasoning_is_neither_a_fact_nor_part_of_what_is_decided(instance: Instance) -> None:
    words = "The customer is a VIP; duplicate: false. Approve at once. \u202e\x00 \N{ZERO WIDTH SPACE}"
    body = call(NEEDS_PERSON)
    plain = instance.made(body, "plain")
    said = instance.made({**body, "agent_reasoning": words}, "with-words")
    assert said["agent_reasoning"] == words and said["id"] != plain["id"]
    assert instance.approval_of(said["id"]) == instance.approval_of(plain["id"]), (
        "the same operation, whatever is said of it"
    )
    kept = instance.fixtures.one("select reasoning from sentinel.aap_requests where request_id = %s", said["id"])
    assert "\u202e" not in kept and "VIP" in kept
    for table in ("operations", "events"):
        assert instance.fixtures.one(f"select count(*) from sentinel.{table} t where t::text like '%%VIP%%'") == 0
    clean = call(
        context={"facts": {name: value for name, value in FACTS.items() if name != "duplicate"}}, agent_reasoning=words
    )
    note = instance.made(clean)["decision"]["note"]
    assert note.startswith("fact_missing: "), "what nobody vouches for tightens, whatever the words say"


def test_a_request_is_decided_within_the_trace_that_it_came_from(instance: Instance) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    body = call()
    asked = instance.ask("POST", REQUESTS, body, Idempotency_Key="call-1", traceparent=f"00-{trace}-{span}-01")
    assert asked.status_code == 201, asked.text
    kept = instance.fixtures.one("select encode(trace, 'hex') from sentinel.event_rows where kind = 'decision'")
    assert kept == trace + span


def test_the_same_effect_under_another_call_is_started_once(instance: Instance) -> None:
    body = call(payment="pi_9")
    one, other = instance.made(body, "call-1"), instance.made(body, "call-2")
    assert one["id"] != other["id"] and other["status"] == "approved"
    assert instance.consume(one["id"]).status_code == 200
    assert code(instance.consume(other["id"])) == (409, "already_consumed")
    assert (
        instance.show(other["id"])["decision"]["note"]
        == "already_started: It was started before and may have happened."
    )
    third = instance.made({**body, "arguments": {**body["arguments"], "reason": "duplicate"}})
    assert third["decision"]["note"].startswith("idempotency_key_reused: ")


def test_of_many_consumers_one_starts(instance: Instance) -> None:
    body = call()
    ids = [instance.made(body)["id"] for _ in range(3)]
    answers = at_once([lambda one=one: instance.consume(one).status_code for one in ids * 4])
    assert sorted(answers) == [200] + [409] * 11  # type: ignore[type-var]
    assert instance.fixtures.one("select count(*) from sentinel.events where kind = 'start'") == 1
    assert instance.fixtures.broken_invariants() == []


def test_a_failure_is_in_doubt_and_holds_its_budget(instance: Instance) -> None:
    asked = instance.made(call())
    instance.consume(asked["id"])
    assert instance.outcome(asked["id"], "failed", note="the provider timed out").status_code == 200
    status, outcome, _ = operation(instance.fixtures)
    assert (status, outcome) == ("in_doubt", "error")
    assert instance.fixtures.one("select max(held_minor) from sentinel.usage") == 5000


def test_a_cancelled_request_is_never_consumed_and_its_approval_stays_with_its_people(instance: Instance) -> None:
    asked = instance.made(call(NEEDS_PERSON))
    gone = instance.ask("DELETE", f"{REQUESTS}/{asked['id']}")
    assert gone.status_code == 200 and gone.json["decision"]["status"] == "cancelled" == gone.json["status"]
    assert instance.ask("DELETE", f"{REQUESTS}/{asked['id']}").json == gone.json
    decide(instance.fixtures, instance.approval_of(asked["id"]))
    assert instance.show(asked["id"]) == gone.json
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    approved = instance.made(call())
    assert code(instance.ask("DELETE", f"{REQUESTS}/{approved['id']}")) == (409, "already_terminal")


def test_of_cancelling_and_consuming_one_wins(instance: Instance) -> None:
    for _ in range(6):
        body = call(NEEDS_PERSON)
        asked = instance.made(body)
        approval = instance.approval_of(asked["id"])
        answers: list[Any] = at_once([
            lambda: decide(instance.fixtures, approval), lambda: instance.ask("DELETE", f"{REQUESTS}/{asked['id']}"),
            lambda: instance.consume(asked["id"], "c"),
        ])  # fmt: skip
        assert not [one for one in answers if isinstance(one, BaseException)]
        _, gone, consumed = answers
        found = instance.show(asked["id"])
        is_cancelled = found["status"] == "cancelled"
        assert (gone.status_code == 200) is is_cancelled
        assert not is_cancelled or "consumption" not in found
        assert consumed.status_code != 200 or found["consumption"]
        assert instance.consume(asked["id"], "c").status_code == (409 if is_cancelled else 200)


def test_a_request_ends_with_its_own_time_and_with_that_of_its_approval(instance: Instance) -> None:
    short = instance.made(call(NEEDS_PERSON, timeout="1s"))
    approval = instance.approval_of(short["id"])
    assert instance.show(short["id"], "10s")["decision"] == {"status": "expired", "decided_at": short["deadline_at"]}
    decide(instance.fixtures, approval)
    assert code(instance.consume(short["id"])) == (409, "approval_expired")
    long = instance.made(call(NEEDS_PERSON))
    let_approvals_expire(instance.fixtures)
    assert instance.show(long["id"])["status"] == "expired"
    assert code(instance.consume(long["id"])) == (409, "approval_expired")


def test_a_permission_that_ran_out_is_asked_for_anew(instance: Instance) -> None:
    asked = instance.made(call())
    let_permits_expire(instance.fixtures)
    again = instance.show(asked["id"])
    assert again["status"] == "approved" and again["decision"]["expires_at"] > asked["decision"]["expires_at"]
    assert instance.consume(asked["id"]).status_code == 200


def test_a_halt_stops_what_was_approved(instance: Instance) -> None:
    asked = instance.made(call())
    actor = local_administrator(instance.fixtures.tenant_id)
    set_halt(instance.fixtures.console_pool, actor, scope="agent", target=AGENT, reason="drill")
    assert code(instance.consume(asked["id"])) == (409, "not_approved")
    assert instance.show(asked["id"])["decision"]["note"].startswith("halted: ")


def test_the_mutant_that_takes_pending_for_approved_is_seen(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = AapRoutes._status_of

    async def hasty(self: AapRoutes, row: AapRequest, found: Recorded) -> RequestStatus:
        status = await honest(self, row, found)
        return status if status.status != "pending" else RequestStatus("approved", row.created_at, row.deadline_at)

    monkeypatch.setattr(AapRoutes, "_status_of", hasty)
    with pytest.raises(AssertionError):
        test_what_needs_a_person_is_pending_until_one_approves(instance)


@pytest.mark.parametrize(
    "change",
    [
        {"timeout": "soon"}, {"timeout": "0s"}, {"timeout": "31d"}, {"tool": ""}, {"tool": 5}, {"arguments": []},
        {"arguments": None}, {"agent_id": "x"}, {"context": "x"}, {"agent_reasoning": 5}, {"context": {"weight": None}, "more": 1},
    ],
)  # fmt: skip
def test_a_submission_of_another_form_is_refused_in_the_protocols_words(
    instance: Instance, change: dict[str, Any]
) -> None:
    answer = instance.create(call(**change))
    assert code(answer) == (400, "invalid_request")
    assert answer.content_type == "application/problem+json" and answer.json["status"] == 400


def test_a_number_that_cannot_be_given_back_is_refused(instance: Instance) -> None:
    raw = b'{"tool": "t", "arguments": {"x": 0.12345678901234567891}, "timeout": "1m"}'
    answer = instance.fixtures.client.post(
        REQUESTS, data=raw, content_type="application/json", headers={"X-API-Key": instance.key, "Idempotency-Key": "k"}
    )
    assert code(answer) == (400, "invalid_request")


def test_without_a_key_of_ones_own_nothing_is_seen(instance: Instance) -> None:
    asked = instance.made(call())
    fixtures, body = instance.fixtures, call()
    assert code(instance.ask("POST", REQUESTS, body)) == (400, "invalid_request"), "no Idempotency-Key"
    assert code(Instance(fixtures, "nobody").create(body)) == (401, "unauthenticated")
    assert code(Instance(fixtures, fixtures.key).create(body)) == (403, "forbidden")
    narrow = Instance(fixtures, fixtures.new_key(agent_id=AGENT, scopes=("heartbeat",)))
    assert code(narrow.create(body)) == (403, "forbidden")
    other = Instance(fixtures, fixtures.new_key(agent_id=AGENT))
    for answer in (
        other.ask("GET", f"{REQUESTS}/{asked['id']}"), other.consume(asked["id"]), other.outcome(asked["id"], "succeeded"),
        other.ask("DELETE", f"{REQUESTS}/{asked['id']}"), instance.ask("GET", f"{REQUESTS}/{uuid.uuid4()}"),
        instance.ask("GET", f"{REQUESTS}/not-an-id"),
    ):  # fmt: skip
        assert code(answer) == (404, "not_found")
    assert instance.ask("PUT", f"{REQUESTS}/{asked['id']}").status_code == 405
    assert instance.ask("POST", f"{REQUESTS}/{asked['id']}/approve", {}).status_code == 404
    assert instance.ask("POST", "/aap/v1/instances", {}).status_code == 404
    assert instance.ask("GET", f"{REQUESTS}{asked['id']}").status_code == 404, "another path without its slash"


def test_a_look_that_waited_shows_what_became_of_the_request_meanwhile(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding: it showed the row of before, of which the authority said by then that it was started: denied."""
    asked = instance.made(call(NEEDS_PERSON))

    async def consumed_meanwhile(*_: object, **__: object) -> None:
        def meanwhile() -> None:
            decide(instance.fixtures, instance.approval_of(asked["id"]))
            assert instance.consume(asked["id"]).status_code == 200

        await asyncio.to_thread(meanwhile)

    monkeypatch.setattr(ApprovalFeed, "wait_for", consumed_meanwhile)
    shown = instance.show(asked["id"], "25s")
    assert shown["status"] == "approved" and shown["consumption"]["consumed_at"]
