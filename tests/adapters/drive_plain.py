"""Plain functions under `guarded_tool`, called by name as a hand-written agent loop does; to wait is to call again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from sentinel.client import ApprovalPending, ClientError
from sentinel.integrations import ToolGuard, guarded_tool, refusal_message
from tests.adapters.driver import Driver, Turn, serve


class Plain(Driver):
    """The loop keeps a thread's calls in a file."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        self._file(command).write_text(json.dumps(command["calls"]))
        return self.resume(guard, command)

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        calls = json.loads(self._file(command).read_text())
        tools = self._tools(guard, command["form"] == "async")
        turn, left = Turn(), []
        for one in calls:
            try:
                result = tools[one["tool"]](**one["args"])
                turn.messages.append(asyncio.run(result) if asyncio.iscoroutine(result) else result)
            except ClientError as refused:
                turn.messages.append(refusal_message(refused))
                if isinstance(refused, ApprovalPending):
                    turn.waiting.append(refused.approval_id)
                    left.append(one)
        self._file(command).write_text(json.dumps(left))
        return turn

    def _file(self, command: dict[str, Any]) -> Path:
        return Path(command["state"]) / f"{command['thread']}.json"

    def _tools(self, guard: ToolGuard, is_async: bool) -> dict[str, Any]:
        shop = self.shop

        def create_refund(payment_intent: str, amount: int, reason: str | None = None, request_key: str | None = None, **more: Any) -> str:  # fmt: skip
            return shop.do("create_refund", payment_intent=payment_intent, amount=amount, request_key=request_key)

        def refund_charge(charge: str, amount: int) -> str:
            return shop.do("refund_charge", charge=charge, amount=amount)

        def look_up(payment_intent: str) -> str:
            return shop.do("look_up", payment_intent=payment_intent)

        def wire_money(account: str) -> str:
            return shop.do("wire_money", account=account)

        functions = {one.__name__: one for one in (create_refund, refund_charge, look_up, wire_money)}
        return {
            name: guarded_tool(guard, name=name)(_awaited(one) if is_async else one) for name, one in functions.items()
        }


def _awaited(function: Any) -> Any:
    import functools

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run


if __name__ == "__main__":
    serve(Plain)
