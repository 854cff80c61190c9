"""Clients of AuthZEN that others wrote, as released: one JSON command per line on standard input, one JSON answer per line.

Nothing of the product is imported here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.adapters.json_lines import answer_lines


def decern(command: dict[str, Any]) -> dict[str, Any]:
    """A plain evaluation."""
    from decern import Client

    client = Client(command["url"], token=command["key"], timeout=60)
    found = client.evaluate(command["subject"], command["action"], command["resource"], command.get("context"))
    return {"allowed": found.allowed, "reasons": found.reasons}


def apparitor(command: dict[str, Any]) -> dict[str, Any]:
    """Tool calls of one message, by the engine that its firewalls and gateways have in common: all allowed, or blocked."""
    from apparitor import AuthorizationEngine, ScannerConfig

    async def run() -> dict[str, Any]:
        config = ScannerConfig(
            pdp_url=command["url"], agent_id=command["agent"], allow_insecure_pdp=True, request_budget_s=60,
            connect_timeout_s=60, read_timeout_s=60, default_headers={"Authorization": f"Bearer {command['key']}"},
            redact_arguments=command.get("redact", False),
        )  # fmt: skip
        engine = AuthorizationEngine(config)
        verdict = await engine.evaluate_tool_calls(command["calls"])
        return {"allowed": verdict.verdict.value == "allow", "status": verdict.status.value}

    return asyncio.run(run())


def policy_backend(command: dict[str, Any]) -> dict[str, Any]:
    """What the evaluator of the Agent Governance Toolkit decides of a flat context, with no rule of its own."""
    from agent_os.policies import PolicyEvaluator
    from authzen_backend import AuthZENBackend

    url = command["url"] + "/access/v1/evaluation"
    with AuthZENBackend(pdp_url=url, pdp_application="tests", token=command["key"], timeout=60) as backend:
        evaluator = PolicyEvaluator()
        evaluator.add_backend(backend)
        found = evaluator.evaluate(command["context"])
    return {"allowed": found.allowed, "reason": found.reason}


CLIENTS = {"decern": decern, "apparitor": apparitor, "policy_backend": policy_backend}


if __name__ == "__main__":
    answer_lines(lambda command: CLIENTS[command["client"]](command))
