"""A tool call under authority: guard, connect, start, send once, report.

Only the authority's record survives a crash of the proxy. Each attempt starts under a start id of its own: of two
attempts at one operation, in any process, the second is refused as already started, and after a crash between start and
report the call is not sent again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from pydantic_core import to_json

from sentinel.client import ClientError, GuardAnswer, Headroom, Rejected, Unreachable
from sentinel.client.guarded import (
    Stopwatch,
    outcome_of,
    raise_unless_permitted,
    refused_start,
    why_not_reported,
)
from sentinel.integrations import ToolGuard
from sentinel.mcp_proxy.answers import CallRefused, given_up, in_doubt_result, lost_result, upstream_unavailable
from sentinel.mcp_proxy.log_messages import LogMessages
from sentinel.mcp_proxy.upstream import AnswerLost, Connection, Upstream, UpstreamUnavailable, reason_of
from sentinel.tools import ToolCall, ToolRefused

log = logging.getLogger("sentinel.mcp_proxy")
REPORT_MARGIN_SECONDS = 10
"""How many seconds longer than the call may take the authority waits before anybody can resolve it as not executed."""
_MOST_START_SECONDS = 5.0

Result: TypeAlias = "types.CallToolResult | types.InputRequiredResult"


@dataclass(frozen=True, slots=True)
class ClientUpdates:
    """What the client gets while its call runs: `progress` is the SDK's callback, `messages` takes the server's log messages."""

    progress: Any = None
    messages: LogMessages | None = None


NO_UPDATES = ClientUpdates()


@dataclass(frozen=True, slots=True)
class PermittedCall:
    """A call that may be made: unguarded (`answer` is None), or with a permit that is not redeemed yet."""

    asked: ToolCall
    answer: GuardAnswer | None
    params: types.CallToolRequestParams
    updates: ClientUpdates = NO_UPDATES


@dataclass(slots=True)
class _Attempt:
    """How far a call came. `failure`: why its outcome is unknown, in a word.

    If it was not sent, nothing happened at the server. `is_answered`: the server itself answered, with a result or an
    error.
    """

    is_started: bool = False
    is_sent: bool = False
    is_answered: bool = False
    refusal: ClientError | None = None
    result: Result | None = None
    failure: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody can still act: nothing was sent, or the server has answered. Only then may an error be reported."""
        return self.is_answered or not self.is_sent


class GuardedCalls:
    """Makes the calls of one upstream. `seconds` is the timeout of one call."""

    def __init__(self, guard: ToolGuard, upstream: Upstream, *, seconds: float) -> None:
        self._guard, self._upstream, self._seconds = guard, upstream, seconds
        self._running: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def ask(
        self, agent: str, params: types.CallToolRequestParams, updates: ClientUpdates = NO_UPDATES
    ) -> PermittedCall:
        """Ask whether the call may be made. Raises `CallRefused`."""
        arguments = {name: value for name, value in (params.arguments or {}).items() if value is not None}
        asked = answer = None
        try:
            _require_sendable(arguments)
            asked = await self._guard.call_of_async(params.name, arguments)
            if asked.question is None:
                # Without `_meta`, which concerns the client's own connection.
                passed = types.CallToolRequestParams(
                    name=params.name, arguments=params.arguments, input_responses=params.input_responses,
                    request_state=params.request_state,
                )  # fmt: skip
                return PermittedCall(asked, None, passed, updates)
            if params.input_responses or params.request_state:
                raise ToolRefused(
                    "input_not_accepted",
                    f"{params.name}: a call of a guarded tool must have no input_responses and no request_state",
                )
            answer = await self._guard.answer_to(asked, agent_id=agent)
            raise_unless_permitted(answer)
        except ClientError as error:
            raise CallRefused(error, answer, await self._tight(asked, answer, agent)) from error
        given = {**arguments, **asked.injected("argument", operation_id=answer.operation_id)}
        # Nothing else of the request is passed on: the table has not checked it.
        return PermittedCall(asked, answer, types.CallToolRequestParams(name=params.name, arguments=given), updates)

    async def _tight(self, asked: ToolCall | None, answer: GuardAnswer | None, agent: str) -> list[Headroom]:
        """Return the limits that a refused or waiting call does not fit; empty where the authority cannot be asked."""
        if asked is None or asked.question is None or answer is None or answer.status not in ("denied", "pending"):
            return []
        try:
            found = await self._guard.async_client.headroom(
                action=asked.question["action"], params=asked.question["params"], agent_id=agent
            )
        except ClientError:
            return []
        return [one for one in found if not one.fits]

    async def run(self, call: PermittedCall) -> Result:
        """Make the call; if the caller is cancelled, it still runs to its end and is reported.

        Raises `CallRefused`, and `MCPError` where the server answers an unguarded call with an error.
        """
        return await asyncio.shield(self.begin(call))

    def begin(self, call: PermittedCall, is_wanted: Callable[[], bool] = lambda: True) -> asyncio.Task[Result]:
        """Start the call as a task. `is_wanted` is asked on the open connection, right before the start; False refuses the call."""
        guarded = None if call.answer is None else self._guarded(call, call.answer, is_wanted)
        made: Awaitable[Result] = guarded or self._unguarded(call, is_wanted)
        task: asyncio.Task[Result] = asyncio.ensure_future(made)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def finish(self) -> None:
        """Wait for the calls in flight. A call that is not started or sent yet is refused, because it would be cut off."""
        self._is_ending = True
        if self._running:
            await asyncio.wait(self._running, timeout=self._seconds + REPORT_MARGIN_SECONDS)

    def _why_not(self, is_wanted: Callable[[], bool]) -> ClientError | None:
        if self._is_ending:
            return upstream_unavailable("ProxyEnding")
        return None if is_wanted() else given_up()

    def _ended(self, task: asyncio.Task[Result]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: its caller may be gone

    async def _unguarded(self, call: PermittedCall, is_wanted: Callable[[], bool]) -> Result:
        attempt = _Attempt()
        answered: MCPError | None = None
        try:
            async with self._upstream.connect(call.updates.messages) as connection:
                await connection.prepare(call.params)
                attempt.refusal = self._why_not(is_wanted)
                attempt.is_sent = attempt.refusal is None
                try:
                    if attempt.is_sent:
                        attempt.result = await connection.call(
                            call.params, headers={}, seconds=self._seconds, progress=call.updates.progress
                        )
                except MCPError as error:
                    answered = error
                except AnswerLost as lost:
                    attempt.failure = str(lost)
        except UpstreamUnavailable as away:
            raise CallRefused(upstream_unavailable(str(away))) from away
        except Exception as broken:
            attempt.failure = attempt.failure or reason_of(broken)
        if answered is not None:
            raise answered
        if attempt.result is not None:
            return attempt.result
        if not attempt.is_sent:
            raise CallRefused(attempt.refusal or upstream_unavailable(attempt.failure or "closed"))
        return lost_result(attempt.failure or "ConnectionLost")

    async def _guarded(self, call: PermittedCall, answer: GuardAnswer, is_wanted: Callable[[], bool]) -> Result:
        attempt = _Attempt()
        try:
            async with self._upstream.connect(call.updates.messages) as connection:
                await connection.prepare(call.params)
                attempt.refusal = self._why_not(is_wanted)
                if attempt.refusal is None:
                    await self._attempt(connection, call, answer, attempt)
        except UpstreamUnavailable as away:
            attempt.refusal = upstream_unavailable(str(away))
        except Exception as broken:
            if attempt.result is None:
                attempt.failure = attempt.failure or reason_of(broken)
        if not attempt.is_started:
            raise CallRefused(attempt.refusal or upstream_unavailable(attempt.failure or "closed"), answer)
        if attempt.result is None:
            attempt.failure = attempt.failure or "ConnectionLost"
        if attempt.is_over:
            await self._report(answer, attempt.failure)
        else:
            # Reporting an error would let a person say "not executed" at once, while the server may still act.
            log.warning(
                "the server's answer to %s was lost (%s): the operation is in doubt once its time to act is over",
                answer.idempotency_key,
                attempt.failure,
            )
        return attempt.result or in_doubt_result(
            answer, attempt.failure or "", is_sent=attempt.is_sent, is_reported=attempt.is_over
        )

    async def _attempt(
        self, connection: Connection, call: PermittedCall, answer: GuardAnswer, attempt: _Attempt
    ) -> None:
        """Redeem the permit and send the call; the result is in `attempt`. Raises only a cancellation, when the connection breaks."""
        asked, leave = Stopwatch(), int(self._seconds) + REPORT_MARGIN_SECONDS
        try:
            # Set before the start: if this is cancelled while it waits for the answer, the start may be recorded.
            attempt.is_started = True
            await self._guard.async_client.start(answer, uuid.uuid4(), act_within_seconds=leave)
        except Rejected as refused:
            attempt.is_started, attempt.refusal = False, refused_start(answer, refused)
            return
        except Unreachable as silent:
            attempt.is_started, attempt.refusal = False, silent
            return
        if asked.seconds > _MOST_START_SECONDS:
            # This process was suspended. Sent now, the call could end after a person may say "not executed".
            attempt.failure = "StartedTooLate"
            return
        headers = call.asked.injected("header", operation_id=answer.operation_id)
        attempt.is_sent = True
        try:
            attempt.result = await connection.call(
                call.params, headers=headers, seconds=self._seconds, progress=call.updates.progress
            )
            attempt.failure, attempt.is_answered = _failure_of(attempt.result), True
        except MCPError as error:
            attempt.failure, attempt.is_answered = reason_of(error), True
        except AnswerLost as lost:
            attempt.failure = str(lost)
        if isinstance(attempt.result, types.InputRequiredResult):
            attempt.result = None  # the call would have to be sent again, with input that no policy has checked

    async def _report(self, answer: GuardAnswer, failure: str | None) -> None:
        try:
            await self._guard.async_client.report(**outcome_of(answer, failure))
        except Exception as error:
            # The call was made, so nothing is raised. Without a report the authority puts the operation in doubt.
            log.warning("the outcome of %s was not reported: %s", answer.idempotency_key, why_not_reported(error))


def _require_sendable(arguments: dict[str, Any]) -> None:
    """Raise `ToolRefused` for arguments that no request can hold, e.g. text that was cut within an emoji, which an agent's
    JSON can escape: after the start the operation would be in doubt, although nothing was sent."""
    try:
        json.dumps(arguments, allow_nan=False)
        to_json([[[[arguments]]]])  # as the SDK will, and as deep as within its request
    except (TypeError, ValueError, RecursionError):
        why = "an argument cannot be sent as JSON: it contains half a character, a number that is none, or is nested too deeply"
        raise ToolRefused("malformed_argument", why) from None


def _failure_of(result: Result) -> str | None:
    if isinstance(result, types.InputRequiredResult):
        return "InputRequired"
    return "ToolFailed" if result.is_error else None
