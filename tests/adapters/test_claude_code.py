"""Claude Code's own program with `sentinel hook claude-code` in its settings, against a scripted model service."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.adapters.conftest import Agent

NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000
pytestmark = pytest.mark.parametrize("agent", [("claude_agent_sdk", "command")], indirect=True)


def test_what_is_allowed_runs_once_and_is_reported_and_what_is_denied_does_not_run(agent: Agent) -> None:
    assert [one["tool"] for one in agent.begin(agent.refund())["calls"]] == ["create_refund"]
    assert [outcome for _, _, outcome in agent.place.operations(agent.payment)] == ["success"]
    assert agent.begin(agent.refund())["calls"] == [], "the same effect under a new call id"
    denied = agent.begin(agent.refund(OVER_LIMIT, payment_intent=f"{agent.payment}-2"))
    assert denied["calls"] == [] and "over_limit" in str(denied["messages"])
    assert agent.begin(agent.call("wire_money", account=agent.payment))["calls"] == [], "what no table maps"


def test_what_waits_is_the_same_call_again_once_a_person_approved(agent: Agent) -> None:
    call = agent.refund(NEEDS_PERSON)
    assert agent.begin(call)["calls"] == [] and agent.begin(call)["calls"] == []
    rows = agent.place.fixtures.admin.execute(
        "select approval_id from sentinel.approvals join sentinel.operations using (operation_id, tenant_id)"
        " where position(%s in idempotency_key) > 0", [agent.payment],
    ).fetchall()  # fmt: skip
    ((approval,),) = rows
    agent.place.vote(str(approval))
    assert len(agent.begin(call)["calls"]) == 1 and agent.begin(call)["calls"] == []


def test_without_an_authority_nothing_runs(agent: Agent) -> None:
    place = agent.place
    agent.place = replace(place, url="http://127.0.0.1:9")
    assert agent.begin(agent.refund())["calls"] == []
    agent.place = place
    assert place.operations(agent.payment) == []
