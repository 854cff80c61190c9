"""Guards, starts and reports: decide one exact action, redeem its permit once, record its outcome (a check's too).

A guard is two pure steps around one transaction. `decided_row` evaluates the policy in memory and makes the row that
the transaction needs. The database then finds an earlier operation of the same idempotency key, reads halts, reserves
limits and lets the strictest verdict win. `raise_if_refused` turns the recorded answer into a decision or an error.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC
from functools import lru_cache
from typing import Any

import structlog

from sentinel.authority.decisions import Receipt, Recorded, record_check_report, try_decision
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard_rows import GuardRow, GuardTerms, shared_json
from sentinel.authority.housekeeping import LIMIT_MARK_SECONDS
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.reasons import reason_text
from sentinel.core.canonical import canonical_json, canonical_value, sha256_hex
from sentinel.core.decision import Decision, no_matching_policy, stricter_reason
from sentinel.core.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    KeyReused,
    PermitExpired,
    PermitRedeemed,
    PermitRefused,
    ReportContradicts,
    ResolvedNotExecuted,
    SentinelError,
    TooManyOpenPermits,
    TooManyOpenQuestions,
)
from sentinel.core.money import Money, money_out
from sentinel.core.operation import (
    Operation,
    build_operation,
    first_difference,
    params_text,
    request_template,
)
from sentinel.core.proof import decision_basis, facts_commitment, pack_template, pack_values
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester, check_once, declared_evidence
from sentinel.policy.model import EVIDENCE
from sentinel.store.ids import GUARD_ID_BYTES, guard_ids, new_id, random_bytes, unix_milliseconds


def raise_if_refused(
    operation: Operation, recorded: Recorded, *, asks_start: bool, to_worker: bool = False
) -> Recorded:
    """Return the recorded decision: the one just made, or the one that its idempotency key already had.

    Raises `KeyReused` if the idempotency key belongs to another operation; with `to_worker`, where another key of the
    tenant used it first, the error names that agent and the time, because the worker's refund or order is then stuck
    for good. Raises `Forbidden` if the operation belongs to another key of the tenant. Raises `TooManyOpenPermits` or
    `TooManyOpenQuestions` if nothing was recorded because the key has too many unused permits or undecided approvals.
    With `asks_start`, raises `ResolvedNotExecuted` if a person resolved the operation as not executed: a client that
    reads only the decision must not act on it.
    """
    if recorded.result == "too_many_open":
        raise TooManyOpenPermits(LIMIT_MARK_SECONDS)
    if recorded.result == "too_many_questions":
        raise TooManyOpenQuestions(LIMIT_MARK_SECONDS)
    if asks_start and recorded.result == "not_executed":
        raise ResolvedNotExecuted
    if recorded.result in ("key_reused", "key_taken"):
        taken = _who_took(recorded) if to_worker and recorded.result == "key_taken" else ""
        raise KeyReused(first_difference(recorded.request or "{}", operation.canonical), taken=taken)
    if recorded.result == "another_key":
        raise Forbidden(not_what_was_guarded("key"))
    return recorded


def _who_took(recorded: Recorded) -> str:
    """Return a sentence that says which agent used an idempotency key first, when, and for which operation."""
    agent = json.loads(recorded.request or "{}").get("agent_id")
    moment = recorded.decided_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"Another API key used it first, in the name of the agent {agent}, at {moment} (operation {recorded.operation_id})."


def first_asked(authority: Authority, caller: Caller, operation: Operation, request: str) -> dict[str, Any]:
    """Return `recorded_params`, the params of the recorded request in the form of the wire, and `tightened` if the policy
    now decides the operation more strictly than with them (`stricter_reason`).

    Returns nothing for a request that today's rules refuse: its params cannot be sent again.
    """
    asked = json.loads(request)
    params = asked.pop("params")
    if amount := params.get("amount"):
        params["amount"] = money_out(Money(amount["amount_minor"], amount["currency"]))
    try:
        earlier = build_operation(
            **asked, params=params, idempotency_key=operation.idempotency_key, evidence=operation.evidence
        )
        first, now = (provisional(authority, caller, one)[0] for one in (earlier, operation))
    except InvalidInput:
        return {}
    code = stricter_reason(first, now)
    if code is None:
        return {"recorded_params": params}
    tightened = {"decision": now.verdict.value, "reason_code": code, "reason": reason_text(code)}
    return {"recorded_params": params, "tightened": tightened}


def provisional(authority: Authority, caller: Caller, operation: Operation) -> tuple[Decision, str]:
    """Return the policy's decision and its basis (`core.proof.decision_basis`); halts and limits can still tighten it.

    Raises `InvalidInput` for a once-key that is no identifier, and for evidence that is too large to store.
    """
    policy = authority.policies.library.find(operation.action)
    if policy is None:
        decision = no_matching_policy()
        return decision, decision_basis(decision, {})
    facts, moment = operation.facts(), authority.clock()
    # The policy decides on the evidence as it is stored, so that a re-evaluation reads the same values.
    evidence = facts[EVIDENCE] = declared_evidence(policy, operation.evidence or {})
    requester = _requester(caller)
    decision = evaluate(policy, facts, moment, requester=requester)
    if decision.once_key is None:
        check_once(policy, facts)
    read_at = moment if "now" in policy.used else None
    return decision, decision_basis(decision, evidence, read_at=read_at, by_worker=requester.is_worker)


@lru_cache(maxsize=4096)
def _requester(caller: Caller) -> Requester:
    return Requester(str(caller.principal_id), is_worker=WORKER_SCOPE in caller.scopes)


def decided_row(
    authority: Authority,
    caller: Caller,
    operation: Operation,
    *,
    has_start_step: bool,
    elapsed_ms: int,
    start_id: uuid.UUID | None = None,
    act_seconds: int | None = None,
    trace: bytes | None = None,
) -> GuardRow:
    """Return the row that records an operation with the policy's decision, in memory: the database is not asked.

    `elapsed_ms` is the time since the request arrived; `act_seconds` is how long the caller may act after a start.
    Raises `InvalidInput` as `provisional` and `leave_seconds`.
    """
    decision, basis = provisional(authority, caller, operation)
    terms = _terms(caller, operation, decision, authority.permit_seconds, hand_out_is_start=not has_start_step)
    ids, salt = guard_ids(unix_milliseconds(), random_bytes(GUARD_ID_BYTES)), random_bytes(32).hex()
    amount = operation.params.get("amount")
    return GuardRow(
        terms, operation.idempotency_key, operation.resource, operation.digest, operation.canonical, salt, basis,
        facts_commitment(salt, operation_canonical=operation.canonical, basis=basis, tightened=()), decision.once_key,
        ids=ids, amount_minor=amount["amount_minor"] if amount else None, limits=[ask for ask in decision.limits if not ask.is_total],
        pack_values=pack_values(operation, salt=salt), params=params_text(operation), elapsed_ms=elapsed_ms,
        start_id=start_id, act_seconds=leave_seconds(authority, act_seconds), trace=trace,
    )  # fmt: skip


def _terms(
    caller: Caller, operation: Operation, decision: Decision, permit_seconds: int, *, hand_out_is_start: bool
) -> GuardTerms:
    """Return the interned terms of an operation and the policy's decision on it."""
    amount, scenario = operation.params.get("amount"), operation.param("scenario")
    currency, template = amount["currency"] if amount else None, pack_template(operation, decision)
    # Two equal keys mean equal terms: the template determines action, agent, currency and policy, and the key of a
    # total or breaker names its place in that policy and whom it counts, which determines its other fields.
    key = (
        caller, template, operation.risk_class, scenario, decision.verdict.value, decision.reason_code, decision.reasons, decision.approval,
        decision.approvable, decision.asks_person, permit_seconds, hand_out_is_start,
        *[ask.limit_key for ask in decision.limits if ask.is_total], *[ask.breaker_key for ask in decision.breakers],
    )  # fmt: skip
    found = _interned.get(key)
    if found is None:
        if len(_interned) >= _MOST_TERMS:
            _interned.clear()
        role, people, expires_seconds = decision.approval or _NEVER
        found = _interned[key] = GuardTerms(
            caller.tenant_id, caller.principal_id, caller.owner_operator_id, caller.agent_id, operation.agent_id, operation.action,
            operation.risk_class, scenario, currency, decision.policy_id, decision.policy_version, decision.policy_label,
            decision.policy_digest, decision.verdict.value, decision.reason_code, decision.reasons, role, people, expires_seconds,
            permit_seconds, hand_out_is_start, decision.approvable, decision.asks_person,
            shared_json([ask for ask in decision.limits if ask.is_total], decision.breakers), template, request_template(operation),
        )  # fmt: skip
    return found


_interned: dict[tuple[Any, ...], GuardTerms] = {}
_MOST_TERMS = 4096

_NEVER = ("approver", 1, 0)
"""Placeholder approval terms (role, people, seconds) of a decision that can never need an approval."""


def start_row(
    authority: Authority, caller: Caller, *, permit_token: str, act_seconds: int | None = None, **bound: Any
) -> dict[str, Any]:
    """Return one row of `sentinel.start_input`.

    `bound` is {idempotency_key, action, agent_id, resource, risk_class, start_id}. Raises `PermitRefused` for a permit
    token that this authority did not issue, and `InvalidInput` for `act_seconds` that are too long.
    """
    slip = authority.permits.read(caller.tenant_id, permit_token)
    if slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    return {
        **bound, "tenant_id": caller.tenant_id, **requester(caller), "permit_id": slip.permit_id, "digest": slip.digest, "event_id": new_id(),
        "act_seconds": leave_seconds(authority, act_seconds),
    }  # fmt: skip


def requester(caller: Caller) -> dict[str, Any]:
    """Return the fields of a row that name the requester: its principal, and the agent that its key is bound to, if any."""
    bound = {} if caller.agent_id is None else {"bound_agent": caller.agent_id}
    return {"principal_id": caller.principal_id, **bound}


def not_what_was_guarded(field: str | None) -> str:
    """Return the sentence of a refusal because `field` differs from what was guarded."""
    if field == "key":
        return "another API key requested this; only that key, or one bound to its agent, may act on it"
    return f"{field} differs from what was guarded"


def leave_seconds(authority: Authority, declared: int | None) -> int:
    """Return for how many seconds the caller may act after a start: as declared, else the deadline for reports.

    Raises `InvalidInput` if the declared time is longer than this authority allows.
    """
    if declared is None:
        return authority.report_deadline_seconds
    if declared > authority.longest_act_seconds:
        raise InvalidInput.of("act_within_seconds", f"must be at most {authority.longest_act_seconds} here")
    return declared


def raise_if_start_refused(receipt: Receipt) -> Receipt:
    """Return the receipt of a recorded start; a repeated `start_id` gets the same receipt with the result "duplicate".

    Raises `PermitRefused` (differing field, halt, nothing guarded), `PermitExpired`, `PermitRedeemed` (redeemed under another
    start id), `ResolvedNotExecuted` or `Conflict` (nothing to redeem: denied, pending, expired).
    """
    match receipt.result:
        case "started" | "duplicate":
            return receipt
        case "resolved_not_executed":
            raise ResolvedNotExecuted
        case "already_started":
            raise PermitRedeemed("this permit was redeemed under another start_id")
        case "expired":
            raise PermitExpired("the permit has expired; guard again with the same idempotency key")
        case "halted":
            raise PermitRefused("a halt covers this action; nothing may start")
        case "differs":
            raise PermitRefused(not_what_was_guarded(receipt.field))
        case "unknown":
            raise PermitRefused("nothing was guarded under this idempotency key")
        case _:
            raise Conflict(f"the operation is {receipt.field}: there is no permit to redeem")


def report_row(
    authority: Authority, caller: Caller, *, outcome: str, error: str | None, result: Any, permit_token: str | None,
    **bound: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return one row of `sentinel.report_input`, with outcome, error and result stored as a digest only.

    `result` is any JSON: the effect has happened, so nothing in it is a reason to refuse the report. `bound` is
    {idempotency_key, action, agent_id, resource, risk_class, report_id}, the last three of which may be None. Raises
    `PermitRefused` for a permit token that this authority did not issue.
    """
    slip = authority.permits.read(caller.tenant_id, permit_token) if permit_token is not None else None
    if permit_token is not None and slip is None:
        raise PermitRefused("permit_token is not a permit of this authority")
    content = {"outcome": outcome, "error": error, "result": canonical_value(result)}
    return {
        **bound, "tenant_id": caller.tenant_id, **requester(caller), "permit_id": slip.permit_id if slip else None, "outcome": outcome,
        "content_digest": sha256_hex(canonical_json(content)), "event_id": new_id(),
    }  # fmt: skip


def raise_if_report_refused(receipt: Receipt) -> Receipt:
    """Return the receipt of an accepted report; an exact repeat gets the original one with the result "duplicate".

    A success after a person said "not executed" has the result "contradiction" (a repeat of it
    "contradiction_repeated"): the operation is in doubt again and holds its budget, and this action of this agent is
    halted. Raises `ReportContradicts` when an earlier report said something else, `PermitRefused` when a bound field
    differs, and `Conflict` when the action was never started.
    """
    match receipt.result:
        case "received" | "duplicate" | "contradiction" | "contradiction_repeated":
            return receipt
        case "contradicts":
            raise ReportContradicts("a different outcome was already reported; an operator must resolve this")
        case "differs":
            raise PermitRefused(not_what_was_guarded(receipt.field))
        case "unknown":
            raise PermitRefused("nothing was guarded under this idempotency key")
        case _:
            raise Conflict(f"the operation is {receipt.field}: it was never started")


def report_check(authority: Authority, caller: Caller, *, content: dict[str, Any]) -> Receipt:
    """Record the report of a checked action and return its receipt; an equal repeat gets the first one's.

    `content` is {request_id, agent_id, status, …, optionally action and result}. Raises `ReportContradicts` if another
    report has that request id.
    """
    said = {**content, "result": canonical_value(content.get("result"))}
    receipt = record_check_report(
        authority.pool, tenant_id=caller.tenant_id, request_id=content["request_id"],
        digest=sha256_hex(canonical_json(said)), event_id=new_id(), agent_id=content["agent_id"],
        action=content.get("action"), status=content["status"],
    )  # fmt: skip
    if receipt.result == "contradicts":
        raise ReportContradicts("a different report was already received under this request_id")
    return receipt


TRY_SECONDS = 0.8
"""How long `try_guard` may wait for locks: less than the second after which a readiness probe gives up."""

log = structlog.get_logger("sentinel")

_NOBODY = uuid.UUID(int=0)


def try_guard(authority: Authority) -> bool:
    """Return whether a guard can be recorded in time now, for readiness: record one and roll it back.

    Returns False for every error of the authority or the database.
    """
    caller = Caller(_NOBODY, _NOBODY, _NOBODY, None, frozenset(), None)
    try:
        operation = build_operation(
            idempotency_key=f"readiness:{new_id()}", agent_id="readiness", action="readiness.try", params={}
        )
        row = decided_row(authority, caller, operation, has_start_step=True, elapsed_ms=0)
        return try_decision(authority.pool, row, TRY_SECONDS)
    except SentinelError as error:
        log.warning("guard_tried_in_vain", cause=error.detail)
        return False
