"""A guarded call is reported when it is over, and runs with what was asked about."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sentinel.client import (
    ActionDenied,
    ActionExpired,
    AlreadyStarted,
    ApprovalPending,
    AsyncClient,
    Client,
    ClientError,
    KeyConflict,
    NoAnswerKind,
    StartedTooLate,
    Unreachable,
    guarded,
)
from sentinel.integrations import ToolGuard, current_operation, guarded_tool, refusal_details, refusal_message
from sentinel.integrations.mcp_errors import is_mcp_error
from sentinel.integrations.refusals import is_outage
from sentinel.integrations.tool_guard import Ran, Refused
from sentinel.tools import ToolRefused
from sentinel.tools.parse import parse_tool_table
from tests.support.fake_authority import FakeAuthority
from tests.support.fake_exchange import Exchange
from tests.support.harness import on_a_loop
from tests.support.tool_texts import PAY_AND_NOTE

TABLE = parse_tool_table(PAY_AND_NOTE)
WITH_FACTS = parse_tool_table(
    PAY_AND_NOTE.replace("    key:", "    facts: {account: {type: string, from: program}, site: {type: string, from: table, value: eu}}\n    key:")
    .replace("    params:\n", "    params:\n      account: facts.account\n      site: facts.site\n")
)  # fmt: skip
RISK = {"duplicate_refund": False, "stale_window": False, "suspicious_reason": False, "customer_attempts_24h": 1}
QUESTION: dict[str, Any] = {"params": {"amount": {"value": 1, "currency": "USD"}, "risk": RISK}, "idempotency_key": "k"}


@pytest.fixture
def guard(authority: FakeAuthority) -> Iterator[ToolGuard]:
    """Over a client that does not repeat its calls."""
    with Client(authority.url, "key", agent_id="agent", timeout_seconds=30, retries=0) as client:
        yield ToolGuard(TABLE, client)


def sends(order: str) -> Iterator[str]:
    """Its body runs when somebody takes from it."""
    yield order


async def sends_on_a_loop(order: str) -> AsyncIterator[str]:
    """The same on a loop."""
    yield order


class Sender:
    """A tool that is an object."""

    async def __call__(self, order: str) -> str:
        return order


class Streamer:
    """One whose calls are generators."""

    def __call__(self, order: str) -> Iterator[str]:
        yield order


GENERATORS: dict[str, Any] = {
    "generator": sends, "async generator": sends_on_a_loop, "partial": functools.partial(sends, "o"),
    "object": Streamer(), "method": Streamer().__call__,
}  # fmt: skip
COROUTINES: dict[str, Any] = {
    "object": Sender(), "method": Sender().__call__, "partial": functools.partial(Sender().__call__, "o"),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_function_is_not_decorated(guard: ToolGuard, name: str) -> None:
    with pytest.raises(TypeError, match="its work when it returns"):
        guarded_tool(guard, name="pay")(GENERATORS[name])
    for client in (guard.client, guard.async_client):
        with pytest.raises(TypeError, match="its work when it returns"):
            guarded(client, "a", **QUESTION)(GENERATORS[name])


@pytest.mark.parametrize("name", COROUTINES)
def test_a_coroutine_function_is_not_decorated_by_a_client_for_threads(guard: ToolGuard, name: str) -> None:
    with pytest.raises(TypeError, match="AsyncClient"):
        guarded(guard.client, "a", **QUESTION)(COROUTINES[name])


def test_a_tool_whose_loop_was_given_up_is_not_reported_as_over(
    guard: ToolGuard, authority: FakeAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    """The finding: another loop of the thread, on which the abandoned call was collected, sent the report of an error."""

    begun = asyncio.Event()

    async def runs(arguments: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def collects() -> None:
        await guard.async_client.heartbeat()
        given_up.clear()
        gc.collect()
        await guard.async_client.heartbeat()

    given_up: list[Any] = []

    def on_one_thread() -> None:
        loop = asyncio.new_event_loop()
        given_up.append(loop.create_task(guard.attempt_async("pay", {"order": "o"}, runs)))
        given_up[0]._log_destroy_pending = False
        loop.run_until_complete(begun.wait())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del loop
        with asyncio.Runner() as runner:
            runner.run(collects())

    with ThreadPoolExecutor(1) as threads:
        threads.submit(on_one_thread).result()
    assert "action/guard/report" not in authority.calls
    assert "was not reported: GeneratorExit" in caplog.text


class McpError(Exception):
    """Named as the error of MCP's SDK."""


class Plain:
    """An object that is called like a plain function."""

    def __call__(self, order: str) -> str:
        return order


PLAIN: dict[str, Any] = {
    "function": lambda order: order, "object": Plain(), "method": Plain().__call__, "class": Plain, "built in": print,
    "partial": functools.partial(Plain(), "o"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_function_is_not_decorated_by_a_client_for_event_loops(guard: ToolGuard, name: str) -> None:
    """The finding: its effect was done, and reported as an error, for there was nothing to await."""
    with pytest.raises(TypeError, match="guard it with a Client"):
        guarded(guard.async_client, "a", **QUESTION)(PLAIN[name])


@pytest.mark.parametrize("function", [*COROUTINES.values(), AsyncMock()], ids=[*COROUTINES, "marked"])
def test_whatever_is_called_as_a_coroutine_function_is_decorated_by_a_client_for_event_loops(
    guard: ToolGuard, authority: FakeAuthority, function: Any
) -> None:
    given = () if isinstance(function, functools.partial) else ("o",)

    async def on_the_loop() -> None:
        async with AsyncClient(authority.url, "key", agent_id="agent") as client:
            await guarded(client, "a", **QUESTION)(function)(*given)

    on_a_loop(on_the_loop())
    assert authority.operations["k"].outcome == "success"


def test_an_object_that_is_called_as_a_coroutine_function_is_reported_when_it_is_over(
    guard: ToolGuard, authority: FakeAuthority
) -> None:
    class Breaks:
        async def __call__(self, order: str) -> None:
            await asyncio.sleep(0)
            raise RuntimeError("the provider timed out")

    with pytest.raises(RuntimeError, match="timed out"):
        on_a_loop(guarded_tool(guard, name="pay")(Breaks())("o"))
    assert authority.operations["pay:o"].outcome == "error"


@pytest.mark.parametrize("later", [sends, sends_on_a_loop, Sender()], ids=["generator", "async generator", "coroutine"])
def test_a_call_that_returns_what_runs_later_is_reported_as_an_error(
    guard: ToolGuard, authority: FakeAuthority, later: Any
) -> None:
    with pytest.raises(TypeError, match="would run after"):
        guarded_tool(guard, name="pay")(lambda order: later(order))("o")
    with pytest.raises(TypeError, match="would run after"):
        guarded(guard.client, "a", **QUESTION)(lambda: later("o"))()

    async def gives_it() -> Any:
        return later("o")

    async def on_the_loop() -> None:
        async with AsyncClient(authority.url, "key", agent_id="agent") as client:
            await guarded(client, "a", **{**QUESTION, "idempotency_key": "k2"})(gives_it)()

    with pytest.raises(TypeError, match="would run after"):
        on_a_loop(on_the_loop())
    assert {key: one.outcome for key, one in authority.operations.items()} == dict.fromkeys(
        ("pay:o", "k", "k2"), "error"
    )


LATE = [(2, 2.5, True), (2, 1.5, False), (None, 60.5, True), (None, 59.5, False), (1200, 60.5, True)]
"""The declared time to act, how long the start took for a client of 30 s, and whether that is too late."""
STOOD_STILL = {
    "a stopped process": ("monotonic", "time"), "a suspended machine": ("time",), "a wall clock that is set back": ("monotonic",),
}  # fmt: skip
"""Which clocks go on meanwhile."""


@pytest.mark.parametrize(("act_within", "took", "late"), LATE)
@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("still", STOOD_STILL)
def test_a_block_is_not_entered_on_a_start_that_was_answered_after_its_time(
    guard: ToolGuard, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, still: str, kind: str, act_within: int | None, took: float, late: bool,
) -> None:  # fmt: skip
    clock = SimpleNamespace(**{
        name: iter([100.0, 100.0 + (took if name in STOOD_STILL[still] else -1.0)]).__next__ for name in ("monotonic", "time")
    })  # fmt: skip
    monkeypatch.setattr(sys.modules["sentinel.client.guarded"], "time", clock)
    guard = ToolGuard(TABLE, guard.client, act_within_seconds=act_within)
    ran: list[Any] = []

    async def runs(arguments: Any) -> None:
        ran.append(arguments)

    if kind == "loop":
        attempted: Any = on_a_loop(guard.attempt_async("pay", {"order": "o"}, runs))
    else:
        attempted = guard.attempt("pay", {"order": "o"}, ran.append)
    assert authority.operations["pay:o"].outcome == ("error" if late else "success")
    assert len(ran) == (0 if late else 1)
    if late:
        assert isinstance(attempted, Refused) and isinstance(attempted.error, StartedTooLate)
        assert "started_too_late" in refusal_message(attempted.error)


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_report_that_fails_in_whatever_way_raises_nothing_once_the_tool_has_run(
    guard: ToolGuard, authority: FakeAuthority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str,
) -> None:  # fmt: skip
    ran: list[Any] = []

    async def runs(arguments: Any) -> None:
        ran.append(arguments)

    def fails(self: Client, **outcome: Any) -> None:
        raise RuntimeError("unable to perform operation on a secret transport")

    async def fails_on_a_loop(self: AsyncClient, **outcome: Any) -> None:
        fails(guard.client)

    monkeypatch.setattr(Client, "report", fails)
    monkeypatch.setattr(AsyncClient, "report", fails_on_a_loop)
    if kind == "loop":
        attempted: Any = on_a_loop(guard.attempt_async("pay", {"order": "o"}, runs))
    else:
        attempted = guard.attempt("pay", {"order": "o"}, ran.append)
    operation = authority.operations["pay:o"]
    assert isinstance(attempted, Ran) and len(ran) == 1
    assert operation.start_id is not None and operation.outcome is None
    assert "was not reported: RuntimeError" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_tool_that_is_broken_off_from_outside_is_not_reported_as_over(
    guard: ToolGuard, authority: FakeAuthority, caplog: pytest.LogCaptureFixture, ends: type[BaseException]
) -> None:
    def runs(arguments: Any) -> None:
        raise ends("secret")

    with pytest.raises(ends):
        guard.attempt("pay", {"order": "o"}, runs)
    assert authority.operations["pay:o"].start_id is not None and authority.operations["pay:o"].outcome is None
    assert f"was not reported: {ends.__name__}" in caplog.text and "secret" not in caplog.text


def test_a_tool_whose_error_is_its_own_cause_is_reported_and_its_error_raised(
    guard: ToolGuard, authority: FakeAuthority
) -> None:
    """The finding: the search for an error of MCP among the causes had no end, so nothing was reported and another error raised."""
    for order, mcp, outcome in (("o", ValueError("broken"), "error"), ("p", McpError("no answer"), None)):

        def runs(arguments: Any, failed: Exception = mcp) -> None:
            try:
                raise failed
            except Exception as error:
                raise error from error

        with pytest.raises(type(mcp)):
            guard.attempt("pay", {"order": order}, runs, goes_on=is_mcp_error)
        assert authority.operations[f"pay:{order}"].outcome == outcome


CALLS_WITH_NULLS: dict[str, tuple[dict[str, Any], Any]] = {
    "mapped": ({"order": "o", "copies": None}, {"order": "o"}),
    "not mapped": ({"order": "o", "limit": None}, "unmapped_argument"),
}
"""What the model says, and what the tool runs with or why it does not."""


@pytest.mark.parametrize("name", CALLS_WITH_NULLS)
def test_a_null_reaches_no_tool(guard: ToolGuard, authority: FakeAuthority, name: str) -> None:
    given, wanted = CALLS_WITH_NULLS[name]
    ran: list[Any] = []

    async def runs(arguments: dict[str, Any]) -> None:
        ran.append(arguments)

    for attempt in (
        lambda: guard.attempt("pay", given, ran.append),
        lambda: on_a_loop(guard.attempt_async("pay", given, runs)),
    ):
        authority.operations.clear()
        ran.clear()
        attempted = attempt()
        if isinstance(wanted, str):
            assert isinstance(attempted, Refused) and ran == [] and authority.operations == {}
            assert isinstance(attempted.error, ToolRefused) and attempted.error.reason_code == wanted
        else:
            assert ran == [wanted] and isinstance(attempted, Ran)


def test_none_is_an_absent_argument_of_a_function_and_nothing_else(guard: ToolGuard, authority: FakeAuthority) -> None:
    def all_or_some(order: str, copies: int | None = 50) -> int | None:
        return copies

    def needed(order: str, copies: int | None, more: str | None = None) -> Any:
        return copies, more

    def rest(order: str, **more: Any) -> Any:
        return more

    tool = guarded_tool(guard, name="pay")
    assert tool(all_or_some)("o1") == 50
    with pytest.raises(ToolRefused, match="its default is another value"):
        tool(all_or_some)("o2", None)
    assert tool(needed)("o3", None) == (None, None), "a parameter without a default is given what it was given"
    assert tool(rest)("o4", copies=None) == {}
    with pytest.raises(ToolRefused, match="unmapped_argument"):
        tool(rest)("o5", limit=None)
    assert guarded_tool(guard, name="note")(all_or_some)("o6", None) is None, "what runs unguarded is left alone"
    assert set(authority.operations) == {"pay:o1", "pay:o3", "pay:o4"}


def test_a_tool_runs_with_what_was_asked_about_whatever_is_changed_meanwhile(
    guard: ToolGuard, authority: FakeAuthority
) -> None:
    cart, ran = [{"to": "a", "amount": "1.00"}], []

    def adds_a_line(exchange: Exchange) -> bool:
        cart[0]["amount"] = "2.00"
        cart.append({"to": "b", "amount": "999.00"})
        return False

    def changes_what_it_sees(tool: str, arguments: Any) -> dict[str, Any]:
        arguments["lines"][0]["amount"] = "999.00"
        return {}

    authority.misbehave = adds_a_line
    looking = ToolGuard(WITH_FACTS, guard.client, facts=changes_what_it_sees)
    guarded_tool(looking, name="pay")(lambda order, lines: ran.append(lines))("o", cart)
    asked = WITH_FACTS.call("local", "pay", {"order": "o", "lines": [{"to": "a", "amount": "1.00"}]}).question
    assert asked is not None and ran == [[{"to": "a", "amount": "1.00"}]]
    assert authority.operations["pay:o"].body["params"]["tool_call"] == asked["params"]["tool_call"]


def test_an_unguarded_tool_inside_a_guarded_one_has_no_operation(guard: ToolGuard, authority: FakeAuthority) -> None:
    note = guarded_tool(guard, name="note")(current_operation)
    outer, inner, after = guarded_tool(guard, name="pay")(
        lambda order: (current_operation(), note(), current_operation())
    )("o")
    assert outer is not None and outer.idempotency_key == "pay:o"
    assert inner is None and after == outer


OWN: dict[str, ClientError] = {
    "silence": Unreachable(NoAnswerKind.TIMEOUT, "no answer"), "a person": ApprovalPending("a-1", "large"),
    "a refusal": ActionDenied("over_limit", "Too much."),
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("tool", ["pay", "note"])
def test_an_error_of_the_tool_itself_is_not_told_as_a_call_that_was_not_made(
    guard: ToolGuard, authority: FakeAuthority, tool: str, kind: str
) -> None:
    def asks_by_itself(order: str) -> None:
        raise OWN[kind]

    with pytest.raises(ClientError) as raised:
        guarded_tool(guard, name=tool)(asks_by_itself)("o")
    told = refusal_message(raised.value)
    assert raised.value is OWN[kind] and told.startswith("Failed") and "tool_failed" in told
    assert refusal_details(raised.value)["retry"] == "never"
    assert [one.outcome for one in authority.operations.values()] == (["error"] if tool == "pay" else [])


def test_a_refusal_is_told_as_one(guard: ToolGuard, authority: FakeAuthority) -> None:
    with pytest.raises(ToolRefused) as raised:
        guarded_tool(guard, name="other")(lambda order: None)("o")
    assert not raised.value.is_of_tool and refusal_message(raised.value).startswith("Not executed")


def attempt_either_way(kind: str, guard: ToolGuard, tool: str, ran: list[Any]) -> Any:
    """One attempt for order "o", on a thread or on a loop; a tool that runs notes it."""

    async def runs(arguments: Any) -> None:
        ran.append(arguments)

    if kind == "loop":
        return on_a_loop(guard.attempt_async(tool, {"order": "o"}, runs))
    return guard.attempt(tool, {"order": "o"}, ran.append)


def fails_to_look_up(tool: str, arguments: Any) -> dict[str, Any]:
    """As a database that is started again."""
    raise OSError(f"nothing is known of {arguments}")


async def fails_to_look_up_on_a_loop(tool: str, arguments: Any) -> dict[str, Any]:
    """The same on a loop."""
    return fails_to_look_up(tool, arguments)


@pytest.mark.parametrize(
    ("kind", "facts"), [("threads", fails_to_look_up), ("loop", fails_to_look_up), ("loop", fails_to_look_up_on_a_loop)]
)
def test_facts_that_cannot_be_read_are_no_refusal_for_good_and_stop_no_unguarded_tool(
    guard: ToolGuard, authority: FakeAuthority, kind: str, facts: Any
) -> None:
    looking, ran = ToolGuard(WITH_FACTS, guard.client, facts=facts), list[Any]()
    refused = attempt_either_way(kind, looking, "pay", ran)
    assert isinstance(refused, Refused) and isinstance(refused.error, ToolRefused) and not refused.error.is_final
    assert refusal_details(refused.error)["retry"] == "later" and "made again later" in refusal_message(refused.error)
    assert "nothing is known" not in refusal_message(refused.error) and (ran, authority.operations) == ([], {})
    assert isinstance(attempt_either_way(kind, looking, "note", ran), Ran) and ran == [{"order": "o"}]


def test_a_call_whose_facts_changed_is_told_that_it_may_be_the_facts(
    guard: ToolGuard, authority: FakeAuthority
) -> None:
    """The finding: the model was told of other arguments, though it had made the same call again."""
    for account, ran in (("one", True), ("other", False)):
        looking = ToolGuard(WITH_FACTS, guard.client, facts={"account": account})
        attempted = attempt_either_way("threads", looking, "pay", [])
        assert isinstance(attempted, Ran) is ran
    assert isinstance(attempted, Refused)
    assert "before with other arguments or facts [idempotency_key_reused]" in refusal_message(attempted.error)


CHANGING = parse_tool_table(
    PAY_AND_NOTE.replace("    key:", "    facts: {account: {type: string, from: program}, stale: {type: bool, from: program}, attempts: {type: int, from: program}}\n    key:")
    .replace("stale_window: 'false'", "stale_window: facts.stale").replace("attempts_24h: '1'", "attempts_24h: facts.attempts")
    .replace("    params:\n", "    params:\n      account: facts.account\n").replace("minor: '100'", "minor: '20000'")
)  # fmt: skip
"""A payment that needs a person, about which the program knows three things."""
FIRST_FACTS = {"account": "one", "stale": False, "attempts": 1}


def with_facts(guard: ToolGuard, **changed: Any) -> ToolGuard:
    """A guard whose program knows this; a fact that is None is not known."""
    known = {name: value for name, value in {**FIRST_FACTS, **changed}.items() if value is not None}
    return ToolGuard(CHANGING, guard.client, facts=known)


def asked_first(guard: ToolGuard, authority: FakeAuthority) -> None:
    """The call is made with the first facts and waits; then a person approves it."""
    waiting = attempt_either_way("threads", with_facts(guard), "pay", [])
    assert isinstance(waiting, Refused) and isinstance(waiting.error, ApprovalPending)
    authority.approve("pay:o")
    authority.calls.clear()


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_call_goes_on_under_the_facts_that_it_was_first_asked_with(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    """The finding: an approved call was refused for ever, because a count had changed while it waited."""
    asked_first(guard, authority)
    ran: list[Any] = []
    assert isinstance(attempt_either_way(kind, with_facts(guard, attempts=2), "pay", ran), Ran)
    assert ran == [{"order": "o"}] and authority.operations["pay:o"].outcome == "success"
    assert authority.calls == ["action/guard", "action/guard", "action/guard/start", "action/guard/report"]


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_call_that_waits_keeps_waiting_when_facts_change(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    attempt_either_way(kind, with_facts(guard), "pay", [])
    again = attempt_either_way(kind, with_facts(guard, attempts=2), "pay", [])
    assert isinstance(again, Refused) and isinstance(again.error, ApprovalPending)
    wanted = on_a_loop(with_facts(guard, attempts=2).approval_pending("pay", {"order": "o"}))
    assert wanted == again.error.approval_id == authority.operations["pay:o"].approval_id


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_call_that_waits_for_the_person_goes_on_under_its_first_facts(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    attempt_either_way(kind, with_facts(guard), "pay", [])

    def approves(exchange: Exchange) -> bool:
        if "/approval/" in exchange.path and authority.operations["pay:o"].status == "pending":
            authority.approve("pay:o")
        return False

    authority.misbehave = approves
    waiting = with_facts(guard, attempts=2)
    waiting.wait_seconds = 60
    assert isinstance(attempt_either_way(kind, waiting, "pay", []), Ran)


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize(("fact", "value", "code"), [("stale", True, "risk"), ("stale", None, "fact_missing")])
def test_what_a_person_approved_is_not_done_under_worse_facts(
    guard: ToolGuard, authority: FakeAuthority, kind: str, fact: str, value: Any, code: str
) -> None:
    asked_first(guard, authority)
    ran: list[Any] = []
    worse = with_facts(guard, **{fact: value})
    refused = attempt_either_way(kind, worse, "pay", ran)
    assert isinstance(refused, Refused) and ran == [] and authority.operations["pay:o"].start_id is None
    told = refusal_details(refused.error)
    assert (told["reason_code"], told["retry"]) == (code, "later") and "has changed" in told["reason"]
    assert on_a_loop(worse.approval_pending("pay", {"order": "o"})) is None, "it is made, and the model told"
    assert isinstance(attempt_either_way(kind, with_facts(guard), "pay", ran), Ran), "what was decided stands"


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_facts_that_need_a_person_again_are_refused_as_changed(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    asked_first(guard, authority)
    worse = {"decision": "APPROVAL_REQUIRED", "reason_code": "repeated_attempts", "reason": "Several."}

    def asks_a_person(exchange: Exchange) -> bool:
        if (exchange.body or {}).get("params", {}).get("risk", {}).get("customer_attempts_24h") != 4:
            return False
        recorded = authority.operations["pay:o"].body["params"]
        exchange.problem(422, "idempotency-key-reused", recorded_params=recorded, tightened=worse)
        return True

    authority.misbehave = asks_a_person
    ran: list[Any] = []
    refused = attempt_either_way(kind, with_facts(guard, attempts=4), "pay", ran)
    assert isinstance(refused, Refused) and ran == []
    assert refusal_details(refused.error)["reason_code"] == "facts_changed"


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_what_was_done_is_told_as_done_whatever_its_own_effect_changed(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    asked_first(guard, authority)
    assert isinstance(attempt_either_way(kind, with_facts(guard), "pay", []), Ran)
    again = attempt_either_way(kind, with_facts(guard, stale=True, attempts=2), "pay", [])
    assert isinstance(again, Refused) and isinstance(again.error, AlreadyStarted) and again.error.outcome == "success"


CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a text": ({"account": "two"}, {}), "a text and a number": ({"account": "two", "attempts": 2}, {}),
    "an argument": ({}, {"copies": 2}), "an argument and a number": ({"attempts": 2}, {"copies": 2}),
}  # fmt: skip
"""What differs from the first time: (facts, arguments)."""


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("what", CONFLICTS)
def test_what_is_not_a_number_that_the_program_counted_stays_a_conflict(
    guard: ToolGuard, authority: FakeAuthority, kind: str, what: str
) -> None:
    asked_first(guard, authority)
    (facts, arguments), ran = CONFLICTS[what], list[Any]()
    given = {"order": "o", **arguments}

    async def runs(made: Any) -> None:
        ran.append(made)

    changed = with_facts(guard, **facts)
    on_loop = kind == "loop"
    refused = (
        on_a_loop(changed.attempt_async("pay", given, runs)) if on_loop else changed.attempt("pay", given, ran.append)
    )
    assert isinstance(refused, Refused) and isinstance(refused.error, KeyConflict) and ran == []
    assert len(authority.calls) == (2 if "and" in what else 1), "asked again only where a number differs"


def test_who_may_not_know_what_was_asked_first_has_a_conflict(guard: ToolGuard, authority: FakeAuthority) -> None:
    """As from an authority of an earlier release, or to another requester."""
    asked_first(guard, authority)

    def says_no_more(exchange: Exchange) -> bool:
        exchange.problem(422, "idempotency-key-reused")
        return True

    authority.misbehave = says_no_more
    refused = attempt_either_way("threads", with_facts(guard, attempts=2), "pay", [])
    assert isinstance(refused, Refused) and isinstance(refused.error, KeyConflict)


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("when", ["permitted before", "asked under it", "at the start"])
def test_a_halt_over_what_was_permitted_is_no_refusal_for_good(
    guard: ToolGuard, authority: FakeAuthority, kind: str, when: str
) -> None:
    ran: list[Any] = []

    def sets_the_halt(exchange: Exchange) -> bool:
        authority.halted = authority.halted or (when == "at the start" and exchange.path.endswith("/start"))
        return False

    if when == "permitted before":
        asked = TABLE.call("local", "pay", {"order": "o"}).question
        assert asked is not None and guard.client.guard(**asked).may_start
    authority.halted, authority.misbehave = when != "at the start", sets_the_halt
    refused = attempt_either_way(kind, guard, "pay", ran)
    assert isinstance(refused, Refused) and isinstance(refused.error, ActionDenied) and ran == []
    is_final = when == "asked under it"
    assert refusal_details(refused.error)["retry"] == ("never" if is_final else "later")
    assert ("Do not call it again" in refusal_message(refused.error)) is is_final is refused.error.is_final
    authority.halted, authority.misbehave = False, lambda exchange: False
    assert isinstance(attempt_either_way(kind, guard, "pay", ran), Refused if is_final else Ran)


REFUSED_STARTS = [
    ("permit-expired", 410, "expired", "later"), ("permit-refused", 403, "permit-refused", "later"),
    ("resolved-not-executed", 409, "resolved-not-executed", "never"), ("forbidden", 403, "forbidden", "never"),
]  # fmt: skip
"""What the authority answers to a start, and what the model is told."""


@pytest.mark.parametrize(("code", "status", "reason", "retry"), REFUSED_STARTS)
def test_a_permit_that_cannot_be_used_any_more_is_no_refusal_for_good(
    guard: ToolGuard, authority: FakeAuthority, code: str, status: int, reason: str, retry: str
) -> None:
    def refuses(exchange: Exchange) -> bool:
        if exchange.path.endswith("/start"):
            exchange.problem(status, code)
        return exchange.path.endswith("/start")

    authority.misbehave = refuses
    refused = attempt_either_way("threads", guard, "pay", [])
    assert isinstance(refused, Refused)
    told = refusal_details(refused.error)
    assert (told["reason_code"], told["retry"]) == (reason, retry) and "nobody decided" not in told["reason"]


@pytest.mark.parametrize(("status", "retry"), [(401, "later"), (403, "never")])
def test_a_key_that_is_refused_says_nothing_of_the_call(
    guard: ToolGuard, authority: FakeAuthority, status: int, retry: str
) -> None:
    def refuses(exchange: Exchange) -> bool:
        exchange.problem(status, "refused")
        return True

    authority.misbehave = refuses
    refused = attempt_either_way("threads", guard, "pay", [])
    assert isinstance(refused, Refused) and refusal_details(refused.error)["retry"] == retry
    assert is_outage(refused.error) is (status == 401)


def test_what_nobody_decided_in_time_is_refused_for_good() -> None:
    told = refusal_details(ActionExpired("nobody decided in time"))
    assert (told["reason_code"], told["reason"], told["retry"]) == ("expired", "nobody decided in time", "never")


def test_a_look_up_that_takes_its_time_holds_up_no_other_call_on_the_loop(guard: ToolGuard) -> None:
    others_went_on = threading.Event()

    def looks_up(tool: str, arguments: Any) -> dict[str, Any]:
        if arguments["order"] == "slow" and not others_went_on.wait(30):
            raise TimeoutError
        return {"account": "acct-1"}

    async def runs(arguments: Any) -> str:
        return str(arguments["order"])

    async def both() -> list[Any]:
        looking = ToolGuard(WITH_FACTS, guard.client, facts=looks_up)
        slow = asyncio.ensure_future(looking.attempt_async("pay", {"order": "slow"}, runs))
        await asyncio.sleep(0)
        quick = await looking.attempt_async("pay", {"order": "quick"}, runs)
        others_went_on.set()
        return [quick, await slow]

    assert on_a_loop(both()) == [Ran("quick"), Ran("slow")]


def test_a_look_up_of_facts_that_hangs_takes_no_thread_of_the_loop(guard: ToolGuard) -> None:
    """The finding: some look-ups that hung took all of them, so that nothing else of the agent's program got one."""
    begun, may_end = threading.Event(), threading.Event()

    def hangs(tool: str, arguments: Any) -> dict[str, Any]:
        begun.set()
        may_end.wait(30)
        return {"account": "acct-1"}

    async def works_meanwhile() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        looking = ToolGuard(WITH_FACTS, guard.client, facts=hangs)
        call = asyncio.ensure_future(looking.call_of_async("pay", {"order": "o"}))
        try:
            while not begun.is_set():
                await asyncio.sleep(0.01)
            return await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 20)
        finally:
            may_end.set()
            await call

    assert on_a_loop(works_meanwhile()) == "done"


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_of_what_is_true_of_every_call_a_tool_is_told_what_it_declares(
    guard: ToolGuard, authority: FakeAuthority, kind: str
) -> None:
    facts = {"account": "acct-1", "currency": "usd", "site": "us"}
    ran: list[Any] = []
    for tool in ("pay", "note"):
        told = attempt_either_way(kind, ToolGuard(WITH_FACTS, guard.client, facts=facts), tool, ran)
        assert isinstance(told, Ran)
    params = authority.operations["pay:o"].body["params"]
    assert (params["account"], params["site"], len(ran)) == ("acct-1", "eu", 2)
    said = attempt_either_way(kind, ToolGuard(WITH_FACTS, guard.client, facts=lambda *call: facts), "pay", ran)
    assert isinstance(said, Refused) and isinstance(said.error, ToolRefused) and said.error.reason_code == "malformed_fact", (
        "a look-up is about this call, and says nothing else"
    )  # fmt: skip


def test_whether_a_call_waits_is_not_known_where_its_facts_cannot_be_read(guard: ToolGuard) -> None:
    looking = ToolGuard(WITH_FACTS, guard.client, facts=fails_to_look_up)
    with pytest.raises(ToolRefused, match="facts_unavailable"):
        on_a_loop(looking.approval_pending("pay", {"order": "o"}))
    assert on_a_loop(looking.approval_wanted("pay", {"order": "o"})) is None, "the attempt says why"
    assert on_a_loop(looking.approval_pending("other", {})) is None, "refused for good, nobody waits"
