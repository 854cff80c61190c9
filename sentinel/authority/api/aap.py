"""The Agent Approval Protocol: a tool call is submitted, decided, consumed just before it runs, and its outcome reported.

Submitting guards the operation to which `tools.yaml` maps the call, consuming starts it, and the outcome is its report.
A request's status is determined by a new guard each time; only what its client submitted and did is stored
(`aap_requests`). An instance of the protocol is a key that is bound to one agent. `docs/wires.md` describes the
mapping.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sentinel.authority import aap_requests
from sentinel.authority.aap_requests import AapRequest
from sentinel.authority.api.aap_wire import (
    REQUESTS,
    AapConflict,
    RequestStatus,
    outcome_of,
    refused,
    refused_since,
    rendered,
    stored_question,
    submission_of,
    wait_seconds,
)
from sentinel.authority.api.approval_stream import ApprovalFeed
from sentinel.authority.api.authority_calls import AuthorityCalls
from sentinel.authority.api.context import Context
from sentinel.authority.api.traced import trace_of
from sentinel.authority.approvals import find_approval
from sentinel.authority.decisions import Recorded
from sentinel.authority.engine import Caller
from sentinel.authority.reasons import reason_text, started_before_text
from sentinel.core.errors import (
    Forbidden,
    KeyReused,
    NotFound,
    ReportContradicts,
    ResolvedNotExecuted,
    SentinelError,
    TooManyStreams,
)
from sentinel.core.operation import check_identifier
from sentinel.platform.http.wire import EdgeResponse, Handler, Request, query_value, request_id_of
from sentinel.store.ids import new_id, uuid_or_none

_STARTS = uuid.UUID("6f0c3b0a-9d0e-5f2b-8c39-3f1d6a1e7b52")
"""Namespace of the start ids that are derived from request ids and consume keys (UUIDv5)."""

Act = Callable[[Caller, AapRequest, Request], Awaitable[AapRequest]]


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of guarding a request's operation: what is recorded, or the sentence of a refusal."""

    recorded: Recorded | None
    refusal: str = ""


class AapRoutes:
    """The protocol's five routes. `feed` notifies of decided approvals."""

    def __init__(self, context: Context, calls: AuthorityCalls, feed: ApprovalFeed) -> None:
        self._context, self._calls, self._feed = context, calls, feed
        self._pool, self._clock = context.authority.pool, context.authority.clock
        self._in_thread = context.in_thread

    def find(self, method: str, path: str) -> Handler | None:
        """Return the handler of a method and path, or None."""
        if not f"{path}/".startswith(f"{REQUESTS}/"):
            return None
        parts = path.removeprefix(REQUESTS).strip("/").split("/")
        if parts == [""]:
            return self._handler(self._create) if method == "POST" else None
        acts: dict[tuple[str, str], Act] = {
            ("GET", ""): self._show, ("DELETE", ""): self._cancel, ("POST", "consume"): self._consume,
            ("POST", "outcome"): self._report,
        }  # fmt: skip
        act = acts.get((method, "/".join(parts[1:])))
        return None if act is None else self._handler(partial(self._of_request, parts[0], act))

    def _handler(self, answer: Callable[[Caller, Request], Awaitable[EdgeResponse]]) -> Handler:
        async def handle(request: Request) -> EdgeResponse:
            try:
                caller = await self._context.identity.caller_async("guard", request.environ)
                if caller.agent_id is None:
                    raise Forbidden("the protocol needs a key that is bound to one agent")
                return await answer(caller, request)
            except SentinelError as error:
                return refused(error, request_id_of(request.environ))

        return handle

    async def _create(self, caller: Caller, request: Request) -> EdgeResponse:
        key = _key_of(request)
        made = submission_of(request.json(), self._context.tools.current)
        row, is_new = await self._in_thread(
            aap_requests.submit, self._pool, tenant_id=caller.tenant_id, request_id=new_id(), principal_id=caller.principal_id,
            idempotency_key=key, agent_id=caller.agent_id, **made,
        )  # fmt: skip
        if row.submission != made["submission"]:
            raise AapConflict("idempotency_conflict", "this Idempotency-Key was used for another request")
        return await self._answered(caller, row, request, status=201 if is_new else 200)

    async def _of_request(self, request_id: str, act: Act, caller: Caller, request: Request) -> EdgeResponse:
        wanted = uuid_or_none(request_id)
        row = await self._find(caller, wanted) if wanted is not None else None
        if row is None:
            raise NotFound("the request is unavailable")
        return await self._answered(caller, await act(caller, row, request), request)

    async def _show(self, caller: Caller, row: AapRequest, request: Request) -> AapRequest:
        seconds = wait_seconds(query_value(request.environ, "wait") or "0")
        left = min(seconds, (row.deadline_at - self._clock()).total_seconds())
        if left <= 0 or row.cancelled_at or row.consumed_at or row.question is None or self._refusal_of(row):
            return row
        found = (await self._ask(caller, row, request)).recorded
        if found is None or found.status != "pending" or found.approval_id is None:
            return row
        approval_id = found.approval_id

        async def is_open() -> bool:
            approval = await self._in_thread(find_approval, self._pool, caller.tenant_id, approval_id)
            return approval is not None and approval.status == "pending"

        try:
            await self._feed.wait_for(caller, approval_id, left, is_open=is_open)
        except TooManyStreams:
            return row  # without a slot to wait in, answer at once; the client polls again
        return await self._again(caller, row)  # it may have been consumed or cancelled meanwhile

    async def _cancel(self, caller: Caller, row: AapRequest, request: Request) -> AapRequest:
        """Cancel a pending request. Its approval stays pending, because withdrawing it would be deciding it.

        Raises `AapConflict` if the request is not pending any more; a repeat is accepted.
        """
        if row.cancelled_at is None:
            now = await self._status(caller, row, request)
            if now.status != "pending" or not await self._in_thread(aap_requests.cancel, self._pool, row):
                raise AapConflict("already_terminal", f"the request is {now.status}")
        return await self._again(caller, row)

    async def _consume(self, caller: Caller, row: AapRequest, request: Request) -> AapRequest:
        key = _key_of(request)
        # A failed claim means that the row changed meanwhile, e.g. by another key's claim or release: read it again and
        # retry. The claim does not decide which key starts the request; the authority does.
        while row.consumed_at is None:
            await self._require_claimable(caller, row, request, key)
            if await self._in_thread(aap_requests.claim, self._pool, row, key):
                return await self._consume_claimed(caller, row, request, key)
            row = await self._again(caller, row)
        if _only_of(row, key).question is not None:
            await self._started(caller, row, request, key)
        return row

    async def _require_claimable(self, caller: Caller, row: AapRequest, request: Request, key: str) -> None:
        """Raise `AapConflict` if the key may not start the request in the state of `row`, whatever the authority decides."""
        if row.cancelled_at is not None or self._refusal_of(row) is not None:
            raise AapConflict("not_approved", "the request is not approved")
        if self._clock() >= row.deadline_at:
            raise AapConflict("approval_expired", "the request has timed out")
        if row.consume_key in (None, key):
            return
        if row.question is None:
            raise AapConflict("already_consumed", "the request was consumed under another Idempotency-Key")
        # Do not take over the claim while the operation is pending: this key would be refused and give the claim back
        # to the other key. If that one was refused meanwhile too, the claim would remain with nobody consuming the
        # request, and a claimed request cannot be cancelled.
        found = await self._ask(caller, row, request)
        if found.recorded is not None and found.recorded.status == "pending":
            raise _not_started(found)

    async def _consume_claimed(self, caller: Caller, row: AapRequest, request: Request, key: str) -> AapRequest:
        """Start a claimed request under its key, and record that it is consumed; a refused start releases the claim."""
        decided_at, expires_at = row.created_at, row.deadline_at
        if row.question is not None:
            try:
                found = await self._started(caller, row, request, key)
            except AapConflict:
                await self._in_thread(aap_requests.release, self._pool, row, key)
                raise
            decided_at = _decided_at(row, found)
            expires_at = found.permit_expires_at or self._clock() + timedelta(seconds=1)
        await self._in_thread(
            aap_requests.consume,
            self._pool,
            row,
            key,
            decided_at=decided_at,
            expires_at=max(expires_at, decided_at + timedelta(seconds=1)),
        )
        return _only_of(await self._again(caller, row), key)

    async def _started(self, caller: Caller, row: AapRequest, request: Request, key: str) -> Recorded:
        """Start the request's operation under a consume key and return what is recorded.

        A repeat asks the authority too, which extends the time to act. Raises `AapConflict` if the caller may not act
        under this key: not approved, started by another key, already done, or resolved by a person as not executed.
        """
        found = await self._ask(caller, row, request, start_id=uuid.uuid5(_STARTS, f"{row.request_id}:{key}"))
        if found.recorded is None or not found.recorded.may_act_on_start:
            raise _not_started(found)
        return found.recorded

    async def _report(self, caller: Caller, row: AapRequest, request: Request) -> AapRequest:
        outcome, note = outcome_of(request.json())
        if row.consumed_at is None:
            raise AapConflict("not_consumed", "the request was not consumed")
        if row.outcome is None:
            if row.question is not None:
                await self._tell(caller, row, outcome, note, request_id_of(request.environ))
            await self._in_thread(aap_requests.report, self._pool, row, outcome, note)
            row = await self._again(caller, row)
        if (row.outcome, row.outcome_note) != (outcome, note):
            raise AapConflict("outcome_conflict", "a different outcome was already reported")
        return row

    async def _tell(self, caller: Caller, row: AapRequest, outcome: str, note: str | None, request_id: str) -> None:
        operation = stored_question(row)
        try:
            await self._calls.report(
                caller, request_id=request_id, outcome="success" if outcome == "succeeded" else "error",
                error=None if outcome == "succeeded" else note, idempotency_key=operation.idempotency_key,
                action=operation.action, agent_id=operation.agent_id, resource=operation.resource,
                risk_class=operation.risk_class,
            )  # fmt: skip
        except ReportContradicts as error:
            raise AapConflict("outcome_conflict", error.detail) from None

    async def _ask(
        self, caller: Caller, row: AapRequest, request: Request, *, start_id: uuid.UUID | None = None
    ) -> _Found:
        """Guard the request's operation, and store its id the first time. With a `start_id`, also start it."""
        operation = stored_question(row)
        try:
            found = await self._calls.guard(
                caller,
                operation,
                request_id=request_id_of(request.environ),
                start_id=start_id,
                trace=trace_of(request.environ),
            )
        except (KeyReused, ResolvedNotExecuted) as error:
            return _Found(None, f"{error.code.replace('-', '_')}: {error.detail}")
        if row.operation_id is None:
            await self._in_thread(aap_requests.name_operation, self._pool, row, found.operation_id)
        return _Found(found)

    async def _status(self, caller: Caller, row: AapRequest, request: Request) -> RequestStatus:
        if row.consumed_at is not None:
            return RequestStatus("approved", row.decided_at, row.expires_at)
        if row.cancelled_at is not None:
            return RequestStatus("cancelled", row.cancelled_at)
        refusal = self._refusal_of(row)
        if refusal is not None:
            return RequestStatus("denied", row.created_at, note=refusal)
        if self._clock() >= row.deadline_at:
            return RequestStatus("expired", row.deadline_at)
        if row.question is None:
            return RequestStatus("approved", row.created_at, row.deadline_at)
        found = await self._ask(caller, row, request)
        if found.recorded is None:
            return RequestStatus("denied", row.created_at, note=found.refusal)
        return await self._status_of(row, found.recorded)

    def _refusal_of(self, row: AapRequest) -> str | None:
        """Return why the tool table refuses the request, when it was submitted or now; None if it does not."""
        return row.refusal or refused_since(row, self._context.tools.current)

    async def _status_of(self, row: AapRequest, found: Recorded) -> RequestStatus:
        if found.status == "pending":
            return RequestStatus("pending")
        if found.status in ("allowed", "approved") and found.permit_expires_at is not None:
            return RequestStatus("approved", _decided_at(row, found), found.permit_expires_at)
        if found.status == "expired":
            return RequestStatus("expired", max(row.created_at, found.approval_expires_at or row.created_at))
        code = found.status if found.status in ("already_started", "completed") else found.reason_code
        sentence = started_before_text(found.outcome) if code == found.status else reason_text(code)
        return RequestStatus("denied", await self._denied_at(row, found), note=f"{code}: {sentence}")

    async def _denied_at(self, row: AapRequest, found: Recorded) -> datetime:
        approval = None
        if found.approval_id is not None:
            approval = await self._in_thread(find_approval, self._pool, row.tenant_id, found.approval_id)
        decided_at = approval.decided_at if approval is not None and approval.decided_at else found.decided_at
        return max(row.created_at, decided_at)

    async def _answered(self, caller: Caller, row: AapRequest, request: Request, *, status: int = 200) -> EdgeResponse:
        return EdgeResponse(rendered(row, await self._status(caller, row, request)), status)

    async def _find(self, caller: Caller, request_id: uuid.UUID) -> AapRequest | None:
        return await self._in_thread(
            aap_requests.find_request, self._pool, caller.tenant_id, caller.principal_id, request_id
        )

    async def _again(self, caller: Caller, row: AapRequest) -> AapRequest:
        found = await self._find(caller, row.request_id)
        assert found is not None
        return found


def _key_of(request: Request) -> str:
    return check_identifier(request.header("HTTP_IDEMPOTENCY_KEY"), "Idempotency-Key", 255)


def _only_of(row: AapRequest, key: str) -> AapRequest:
    """Return the request if this key consumed it. Raises `AapConflict` if another key did, or it is cancelled."""
    if row.cancelled_at is not None:
        raise AapConflict("not_approved", "the request is cancelled")
    if row.consume_key != key:
        raise AapConflict("already_consumed", "the request was consumed under another Idempotency-Key")
    return row


def _not_started(asked: _Found) -> AapConflict:
    found = asked.recorded
    if found is None:
        return AapConflict("not_approved", asked.refusal)
    if found.status in ("already_started", "completed"):
        return AapConflict("already_consumed", "this operation was already started")
    if found.status == "expired":
        return AapConflict("approval_expired", "nobody decided in time")
    return AapConflict("not_approved", "the request is not approved")


def _decided_at(row: AapRequest, found: Recorded) -> datetime:
    """Return when the permission was given, but not before the request: the operation may have been decided earlier."""
    return max(row.created_at, found.approved_at or found.decided_at)
