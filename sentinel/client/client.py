"""The client: one method per route of `docs/CONTRACT.md` §2 and §3, retried only where the idempotency key makes that safe.

One call lasts at most `timeout_seconds`, retries and pauses included. Every question carries its own idempotency key or
start id, so a retry gets the recorded answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sentinel.client import calls
from sentinel.client.calls import (
    PREFIX,
    CheckQuestion,
    ClientCall,
    GuardQuestion,
    Outcome,
    guard_body,
    outcome_body,
    question_body,
    readers,
)
from sentinel.client.errors import ApprovalPending, NoAnswerKind, Rejected, Unreachable
from sentinel.client.transport import Transport, call_span

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Unpack

    from sentinel.client import answers
    from sentinel.client.answers import GuardAnswer, StartReceipt, Switches
    from sentinel.client.async_client import AsyncClient

Parsed = TypeVar("Parsed")


class Client:
    """Asks one authority with one key. Thread-safe; connections are kept and shared.

    `base_url` is e.g. "http://127.0.0.1:7860". `agent_id` is the default for every call. A call raises `Unreachable`
    (no answer: may be repeated), `KeyConflict` or `Rejected` (answered: the request itself is refused).
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
        self._transport = Transport(base_url, headers=headers, pool_size=pool_size)
        self._made_with = (base_url, api_key, tenant_id, pool_size)
        self.agent_id = agent_id
        self.timeout_seconds = timeout_seconds
        self._retries = retries

    def guard(self, **question: Unpack[GuardQuestion]) -> GuardAnswer:
        """Ask whether exactly this may happen. Only `answer.may_start` is a permission, and it still needs `start`.

        With a `start_id` the same call also redeems the permit: then `answer.start` is the go-ahead, and if it is a
        `duplicate` an earlier attempt may already have acted on it.
        """
        return self._run(calls.guard_call(question, self._agent(question.get("agent_id"))))

    def guard_many(self, questions: Sequence[GuardQuestion]) -> list[GuardAnswer | Unreachable | Rejected]:
        """Call `guard` for up to 64 questions (each a dict of its keyword arguments) in one request: per question the
        answer or its error."""
        bodies = [guard_body(question, self._agent(question.get("agent_id"))) for question in questions]
        return self._call_many("/action/guard", bodies, calls.read_guard_answer)

    def start(
        self, answer: GuardAnswer, start_id: str | uuid.UUID, *, act_within_seconds: int | None = None
    ) -> StartReceipt:
        """Redeem the answer's permit just before the side effect. The same `start_id` gets the same receipt.

        Act within `act_within_seconds` of calling this (None: the authority's default) or start again: after that time
        a person may record that nothing was executed. `Rejected.code`: "permit-expired", "permit-refused" (halted, or a
        bound field differs), "already-started", "resolved-not-executed".
        """
        return self._run(calls.start_call(answer, start_id, act_within_seconds))

    def start_many(
        self, permits: Sequence[tuple[GuardAnswer, str | uuid.UUID]], *, act_within_seconds: int | None = None
    ) -> list[StartReceipt | Unreachable | Rejected]:
        """Call `start` for up to 64 permits in one request: per permit the receipt or its error."""
        return self._call_many(
            "/action/guard/start",
            [calls.start_body(answer, start_id, act_within_seconds) for answer, start_id in permits],
            lambda _body, found, **_: readers().start_receipt(found),
        )

    def report(self, **outcome: Unpack[Outcome]) -> answers.ReportReceipt:
        """Report the outcome of a started action. Nothing in `result` is refused: a value without a JSON form is sent as
        text, and a result over 32 KiB or nested deeper than 12 as its size and SHA-256."""
        return self._run(calls.report_call(outcome, self._agent(outcome.get("agent_id"))))

    def report_many(self, outcomes: Sequence[Outcome]) -> list[answers.ReportReceipt | Unreachable | Rejected]:
        """Call `report` for up to 64 outcomes (each a dict of its keyword arguments) in one request: per outcome the
        receipt or its error."""
        bodies = [outcome_body(outcome, self._agent(outcome.get("agent_id"))) for outcome in outcomes]
        return self._call_many(calls.REPORT, bodies, lambda _body, found, **_: readers().report_receipt(found))

    def check(self, **question: Unpack[CheckQuestion]) -> answers.CheckAnswer:
        """Return what would be decided now; reserves nothing and permits nothing."""
        return self._run(calls.check_call(question, self._agent(question.get("agent_id"))))

    def check_many(self, questions: Sequence[CheckQuestion]) -> list[answers.CheckAnswer | Unreachable | Rejected]:
        """Call `check` for up to 64 questions (each a dict of its keyword arguments) in one request: per question the
        answer or its error."""
        bodies = [question_body(question, self._agent(question.get("agent_id"))) for question in questions]
        return self._call_many("/action/check", bodies, lambda _body, found, **_: readers().check_answer(found))

    def headroom(self, **question: Unpack[CheckQuestion]) -> list[answers.Headroom]:
        """Return what is left of each limit that would count the action; reserves nothing."""
        return self._run(calls.headroom_call(question, self._agent(question.get("agent_id"))))

    def approval(self, approval_id: str | uuid.UUID) -> answers.ApprovalView:
        """Return one approval of this agent."""
        return self._run(calls.approval_call(approval_id))

    def wait_for_approval(
        self, approval_id: str | uuid.UUID, *, timeout_seconds: float, poll_seconds: float = 2.0
    ) -> answers.ApprovalView:
        """Poll until the approval is decided or expired and return it. It grants nothing itself: guard again with the
        same key.

        Polls often at first, later about every `poll_seconds`; a poll without an answer is retried. After
        `timeout_seconds` raises `ApprovalPending`, or `Unreachable` if the last poll got no answer, for which it may
        wait the client's own timeout beyond that; a closed client raises `Unreachable` at once.
        """
        deadline, attempt = time.monotonic() + timeout_seconds, 0
        while True:
            silent: Unreachable | None = None
            try:
                view = self.approval(approval_id)
                if view.status != "pending":
                    return view
            except Unreachable as error:
                if error.kind is NoAnswerKind.CLOSED:
                    raise
                silent = error
            left = deadline - time.monotonic()
            if left <= 0:
                raise silent or ApprovalPending(str(approval_id), "nobody decided while waiting")
            time.sleep(calls.poll_pause(attempt, poll_seconds, left))
            attempt += 1

    def approvals_since(self, since: datetime, limit: int = 500) -> list[answers.ApprovalDecision]:
        """Return the approvals decided after `since` (timezone-aware), oldest first: at most `limit` (1 to 500), and
        those of the same instant as the last of them.

        One may become visible up to ten seconds after a later one. After `limit` of them or more continue from the last
        one, otherwise from ten seconds before the last one seen, and recognise repeats by their ids. Asks for a part of
        them at a time, all within the client's timeout.
        """
        found: list[answers.ApprovalDecision] = []
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            wanted = min(limit - len(found), calls.MOST_DECISIONS)
            part, _ = self._tried(calls.decisions_call(since, wanted), deadline)
            found += part
            # A full part whose last decision is no later than `since` would be fetched again for ever.
            if len(part) < wanted or len(found) >= limit or part[-1].decided_at <= since:
                return found
            since = part[-1].decided_at

    def heartbeat(self, agent_id: str | None = None) -> str:
        """Return the agent's status: OK, PAUSE or KILL."""
        return self._run(calls.heartbeat_call(self._agent(agent_id)))

    def key(self) -> answers.KeyHolder:
        """Return whose key this client has."""
        return self._run(calls.key_call())

    def switches(self) -> Switches:
        """Return what is switched on and halted for this tenant, and which policies are in force. Grants nothing."""
        call: ClientCall[Switches]
        call = ClientCall("GET", "/switches", None, lambda _, found: readers().switches_answer(found))
        return self._run(call)

    def switch_off(self, name: str, reason: str) -> bool:
        """Turn a switch off for everybody (an agent cannot turn one on). Returns False if it was off already."""
        body = {"switch": name, "reason": reason}
        call: ClientCall[bool]
        call = ClientCall("POST", "/switches/off", body, lambda _, found: readers().switched_off(found, name))
        return self._run(call)

    def as_async(self) -> AsyncClient:
        """Return an `AsyncClient` with the same address, key, agent, timeout, number of retries and pool size."""
        from sentinel.client.async_client import AsyncClient

        base_url, api_key, tenant_id, pool_size = self._made_with
        return AsyncClient(
            base_url, api_key, agent_id=self.agent_id, tenant_id=tenant_id, timeout_seconds=self.timeout_seconds,
            retries=self._retries, pool_size=pool_size,
        )  # fmt: skip

    def abort(self) -> None:
        """Abort the calls in flight in every thread: they raise `Unreachable`. For a quick, clean shutdown."""
        self._transport.abort()

    def close(self) -> None:
        """Close the idle connections; later calls raise `Unreachable`."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agent(self, given: str | None) -> str:
        return calls.chosen_agent(given, self.agent_id)

    def _call_many(
        self, path: str, bodies: Sequence[dict[str, Any]], parse: Callable[..., Parsed]
    ) -> list[Parsed | Unreachable | Rejected]:
        """Call the batch form of a route. If the batch as a whole is refused (no such route, too large), call one by one."""
        if len(bodies) == 1:
            return [self._call_in_batch_form(path, bodies[0], parse)]
        found: list[answers.BatchItem]
        try:
            found, was_lost = self._tried(
                ClientCall(
                    "POST", f"{path}/batch", {"requests": bodies}, lambda _, got: readers().batch(got, len(bodies))
                )
            )
        except Rejected as error:
            if error.status in (401, 403):
                return [error] * len(bodies)
            return [self._call_in_batch_form(path, body, parse, error.may_have_arrived) for body in bodies]
        except Unreachable as error:
            return [error] * len(bodies)
        results: list[Parsed | Unreachable | Rejected] = []
        for body, one in zip(bodies, found, strict=True):
            try:
                if one.status != 200:
                    calls.raise_for_status(one.status, one.body, wait=None)
                results.append(parse(body, one.body, replayed=one.replayed))
            except (Unreachable, Rejected) as error:
                error.may_have_arrived |= was_lost
                results.append(error)
        return results

    def _call_in_batch_form(
        self, path: str, body: dict[str, Any], parse: Callable[..., Parsed], was_lost: bool = False
    ) -> Parsed | Unreachable | Rejected:
        try:
            return self._run(
                ClientCall("POST", path, body, lambda raw, found: parse(body, found, replayed=raw.replayed))
            )
        except (Unreachable, Rejected) as error:
            error.may_have_arrived |= was_lost
            return error

    def _run(self, call: ClientCall[Parsed]) -> Parsed:
        return self._tried(call)[0]

    def _tried(self, call: ClientCall[Parsed], deadline: float | None = None) -> tuple[Parsed, bool]:
        """Return the answer, and whether an earlier attempt may have reached the authority too.

        `deadline` is in monotonic seconds; without one, the call has the client's timeout.
        """
        sent, was_lost = call.sent, False
        deadline = time.monotonic() + self.timeout_seconds if deadline is None else deadline
        for attempt in range(self._retries + 1):
            try:
                with call_span(call.method, call.path):
                    answer = self._transport.exchange(call.method, PREFIX + call.path, sent, deadline)
                    was_lost = was_lost or answer.was_sent_before
                    return call.read(answer), was_lost
            except (Unreachable, Rejected) as error:
                was_lost = error.may_have_arrived = error.may_have_arrived or was_lost
                time.sleep(calls.pause_before_retry(error, attempt, self._retries, deadline - time.monotonic()))
        raise AssertionError("the loop returns or raises")
