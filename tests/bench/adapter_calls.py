"""Tool calls of one agent framework, bare and guarded: what runs in the framework's environment for `pieces_adapters.py`.

python -m tests.bench.adapter_calls FORM, then one JSON command per line: {"url", "key", "guarded", "calls"} → {"cpu", "wall"},
seconds for all calls. The model is scripted and makes one call a turn; the tool only notes that it was called.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from sentinel.client import Client, guarded
from sentinel.integrations import ToolGuard, guarded_tool
from tests.adapters.driver import TABLE, Shop

AGENT = "bench"
TOOL = "create_refund"
FACTS = {"clean": True, "attempts": 1}

Calls = list[dict[str, Any]]
Run = Callable[[ToolGuard | None, Calls, Shop], Any]


def client_alone(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """`guarded()` of the client: no table, no framework."""
    for call in calls:
        if guard is None:
            shop.do(TOOL, **call)
            continue
        question = guard.call_of(TOOL, call, {**FACTS, "account": call["payment_intent"]}).question
        assert question is not None
        with guarded(guard.client, **question):
            shop.do(TOOL, **call)


def decorated(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """`@guarded_tool` around a function."""

    def create_refund(payment_intent: str, amount: int, request_key: str | None = None) -> str:
        return shop.do(TOOL, payment_intent=payment_intent, amount=amount)

    function = create_refund if guard is None else guarded_tool(guard)(create_refund)
    for call in calls:
        function(**call)


def langchain(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """A synchronous agent without a checkpointer."""
    from langchain.agents import create_agent
    from langchain_core.messages import AIMessage

    from sentinel.integrations.langchain import SentinelMiddleware
    from tests.adapters.drive_langchain import Model, tools_of

    turns = [AIMessage("", tool_calls=[{"name": TOOL, "args": call, "id": f"c{n}"}]) for n, call in enumerate(calls)]
    middleware = [] if guard is None else [SentinelMiddleware(guard, interrupts=False)]
    model = Model(messages=iter([*turns, AIMessage("ready")]))
    agent = create_agent(model, tools_of(shop), middleware=middleware)
    agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 10 * len(calls) + 10})


async def openai_agents(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """A run with the SDK's scripted model."""
    from agents import Agent, Runner
    from agents.testing import ScriptedModel, assistant_message, function_call

    from sentinel.integrations.openai_agents import protect_agent
    from tests.adapters.drive_openai_agents import tools_of

    turns = [[function_call(TOOL, call, call_id=f"c{n}")] for n, call in enumerate(calls)]
    agent = Agent(name="bench", tools=tools_of(shop), model=ScriptedModel([*turns, [assistant_message("ready")]]))
    await Runner.run(agent if guard is None else protect_agent(agent, guard), "go", max_turns=len(calls) + 1)


async def pydantic_ai(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """A run with a function for a model."""
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from sentinel.integrations.pydantic_ai import SentinelCapability
    from tests.adapters.drive_pydantic_ai import tools_of

    turns = iter([ModelResponse([ToolCallPart(TOOL, call, tool_call_id=f"c{n}")]) for n, call in enumerate(calls)])
    model = FunctionModel(lambda messages, info: next(turns, ModelResponse([TextPart("ready")])))
    capabilities = [] if guard is None else [SentinelCapability(guard)]
    agent = Agent(model, tools=tools_of(shop), capabilities=capabilities)
    await agent.run("go", usage_limits=UsageLimits(request_limit=None))


async def claude_hooks(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """The hooks before and after a tool as the SDK calls them, without the program `claude`."""
    from sentinel.integrations.claude_agent_sdk import ClaudeHooks

    hooks = None if guard is None else ClaudeHooks(guard)
    for call in calls:
        given = {"tool_name": f"mcp__local__{TOOL}", "tool_input": call}
        if hooks is not None:
            await hooks.pre_tool_use(given)
        shop.do(TOOL, **call)
        if hooks is not None:
            await hooks.post_tool_use({**given, "hook_event_name": "PostToolUse"})


def claude_command(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """The same hooks as a command: a process before each tool and one after it."""
    for call in calls:
        if guard is not None:
            _hook(guard, call, "PreToolUse")
        shop.do(TOOL, **call)
        if guard is not None:
            _hook(guard, call, "PostToolUse")


async def mcp_proxy(guard: ToolGuard | None, calls: Calls, shop: Shop) -> None:
    """A client of the SDK and a server over loopback HTTP, without and with the proxy between them, all three in this process."""
    from mcp import Client as McpClient

    from sentinel.mcp_proxy.main import Proxy
    from sentinel.mcp_proxy.options import Options
    from tests.adapters.drive_mcp_proxy import served
    from tests.adapters.payments_server import payments_server

    upstream = payments_server(lambda tool, headers, **arguments: shop.do(tool, **arguments))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(upstream.streamable_http_app()))
        if guard is not None:
            options = Options(
                authority=_asked["url"], key=_asked["key"], table=guard.table, server="local", upstream_url=url, upstream_command=[],
                credential=None, credential_name="Authorization", listen=None, allowed_hosts=[], agent=AGENT, seconds=60.0,
                facts=lambda tool, arguments: {**FACTS, "account": arguments["payment_intent"]}, authority_seconds=60,
            )  # fmt: skip
            proxy = await stack.enter_async_context(Proxy(options))
            url = await stack.enter_async_context(served(proxy.server.streamable_http_app(stateless_http=True)))
        client = await stack.enter_async_context(McpClient(url))
        await client.list_tools()  # which a client does once, before its first call
        _times.append(_now())
        for call in calls:
            injected = {"request_key": "the server's own schema wants one"} if guard is None else {}
            result = await client.call_tool(TOOL, {**call, **injected})
            if result.is_error:
                raise SystemExit(f"a call was refused: {result.structured_content}")
        _times.append(_now())


def _hook(guard: ToolGuard, call: dict[str, Any], event: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        facts, key = Path(folder) / "facts.json", Path(folder) / "key"
        facts.write_text(json.dumps({**FACTS, "account": call["payment_intent"]}))
        key.write_text(_asked["key"])
        command = [
            sys.executable, "-m", "sentinel.integrations.claude_code", "--url", _asked["url"], "--key-file", str(key),
            "--agent", AGENT, "--tools", str(Path(__file__).parents[1] / "adapters" / "tools.yaml"), "--facts", str(facts),
        ]  # fmt: skip
        given = {"hook_event_name": event, "tool_name": f"mcp__local__{TOOL}", "tool_input": call}
        subprocess.run(command, input=json.dumps(given), check=True, text=True, stdout=subprocess.DEVNULL)


FORMS: dict[str, Run] = {
    one.__name__: one
    for one in (
        client_alone,
        decorated,
        langchain,
        openai_agents,
        pydantic_ai,
        claude_hooks,
        claude_command,
        mcp_proxy,
    )
}
_asked: dict[str, Any] = {}
"""The command in hand."""
_times: list[tuple[float, float]] = []
"""When a form's calls began and ended, where it has servers to start and end around them."""


def measured(run: Run, asked: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of this process and of those that it started, and the time that passed, for all calls."""
    _asked.update(asked)
    shop = Shop()
    calls = [{"payment_intent": f"pi_{uuid.uuid4().hex[:12]}", "amount": 1} for _ in range(asked["calls"])]
    with Client(asked["url"], asked["key"], agent_id=AGENT, timeout_seconds=60) as client:
        known = lambda tool, arguments: {**FACTS, "account": arguments["payment_intent"]}  # noqa: E731
        guard = ToolGuard(TABLE, client, facts=known) if asked["guarded"] else None
        _times.clear()
        around = [_now()]
        result = run(guard, calls, shop)
        if asyncio.iscoroutine(result):
            asyncio.run(result)
        began, ended = _times or (*around, _now())
        taken = {"cpu": ended[0] - began[0], "wall": ended[1] - began[1]}
    if len(shop.calls) != len(calls):
        raise SystemExit(f"{len(shop.calls)} of {len(calls)} tools were called")
    return taken


def _now() -> tuple[float, float]:
    """(CPU seconds of this process and of those that it started, the clock)."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime, time.perf_counter()


if __name__ == "__main__":
    # What a framework prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    form = FORMS[sys.argv[1]]
    for line in sys.stdin:
        print(json.dumps(measured(form, json.loads(line))), file=answers, flush=True)
