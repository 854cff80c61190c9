"""The program `claude` of the Claude Agent SDK against a scripted model service.

The program takes a second of a processor to start, so it goes from run to run; its sessions are in a folder that outlives it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool

from sentinel.integrations import ToolGuard
from sentinel.integrations.claude_agent_sdk import ClaudeHooks
from tests.adapters.driver import Driver, Shop, Turn, serve
from tests.adapters.scripted_messages import scripted_messages

PREFIX = "mcp__local__"
REPO = Path(__file__).parents[2]


def tools_of(shop: Shop) -> list[Any]:
    """The tools as an MCP server has them; a failure is told as the protocol tells it."""

    def made(name: str, fields: dict[str, Any], needed: list[str]) -> Any:
        schema = {"type": "object", "properties": fields, "required": needed}

        @tool(name, name, schema)
        async def run(arguments: dict[str, Any]) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": shop.do(name, **arguments)}]}

        return run

    text, whole = {"type": "string"}, {"type": "integer"}
    refund = {"payment_intent": text, "amount": whole, "reason": text, "request_key": text}
    return [
        made("create_refund", refund, []), made("refund_charge", {"charge": text, "amount": whole}, []),
        made("look_up", {"payment_intent": text}, []), made("wire_money", {"account": text}, []),
    ]  # fmt: skip


class GuardInHand:
    """The guard of the command in hand, for hooks that outlive it."""

    guard: ToolGuard

    def __getattr__(self, name: str) -> Any:
        return getattr(self.guard, name)


class ShopInHand(Shop):
    """The shop of the command in hand, for tools that outlive it."""

    shop: Shop

    def do(self, tool: str, **arguments: Any) -> str:
        """One effect of that one's."""
        return self.shop.do(tool, **arguments)


GUARD, SHOP = GuardInHand(), ShopInHand()
CALLS: list[dict[str, Any]] = []
"""What the model is to call in its next turn."""
UNTIL_THE_END = ExitStack()


@functools.cache
def model_service() -> tuple[str, dict[str, str]]:
    """The one of this process: its address, and what the tools answered."""
    return UNTIL_THE_END.enter_context(scripted_messages(CALLS))


class Program:
    """The running program. Each run is a conversation of its own; one that is resumed gets a process of its own as well."""

    def __init__(self) -> None:
        self._client: ClaudeSDKClient | None = None
        self._settings: str | None = None

    async def turn(self, options: ClaudeAgentOptions) -> ResultMessage:
        """One turn of a new run, or of the one to resume."""
        if options.resume is not None:
            async with ClaudeSDKClient(options) as client:
                return await result_of(client, "go")
        if self._client is None or options.settings != self._settings:
            await self.end()
            self._settings, self._client = options.settings, ClaudeSDKClient(options)
            await self._client.connect()
        result = await result_of(self._client, "go")
        await result_of(self._client, "/clear")  # which closes the session's file: another process may resume it
        return result

    async def end(self) -> None:
        """The process has ended."""
        client, self._client = self._client, None
        if client is not None:
            await client.disconnect()


async def result_of(client: ClaudeSDKClient, prompt: str) -> ResultMessage:
    """The end of the turn that this prompt begins."""
    await client.query(prompt)
    async for message in client.receive_response():
        if isinstance(message, ResultMessage):
            return message
    raise RuntimeError("the program ended in the middle of a turn")


PROGRAM = Program()
RUNNER = asyncio.Runner()


class ClaudeAgent(Driver):
    """One turn of the program per command."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [{"name": PREFIX + one["tool"], "input": one["args"], "id": f"toolu_{command['thread']}_{one['id']}_{number}"}
                 for number, one in enumerate(command["calls"])]  # fmt: skip
        return RUNNER.run(self._run(guard, command, calls, None))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return RUNNER.run(self._run(guard, command, [], self._file(command).read_text()))

    async def _run(self, guard: ToolGuard, command: dict[str, Any], calls: list[Any], session: str | None) -> Turn:
        GUARD.guard, SHOP.shop, CALLS[:] = guard, self.shop, calls
        service, results = model_service()
        results.clear()
        try:
            result = await PROGRAM.turn(self._options(command, service, session))
        except BaseException:
            await PROGRAM.end()
            raise
        turn = Turn(list(results.values()))
        self._file(command).write_text(result.session_id)
        if (one := result.deferred_tool_use) is not None:
            turn.waiting.append(str(await guard.approval_wanted(one.name.removeprefix(PREFIX), one.input)))
        return turn

    def _options(self, command: dict[str, Any], service: str, session: str | None) -> ClaudeAgentOptions:
        home = str(Path(command["kept"]) / "claude")
        Path(home).mkdir(exist_ok=True)
        quiet = {
            "DISABLE_TELEMETRY": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
        }
        by_command = command["form"] == "command"
        hooks = None if by_command else ClaudeHooks(GUARD, pending=command["form"]).matchers(f"{PREFIX}.*")  # type: ignore[arg-type]
        return ClaudeAgentOptions(
            mcp_servers={"local": create_sdk_mcp_server("local", tools=tools_of(SHOP))},
            hooks=hooks, settings=_settings(command, Path(home)) if by_command else None,
            allowed_tools=[f"{PREFIX}look_up"], setting_sources=[], max_turns=4, cwd=home, resume=session,
            env={"ANTHROPIC_BASE_URL": service, "ANTHROPIC_API_KEY": "none", "HOME": home, "CLAUDE_CONFIG_DIR": home, **quiet},
        )  # fmt: skip

    def _file(self, command: dict[str, Any]) -> Path:
        return Path(command["state"]) / f"{command['thread']}.session"


def _settings(command: dict[str, Any], home: Path) -> str:
    """Settings of Claude Code with `sentinel hook claude-code` at each event, as docs/agents.md has them."""
    key, facts = home / "key", home / "facts.json"
    key.write_text(command["key"])
    facts.write_text(json.dumps(command["facts"]))
    words = [sys.executable, "-m", "sentinel.integrations.claude_code", "--url", command["url"], "--key-file", str(key), "--agent",
             command["agent"], "--tools", str(Path(__file__).with_name("tools.yaml")), "--facts", str(facts)]  # fmt: skip
    one = {"type": "command", "command": f"PYTHONPATH={shlex.quote(str(REPO))} {shlex.join(words)}"}
    events = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
    return json.dumps({"hooks": {event: [{"matcher": f"{PREFIX}.*", "hooks": [one]}] for event in events}})


if __name__ == "__main__":
    os.environ.pop("CLAUDECODE", None)
    serve(ClaudeAgent)
