"""The guard, its start and its report over HTTP: parse → one service call → render.

`GUARD.read`, `to_operation` and `to_answer` are the pure ends of the guard: request bytes → body → operation, committed
row → response bytes. Every edge that serves the guard calls these.

The schemas of `schemas.py` define the bodies. The structs here are a faster, narrower form: a body that they accept has
the same value by the schema, and every other body is read by the schema (`platform/http/bodies.py`).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

import orjson
import structlog
from msgspec import Meta, Struct
from prometheus_client import Counter

from sentinel.authority import metrics
from sentinel.authority.api.calls import Call, batch_documentation
from sentinel.authority.api.context import Context
from sentinel.authority.api.identity import require_own
from sentinel.authority.api.schemas import (
    CheckRequestSchema,
    GuardAnswerSchema,
    GuardRequestSchema,
    ReportReceiptSchema,
    ReportRequestSchema,
    StartReceiptSchema,
    StartRequestSchema,
)
from sentinel.authority.batch_packing import pack_row
from sentinel.authority.decisions import Receipt, Recorded
from sentinel.authority.engine import Caller
from sentinel.authority.guard import (
    decided_row,
    first_asked,
    raise_if_refused,
    raise_if_report_refused,
    raise_if_start_refused,
    report_row,
    start_row,
)
from sentinel.authority.guard_rows import GuardRow
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.reasons import reason_text
from sentinel.core.decision import NO_POLICY
from sentinel.core.errors import InvalidInput, KeyReused
from sentinel.core.moments import rfc3339
from sentinel.core.operation import IDENTIFIER, UNSAFE_TEXT, Operation, build_operation
from sentinel.core.signing import PermitSigner
from sentinel.platform.http.bodies import BodyReader, load, read_report, without_nulls
from sentinel.platform.http.openapi import Documentation
from sentinel.platform.http.wire import NOT_STORED, EdgeResponse
from sentinel.platform.logs import write_events
from sentinel.policy.library import ReloadablePolicies

START_STEP_KEYS = frozenset({"resource", "risk_class", "evidence_context"})
"""A body with none of these keys comes from a caller without a start step (`docs/CONTRACT.md` §2)."""

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Key = Annotated[str, Meta(min_length=1, max_length=255)]
Kind = Annotated[str, Meta(min_length=1, max_length=64)]
Token = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[int, Meta(ge=1, le=86400)]


class _Bound(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields that all bodies have: the agent, the action, and what is bound to it."""

    agent_id: Name
    action: Name
    tenant_id: Kind | None = None
    resource: Key | None = None
    risk_class: Kind | None = None
    evidence_context: dict[str, Any] | None = None


class AskedBody(_Bound, kw_only=True):
    """A guard or check: also has the action's parameters, under one of two names."""

    params: dict[str, Any] | None = None
    context: dict[str, Any] | None = None

    def parameters(self) -> Mapping[str, Any]:
        """Return `params`, or `context`, which is another name of it. Raises `InvalidInput` if both are sent."""
        if self.context is None:
            return {} if self.params is None else self.params
        if self.params is not None:
            raise InvalidInput.of("context", "is another name for params; send only one of them")
        return self.context


class CheckBody(AskedBody, kw_only=True):
    """The body of a check (`CheckRequestSchema`)."""


class GuardBody(AskedBody, kw_only=True):
    """The body of a guard (`GuardRequestSchema`)."""

    idempotency_key: Key
    start_id: uuid.UUID | None = None
    act_within_seconds: Seconds | None = None

    @property
    def has_start_step(self) -> bool:
        """Whether the caller has a start step: it redeems its permit, with this call (`start_id`) or a later one."""
        return not (
            self.start_id is None
            and self.resource is None
            and self.risk_class is None
            and self.evidence_context is None
        )


class StartBody(_Bound, kw_only=True):
    """The body of a start (`StartRequestSchema`)."""

    idempotency_key: Key
    permit_token: Token
    start_id: uuid.UUID
    act_within_seconds: Seconds | None = None


class ReportBody(_Bound, kw_only=True):
    """The body of a report (`ReportRequestSchema`)."""

    idempotency_key: Key
    outcome: Literal["success", "error"]
    error: Annotated[str, Meta(max_length=4000)] | None = None
    result: Any = None
    permit_token: Token | None = None
    report_id: uuid.UUID | None = None


def _are_identifiers(*texts: str | None) -> bool:
    """Return whether each text is None or has only characters of identifiers; joined, because one match is faster than many."""
    return IDENTIFIER.fullmatch("".join([text for text in texts if text is not None])) is not None


def _bound(body: _Bound) -> tuple[str | None, ...]:
    return body.agent_id, body.action, body.tenant_id, body.resource, body.risk_class


_check, _guard, _start, _report = (
    CheckRequestSchema(),
    GuardRequestSchema(),
    StartRequestSchema(),
    ReportRequestSchema(),
)


def _guard_of(body: Mapping[str, Any]) -> GuardBody:
    """Read a guard's JSON object by its schema. Raises `InvalidInput`."""
    fields = load(_guard, without_nulls(body))
    if START_STEP_KEYS.isdisjoint(fields) and not START_STEP_KEYS.isdisjoint(body):
        # A null member counts as absent, but a caller that sends one of these names has a start step. An empty evidence
        # context marks that, and has no other effect.
        fields["evidence_context"] = {}
    return GuardBody(**fields)


GUARD = BodyReader(GuardBody, _guard_of, lambda body: _are_identifiers(*_bound(body), body.idempotency_key))
CHECK = BodyReader(
    CheckBody, lambda body: CheckBody(**load(_check, without_nulls(body))), lambda body: _are_identifiers(*_bound(body))
)
START = BodyReader(
    StartBody, lambda body: StartBody(**load(_start, without_nulls(body))),
    lambda body: _are_identifiers(*_bound(body), body.idempotency_key, body.permit_token),
)  # fmt: skip
REPORT = BodyReader(
    ReportBody, lambda body: ReportBody(**load(_report, without_nulls(body))),
    lambda body: _are_identifiers(*_bound(body), body.idempotency_key, body.permit_token)
    and not (body.error is not None and UNSAFE_TEXT.search(body.error)),
    read_report,
)  # fmt: skip


_REPLAYED = {**NOT_STORED, "Idempotent-Replayed": "true"}

PROBLEMS = (400, 401, 403, 411, 413, 415, 429, 503)
SECURITY: tuple[dict[str, list[str]], ...] = ({"apiKey": []}, {"bearer": []})

log = structlog.get_logger("sentinel.guard")


def to_operation(body: AskedBody, idempotency_key: str) -> Operation:
    """Build the operation of a guard or check. Raises `InvalidInput`."""
    return build_operation(
        idempotency_key=idempotency_key, agent_id=body.agent_id, action=body.action, params=body.parameters(),
        resource=body.resource, risk_class=body.risk_class, evidence=body.evidence_context,
    )  # fmt: skip


def to_answer(caller: Caller, recorded: Recorded, permits: PermitSigner) -> bytes:
    """Render a committed decision as the response body. Optional members are left out, never null."""
    pack = recorded.pack
    # The pack is canonical JSON made by this program, so the name occurs once, followed by the number.
    latency = int(pack.partition(',"latency_ms":')[2].partition(",")[0])
    answer: dict[str, Any] = {
        "decision": recorded.decision,
        "status": recorded.status,
        "reason_code": recorded.reason_code,
        "reason": reason_text(recorded.reason_code),
        "operation_id": recorded.operation_id,
        "decision_event_id": recorded.decision_event_id,
        "policy_id": recorded.policy_id,
        "policy_version": recorded.policy_version,
        "policy_label": recorded.policy_label,
        "resource": recorded.resource,
        "risk_class": recorded.risk_class,
        "latency_ms": latency,
        "decided_at": rfc3339(recorded.decided_at),
        "proof_pack": orjson.Fragment(f'{pack[:-1]},"hash":"{recorded.pack_hash}"}}'),
    }
    if recorded.permit_id is not None and recorded.permit_expires_at is not None:
        answer["permit_token"] = permits.issue(caller.tenant_id, recorded.permit_id, recorded.digest)
        answer["permit_expires_at"] = rfc3339(recorded.permit_expires_at)
    if recorded.approval_id is not None:
        answer["approval_id"] = recorded.approval_id
    if recorded.approval_expires_at is not None and recorded.status in ("pending", "expired"):
        answer["expires_at"] = rfc3339(recorded.approval_expires_at)
    if recorded.approver is not None and recorded.approved_at is not None:
        answer["approver"] = recorded.approver
        answer["approved_at"] = rfc3339(recorded.approved_at)
    if recorded.outcome is not None:
        answer["outcome"] = recorded.outcome
    if recorded.result == "not_executed":
        answer["resolution"] = "not_executed"
    if recorded.start_event_id is not None:
        answer["start"] = _start_receipt(recorded.start_event_id, recorded.start_hash, recorded.start_duplicate)
    return orjson.dumps(answer)


def calls(context: Context) -> dict[str, Call]:
    """Return the calls guard, start and report by their path under a prefix."""
    authority = context.authority
    tally = DecisionTally(authority.policies)

    def prepare_guard(caller: Caller, body: GuardBody, began: float, trace: bytes | None) -> tuple[GuardRow, Any]:
        operation = to_operation(body, body.idempotency_key)
        require_own(caller, body.tenant_id, body.agent_id)
        row = decided_row(
            authority, caller, operation, has_start_step=body.has_start_step, start_id=body.start_id,
            elapsed_ms=int((time.perf_counter() - began) * 1000), act_seconds=body.act_within_seconds, trace=trace,
        )  # fmt: skip
        # Packed now, while a commit is in flight: the next batch can then be sent without delay.
        row.packed = pack_row(row)
        return row, (operation, began, body.start_id is not None or not body.has_start_step)

    def render_guard(caller: Caller, prepared: Any, recorded: Recorded, request_id: str) -> EdgeResponse:
        operation, began, asks_start = prepared
        try:
            check_decision(caller, operation, recorded, asks_start=asks_start)
        except KeyReused as error:
            if recorded.result == "key_reused" and recorded.request:  # "key_taken" is another requester's
                error.first_asked = first_asked(authority, caller, operation, recorded.request)
            raise
        tally.add(operation, recorded, time.perf_counter() - began, request_id)
        is_replay = recorded.result in ("replayed", "not_executed")
        return EdgeResponse(
            to_answer(caller, recorded, authority.permits), headers=_REPLAYED if is_replay else NOT_STORED
        )

    def prepare_start(caller: Caller, body: StartBody, *_: Any) -> tuple[dict[str, Any], Any]:
        require_own(caller, body.tenant_id, body.agent_id)
        row = start_row(
            authority, caller, idempotency_key=body.idempotency_key, action=body.action, agent_id=body.agent_id,
            resource=body.action if body.resource is None else body.resource,
            risk_class="standard" if body.risk_class is None else body.risk_class, permit_token=body.permit_token,
            start_id=body.start_id, act_seconds=body.act_within_seconds,
        )  # fmt: skip
        return row, None

    def render_start(caller: Caller, prepared: Any, recorded: Receipt, request_id: str) -> EdgeResponse:
        receipt = raise_if_start_refused(recorded)
        duplicate = receipt.result == "duplicate"
        tally.log_soon("start", operation_id=receipt.operation_id, duplicate=duplicate, request_id=request_id)
        return EdgeResponse(orjson.dumps(_start_receipt(receipt.event_id, receipt.hash, duplicate)))

    def prepare_report(caller: Caller, body: ReportBody, *_: Any) -> tuple[dict[str, Any], Any]:
        require_own(caller, body.tenant_id, body.agent_id)
        row = report_row(
            authority, caller, idempotency_key=body.idempotency_key, action=body.action, agent_id=body.agent_id,
            outcome=body.outcome, error=body.error, result=body.result, resource=body.resource,
            risk_class=body.risk_class, permit_token=body.permit_token, report_id=body.report_id,
        )  # fmt: skip
        return row, body.outcome

    def render_report(caller: Caller, prepared: Any, recorded: Receipt, request_id: str) -> EdgeResponse:
        return report_receipt(accepted_report(recorded, prepared, request_id, tally))

    return {
        "/action/guard": Call("guard", GUARD, prepare_guard, authority.decisions, render_guard),
        "/action/guard/start": Call("guard", START, prepare_start, authority.starts, render_start),
        "/action/guard/report": Call("guard", REPORT, prepare_report, authority.reports, render_report),
    }


def _start_receipt(event_id: uuid.UUID | None, event_hash: str | None, duplicate: bool | None) -> dict[str, Any]:
    return {"started": True, "start_event_id": event_id, "start_hash": event_hash, "duplicate": bool(duplicate)}


OF_ROWS_AND_ORDERS = ("refund:", "order:")
"""Prefixes of the idempotency keys of ledger rows and orders."""


def check_decision(caller: Caller, operation: Operation, recorded: Recorded, *, asks_start: bool) -> None:
    """Raise as `raise_if_refused`.

    If the caller's key has the scope `worker` and another key used the idempotency key first, logs an error, and counts
    it if the idempotency key is that of a ledger row or an order.
    """
    try:
        raise_if_refused(operation, recorded, asks_start=asks_start, to_worker=WORKER_SCOPE in caller.scopes)
    except KeyReused as error:
        error.recorded_bytes = len((recorded.request or "").encode())
        if error.taken:
            if operation.idempotency_key.startswith(OF_ROWS_AND_ORDERS):
                metrics.KEYS_TAKEN.inc()
            log.error("idempotency_key_taken", operation_id=recorded.operation_id, agent_id=operation.agent_id)
        raise


def accepted_report(recorded: Receipt, outcome: str, request_id: str, tally: DecisionTally) -> Receipt:
    """Log an accepted report and return its receipt. Raises as `raise_if_report_refused`."""
    receipt = raise_if_report_refused(recorded)
    if receipt.result == "contradiction":
        log.error("contradiction", operation_id=receipt.operation_id, outcome=outcome, request_id=request_id)
    tally.log_soon("report", operation_id=receipt.operation_id, outcome=outcome, request_id=request_id)
    return receipt


def report_receipt(receipt: Receipt) -> EdgeResponse:
    """Render the receipt of a report."""
    contradicts = receipt.result.startswith("contradiction")
    return EdgeResponse(orjson.dumps({
        "received": True, "receipt_event_id": receipt.event_id, "receipt_hash": receipt.hash,
        "duplicate": receipt.result in ("duplicate", "contradiction_repeated"),
        **({"contradiction": True} if contradicts else {}),
    }))  # fmt: skip


DOCUMENTATION = {
    "/action/guard": Documentation(
        "Decide one exact action",
        description="The decision is committed before it is returned. A repeat with the same idempotency key returns the recorded decision."
        " With `start_id`, a permitted operation is started in the same commit, and the answer contains the start's receipt.",
        request=GuardRequestSchema(), responses={200: ("The decision.", GuardAnswerSchema)}, problems=(*PROBLEMS, 409, 422),
        security=SECURITY, headers={"Idempotent-Replayed": "`true` where the decision was recorded by an earlier request."},
    ),
    "/action/guard/start": Documentation(
        "Redeem the permit just before the side effect", request=StartRequestSchema(),
        responses={200: ("The start's receipt.", StartReceiptSchema)}, problems=(*PROBLEMS, 409, 410),
        security=SECURITY,
    ),
    "/action/guard/report": Documentation(
        "Report the outcome of a started action",
        description="`success` captures the reserved budget. `error` after a start means that the outcome is unknown: the operation is in"
        " doubt. A `success` after a person resolved the operation as not executed is recorded as a contradiction.",
        request=ReportRequestSchema(), responses={200: ("The report's receipt.", ReportReceiptSchema)}, problems=(*PROBLEMS, 409),
        security=SECURITY,
    ),
}  # fmt: skip
DOCUMENTATION |= {
    f"{path}/batch": batch_documentation(told, problems=PROBLEMS) for path, told in tuple(DOCUMENTATION.items())
}


@cache
def _counter(action: str, decision: str, reason_code: str) -> Counter:
    return metrics.DECISIONS.labels(action, decision, reason_code)


class DecisionTally:
    """Counts and logs decisions, and logs starts and reports, those that one commit answered together.

    An action is counted under its name or pattern in a policy, because callers could otherwise create series at will.
    """

    def __init__(self, policies: ReloadablePolicies) -> None:
        self._policies = policies
        self._counts: dict[tuple[str, str, str], int] = {}
        self._seconds: list[float] = []
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._is_called = False

    def add(self, operation: Operation, recorded: Recorded, seconds: float, request_id: str) -> None:
        """Add one answer, given `seconds` after its request arrived. Call it on the running event loop."""
        self._write_soon()
        self._seconds.append(seconds)
        if recorded.result in ("replayed", "not_executed"):
            metrics.REPLAYS.inc()
            return
        name = self._policies.library.name_of(operation.action) if recorded.policy_id != NO_POLICY else None
        series = name or "other", recorded.decision, recorded.reason_code
        self._counts[series] = self._counts.get(series, 0) + 1
        self.log_soon(
            "decision", operation_id=recorded.operation_id, decision=recorded.decision, reason_code=recorded.reason_code,
            policy_version=recorded.policy_version, request_id=request_id,
        )  # fmt: skip

    def log_soon(self, event: str, **fields: Any) -> None:
        """Log an event at level info, soon. Call it on the running event loop."""
        self._write_soon()
        self._events.setdefault(event, []).append(fields)

    def _write_soon(self) -> None:
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_called = False
        counts, self._counts = self._counts, {}
        events, self._events = self._events, {}
        seconds, self._seconds = self._seconds, []
        metrics.GUARD_SECONDS.observe_all(seconds)
        for series, count in counts.items():
            _counter(*series).inc(count)
        for event, rows in events.items():
            write_events(event, rows)
