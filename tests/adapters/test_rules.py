"""The rules that every adapter keeps: one table of tests, each run against every adapter with the real package.

The authority, its database and the adapters are real; the model is scripted and the provider notes what it is asked to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests.adapters.conftest import Agent
from tests.adapters.proxy_processes import relay
from tests.support.scripted_server import Asked, ScriptedServer, faults

FORMS = [
    ("plain", "sync"), ("plain", "async"), ("langchain", "sync"), ("langchain", "async"),
    ("openai_agents", "asked"), ("openai_agents", "naive"), ("openai_agents", "postgres"),
    ("pydantic_ai", "run"), ("pydantic_ai_dbos", "workflows"),
    ("claude_agent_sdk", "defer"), ("mcp_proxy", "modern"), ("mcp_proxy", "legacy"), ("mcp_proxy", "tasks"),
]  # fmt: skip
"""Adapter and form. "naive": who goes on approves whatever interrupts, without looking at the authority."""
NEEDS_PERSON = 40_000
OVER_LIMIT = 500_000

DEAR = ("claude_agent_sdk",)
"""A program that takes seconds to start: tried with the first values of a rule."""

every_adapter = pytest.mark.parametrize("agent", FORMS, indirect=True, ids=["-".join(one) for one in FORMS])


def every_adapter_with(name: str, values: list[Any], *, of_dear: int) -> pytest.MarkDecorator:
    """Each adapter with each value of a parameter, the dear one with the first `of_dear`."""
    cases = [(form, value) for form in FORMS for value in (values[:of_dear] if form[0] in DEAR else values)]
    ids = [f"{'-'.join(form)}-{str(value)[:30]}" for form, value in cases]
    return pytest.mark.parametrize(("agent", name), cases, indirect=["agent"], ids=ids)


def messages_of(answer: dict[str, Any]) -> str:
    """All that the model was told."""
    return " ".join(answer["messages"])


@every_adapter
def test_what_is_allowed_runs_once_with_what_is_injected_and_is_reported(agent: Agent) -> None:
    answer = agent.begin(agent.refund())
    assert len(answer["calls"]) == 1 and "done: create_refund" in messages_of(answer) and not answer["waiting"]
    call = answer["calls"][0]
    assert (call["payment_intent"], call["amount"]) == (agent.payment, 5000)
    assert len(call["request_key"]) == 36, "the operation's id reaches the provider"
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:5000", "completed", "success")]


@every_adapter
def test_what_is_denied_is_not_called_and_the_model_reads_why(agent: Agent) -> None:
    answer = agent.begin(agent.refund(OVER_LIMIT))
    assert answer["calls"] == [] and "over_limit" in messages_of(answer) and "Not executed" in messages_of(answer)


@every_adapter
@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("wire_money", {"account": "x"}, "unmapped_tool"),
        ("create_refund", {"amount": 5000, "request_key": "mine"}, "unmapped_argument"),
        ("create_refund", {"amount": 5000, "reason": "x", "payment_intent": "pi 1"}, "mapping_failed"),
    ],
)
def test_what_is_not_mapped_is_not_called(agent: Agent, tool: str, arguments: dict[str, Any], reason: str) -> None:
    given = arguments if tool == "wire_money" else {"payment_intent": agent.payment, **arguments}
    answer = agent.begin(agent.call(tool, **given))
    assert answer["calls"] == [] and reason in messages_of(answer)
    assert agent.place.operations(agent.payment) == []


@every_adapter
def test_a_tool_that_the_table_lets_run_unguarded_runs(agent: Agent) -> None:
    answer = agent.begin(agent.call("look_up", payment_intent=agent.payment))
    assert [call["tool"] for call in answer["calls"]] == ["look_up"]
    assert agent.place.operations(agent.payment) == []


@every_adapter
def test_what_needs_a_person_waits_and_runs_once_when_approved(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    assert waiting["calls"] == [] and len(waiting["waiting"]) == 1
    agent.place.vote(waiting["waiting"][0])
    answer = agent.resume()
    assert len(answer["calls"]) == 1 and answer["waiting"] == []
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:40000", "completed", "success")]


@every_adapter_with("value", ["approve", {"type": "approve"}, {"decisions": [{"type": "approve"}]}, True], of_dear=2)
def test_a_resume_is_no_approval(agent: Agent, value: Any) -> None:
    call = agent.refund(NEEDS_PERSON)
    waiting = agent.begin(call)
    for _ in range(2):
        answer = agent.go_on(call, value=value)
        assert answer["calls"] == []
        assert answer["waiting"] == waiting["waiting"] or "approval_pending" in messages_of(answer)
    agent.place.vote(waiting["waiting"][0])
    last = agent.go_on(call, value={"type": "reject"})
    assert len(last["calls"]) == 1, "nor is it a rejection: the authority's word counts"


@every_adapter
def test_what_a_person_rejected_is_not_called(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    agent.place.vote(waiting["waiting"][0], "reject")
    answer = agent.resume()
    assert answer["calls"] == [] and "approval_rejected" in messages_of(answer) and answer["waiting"] == []


@every_adapter
def test_waiting_survives_the_process(agent: Agent) -> None:
    call = agent.refund(NEEDS_PERSON)
    waiting = agent.begin(call)
    agent.kill()
    assert agent.resume()["calls"] == []
    agent.kill()
    agent.place.vote(waiting["waiting"][0])
    answer = agent.go_on(call)
    assert len(answer["calls"]) == 1 and answer["calls"][0]["amount"] == NEEDS_PERSON


@every_adapter
def test_a_process_that_dies_in_the_tool_does_not_call_it_again(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    agent.place.vote(waiting["waiting"][0])
    assert agent.resume(shop="dies").get("died")
    assert agent.resume()["calls"] == []
    again = agent.begin(agent.refund(NEEDS_PERSON))
    assert again["calls"] == [] and "already_started" in messages_of(again), "nor under a new call id in a new run"


@every_adapter
@pytest.mark.parametrize("route", ["guard", "start"])
def test_a_process_killed_between_the_permission_and_the_tool_asks_again(
    agent: Agent, faulty: ScriptedServer, route: str
) -> None:
    """Killed when the authority has said that it may be done, and when it has recorded the start: the tool was not called yet."""
    call = agent.refund(NEEDS_PERSON)
    agent.place.vote(agent.begin(call)["waiting"][0])
    killed: list[Any] = []

    def kill(asked: Asked) -> None:
        if asked.method == "POST" and asked.path.endswith(f"/{route}") and agent.process is not None and not killed:
            killed.append(agent.process)
            agent.process.kill()

    faulty.script = relay(agent.place.url, lambda asked: True, kill)
    with pytest.raises(AssertionError, match="no answer"):
        agent.resume(url=faulty.url)
    assert len(killed) == 1 and [status for _, status, _ in agent.place.operations(agent.payment)] == [
        "approved" if route == "guard" else "started"
    ]
    asked_before = len(faulty.asked)
    answer = agent.go_on(call, value="reject", url=faulty.url)
    asked_again = [one.path for one in faulty.asked[asked_before:] if one.path.endswith("/guard")]
    assert asked_again, "whatever the framework says, the authority is asked"
    assert len(answer["calls"]) == (1 if route == "guard" else 0)
    outcome = "success" if route == "guard" else None
    assert [found for _, _, found in agent.place.operations(agent.payment)] == [outcome]
    again = agent.begin(agent.refund(NEEDS_PERSON))
    assert again["calls"] == [] and "already_started" in messages_of(again)


@every_adapter
def test_a_changed_argument_is_another_operation_and_an_approval_is_of_no_use_to_it(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    agent.place.vote(waiting["waiting"][0])
    other = agent.begin(agent.refund(NEEDS_PERSON + 1))
    assert other["calls"] == [] and other["waiting"] != waiting["waiting"]
    same_key = agent.begin(agent.refund(NEEDS_PERSON, reason="another"))
    assert same_key["calls"] == [] and "idempotency_key_reused" in messages_of(same_key)


def known(agent: Agent, **changed: Any) -> dict[str, Any]:
    """What the program knows by now."""
    return {"account": f"acct-{agent.payment}", "clean": True, "attempts": 1, **changed}


@every_adapter
def test_what_a_person_approved_goes_on_although_a_count_has_changed(agent: Agent) -> None:
    """The finding: it was refused for ever, for its question was no longer the one that was first asked."""
    call = agent.refund(NEEDS_PERSON)
    waiting = agent.begin(call)
    changed = known(agent, attempts=2)
    still = agent.resume(facts=changed)
    assert still["calls"] == [] and "idempotency_key_reused" not in messages_of(still)
    agent.place.vote(waiting["waiting"][0])
    answer = agent.go_on(call, facts=changed)
    assert [one["amount"] for one in answer["calls"]] == [NEEDS_PERSON]
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:40000", "completed", "success")]
    again = agent.begin(agent.refund(NEEDS_PERSON), facts=known(agent, clean=False, attempts=3))
    assert again["calls"] == [] and "already_started" in messages_of(again), "whatever its own effect changed"


@every_adapter
@pytest.mark.parametrize(
    ("worse", "reason"), [({"clean": False}, "duplicate_refund"), ({"attempts": 4}, "facts_changed")]
)
def test_what_a_person_approved_is_not_done_under_worse_facts(agent: Agent, worse: dict[str, Any], reason: str) -> None:
    call = agent.refund(NEEDS_PERSON)
    agent.place.vote(agent.begin(call)["waiting"][0])
    refused = agent.resume(facts=known(agent, **worse))
    assert refused["calls"] == [] and reason in messages_of(refused)
    assert "Do not call it again" not in messages_of(refused), "what was decided stands"
    other = agent.begin(agent.refund(NEEDS_PERSON, reason="another"), facts=known(agent, attempts=2))
    assert other["calls"] == [] and "idempotency_key_reused" in messages_of(other)
    assert len(agent.begin(agent.refund(NEEDS_PERSON))["calls"]) == 1


@every_adapter
def test_the_same_effect_under_a_new_call_id_is_stopped(agent: Agent) -> None:
    first = agent.refund()
    assert len(agent.begin(first)["calls"]) == 1
    for again in (first, agent.refund()):
        answer = agent.begin(again)
        assert answer["calls"] == [] and "already_started" in messages_of(answer)


@every_adapter
def test_the_same_refund_through_another_tool_is_stopped(agent: Agent) -> None:
    assert len(agent.begin(agent.refund())["calls"]) == 1
    answer = agent.begin(agent.call("refund_charge", charge=agent.payment, amount=5000))
    assert answer["calls"] == [] and "duplicate_resource" in messages_of(answer)


@every_adapter
def test_parallel_calls_of_one_turn_are_operations_of_their_own(agent: Agent) -> None:
    calls = [agent.refund(100 + number, payment_intent=f"{agent.payment}-{number}") for number in range(3)]
    large = agent.refund(NEEDS_PERSON, payment_intent=f"{agent.payment}-large")
    huge = agent.refund(OVER_LIMIT, payment_intent=f"{agent.payment}-huge")
    answer = agent.begin(*calls, large, huge)
    amounts = [call["amount"] for call in answer["calls"]]
    assert sorted(amounts) == [100, 101, 102] and len(answer["waiting"]) == 1
    agent.place.vote(answer["waiting"][0])
    assert [call["amount"] for call in agent.resume()["calls"]] == [NEEDS_PERSON]
    found = {key: outcome for key, _, outcome in agent.place.operations(agent.payment)}
    assert len(found) == 5 and list(found.values()).count("success") == 4


@every_adapter
def test_two_same_calls_of_one_turn_are_one_effect(agent: Agent) -> None:
    answer = agent.begin(agent.refund(), agent.refund())
    assert len(answer["calls"]) == 1 and len(agent.place.operations(agent.payment)) == 1


@every_adapter
def test_a_tool_that_fails_is_in_doubt_and_not_called_again(agent: Agent) -> None:
    answer = agent.begin(agent.refund(), shop="raises")
    assert len(answer["calls"]) == 1
    assert [status for _, status, _ in agent.place.operations(agent.payment)] == ["in_doubt"]
    again = agent.begin(agent.refund())
    assert again["calls"] == [] and "already_started" in messages_of(again)


@every_adapter
def test_a_halt_stops_what_was_approved_until_it_is_lifted(agent: Agent) -> None:
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    agent.place.vote(waiting["waiting"][0])
    fixtures = agent.place.fixtures
    actor = local_administrator(fixtures.tenant_id)
    halt = set_halt(fixtures.console_pool, actor, scope="agent", target=agent.agent_id, reason="drill")
    stopped = agent.resume()
    assert stopped["calls"] == [] and "halted" in messages_of(stopped)
    assert "Do not call it again" not in messages_of(stopped), "what was decided stands"
    lift_halt(fixtures.console_pool, actor, halt.halt_id, reason="over")
    assert len(agent.begin(agent.refund(NEEDS_PERSON))["calls"]) == 1


@every_adapter
def test_facts_that_the_program_does_not_know_tighten(agent: Agent) -> None:
    answer = agent.begin(agent.refund(), facts={"account": "acct-x"})
    assert answer["calls"] == [] and "fact_missing" in messages_of(answer)
    assert agent.begin(agent.refund(), facts={"clean": "yes"})["calls"] == []


@pytest.mark.parametrize(
    "agent", [("langchain", "sync"), ("langchain", "async"), ("openai_agents", "asked"), ("pydantic_ai", "run")], indirect=True
)  # fmt: skip
def test_a_span_names_the_call_and_its_conversation_and_has_no_argument(agent: Agent) -> None:
    call = agent.refund()
    spans = agent.begin(call, agent.refund(OVER_LIMIT, payment_intent=f"{agent.payment}-2"), spans=True)["spans"]
    tools = {one["gen_ai.tool.call.id"]: one for one in spans if one["name"] == "execute_tool"}
    done = tools.pop(call["id"])
    assert done["sentinel.decision"] == "ALLOW" and done["gen_ai.tool.name"] == "local/create_refund"
    (refused,) = tools.values()
    assert (refused["sentinel.decision"], refused["sentinel.reason_code"]) == ("DENY", "over_limit")
    assert {one["gen_ai.conversation.id"] for one in (done, refused)} == {agent.thread}
    assert agent.payment not in str(spans)
    # As a word: an id may have the digits.
    assert re.search(r"\b(5000|50\.00)\b", str(spans)) is None, "no amount"


ALLOW = b'{"decision": "ALLOW", "status": "allowed"}'


@pytest.fixture(scope="module")
def faulty() -> Iterator[ScriptedServer]:
    """A server in the authority's place."""
    with ScriptedServer().running() as server:
        yield server


FAULTS: dict[str, tuple[Callable[[Any], None], str]] = {
    name: faults(ALLOW)[name]
    for name in ("hangs", "500", "two answers", "drips its body", "resets", "is cut off", "redirect", "empty")
}
"""One of each kind, first a silence, an error and garbage; every one of them is tried on the client itself."""


@every_adapter_with("fault", ["nobody listens", *FAULTS], of_dear=4)
def test_a_lost_authority_means_that_the_tool_is_not_called(agent: Agent, faulty: ScriptedServer, fault: str) -> None:
    url = "http://127.0.0.1:9"
    if fault in FAULTS:
        faulty.script, url = FAULTS[fault][0], faulty.url
    answer = agent.begin(agent.refund(), url=url, timeout=0.3)
    assert answer["calls"] == [] and not answer["waiting"]
    assert "Not executed" in messages_of(answer) or answer["raised"]


OUTAGES: dict[str, dict[str, Any]] = {
    "authority": {"url": "http://127.0.0.1:9", "timeout": 0.3}, "facts": {"facts": "away"}, "key": {"key": "snt_live_of_nobody"},
}  # fmt: skip
KEEP_WAITING = [form for form in FORMS if form[0] in ("langchain", "pydantic_ai", "pydantic_ai_dbos")]
"""What waits there is the framework's to keep, as it is in these: who calls again, or approves whatever interrupts, needs nothing kept."""
KEEP_WAITING += [("openai_agents", "asked"), ("openai_agents", "postgres"), ("mcp_proxy", "tasks")]
RESUMED = [(form, outage) for form in KEEP_WAITING for outage in OUTAGES if (form[0], outage) != ("mcp_proxy", "key")]
"""A proxy with another key knows no task of this one."""


@pytest.mark.parametrize(
    ("agent", "outage"), RESUMED, indirect=["agent"], ids=[f"{'-'.join(form)}-{outage}" for form, outage in RESUMED]
)
def test_what_waits_goes_on_after_an_outage_in_which_it_was_resumed(agent: Agent, outage: str) -> None:
    """The finding: the model was told that there was no answer, the interruption was gone, and nobody went on once a person had approved."""
    waiting = agent.begin(agent.refund(NEEDS_PERSON))
    for _ in range(2):
        away = agent.resume(**OUTAGES[outage])
        assert away["calls"] == []
    agent.place.vote(waiting["waiting"][0])
    assert [call["amount"] for call in agent.resume()["calls"]] == [NEEDS_PERSON]
    assert agent.place.operations(agent.payment) == [(f"refund:{agent.payment}:40000", "completed", "success")]


RULES_THAT_TURN_RED: dict[str, Callable[[Agent, ScriptedServer], None]] = {
    "resume": lambda agent, faulty: test_a_resume_is_no_approval(agent, "approve"),
    "silence": lambda agent, faulty: test_a_lost_authority_means_that_the_tool_is_not_called(
        agent, faulty, "nobody listens"
    ),
    "report": lambda agent, faulty: test_what_is_allowed_runs_once_with_what_is_injected_and_is_reported(agent),
    "same effect": lambda agent, faulty: test_the_same_effect_under_a_new_call_id_is_stopped(agent),
    "in doubt": lambda agent, faulty: test_a_tool_that_fails_is_in_doubt_and_not_called_again(agent),
}


@pytest.mark.parametrize("agent", [("trusting", "sync")], indirect=True)
@pytest.mark.parametrize("rule", RULES_THAT_TURN_RED)
def test_the_mutant_that_trusts_its_framework_is_seen(agent: Agent, faulty: ScriptedServer, rule: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        RULES_THAT_TURN_RED[rule](agent, faulty)
