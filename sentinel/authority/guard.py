"""Decide one exact action and record the decision: the authority's main verb.

Two pure steps around one transaction: `decided_row` evaluates the policy in memory and lays out everything the
transaction needs; the database then finds the twin, reads halts, reserves limits, and lets the strictest win.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson
import structlog

from sentinel.authority.decisions import Recorded, try_decision
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.housekeeping import PERMIT_LIMIT_MARK_SECONDS
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.outcomes import leave_seconds, requester
from sentinel.core.decision import BreakerCheck, Decision, ReservationRequest, Verdict, no_matching_policy
from sentinel.core.errors import KeyReused, ResolvedNotExecuted, SentinelError, TooManyOpenPermits
from sentinel.core.operation import Operation, build_operation, first_difference
from sentinel.core.proof import decision_basis, facts_commitment, pack_parts
from sentinel.platform.randomness import random_bytes, random_uuid
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester, check_once, declared_evidence
from sentinel.policy.model import EVIDENCE
from sentinel.store.ids import new_id, proof_id_of

NEVER = {"required_role": "approver", "required_people": 1, "approval_seconds": 0}
"""Approval terms of a decision that no approval can follow."""


def raise_if_refused(operation: Operation, recorded: Recorded, *, asks_start: bool = False) -> Recorded:
    """The recorded decision: the one just made, or the one its key has had all along.

    Raises `KeyReused` when the idempotency key turned out to be another operation's, `TooManyOpenPermits` when nothing was
    recorded because the agent's key leaves its permits lying, and where a start was asked for with it,
    `ResolvedNotExecuted`: a client that goes by the decision alone must not take it for a go-ahead.
    """
    if recorded.result == "too_many_open":
        raise TooManyOpenPermits(PERMIT_LIMIT_MARK_SECONDS)
    if asks_start and recorded.result == "not_executed":
        raise ResolvedNotExecuted
    if recorded.result == "key_reused":
        raise KeyReused(first_difference(recorded.request or "{}", operation.canonical))
    return recorded


def provisional(authority: Authority, caller: Caller, operation: Operation) -> tuple[Decision, str]:
    """What the policy alone says, and what it is kept to have looked at beside the operation; the rest can still tighten it.

    Raises `InvalidInput` for a once-key that is no identifier and for evidence that is too large to keep.
    """
    policy = authority.policies.library.find(operation.action)
    if policy is None:
        decision = no_matching_policy()
        return decision, decision_basis(decision, {})
    facts, moment = operation.facts(), authority.clock()
    # Decided on what is kept, so that the same can be decided again.
    evidence = facts[EVIDENCE] = declared_evidence(policy, operation.evidence or {})
    requester = Requester(str(caller.principal_id), is_worker=WORKER_SCOPE in caller.scopes)
    decision = evaluate(policy, facts, moment, requester=requester)
    if decision.once_key is None:
        check_once(policy, facts)
    read_at = moment if "now" in policy.used else None
    return decision, decision_basis(decision, evidence, read_at=read_at, by_worker=requester.is_worker)


def decided_row(
    authority: Authority,
    caller: Caller,
    operation: Operation,
    *,
    has_start_step: bool,
    elapsed_ms: int,
    start_id: uuid.UUID | None = None,
    act_seconds: int | None = None,
) -> dict[str, Any]:
    """One row of `sentinel.guard_input`: JSON-ready, in memory, nothing asked of anybody."""
    decision, basis = provisional(authority, caller, operation)
    event_id, salt = new_id(), random_bytes(32).hex()
    return {
        **question(caller, operation, decision),
        "operation_id": new_id(),
        "event_id": event_id,
        "second_event_id": new_id(),
        "permit_id": random_uuid(),
        "approval_id": new_id(),
        "salt": salt,
        "request": operation.canonical,
        "basis": basis,
        "facts_commitment": facts_commitment(salt, operation_canonical=operation.canonical, basis=basis, tightened=()),
        "hand_out_is_start": not has_start_step,
        "start_id": start_id,
        "act_seconds": leave_seconds(authority, act_seconds),
        "permit_seconds": authority.permit_seconds,
        "pack_parts": pack_parts(operation, decision, proof_id=proof_id_of(event_id), salt=salt),
        "elapsed_ms": elapsed_ms,
    }


def question(caller: Caller, operation: Operation, decision: Decision) -> dict[str, Any]:
    """The part of a row that says what is asked and what the policy found; enough for a mere question."""
    amount, terms = operation.amount, decision.approval
    approval = NEVER if terms is None else {
        "required_role": terms.role, "required_people": terms.people, "approval_seconds": terms.expires_seconds,
    }  # fmt: skip
    return {
        "tenant_id": caller.tenant_id,
        **requester(caller),
        "owner_operator_id": caller.owner_operator_id,
        "idempotency_key": operation.idempotency_key,
        "agent_id": operation.agent_id,
        "action": operation.action,
        "resource": operation.resource,
        "risk_class": operation.risk_class,
        "scenario": operation.param("scenario"),
        "digest": operation.digest,
        "once_key": decision.once_key,
        "amount_minor": amount.amount_minor if amount else None,
        "currency": amount.currency if amount else None,
        "verdict": decision.verdict,
        "reason_code": decision.reason_code,
        "reasons": decision.reasons,
        "policy_id": decision.policy_id,
        "policy_version": decision.policy_version,
        "policy_label": decision.policy_label,
        "policy_digest": decision.policy_digest,
        "limits": [_limit(ask) for ask in decision.limits if not ask.is_total]
        if decision.verdict is not Verdict.DENY
        else [],
        "shared": _shared(tuple(ask for ask in decision.limits if ask.is_total), decision.breakers),
        **approval,
        **_for_a_person(decision),
    }


def _for_a_person(decision: Decision) -> dict[str, bool]:
    """What a question to a person is like, where it is not as usual: absent means approvable and not asked for."""
    return {
        **({} if decision.approvable else {"approvable": False}),
        **({"asks_person": True} if decision.asks_person else {}),
    }


@lru_cache(maxsize=4096)
def _shared(totals: tuple[ReservationRequest, ...], breakers: tuple[BreakerCheck, ...]) -> bytes | None:
    """The limits and breakers of who asks, as JSON: the same for most rows of a batch, which carries them once."""
    if not totals and not breakers:
        return None
    return orjson.dumps({"totals": [_limit(ask) for ask in totals], "breakers": [_breaker(ask) for ask in breakers]})


def _limit(ask: ReservationRequest) -> dict[str, Any]:
    return {
        "limit_key": ask.limit_key, "subject": ask.subject, "window": ask.window, "window_seconds": ask.window_seconds,
        "bucket_seconds": ask.bucket_seconds, "zone": ask.zone, "cap_minor": ask.cap_minor, "verdict": ask.verdict,
        "reason_code": ask.reason_code,
    }  # fmt: skip


def _breaker(ask: BreakerCheck) -> dict[str, Any]:
    return {
        "breaker_key": ask.breaker_key, "scope": ask.scope, "target": ask.target, "window_seconds": ask.window_seconds,
        "bucket_seconds": ask.bucket_seconds, "most_operations": ask.most_operations, "most_minor": ask.most_minor,
        "declared": ask.declared,
    }  # fmt: skip


def check_row(authority: Authority, caller: Caller, operation: Operation) -> dict[str, Any]:
    """The question as `Authority.checks` takes it: what a guard would ask for a new key."""
    return question(caller, operation, provisional(authority, caller, operation)[0])


TRY_SECONDS = 0.8
"""How long the try may wait for locks; a probe that asks for readiness gives up after a second."""

REMEMBERED_SECONDS = 0.5

log = structlog.get_logger("sentinel")

_NOBODY = uuid.UUID(int=0)


class GuardProbe:
    """Tries, one asker at a time; the answer is good for half a second, so that asking often costs no more."""

    def __init__(self, authority: Authority, now: Callable[[], float] = time.monotonic) -> None:
        self._authority, self._now, self._lock = authority, now, threading.Lock()
        self._tried_at, self._answer = float("-inf"), False

    def would_be_answered(self) -> bool:
        """True when a guard was recorded in time."""
        with self._lock:
            if self._now() - self._tried_at >= REMEMBERED_SECONDS:
                try:
                    self._answer = self._try()
                except SentinelError as error:
                    log.warning("guard_tried_in_vain", cause=error.detail)
                    self._answer = False
                self._tried_at = self._now()
            return self._answer

    def _try(self) -> bool:
        caller = Caller(_NOBODY, _NOBODY, _NOBODY, None, frozenset(), None)
        operation = build_operation(
            idempotency_key=f"readiness:{new_id()}", agent_id="readiness", action="readiness.try", params={}
        )
        row = decided_row(self._authority, caller, operation, has_start_step=True, elapsed_ms=0)
        return try_decision(self._authority.pool, row, TRY_SECONDS)
