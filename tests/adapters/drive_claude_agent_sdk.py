"""The program `claude` of the Claude Agent SDK against a scripted model service; its sessions are kept in the state folder."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

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


class ClaudeAgent(Driver):
    """One run of the program per command."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = [{"name": PREFIX + one["tool"], "input": one["args"], "id": f"toolu_{command['thread']}_{one['id']}_{number}"}
                 for number, one in enumerate(command["calls"])]  # fmt: skip
        return asyncio.run(self._run(guard, command, calls, None))

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return asyncio.run(self._run(guard, command, [], self._file(command).read_text()))

    async def _run(self, guard: ToolGuard, command: dict[str, Any], calls: list[Any], session: str | None) -> Turn:
        turn = Turn()
        with scripted_messages(calls) as (service, texts):
            # Closed before its service: the program would go on asking at an address that another test may have by then.
            async with aclosing(
                query(prompt="go", options=self._options(guard, command, service, session))
            ) as messages:
                async for message in messages:
                    if isinstance(message, ResultMessage):
                        self._file(command).write_text(message.session_id)
                        if (one := message.deferred_tool_use) is not None:
                            tool_name = one.name.removeprefix(PREFIX)
                            turn.waiting.append(str(await guard.approval_wanted(tool_name, one.input)))
                        break
        turn.messages.extend(texts)
        return turn

    def _options(
        self, guard: ToolGuard, command: dict[str, Any], service: str, session: str | None
    ) -> ClaudeAgentOptions:
        home = str(Path(command["state"]) / "claude")
        Path(home).mkdir(exist_ok=True)
        quiet = {"DISABLE_TELEMETRY": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        by_command = command["form"] == "command"
        hooks = None if by_command else ClaudeHooks(guard, pending=command["form"]).matchers(f"{PREFIX}.*")  # type: ignore[arg-type]
        return ClaudeAgentOptions(
            mcp_servers={"local": create_sdk_mcp_server("local", tools=tools_of(self.shop))},
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
