"""`sentinel hook claude-code`, or `sentinel-hook` of the client alone: the hooks as a command of Claude Code's settings.

Reads one hook's JSON on standard input and writes its answer. A PreToolUse that cannot be decided, for whatever reason,
ends with exit code 2, which blocks the tool; an outcome that cannot be reported with 1, which only shows the error. Any
other end would let the tool run, so only the standard library is imported outside of what catches failures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client import Client

BLOCK, NOT_REPORTED = 2, 1
HOOKS = {"PreToolUse": "pre_tool_use", "PostToolUse": "post_tool_use", "PostToolUseFailure": "post_tool_use"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one hook and return its exit code."""
    options, event = None, "PreToolUse"
    try:
        with suppress(ValueError):  # raised outside of the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, _stop)
        options = _parser().parse_args(arguments)
        given = json.loads(sys.stdin.buffer.read())  # UTF-8, whatever encoding the environment names
        event = given["hook_event_name"]
        _say(_answer(options, given, event))
    except BaseException as error:
        if options is None and isinstance(error, SystemExit):  # argparse has printed its usage error or the help
            return BLOCK if error.code else 0
        with suppress(Exception):
            sys.stderr.write(f"sentinel: {type(error).__name__}: {error}\n")
        return BLOCK if event == "PreToolUse" else NOT_REPORTED
    return 0


def _stop(number: int, _: Any) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")


def _say(answer: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except OSError:
        # Redirected: a second failing flush when the interpreter exits would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def _answer(options: argparse.Namespace, given: Any, event: str) -> dict[str, Any]:
    from sentinel.client import Client
    from sentinel.integrations.claude_agent_sdk import ClaudeHooks
    from sentinel.integrations.tool_guard import ToolGuard
    from sentinel.tools import read_tool_table

    if event not in HOOKS:
        raise ValueError(f"hook_event_name is {event}: there is no hook for it")
    facts = json.loads(options.facts.read_bytes()) if options.facts else None
    with Client(options.url, options.key_file.read_text().strip(), agent_id=options.agent) as client:
        guard = ToolGuard(read_tool_table(options.tools), client, facts=facts, act_within_seconds=options.act_within)
        guard.async_client = _Blocking(client)  # type: ignore[assignment]
        return _finished(getattr(ClaudeHooks(guard, pending=options.pending), HOOKS[event])(given))


class _Blocking:
    """The client's calls as coroutines that never suspend: a hook makes one call after another, and asyncio would double its start time."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def guard(self, **question: Any) -> Any:
        return self._client.guard(**question)

    async def start(self, answer: Any, start_id: Any, **within: Any) -> Any:
        return self._client.start(answer, start_id, **within)

    async def report(self, **outcome: Any) -> Any:
        return self._client.report(**outcome)


def _finished(hook: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a coroutine that never suspends. Raises `RuntimeError` for one that does."""
    try:
        hook.send(None)
    except StopIteration as done:
        found: dict[str, Any] = done.value
        return found
    hook.close()
    raise RuntimeError("a hook's calls do not wait")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sentinel hook claude-code", description="A hook of Claude Code, as JSON.")
    parser.add_argument("--url", default="http://127.0.0.1:7860", help="address of the authority")
    parser.add_argument("--key-file", type=Path, required=True, help="file with the agent's key, mode 0600")
    parser.add_argument("--agent", required=True, help="the agent's id")
    parser.add_argument("--tools", type=Path, required=True, help="the file tools.yaml")
    parser.add_argument(
        "--facts", type=Path, help="file with facts of every call, a JSON object; each tool gets those that it declares"
    )
    parser.add_argument("--act-within", type=int, metavar="SECONDS", help="how long a tool may take after its start")
    parser.add_argument(
        "--pending", choices=("deny", "defer"), default="deny", help="decision about a call that waits for a person"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
