"""LangGraph behind the Agent Approval Protocol's own middleware, as released."""

from __future__ import annotations

from typing import Any

from agentapprovalprotocol.langgraph import INTERRUPT_KEY, ApprovalMiddleware

from sentinel.integrations import ToolGuard
from tests.adapters.drive_langchain import LangChain
from tests.adapters.driver import serve


class AapLangGraph(LangChain):
    """Calls that wait interrupt the run."""

    def middleware(self, guard: ToolGuard, command: dict[str, Any]) -> list[Any]:
        context = {"facts": command["facts"]}
        return [
            ApprovalMiddleware(command["url"] + "/aap", command["key"], mode="async", context=context, timeout="1h")
        ]

    def waiting_for(self, value: dict[str, Any]) -> str:
        return str(value[INTERRUPT_KEY])


if __name__ == "__main__":
    serve(AapLangGraph)
