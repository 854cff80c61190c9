"""`AsyncClient`: the calls that an agent makes, for an event loop. Standard library only."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, TypeVar

from sentinel.client import answers, calls
from sentinel.client.answers import GuardAnswer, StartReceipt
from sentinel.client.async_transport import AsyncTransport
from sentinel.client.calls import PREFIX, CheckQuestion, ClientCall, GuardQuestion, Outcome
from sentinel.client.errors import ApprovalPending, NoAnswerKind, Rejected, Unreachable
from sentinel.client.transport import call_span

if TYPE_CHECKING:
    from typing_extensions import Unpack

Parsed = TypeVar("Parsed")


class AsyncClient:
    """Like `Client`, for an event loop. Connections are kept until the client or its loop is closed; `async with`
    closes it.

    Cancelling a call closes its connection; the same call with the same key may be made again.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        agent_id: str | None = None,
        tenant_id: str | uuid.UUID | None = None,
        timeout_seconds: float = 5.0,
        retries: int = 2,
        pool_size: int = 16,
    ) -> None:
        headers = calls.client_headers(api_key, tenant_id)
        self._transport = AsyncTransport(base_url, headers=headers, pool_size=pool_size)
        self.agent_id = agent_id
        self.timeout_seconds = timeout_seconds
        self._retries = retries

    async def guard(self, **question: Unpack[GuardQuestion]) -> GuardAnswer:
        """Ask whether exactly this may happen. Only `answer.may_start` is a permission, and it still needs `start`."""
        return await self._run(calls.guard_call(question, self._agent(question.get("agent_id"))))

    async def start(
        self, answer: GuardAnswer, start_id: str | uuid.UUID, *, act_within_seconds: int | None = None
    ) -> StartReceipt:
        """Redeem the answer's permit just before the side effect. The same `start_id` gets the same receipt."""
        return await self._run(calls.start_call(answer, start_id, act_within_seconds))

    async def report(self, **outcome: Unpack[Outcome]) -> answers.ReportReceipt:
        """Report the outcome of a started action."""
        return await self._run(calls.report_call(outcome, self._agent(outcome.get("agent_id"))))

    async def check(self, **question: Unpack[CheckQuestion]) -> answers.CheckAnswer:
        """Return what would be decided now; reserves nothing and permits nothing."""
        return await self._run(calls.check_call(question, self._agent(question.get("agent_id"))))

    async def headroom(self, **question: Unpack[CheckQuestion]) -> list[answers.Headroom]:
        """Return what is left of each limit that would count the action; reserves nothing."""
        return await self._run(calls.headroom_call(question, self._agent(question.get("agent_id"))))

    async def approval(self, approval_id: str | uuid.UUID) -> answers.ApprovalView:
        """Return one approval of this agent."""
        return await self._run(calls.approval_call(approval_id))

    async def heartbeat(self, agent_id: str | None = None) -> str:
        """Return the agent's status: OK, PAUSE or KILL."""
        return await self._run(calls.heartbeat_call(self._agent(agent_id)))

    async def key(self) -> answers.KeyHolder:
        """Return whose key this client has."""
        return await self._run(calls.key_call())

    async def wait_for_approval(
        self, approval_id: str | uuid.UUID, *, timeout_seconds: float, poll_seconds: float = 2.0
    ) -> answers.ApprovalView:
        """Poll until the approval is decided or expired, as `Client.wait_for_approval`; may be cancelled at any moment."""
        deadline, attempt = time.monotonic() + timeout_seconds, 0
        while True:
            silent: Unreachable | None = None
            try:
                view = await self.approval(approval_id)
                if view.status != "pending":
                    return view
            except Unreachable as error:
                if error.kind is NoAnswerKind.CLOSED:
                    raise
                silent = error
            left = deadline - time.monotonic()
            if left <= 0:
                raise silent or ApprovalPending(str(approval_id), "nobody decided while waiting")
            await asyncio.sleep(calls.poll_pause(attempt, poll_seconds, left))
            attempt += 1

    async def close(self) -> None:
        """Close the idle connections; later calls raise `Unreachable`."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _agent(self, given: str | None) -> str:
        return calls.chosen_agent(given, self.agent_id)

    async def _run(self, call: ClientCall[Parsed]) -> Parsed:
        sent, deadline, was_lost = call.sent, time.monotonic() + self.timeout_seconds, False
        for attempt in range(self._retries + 1):
            try:
                with call_span(call.method, call.path):
                    answer = await self._transport.exchange(call.method, PREFIX + call.path, sent, deadline)
                    was_lost = was_lost or answer.was_sent_before
                    return call.read(answer)
            except (Unreachable, Rejected) as error:
                was_lost = error.may_have_arrived = error.may_have_arrived or was_lost
                await asyncio.sleep(
                    calls.pause_before_retry(error, attempt, self._retries, deadline - time.monotonic())
                )
        raise AssertionError("the loop returns or raises")
