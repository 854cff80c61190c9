"""An adapter that is wrong in three ways: it takes a resume for an approval, silence for a yes, and does not report.

The rules of tests/adapters must turn red on it.
"""

from __future__ import annotations

import json
from typing import Any

from sentinel.client import ApprovalPending, ClientError, Unreachable
from sentinel.integrations import ToolGuard
from tests.adapters.drive_plain import Plain
from tests.adapters.driver import Turn, serve


class Trusting(Plain):
    """The plain loop, trusting."""

    def begin(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        self._file(command).write_text(json.dumps(command["calls"]))
        return self._go(guard, command, is_approved=False)

    def resume(self, guard: ToolGuard, command: dict[str, Any]) -> Turn:
        return self._go(guard, command, is_approved=True)

    def _go(self, guard: ToolGuard, command: dict[str, Any], *, is_approved: bool) -> Turn:
        turn = Turn()
        for one in json.loads(self._file(command).read_text()):
            try:
                asked = guard.call_of(one["tool"], one["args"], command["facts"])
                answer = guard.client.guard(**asked.question)  # type: ignore[arg-type]
                if answer.status == "pending" and not is_approved:
                    raise ApprovalPending(answer.approval_id or "", "")
            except Unreachable:
                pass
            except ApprovalPending as pending:
                turn.waiting.append(pending.approval_id)
                continue
            except ClientError as refused:
                turn.messages.append(f"Not executed: {refused}")
                continue
            turn.messages.append(self.shop.do(one["tool"], **one["args"]))
        return turn


if __name__ == "__main__":
    serve(Trusting)
