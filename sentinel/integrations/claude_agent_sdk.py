"""Claude Agent SDK: hooks around every tool call that the program `claude` makes.

    options = ClaudeAgentOptions(hooks=ClaudeHooks(guard).matchers("mcp__stripe__.*"))

A tool of an MCP server, `mcp__stripe__create_refund`, is `stripe/create_refund` in the table; one of Claude's own is
`claude/Bash`. A failing hook blocks. A call that waits for a person defers the run (`deferred_tool_use` of its result).
Resume it only once the approval is decided: the hook asks the authority again, and the program drops a call that is
deferred a second time, so that the model must make it again. `can_use_tool` and permission modes do not guard: rules
and the bypass mode skip them.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from sentinel.client import ClientError, GuardAnswer, Outcome, Rejected, StartedTooLate
from sentinel.client.guarded import Stopwatch, is_started_too_late, outcome_of, raise_unless_permitted, refused_start
from sentinel.integrations.hook_calls import has_failed, may_still_act, table_name, without_injected
from sentinel.integrations.refusals import refusal_details, refusal_message
from sentinel.integrations.tool_guard import ToolGuard
from sentinel.tools import ToolCall

_MOST_STARTED = 1_000
"""The most calls in flight whose answers are kept. No event tells that a call never ended, so the oldest are dropped."""
_log = logging.getLogger(__name__)


class ClaudeHooks:
    """The three hooks. `pending` is what a call that waits for a person gets: "defer" ends the run, "deny" tells the model."""

    def __init__(self, guard: ToolGuard, *, pending: str = "defer") -> None:
        if guard.wait_seconds:
            raise ValueError("a hook's guard must have no wait_seconds: a hook does not wait for a person")
        self._guard, self._pending = guard, pending
        self._started: dict[str, GuardAnswer] = {}

    def matchers(self, tools: str | None = None) -> dict[str, list[Any]]:
        """Return the hooks for `ClaudeAgentOptions(hooks=…)`: for tools whose names match (None: all); a failing hook blocks its tool."""
        from claude_agent_sdk import HookMatcher

        def matcher(hook: Any, **more: Any) -> list[Any]:
            return [HookMatcher(matcher=tools, hooks=[hook], **more)]

        return {
            "PreToolUse": matcher(self.pre_tool_use, on_failure="block"),
            "PostToolUse": matcher(self.post_tool_use),
            "PostToolUseFailure": matcher(self.post_tool_use),
        }

    async def pre_tool_use(self, given: Any, tool_use_id: str | None = None, context: Any = None) -> dict[str, Any]:
        """Guard and start; deny whatever is not permitted. Returns no decision on a tool that runs unguarded."""
        client = self._guard.async_client
        try:
            call = await self._call(given, given["tool_input"])
            if call.question is None:
                return {}
            answer = await self._guard.answer_to(call)
            raise_unless_permitted(answer)
            asked = Stopwatch()
            try:
                await client.start(answer, uuid.uuid4(), act_within_seconds=self._guard.act_within_seconds)
            except Rejected as refused:
                raise refused_start(answer, refused) from refused
            if is_started_too_late(asked, self._guard.client, self._guard.act_within_seconds):
                try:
                    await client.report(**outcome_of(answer, StartedTooLate.__name__))
                except ClientError as error:
                    _log.error("the outcome of operation %s was not reported: %r", answer.operation_id, error)
                raise StartedTooLate("the start was answered too late to act on it")
        except ClientError as error:
            waits = refusal_details(error)["decision"] == "APPROVAL_REQUIRED"
            return _decision(self._pending if waits else "deny", refusal_message(error))
        self._keep(tool_use_id or given.get("tool_use_id"), answer)
        run_with = {**call.arguments, **call.injected("argument", operation_id=answer.operation_id)}
        changed = {"updatedInput": run_with} if run_with != given["tool_input"] else {}
        return _decision("allow", f"{answer.reason_code} ({answer.operation_id})", **changed)

    async def post_tool_use(self, given: Any, tool_use_id: str | None = None, context: Any = None) -> dict[str, Any]:
        """Report the outcome, except of a tool that may still act (interrupted, no answer): unreported, it ends in doubt."""
        started = self._started.pop(tool_use_id or given.get("tool_use_id"), None)
        if may_still_act(given):
            return {}
        try:
            if (outcome := await self._outcome(given, started)) is not None:
                await self._guard.async_client.report(**outcome)
        except ClientError as error:
            _log.warning("the outcome of %s was not reported: %s", given.get("tool_name"), error.detail)
            return {"systemMessage": "The outcome of a guarded tool was not reported; its operation will be in doubt."}
        return {}

    def _keep(self, call_id: str | None, answer: GuardAnswer) -> None:
        """Keep the answer until the call is over: facts looked up then may differ, by the call's own effect."""
        if call_id is not None:
            self._started[call_id] = answer
        if len(self._started) > _MOST_STARTED:
            del self._started[next(iter(self._started))]

    async def _outcome(self, given: Any, started: GuardAnswer | None) -> Outcome | None:
        """Return the started operation's report (the table's, if another process started it); None for an unguarded tool."""
        error = "ToolFailed" if has_failed(given) else None
        if started is not None:
            return outcome_of(started, error)
        question = (await self._call(given, without_injected(self._guard.table, given))).question
        if question is None:
            return None
        return {
            "idempotency_key": question["idempotency_key"], "action": question["action"], "outcome": "error" if error else "success",
            "error": error, "resource": question.get("resource"), "risk_class": question.get("risk_class"),
        }  # fmt: skip

    async def _call(self, given: Any, arguments: dict[str, Any]) -> ToolCall:
        server, tool = table_name(given["tool_name"])
        return await self._guard.on_server(server).call_of_async(tool, arguments)


def _decision(decision: str, reason: str, **more: Any) -> dict[str, Any]:
    own = {"hookEventName": "PreToolUse", "permissionDecision": decision, "permissionDecisionReason": reason, **more}
    return {"hookSpecificOutput": own}
