"""The Agent Approval Protocol's released clients, unmodified, in three frameworks: what they let run, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.conftest import Agent

CLIENTS = [
    ("aap_langgraph", "sync"),
    ("aap_langgraph", "async"),
    ("aap_openai_agents", "run"),
    ("aap_pydantic_ai", "run"),
]
NEEDS_PERSON, OVER_LIMIT = 40_000, 500_000


def clients(named: list[tuple[str, str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("agent", named, indirect=True, ids=["-".join(one) for one in named])


every_client = clients(CLIENTS)


def begin(agent: Agent, *calls: dict[str, Any], **over: Any) -> dict[str, Any]:
    """A run whose instance is a key bound to this agent."""
    agent.instance = agent.instance or agent.place.fixtures.new_key(agent_id=agent.agent_id)
    return agent.begin(*calls, key=agent.instance, **over)


def resume(agent: Agent) -> dict[str, Any]:
    """Go on with the run, as a webhook about its newest request would have it; who resumes says "approve" each time."""
    newest = agent.place.fixtures.one(
        "select request_id::text from sentinel.aap_requests where agent_id = %s order by created_at desc limit 1",
        agent.agent_id,
    )
    return agent.resume(value=newest, key=agent.instance)


def approve(agent: Agent) -> None:
    approval = agent.place.fixtures.one(
        "select s.approval_id from sentinel.operations o join sentinel.operation_states s using (operation_id, tenant_id)"
        " where o.agent_id = %s and s.status = 'pending'", agent.agent_id)  # fmt: skip
    agent.place.vote(approval)


def messages_of(answer: dict[str, Any]) -> str:
    return " ".join(answer["messages"])


@every_client
def test_what_is_allowed_runs_once_and_its_outcome_is_on_record(agent: Agent) -> None:
    answer = begin(agent, agent.refund())
    assert [one["amount"] for one in answer["calls"]] == [5000], messages_of(answer)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "completed", "success")]


@every_client
def test_what_is_denied_or_unmapped_is_not_called_and_the_model_reads_why(agent: Agent) -> None:
    answer = begin(agent, agent.refund(OVER_LIMIT))
    assert answer["calls"] == [] and "over_limit" in messages_of(answer)
    answer = begin(agent, agent.call("wire_money", account="x"))
    assert answer["calls"] == [] and "unmapped_tool" in messages_of(answer)


@every_client
def test_what_needs_a_person_outlives_its_process_and_no_resume_is_an_approval(agent: Agent) -> None:
    waiting = begin(agent, agent.refund(NEEDS_PERSON))
    assert waiting["calls"] == [] and len(waiting["waiting"]) == 1
    if agent.name != "aap_openai_agents":  # whose receiver is only called once it is decided
        assert resume(agent)["calls"] == []
    if agent.form != "async":  # whose other form did; importing a framework is what takes the time
        agent.kill()
    approve(agent)
    answer = resume(agent)
    assert [one["amount"] for one in answer["calls"]] == [NEEDS_PERSON], messages_of(answer)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:{NEEDS_PERSON}", "completed", "success")]


@every_client
def test_the_same_effect_under_a_new_call_id_is_not_called_again(agent: Agent) -> None:
    assert len(begin(agent, agent.refund())["calls"]) == 1
    again = begin(agent, agent.refund())
    assert again["calls"] == [] and "completed" in messages_of(again)
    other = begin(agent, agent.call("refund_charge", charge=agent.payment, amount=5000))
    assert other["calls"] == [] and "duplicate_resource" in messages_of(other)


@clients([one for one in CLIENTS if one[0] != "aap_openai_agents"])
def test_a_tool_that_raises_is_in_doubt(agent: Agent) -> None:
    """The released client for OpenAI agents reports what the SDK turned into a message as a success."""
    assert len(begin(agent, agent.refund(), shop="raises")["calls"]) == 1
    assert [status for _, status, _ in agent.place.operations(agent.payment)] == ["in_doubt"]


@every_client
def test_without_a_credential_nothing_is_called(agent: Agent) -> None:
    agent.instance = "snt_live_nobody"
    answer = begin(agent, agent.refund())
    assert answer["calls"] == [] and "credential" in messages_of(answer)
