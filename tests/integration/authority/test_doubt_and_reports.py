"""What became of a start: doubt holds the budget, a person resolves it, a report is said once."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.housekeeping import run_housekeeping
from sentinel.authority.in_doubt import resolve_in_doubt
from sentinel.core.errors import Conflict, Forbidden, NotFound
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, start_body, unique
from tests.support.harness import actor, at_once, let_leave_end, let_permits_expire
from tests.support.lifecycle import Body
from tests.support.roomy import roomy_policies

pytestmark = pytest.mark.usefixtures("patient")


def started(fixtures: Fixtures, value: int = 40) -> Body:
    body = guard_body(value=value, params={"account_ref": unique("acct")})
    fixtures.start(body, fixtures.guard(body))
    return body


def status(fixtures: Fixtures, body: Body) -> tuple[str, str | None]:
    """(status, in_doubt_reason) of an operation."""
    row = fixtures.admin.execute(
        "select s.status, s.in_doubt_reason from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)"
        " where o.idempotency_key = %s", [body["idempotency_key"]]).fetchone()  # fmt: skip
    assert row is not None
    return row[0], row[1]


def operation_of(fixtures: Fixtures, body: Body) -> uuid.UUID:
    return uuid.UUID(
        str(
            fixtures.one(
                "select operation_id from sentinel.operations where idempotency_key = %s", body["idempotency_key"]
            )
        )
    )


def budget(fixtures: Fixtures) -> list[int]:
    """[held, captured] of the fullest limit, in minor units."""
    return list(fixtures.one("select array[max(held_minor), max(captured_minor)] from sentinel.usage"))


def resolve(fixtures: Fixtures, body: Body, *, executed: bool, role: str = "admin") -> None:
    resolve_in_doubt(
        fixtures.console_pool,
        actor(fixtures, role),
        operation_of(fixtures, body),
        executed=executed,
        evidence="looked it up",
    )


def test_an_error_after_a_start_is_doubt_and_keeps_budget_and_uniqueness(fixtures: Fixtures) -> None:
    body = started(fixtures)
    assert fixtures.report(body, "error", error="timeout").status_code == 200
    assert status(fixtures, body) == ("in_doubt", "error_reported")
    assert budget(fixtures) == [4000, 0]
    mutant = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert fixtures.guard(mutant)["reason_code"] == "duplicate_resource"
    assert fixtures.broken_invariants() == []


def test_silence_past_the_deadline_is_doubt_and_not_before(fixtures: Fixtures) -> None:
    body = started(fixtures)
    assert run_housekeeping(fixtures.authority.pool, 300).fell_in_doubt == 0
    assert status(fixtures, body)[0] == "started"
    assert run_housekeeping(fixtures.authority.pool, 0).fell_in_doubt == 1
    assert status(fixtures, body) == ("in_doubt", "no_report")
    assert budget(fixtures) == [4000, 0]


def test_a_mass_of_silent_starts_falls_in_doubt_in_one_round(database_url: str, tmp_path: Path) -> None:
    fixtures = make_fixtures(database_url, policies=roomy_policies(tmp_path))
    try:
        for _ in range(4):
            bodies = [
                {**guard_body(value=1, params={"account_ref": unique("acct")}), "start_id": str(uuid.uuid4())}
                for _ in range(60)
            ]
            answers = fixtures.post("action/guard/batch", {"requests": bodies}).get_json()["answers"]
            assert all("start" in one["body"] for one in answers)
        assert run_housekeeping(fixtures.authority.pool, 0, seconds=60).fell_in_doubt == 240
        assert fixtures.one("select count(*) from sentinel.operation_states where status <> 'in_doubt'") == 0
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


@pytest.mark.parametrize("executed, left", [(True, [0, 4000]), (False, [0, 0])])
def test_resolving_doubt_captures_what_was_executed_and_frees_what_was_not(
    fixtures: Fixtures, executed: bool, left: list[int]
) -> None:
    body = started(fixtures)
    fixtures.report(body, "error")
    resolve(fixtures, body, executed=executed)
    assert status(fixtures, body) == ("completed", None)
    assert budget(fixtures) == left
    mutant = guard_body(value=1, params={"refund_id": body["params"]["refund_id"]})
    assert fixtures.guard(mutant)["decision"] == ("DENY" if executed else "ALLOW")
    with pytest.raises(Conflict):
        resolve(fixtures, body, executed=not executed)
    assert fixtures.broken_invariants() == []


def test_only_an_administrator_resolves_and_only_what_is_in_doubt(fixtures: Fixtures) -> None:
    body = started(fixtures)
    with pytest.raises(Conflict):
        resolve(fixtures, body, executed=False)
    fixtures.report(body, "error")
    with pytest.raises(Forbidden):
        resolve(fixtures, body, executed=False, role="approver")
    with pytest.raises(NotFound):
        resolve_in_doubt(fixtures.console_pool, actor(fixtures, "admin"), uuid.uuid4(), executed=True, evidence="")
    assert status(fixtures, body)[0] == "in_doubt"


def test_a_late_success_after_silence_ends_the_doubt(fixtures: Fixtures) -> None:
    body = started(fixtures)
    run_housekeeping(fixtures.authority.pool, 0)
    assert fixtures.report(body).status_code == 200
    assert status(fixtures, body) == ("completed", None)
    assert budget(fixtures) == [0, 4000]
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize(
    "executed, told, code",
    [(True, "success", 200), (False, "error", 200), (True, "error", 409)],
)
def test_a_late_report_must_agree_with_what_a_person_found_out(
    fixtures: Fixtures, executed: bool, told: str, code: int
) -> None:
    """A success after "not executed" is another matter: see test_contradictions.py."""
    body = started(fixtures)
    run_housekeeping(fixtures.authority.pool, 0)
    let_leave_end(fixtures)
    resolve(fixtures, body, executed=executed)
    before = budget(fixtures)
    assert fixtures.report(body, told).status_code == code
    assert budget(fixtures) == before
    assert status(fixtures, body) == ("completed", None)
    assert fixtures.broken_invariants() == []


def test_a_report_repeated_exactly_gets_the_original_receipt_and_a_contradicting_one_is_refused(
    fixtures: Fixtures,
) -> None:
    body = started(fixtures)
    first = fixtures.report(body, result={"id": "tx_1"}).get_json()
    again = fixtures.report(body, result={"id": "tx_1"}).get_json()
    assert first["duplicate"] is False
    assert again == first | {"duplicate": True}
    for other in (fixtures.report(body, result={"id": "tx_2"}), fixtures.report(body, "error"), fixtures.report(body)):
        assert (other.status_code, other.get_json()["type"]) == (409, "urn:sentinel:problem:report-contradicts")
    assert budget(fixtures) == [0, 4000]
    assert fixtures.broken_invariants() == []


RESULTS = [
    b'{"fee": 0.35}', b'{"fee": 1.2e-05, "rate": 1E400}', b'{"id": 9007199254740992}', b'{"id": 1234567890123456789}', b'{"id": ' + b"9" * 5000 + b"}",
    b'{"text": "a\\u001b[0m"}', '{"text": "\U0001f468\u200d\U0001f469"}'.encode(), b'{"text": "' + b"x" * 8193 + b'"}', '{"gr\u00f6\u00dfe": 1}'.encode(), b'{"": 1}',
    b'{"' + b"n" * 200 + b'": 1}', b'{"cut": "\\ud83d"}', b'{"\\ud83d": 1}', b'[0.5, {"a": [1e3]}]', b"0.5",
]  # fmt: skip
"""What providers answer and exceptions say, as JSON."""


def sent(fixtures: Fixtures, path: str, body: Body, result: bytes) -> Any:
    """The answer to a body whose `result` is this text."""
    text = json.dumps({**body, "result": "@@"}).encode().replace(b'"@@"', result)
    return fixtures.client.post(
        f"/api/sentinel/{path}", data=text, headers={"X-API-Key": fixtures.key, "Content-Type": "application/json"}
    )


@pytest.mark.parametrize("result", RESULTS, ids=range(len(RESULTS)))
def test_a_report_is_not_refused_for_what_its_result_holds(fixtures: Fixtures, result: bytes) -> None:
    """The money has moved: a refusal would leave the operation in doubt and its budget held."""
    body = started(fixtures)
    report = {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
    for duplicate in (False, True):
        answer = sent(fixtures, "action/guard/report", report, result)
        assert (answer.status_code, answer.get_json().get("duplicate")) == (200, duplicate), answer.text
    batch = json.dumps({"requests": [{**report, "result": "@@"}]}).encode().replace(b'"@@"', result)
    many = fixtures.client.post(
        "/api/sentinel/action/guard/report/batch", data=batch,
        headers={"X-API-Key": fixtures.key, "Content-Type": "application/json"},
    ).get_json()["answers"]  # fmt: skip
    assert [(one["status"], one["body"]["duplicate"]) for one in many] == [(200, True)]
    assert sent(fixtures, "action/guard/report", report, b'{"fee": 0.36}').status_code == 409
    assert budget(fixtures) == [0, 4000]

    told = {"request_id": unique("check"), "agent_id": "a", "action": "b", "status": "error"}
    for duplicate in (False, True):
        answer = sent(fixtures, "action/report", told, result)
        assert (answer.status_code, answer.get_json().get("duplicate")) == (200, duplicate), answer.text
    assert sent(fixtures, "action/report", told, b'{"fee": 0.36}').status_code == 409
    assert fixtures.broken_invariants() == []


@pytest.mark.parametrize("action", [{}, {"action": None}, {"action": ""}])
def test_a_report_of_a_check_needs_no_action(fixtures: Fixtures, action: Body) -> None:
    """The released clients send "" where their caller named none."""
    told = {"request_id": unique("check"), "agent_id": "default", "status": "success"}
    assert fixtures.post("action/report", {**told, **action}).get_json()["duplicate"] is False
    assert [
        fixtures.post("action/report", {**told, **other}).get_json()["duplicate"] for other in ({}, {"action": ""})
    ] == [True, True]
    assert fixtures.post("action/report", {**told, "action": "refund.create"}).status_code == 409
    assert fixtures.post("action/report", {**told, "action": " "}).status_code == 400
    kept = json.loads(str(fixtures.one("select body from sentinel.events where kind = 'check_report'")))
    assert kept.items() >= told.items()
    assert "action" not in kept


def test_an_error_with_half_a_character_does_not_lose_its_report(fixtures: Fixtures) -> None:
    body = started(fixtures)
    assert fixtures.report(body, "error", error="cut here: \ud83d").status_code == 200
    assert status(fixtures, body) == ("in_doubt", "error_reported")


def test_numbers_are_taken_as_they_are_in_a_result_alone(fixtures: Fixtures) -> None:
    body = started(fixtures)
    report = {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}
    for name in ("agent_id", "idempotency_key", "report_id", "error", "outcome", "permit_token"):
        answer = sent(fixtures, "action/guard/report", {**report, name: 0.25}, b"1")
        assert (answer.status_code, list(answer.get_json()["errors"])) == (400, [name]), answer.text
    assert sent(fixtures, "action/guard/report", report, b'{"a": 1, "a": 1}').status_code == 400


def test_concurrent_contradicting_reports_record_one(fixtures: Fixtures) -> None:
    body = started(fixtures)
    fields = {name: body[name] for name in ("idempotency_key", "action", "agent_id")}
    answers = at_once([
        lambda told=told: fixtures.app.test_client().post(
            "/api/sentinel/action/guard/report", json={**fields, "outcome": told}, headers={"X-API-Key": fixtures.key}).status_code
        for told in ["success", "error"] * 6
    ])  # fmt: skip
    assert sorted(answers) == [200] * 6 + [409] * 6  # type: ignore[type-var]
    assert fixtures.broken_invariants() == []


def test_a_report_needs_a_start_and_matches_key_action_and_agent(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    assert fixtures.report(body).status_code == 403, "nothing was guarded"
    answer = fixtures.guard(body)
    assert fixtures.report(body).status_code == 409, "nothing was started"
    fixtures.start(body, answer)
    assert fixtures.report(body | {"agent_id": "another-agent"}).status_code == 403
    assert fixtures.report(body | {"action": "refund.create2"}).status_code == 403
    assert fixtures.report(body, resource="refund/other").status_code == 403
    assert fixtures.report(body, risk_class="high").status_code == 403
    token = answer["permit_token"]
    assert fixtures.report(body, permit_token=token[:-2] + ("AA" if token[-2:] != "AA" else "BB")).status_code == 403
    assert (
        fixtures.report(
            body, permit_token=token, resource=answer["resource"], risk_class="standard", report_id=str(uuid.uuid4())
        ).status_code
        == 200
    )
    assert fixtures.broken_invariants() == []


def test_a_report_of_an_abandoned_permit_does_not_capture(database_url: str) -> None:
    fixtures = make_fixtures(database_url)
    try:
        body = guard_body(value=40)
        old = fixtures.guard(body)
        let_permits_expire(fixtures)
        new = fixtures.guard(body)
        fixtures.post("action/guard/start", start_body(body, new))
        assert fixtures.report(body, permit_token=old["permit_token"]).status_code == 403
        assert fixtures.report(body, permit_token=new["permit_token"]).status_code == 200
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()
