"""pydantic-ai beside other capabilities: what they do to a call is done before the authority is asked, and after the outcome is reported."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.conftest import Agent
from tests.adapters.test_rules import NEEDS_PERSON, messages_of

either_order = pytest.mark.parametrize("first", [True, False], ids=["before ours", "after ours"])
pydantic_ai = pytest.mark.parametrize("agent", [("pydantic_ai", "run")], indirect=True)


@pydantic_ai
@either_order
@pytest.mark.parametrize("other", ["changes", "wraps"])
def test_what_another_capability_makes_of_the_arguments_is_what_is_asked_about(
    agent: Agent, other: str, first: bool
) -> None:
    waiting = agent.begin(agent.refund(4000), others=[other], first=first)
    assert waiting["calls"] == [] and len(waiting["waiting"]) == 1
    agent.place.vote(waiting["waiting"][0])
    answer = agent.resume(others=[other], first=first)
    assert [call["amount"] for call in answer["calls"]] == [NEEDS_PERSON]
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:40000", "completed", "success")]


@pydantic_ai
@either_order
@pytest.mark.parametrize("other", ["repeats", "wraps"])
def test_a_capability_that_repeats_a_call_repeats_no_effect(agent: Agent, other: str, first: bool) -> None:
    answer = agent.begin(agent.refund(5000 if other == "repeats" else 500), others=[other], first=first, shop="raises")
    assert len(answer["calls"]) == 1 and "already_started" in messages_of(answer)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "in_doubt", "error")]


@pydantic_ai
@either_order
def test_a_failure_that_a_capability_recovers_is_no_success(agent: Agent, first: bool) -> None:
    answer = agent.begin(agent.refund(), others=["recovers"], first=first, shop="raises")
    assert len(answer["calls"]) == 1 and "recovered" in messages_of(answer)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "in_doubt", "error")]


@pydantic_ai
@either_order
def test_a_tool_that_a_capability_adds_around_the_others_runs_only_where_the_table_lets_it_run_unguarded(
    agent: Agent, first: bool
) -> None:
    look = agent.call("look_up", payment_intent=agent.payment)
    charge = agent.call("refund_charge", charge=agent.payment, amount=5000)
    answer = agent.begin(look, charge, agent.refund(), others=["adds"], first=first)
    assert sorted(call["tool"] for call in answer["calls"]) == ["create_refund", "look_up"]
    assert "tool_not_guardable" in messages_of(answer)
    assert [key for key, _, _ in agent.place.operations(agent.payment)] == [f"refund:{agent.payment}:5000"]


@pydantic_ai
@pytest.mark.parametrize("kind", ["plain", "within", "dynamic"])
def test_a_toolset_that_asks_for_approvals_itself_is_refused(agent: Agent, kind: str) -> None:
    """The finding: its calls were started and then not made, each one in doubt."""
    answer = agent.begin(agent.refund(), asking=kind)
    assert answer["raised"].startswith(
        "UserError: a toolset under approval_required() asks a person only after the authority"
    )
    assert answer["calls"] == [] and agent.place.operations(agent.payment) == []


@pydantic_ai
def test_a_tool_that_overruns_its_timeout_is_not_reported_while_it_may_still_send(agent: Agent) -> None:
    """The finding: its thread goes on, and an error was reported, after which a person may say that it was not executed."""
    agent.begin(agent.refund(), shop="outlasts the run", tool_timeout=0.3)
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "started", None)]
    again = agent.begin(agent.refund())
    assert again["calls"] == [] and "already_started" in messages_of(again)


@pydantic_ai
@pytest.mark.parametrize("raises", ["bare", "to the model", "grouped"])
def test_a_tool_whose_mcp_server_does_not_answer_is_not_reported(agent: Agent, raises: str) -> None:
    answer = agent.begin(agent.refund(), unanswered=raises)
    assert len(answer["calls"]) == 1
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "started", None)]


def _lines(agent: Agent, count: int = 2, **over: Any) -> dict[str, Any]:
    lines = [{"item": "cup", "count": count}]
    return agent.call("refund_lines", payment_intent=agent.payment, currency="USD", lines=lines, day="2026-01-02", **over)  # fmt: skip


@pydantic_ai
def test_parameters_that_are_models_enums_and_dates_are_asked_about_as_json_and_given_as_such(agent: Agent) -> None:
    """The finding: each such call was refused, as not JSON or as of another type, though the model had written what the table wants."""
    answer = agent.begin(_lines(agent), typed=True)
    assert [call["kinds"] for call in answer["calls"]] == [["Currency", "date", "NoneType", "Line"]], messages_of(
        answer
    )
    assert (answer["calls"][0]["items"], answer["calls"][0]["day"]) == ([["cup", 2]], "2026-01-02")
    again = agent.begin(_lines(agent), typed=True)
    assert again["calls"] == [] and "already_started" in messages_of(again)
    agent.begin(_lines(agent, count=3), typed=True)
    assert len(agent.place.operations(agent.payment)) == 2, "a changed line is another operation"


@pydantic_ai
@pytest.mark.parametrize("code", ["a secret", ["one", "other"]], ids=["hidden in JSON", "without an order"])
def test_a_parameter_of_which_json_does_not_say_all_is_refused(agent: Agent, code: Any) -> None:
    answer = agent.begin(_lines(agent, code=code), typed=True)
    assert answer["calls"] == [] and "[malformed_argument]" in messages_of(answer)
    assert agent.place.operations(agent.payment) == []
