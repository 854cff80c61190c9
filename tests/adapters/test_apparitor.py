"""apparitor's own adapters of FastMCP and A2A, unmodified, in front of tools and an agent, with our authority behind them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sentinel.authority.actor import local_administrator
from sentinel.authority.halts import lift_halt, set_halt
from tests.adapters.conftest import Place
from tests.adapters.test_authzen_clients import fresh, pending_approval
from tests.support.adapter_environments import REPO, NotInstalled, environment_variables, interpreter_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("authzen-clients")]
Ask = Callable[..., dict[str, Any]]
REFUSED = "tool call not authorized"


def process_of(place: Place, framework: str) -> Iterator[Ask]:
    """Sends a command to the framework's process and gives its answer."""
    try:
        python = interpreter_of(framework)
    except NotInstalled as error:
        pytest.skip(str(error))
    process = subprocess.Popen(
        [str(python), "-m", f"tests.adapters.drive_{framework}"], cwd=REPO, env=environment_variables(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    given, got = process.stdin, process.stdout

    def send(**command: Any) -> dict[str, Any]:
        given.write(json.dumps({"url": place.url, "key": place.fixtures.key, **command}) + "\n")
        return dict(json.loads(got.readline()))

    yield send
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def fastmcp(place: Place) -> Iterator[Ask]:
    yield from process_of(place, "apparitor_fastmcp")


@pytest.fixture(scope="module")
def a2a(place: Place) -> Iterator[Ask]:
    yield from process_of(place, "apparitor_a2a")


def pay_back(amount: str, payment: str) -> dict[str, Any]:
    return {"tool": "pay_back", "args": {"payment_intent": payment, "amount": amount}}


@pytest.mark.parametrize("static", [False, True])
def test_a_tool_of_fastmcp_runs_once_where_it_is_allowed(fastmcp: Ask, place: Place, static: bool) -> None:
    agent, payment = fresh("agent"), fresh("pi")
    small: dict[str, Any] = {"agent": agent, "static": static, **pay_back("5.00", payment)}
    done = fastmcp(**small)
    assert (done["error"], done["text"]) == (False, "done: pay_back") and len(done["calls"]) == 1
    assert place.operations(payment) == [(f"pay-back:{payment}", "started", None)]
    assert fastmcp(**small) == {"error": True, "text": REFUSED, "calls": []}, "it was told true before"


def test_what_fastmcp_is_refused_or_waits_for_is_not_called(fastmcp: Ask, place: Place) -> None:
    agent, payment = fresh("agent"), fresh("pi")
    huge = fastmcp(agent=agent, **pay_back("5000.00", fresh("pi")))
    assert huge == {"error": True, "text": REFUSED, "calls": []}
    large = {"agent": agent, **pay_back("400.00", payment)}
    waits = {"error": True, "text": REFUSED, "calls": []}
    assert fastmcp(**large) == waits and fastmcp(**large) == waits, "it tells a model no more than that"
    place.vote(pending_approval(place, payment))
    assert len(fastmcp(**large)["calls"]) == 1 and fastmcp(**large)["calls"] == []

    def call(tool: str, **args: Any) -> dict[str, Any]:
        return fastmcp(agent=agent, tool=tool, args=args)

    assert call("wire_money", account="x")["text"] == REFUSED
    assert call("look_up", payment_intent=payment)["text"] == "done: look_up"


def test_the_listing_of_fastmcp_hides_what_could_not_be_called(fastmcp: Ask) -> None:
    """It asks of each tool without arguments: what is mapped cannot be answered so, and is hidden."""
    assert fastmcp(agent=fresh("agent"), filters=True) == {"tools": ["look_up"], "calls": []}


def test_nobody_is_let_in_to_fastmcp_without_a_token_or_with_an_authority_that_is_away(fastmcp: Ask) -> None:
    call = pay_back("5.00", fresh("pi"))
    assert "401" in fastmcp(agent="a", token="of-nobody", **call)["raised"]
    away = fastmcp(agent="a", **call, url="http://127.0.0.1:9")
    assert away == {"error": True, "text": REFUSED, "calls": []}
    assert fastmcp(agent="a", **call, key="snt_live_nobody")["calls"] == []


def test_a_skill_of_an_a2a_agent_is_asked_for_where_it_is_allowed(a2a: Ask) -> None:
    """Such a question has no key and no amount, so it is only checked: what needs a person stays refused."""
    agent = fresh("agent")
    assert a2a(agent=agent, skill="quote") == {"told": ["done: quote"], "calls": ["quote"]}
    for skill in ("refund", "wire", "desk/quote"):
        refused = a2a(agent=agent, skill=skill)
        assert "agent invocation not authorized" in refused["refused"] and refused["calls"] == []
    assert a2a(skill="quote")["calls"] == [], "nobody signed in"
    assert a2a(agent=agent, skill="quote", url="http://127.0.0.1:9")["calls"] == []


def test_a_halt_stops_tools_of_fastmcp_and_skills_of_an_a2a_agent(fastmcp: Ask, a2a: Ask, place: Place) -> None:
    fixtures, agent = place.fixtures, fresh("agent")
    actor = local_administrator(fixtures.tenant_id)
    halt = set_halt(fixtures.console_pool, actor, scope="agent", target=agent, reason="drill")
    try:
        assert fastmcp(agent=agent, **pay_back("5.00", fresh("pi")))["calls"] == []
        assert a2a(agent=agent, skill="quote")["calls"] == []
    finally:
        lift_halt(fixtures.console_pool, actor, halt.halt_id, reason="over")
    assert a2a(agent=agent, skill="quote")["calls"] == ["quote"]
