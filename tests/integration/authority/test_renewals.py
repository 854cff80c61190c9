"""A permit that ran out: its renewal asks everything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.authority.keys import DEFAULT_SCOPES
from tests.support.fixtures import AGENT, Fixtures, guard_body, make_fixtures, start_body, unique
from tests.support.harness import at_once, decide, let_permits_expire
from tests.support.lifecycle import fill_account, policy_change

pytestmark = pytest.mark.usefixtures("patient")
Body = dict[str, Any]


def asked_after_policy_change(fixtures: Fixtures, folder: Path, old: str, new: str) -> tuple[Body, Body]:
    """A question about 140 USD whose permit ran out, and its answer after the policy's text changed."""
    body = guard_body(value=140)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    policy_change(fixtures, folder, old, new)
    return body, fixtures.guard(body)


def test_an_expired_permit_is_renewed_under_the_recorded_decision(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    first = fixtures.guard(body)
    let_permits_expire(fixtures)
    renewed = fixtures.guard(body)
    assert renewed["status"] == "allowed"
    assert renewed["proof_pack"] == first["proof_pack"]
    assert renewed["permit_expires_at"] > first["permit_expires_at"]
    assert fixtures.one("select count(*) from sentinel.reservations where state = 'held'") == 1
    assert fixtures.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_became_stricter_with_a_final_refusal(fixtures: Fixtures, tmp_path: Path) -> None:
    body, refused = asked_after_policy_change(
        fixtures, tmp_path, 'approve_up_to: {USD: "1000.00"', 'approve_up_to: {USD: "100.00"'
    )
    assert (refused["decision"], refused["status"], refused["reason_code"]) == ("DENY", "denied", "over_limit")
    assert "permit_token" not in refused
    assert fixtures.guard(body)["status"] == "denied"
    assert fixtures.broken_invariants() == []


def test_a_renewal_meets_a_policy_that_now_wants_a_person_with_a_fresh_question(
    fixtures: Fixtures, tmp_path: Path
) -> None:
    body, asked = asked_after_policy_change(
        fixtures, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"'
    )
    assert (asked["status"], asked["reason_code"], "permit_token" in asked) == (
        "pending",
        "amount_needs_approval",
        False,
    )
    decide(fixtures, asked["approval_id"])
    assert fixtures.guard(body)["status"] == "approved"
    assert fixtures.broken_invariants() == []


def test_a_renewal_without_room_left_asks_a_person(fixtures: Fixtures) -> None:
    account = unique("acct")
    body = guard_body(value=100, params={"account_ref": account})
    fixtures.guard(body)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    fill_account(fixtures, account)
    asked = fixtures.guard(body)
    assert (asked["status"], asked["reason_code"]) == ("pending", "limit_exceeded")
    assert fixtures.broken_invariants() == []


def test_concurrent_renewals_reserve_once(fixtures: Fixtures) -> None:
    body = guard_body(value=40)
    fixtures.guard(body)
    let_permits_expire(fixtures)
    headers = {"X-API-Key": fixtures.key}
    answers = at_once(
        [
            lambda: fixtures.app.test_client().post("/api/sentinel/action/guard", json=body, headers=headers).json
            for _ in range(12)
        ]
    )
    assert len({answer["permit_token"] for answer in answers}) == 1  # type: ignore[index]
    assert fixtures.one("select max(held_minor) from sentinel.usage") == 4000
    assert fixtures.broken_invariants() == []


# A renewal that meets no limit holds none: nothing of what an earlier permit held, and gave back, comes with it.

OUTSIDERS = """\
policy: outsiders
label: Outsiders
version: outsiders-v1
actions: [refund.create]
zone: UTC
facts:
  amount: {type: money, from: params.amount, vouched_by: agent}
  inside: {type: bool, from: params.inside, vouched_by: worker}
rules:
  - {id: small, says: The amount is small., when: amount_minor <= 10000, then: ALLOW, reason: within_policy_limit}
%s
approval: {expires: 4h, role: approver, people: 1}
"""
DAY = """\
limits:
  - {id: day, says: What an agent pays to outsiders in a day., when: "!inside", window: calendar_day, per: [agent, currency], cap: {USD: "100.00"}, then: DENY, reason: limit_exceeded}
"""
HELD = "select coalesce(sum(held_minor), 0)::integer from sentinel.usage"


def let_run_out(fixtures: Fixtures, body: Body) -> None:
    """The permit of this one operation runs out."""
    fixtures.admin.execute(
        "update sentinel.operation_states s set permit_expires_at = clock_timestamp() - interval '1 second' from sentinel.operations o"
        " where o.tenant_id = s.tenant_id and o.operation_id = s.operation_id and o.idempotency_key = %s", [body["idempotency_key"]])  # fmt: skip


@pytest.mark.parametrize("renewed_first", [False, True], ids=["as it was decided", "renewed before"])
@pytest.mark.parametrize("way", ["the limit does not apply to who asks", "the policy has no limit any more"])
def test_a_renewal_that_meets_no_limit_gives_back_nothing_of_anothers(
    database_url: str, tmp_path: Path, way: str, renewed_first: bool
) -> None:
    """The finding: two live permits of 60 each under a cap of 100, and a housekeeper that could not go on."""
    (tmp_path / "outsiders.yaml").write_text(OUTSIDERS % DAY)
    fixtures = make_fixtures(database_url, policies=tmp_path)
    try:
        own = fixtures.new_key(agent_id=AGENT, scopes=DEFAULT_SCOPES)
        workers = fixtures.new_key(agent_id=AGENT)
        first, second, third = (guard_body(value=60, params={"inside": True}) for _ in range(3))
        ask = lambda body, key=own: fixtures.post("action/guard", body, key=key).get_json()  # noqa: E731
        assert ask(first)["decision"] == "ALLOW"
        if renewed_first:
            let_run_out(fixtures, first)
            assert ask(first)["decision"] == "ALLOW"
        let_run_out(fixtures, first)
        if way == "the policy has no limit any more":
            (tmp_path / "outsiders.yaml").write_text(OUTSIDERS % "")
            fixtures.authority.policies.reload()
        assert "permit_token" in ask(first, workers)
        assert (fixtures.one(HELD), fixtures.one("select count(*) from sentinel.reservations")) == (0, 0)
        (tmp_path / "outsiders.yaml").write_text(OUTSIDERS % DAY)
        fixtures.authority.policies.reload()
        assert ask(second)["decision"] == "ALLOW"
        let_run_out(fixtures, first)
        fixtures.run_housekeeping()
        assert fixtures.one(HELD) == 6000, "the second's"
        assert (ask(third)["decision"], ask(third)["reason_code"]) == ("DENY", "limit_exceeded")
        started = fixtures.post("action/guard/start", start_body(second, ask(second)), key=own)
        assert (started.status_code, fixtures.post("action/guard/report", report_of(second), key=own).status_code) == (
            200,
            200,
        )
        assert fixtures.broken_invariants() == []
    finally:
        fixtures.close()


def report_of(body: Body) -> Body:
    return {name: body[name] for name in ("idempotency_key", "action", "agent_id")} | {"outcome": "success"}


def test_an_approval_renewed_without_limits_leaves_the_housekeeper_its_work(fixtures: Fixtures, tmp_path: Path) -> None:
    """The finding: each round failed on it, for every tenant."""
    body, asked = asked_after_policy_change(
        fixtures, tmp_path, 'allow_up_to:   {USD: "150.00"', 'allow_up_to:   {USD: "100.00"'
    )
    decide(fixtures, asked["approval_id"])
    assert "permit_token" in fixtures.guard(body)
    file = tmp_path / "policies" / "retail_refund.yaml"
    text = file.read_text()
    file.write_text(text[: text.index("limits:\n")] + text[text.index("breakers:\n") :])
    fixtures.authority.policies.reload()
    let_permits_expire(fixtures)
    assert "permit_token" in fixtures.guard(body)
    let_permits_expire(fixtures)
    fixtures.run_housekeeping()
    assert fixtures.one(HELD) == 0
    assert fixtures.broken_invariants() == []
