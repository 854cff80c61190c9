"""pydantic-ai behind the Agent Approval Protocol's own capability, as released."""

from __future__ import annotations

from typing import Any

from agentapprovalprotocol.pydantic_ai import METADATA_KEY, ApprovalCapability

from sentinel.integrations import ToolGuard
from tests.adapters.drive_pydantic_ai import PydanticAI
from tests.adapters.driver import serve


class AapPydanticAI(PydanticAI):
    """Calls that wait end the run with deferred requests."""

    def capability(self, guard: ToolGuard, command: dict[str, Any]) -> Any:
        context = {"facts": command["facts"]}
        return ApprovalCapability(command["url"] + "/aap", command["key"], mode="async", context=context)

    def waiting_for(self, metadata: dict[str, Any]) -> str:
        return str(metadata[METADATA_KEY])


if __name__ == "__main__":
    serve(AapPydanticAI)
