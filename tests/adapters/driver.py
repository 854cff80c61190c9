"""What runs inside an adapter's environment: one JSON command per line on standard input, one JSON answer per line.

A driver of one framework implements `Driver`. Nothing of the test environment is imported here: only the client, the table,
the adapters and the framework.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.client import Client
from sentinel.integrations import ToolGuard
from sentinel.tools import read_tool_table
from tests.adapters.recorded_spans import RecordedSpans

TABLE = read_tool_table(Path(__file__).with_name("tools.yaml"))


UNKNOWN = "unknown"
"""In the place of an approval, where an interruption says of none."""


def facts_of(command: dict[str, Any]) -> Any:
    """What the program knows of every call; None: it looks nothing up; "away": it cannot be read."""
    facts = command["facts"]

    def look_up(tool: str, arguments: Any) -> Any:
        if facts == "away":
            raise OSError("the shop's database is away")
        return facts

    return look_up if facts is not None else None


@dataclass
class Shop:
    """The provider behind the tools: it notes every call, and may fail, die, or wait for the end of the run in the middle of one."""

    behaviour: str = "works"
    calls: list[dict[str, Any]] = field(default_factory=list)
    run_is_over: threading.Event = field(default_factory=threading.Event)

    def do(self, tool: str, **arguments: Any) -> str:
        """One effect."""
        self.calls.append({"tool": tool, **arguments})
        if self.behaviour == "dies":
            print(json.dumps({"died": True}), flush=True)
            os._exit(9)
        if self.behaviour == "raises":
            raise RuntimeError("the provider timed out")
        if self.behaviour == "outlasts the run":
            self.run_is_over.wait(60)
        return f"done: {tool}"


@dataclass
class Turn:
    """What one run of the agent came to, beside the shop's calls."""

    messages: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


class Driver:
    """One framework. `state` is a folder that outlives the process; `thread` names the run to go on with."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        """A new run whose model makes `command["calls"]` in one turn, in the given form ("sync", "async")."""
        raise NotImplementedError

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        """Go on with the run of `command["thread"]`, resumed with the value `command["value"]`."""
        raise NotImplementedError


def serve(kind: type[Driver]) -> None:
    """Answer commands until standard input ends."""
    # What the framework prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        command = json.loads(line)
        shop = Shop(command.get("shop", "works"))
        driver = kind(shop)
        client = Client(command["url"], command["key"], agent_id=command["agent"], timeout_seconds=command.get("timeout", 60), retries=0)  # fmt: skip
        guard = ToolGuard(TABLE, client, facts=facts_of(command))
        answer: dict[str, Any] = {"raised": None, "messages": [], "waiting": []}
        sys.stdout = answers if shop.behaviour == "dies" else sys.stderr
        try:
            with RecordedSpans().recording() if command.get("spans") else nullcontext([]) as spans:
                turn = getattr(driver, command["do"])(guard, command)
            answer |= {"messages": turn.messages, "waiting": turn.waiting, "spans": spans}
        except Exception as error:
            answer["raised"] = f"{type(error).__name__}: {error}"
        shop.run_is_over.set()
        client.close()
        print(json.dumps({**answer, "calls": shop.calls}), file=answers, flush=True)
