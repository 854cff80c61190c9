"""LangChain: a failure that a tool answers is one, what LangGraph would not call is not started, and what waits is kept in an outage."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.conftest import Agent
from tests.adapters.test_rules import NEEDS_PERSON, messages_of

langchain = pytest.mark.parametrize(
    "agent", [("langchain", "sync"), ("langchain", "async")], indirect=True, ids=["sync", "async"]
)


@langchain
@pytest.mark.parametrize("answer", ["command", "list", "list of commands"])
def test_a_tool_that_answers_its_failure_is_in_doubt(agent: Agent, answer: str) -> None:
    found = agent.begin(agent.refund(), refund=answer)
    assert len(found["calls"]) == 1 and "card_declined" in messages_of(found)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "in_doubt", "error")]


@langchain
@pytest.mark.parametrize("handled", [False, True], ids=["raised", "made a message by the graph"])
def test_a_tool_whose_mcp_server_does_not_answer_is_not_reported(agent: Agent, handled: bool) -> None:
    found = agent.begin(agent.refund(), refund="unanswered", handled=handled)
    assert len(found["calls"]) == 1 and ("Timed out while waiting" in messages_of(found)) is handled
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "started", None)]


@langchain
def test_a_failure_that_the_graph_makes_a_message_of_is_in_doubt(agent: Agent) -> None:
    found = agent.begin(agent.refund(), handled=True, shop="raises")
    assert len(found["calls"]) == 1 and messages_of(found)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "in_doubt", "error")]


@langchain
def test_a_failure_of_another_call_that_a_tool_repeats_is_not_its_own(agent: Agent) -> None:
    found = agent.begin(agent.refund(), refund="success after an earlier failure")
    assert len(found["calls"]) == 1
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "completed", "success")]


@langchain
@pytest.mark.parametrize(
    ("refund", "over", "told"),
    [
        ("none", {}, "unknown_tool"),
        ("strict", {"reason": "other"}, "the argument reason: Input should be 'fraudulent' [malformed_argument]"),
        ("strict", {}, "the argument reason: Field required [malformed_argument]"),
    ],
)
def test_what_langgraph_would_not_call_is_not_started(
    agent: Agent, refund: str, over: dict[str, Any], told: str
) -> None:
    found = agent.begin(agent.refund(**over), refund=refund)
    assert found["calls"] == [] and told in messages_of(found)
    assert agent.place.operations(agent.payment) == []
    again = agent.begin(agent.refund(reason="fraudulent"), refund="strict")
    assert len(again["calls"]) == 1, "the key is free"


@langchain
def test_a_resume_that_names_no_interrupt_keeps_what_waits_in_an_outage_too(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    away = agent.resume(at_large=True, url="http://127.0.0.1:9", timeout=0.3)
    assert away["calls"] == [] and len(away["waiting"]) == 1
    agent.place.vote(waiting["waiting"][0])
    assert [call["amount"] for call in agent.resume(at_large=True)["calls"]] == [NEEDS_PERSON]
