"""What is left of limits is what the next guard is held to, and asking reserves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cli.scratch import listening
from sentinel.client import Client
from tests.support.fixtures import Fixtures, guard_body, make_fixtures, unique

POLICY = """
policy: two-owners
label: Two Owners v1
version: two-owners-v1
actions: [refund.create]
facts:
  agent:   {type: string, from: agent_id}
  account: {type: string, from: params.account_ref, vouched_by: worker}
  amount:  {type: money,  from: params.amount}
numbers: {most: {USD: "1000.00"}}
rules:
  - {id: fine, says: The amount is small enough., when: amount_minor <= numbers.most, then: ALLOW, reason: within_policy_limit}
  - {id: huge, says: The amount is too large., when: amount_minor > numbers.most, then: DENY, reason: over_limit}
limits:
  - {id: account_day, says: What one account gets in a day., window: calendar_day, per: [account, currency], cap: {USD: "100.00"}, then: DENY, reason: limit_exceeded}
  - {id: agent_day, says: What one agent pays in a day., window: rolling 24h, per: [agent, currency], cap: {USD: "250.00"}, then: DENY, reason: total_exceeded}
approval: {expires: 30m, role: approver, people: 1}
"""


def left_of(fixtures: Fixtures, account: str, value: str) -> dict[str, tuple[str, bool]]:
    """Limit → (what is left, whether the value fits)."""
    body = {name: one for name, one in guard_body(value=value, params={"account_ref": account}).items() if name in ("agent_id", "action", "params")}  # fmt: skip
    found = fixtures.post("action/headroom", body).get_json()["limits"]
    return {one["limit"]: (str(one["left"]["value"]), one["fits"]) for one in found}


@pytest.fixture
def fixtures(database_url: str, tmp_path: Path) -> Iterator[Fixtures]:
    """An authority under that policy."""
    (tmp_path / "two.yaml").write_text(POLICY)
    made = make_fixtures(database_url, policies=tmp_path)
    yield made
    made.close()


def test_what_is_left_is_what_the_next_guard_is_held_to(fixtures: Fixtures) -> None:
    account = unique("acct")
    assert left_of(fixtures, account, "100") == {
        "two-owners/account_day": ("100", True),
        "two-owners/agent_day": ("250", True),
    }
    for _ in range(3):  # asking reserves nothing
        left_of(fixtures, account, "100")
    assert (
        fixtures.post("action/guard", guard_body(value="30.50", params={"account_ref": account})).get_json()["decision"]
        == "ALLOW"
    )
    assert left_of(fixtures, account, "69.51") == {
        "two-owners/account_day": ("69.50", False),
        "two-owners/agent_day": ("219.50", True),
    }
    for value, decision in (("69.51", "DENY"), ("69.50", "ALLOW"), ("0.01", "DENY")):
        answer = fixtures.post("action/guard", guard_body(value=value, params={"account_ref": account})).get_json()
        assert answer["decision"] == decision
    assert left_of(fixtures, account, "0.01")["two-owners/account_day"] == ("0", False)
    assert left_of(fixtures, unique("acct"), "1")["two-owners/account_day"] == ("100", True), "the budget of another"


def test_what_the_policy_denies_anyway_has_no_limits(fixtures: Fixtures) -> None:
    assert left_of(fixtures, unique("acct"), "1001") == {}


def test_the_client_reads_it(fixtures: Fixtures) -> None:
    body = guard_body(value="101", params={"account_ref": unique("acct")})
    with listening(fixtures.app) as url, Client(url, fixtures.key, agent_id=body["agent_id"]) as client:
        found = client.headroom(action=body["action"], params=body["params"])
    assert [(one.limit, one.fits, dict(one.left)) for one in found] == [
        ("two-owners/account_day", False, {"value": 100, "currency": "USD"}),
        ("two-owners/agent_day", True, {"value": 250, "currency": "USD"}),
    ]
