"""Released AuthZEN clients, unmodified: a plain one, a firewall's engine, and the backend of an agent governance toolkit."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests.adapters.conftest import Place
from tests.support.adapter_environments import REPO, NotInstalled, environment_variables, interpreter_of
from tests.support.fixtures import guard_body

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("authzen-clients")]
Ask = Callable[..., dict[str, Any]]
FACTS = {"account": "acct", "clean": True, "attempts": 1}


@pytest.fixture(scope="module")
def ask(place: Place) -> Iterator[Ask]:
    """Sends a command to the process of the clients and gives its answer."""
    try:
        python = interpreter_of("authzen")
    except NotInstalled as error:
        pytest.skip(str(error))
    process = subprocess.Popen(
        [str(python), "-m", "tests.adapters.drive_authzen"], cwd=REPO, env=environment_variables(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    given, got = process.stdin, process.stdout

    def send(client: str, **command: Any) -> dict[str, Any]:
        given.write(json.dumps({"client": client, "url": place.url, "key": place.fixtures.key, **command}) + "\n")
        given.flush()
        return dict(json.loads(got.readline()))

    yield send
    process.kill()
    process.communicate()


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def refund(value: int, key: str) -> dict[str, Any]:
    """What decern is asked about a refund named by its action."""
    body = guard_body(key, value=value)
    return {
        "subject": {"type": "agent", "id": body["agent_id"]}, "action": {"name": body["action"], "properties": body["params"]},
        "resource": {"type": "refund", "id": body["resource"]}, "context": {"idempotency_key": key},
    }  # fmt: skip


def test_decern_is_answered_and_told_true_once(ask: Ask, place: Place) -> None:
    small, large = refund(40, fresh("k")), refund(400, fresh("k"))
    assert ask("decern", **small) == {"allowed": True, "reasons": ["within_policy_limit"]}
    assert ask("decern", **small)["reasons"] == ["already_started"]
    assert ask("decern", **large)["allowed"] is False
    assert ask("decern", **refund(5000, fresh("k")))["reasons"] == ["over_limit"]
    assert "401" in ask("decern", **small, key="snt_live_nobody")["raised"]
    key = large["context"]["idempotency_key"]
    place.vote(pending_approval(place, key))
    assert ask("decern", **large)["allowed"] is True


def gift(amount: str, order: str) -> dict[str, Any]:
    """A call in the shape of one model provider, of a tool whose facts are all in the table."""
    arguments = {"payment_intent": order, "amount": amount}
    return {"type": "function", "id": "call_1", "function": {"name": "Pay_Back ", "arguments": json.dumps(arguments)}}


def test_apparitor_lets_a_message_through_only_if_all_of_it_is_allowed(ask: Ask, place: Place) -> None:
    agent, order = fresh("agent"), fresh("pi")
    one = {"agent": agent, "calls": [gift("5.00", order)]}
    assert ask("apparitor", **one) == {"allowed": True, "status": "success"}
    assert ask("apparitor", **one)["allowed"] is False, "it was told true before"
    assert place.operations(order) == [(f"pay-back:{order}", "started", None)]
    pair = [gift("5.00", fresh("pi")), gift("400.00", fresh("pi"))]
    assert ask("apparitor", agent=agent, calls=pair)["allowed"] is False, "one of them needs a person"
    assert ask("apparitor", agent=agent, calls=[gift("5.00", fresh("pi"))], redact=True)["allowed"] is False
    both = [gift("5.00", fresh("pi")), gift("6.00", fresh("pi"))]
    assert ask("apparitor", agent=agent, calls=both)["allowed"] is True


def test_the_policy_backend_is_told_yes_no_and_why(ask: Ask, place: Place) -> None:
    def evaluate(amount: int, payment: str, **over: Any) -> dict[str, Any]:
        context = {
            "tool_name": "create_refund", "agent_id": "auth:agent:mesh:refunds", "confidence": 0.9,
            "arguments": {"payment_intent": payment, "amount": amount}, "facts": {**FACTS, "account": payment}, **over,
        }  # fmt: skip
        return ask("policy_backend", context=context)

    payment = fresh("pi")
    assert evaluate(5000, payment)["allowed"] is True
    assert evaluate(5000, payment)["reason"] == "It was started before and may have happened. [already_started]"
    waiting = evaluate(40_000, payment + "b")
    assert waiting["allowed"] is False and "needs_approval" in waiting["reason"]
    place.vote(pending_approval(place, payment + "b"))
    assert evaluate(40_000, payment + "b")["allowed"] is True
    assert "unmapped_tool" in evaluate(1, payment, tool_name="wire_money")["reason"]
    assert evaluate(1, payment, tool_name="look_up", arguments={"payment_intent": payment})["allowed"] is True


def test_a_halt_is_false_for_each_of_them(ask: Ask, place: Place) -> None:
    fixtures = place.fixtures
    actor = local_administrator(fixtures.tenant_id)
    halt = set_halt(fixtures.console_pool, actor, scope="action", target="refund.create", reason="drill")
    try:
        assert ask("decern", **refund(40, fresh("k")))["reasons"] == ["halted"]
        assert ask("apparitor", agent=fresh("a"), calls=[gift("5.00", fresh("pi"))])["allowed"] is False
        context = {
            "tool_name": "create_refund",
            "agent_id": "auth:agent:m:a",
            "facts": FACTS,
            "arguments": {"payment_intent": fresh("pi"), "amount": 5},
        }
        assert "halted" in ask("policy_backend", context=context)["reason"]
    finally:
        lift_halt(fixtures.console_pool, actor, halt.halt_id, reason="over")


def test_an_authority_that_is_not_there_is_no(ask: Ask) -> None:
    nowhere = "http://127.0.0.1:9"
    assert "raised" in ask("decern", **refund(1, fresh("k")), url=nowhere)
    assert ask("apparitor", agent="a", calls=[gift("5.00", fresh("pi"))], url=nowhere) == {
        "allowed": False,
        "status": "error",
    }
    assert ask("policy_backend", context={"tool_name": "look_up"}, url=nowhere)["allowed"] is False


def pending_approval(place: Place, key: str) -> str:
    """The approval that an operation waits for."""
    return str(place.fixtures.one(
        "select s.approval_id from sentinel.operations o join sentinel.operation_states s using (operation_id, tenant_id)"
        " where position(%s in o.idempotency_key) > 0 and s.status = 'pending'", key,
    ))  # fmt: skip
