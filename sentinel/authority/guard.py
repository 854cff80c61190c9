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

import structlog

from sentinel.authority.decisions import Recorded, try_decision
from sentinel.authority.engine import Authority, Caller
from sentinel.authority.guard_rows import GuardRow, GuardTerms, shared_json
from sentinel.authority.housekeeping import PERMIT_LIMIT_MARK_SECONDS
from sentinel.authority.keys import WORKER_SCOPE
from sentinel.authority.outcomes import leave_seconds
from sentinel.core.decision import Decision, no_matching_policy
from sentinel.core.errors import KeyReused, ResolvedNotExecuted, SentinelError, TooManyOpenPermits
from sentinel.core.operation import Operation, build_operation, first_difference
from sentinel.core.proof import decision_basis, facts_commitment, pack_parts
from sentinel.platform.randomness import random_bytes
from sentinel.policy.evaluate import evaluate
from sentinel.policy.facts import Requester, check_once, declared_evidence
from sentinel.policy.model import EVIDENCE
from sentinel.store.ids import GUARD_ID_BYTES, guard_ids, new_id, proof_id_of, unix_milliseconds


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
) -> GuardRow:
    """An operation as the policy decides on it, with all that recording it needs: in memory, nothing asked of anybody."""
    decision, basis = provisional(authority, caller, operation)
    terms = _terms(caller, operation, decision, authority.permit_seconds, hand_out_is_start=not has_start_step)
    ids, salt = guard_ids(unix_milliseconds(), random_bytes(GUARD_ID_BYTES)), random_bytes(32).hex()
    amount = operation.params.get("amount")
    return GuardRow(
        terms, operation.idempotency_key, operation.resource, operation.digest, operation.canonical, salt, basis,
        facts_commitment(salt, operation_canonical=operation.canonical, basis=basis, tightened=()), decision.once_key,
        ids=ids, amount_minor=amount["amount_minor"] if amount else None, limits=[ask for ask in decision.limits if not ask.is_total],
        pack_parts=pack_parts(operation, decision, proof_id=proof_id_of(uuid.UUID(bytes=ids[16:32])), salt=salt), elapsed_ms=elapsed_ms,
        start_id=start_id, act_seconds=leave_seconds(authority, act_seconds),
    )  # fmt: skip


def _terms(
    caller: Caller, operation: Operation, decision: Decision, permit_seconds: int, *, hand_out_is_start: bool
) -> GuardTerms:
    """The interned terms of an operation and of what the policy decided on it."""
    amount, scenario = operation.params.get("amount"), operation.param("scenario")
    currency = amount["currency"] if amount else None
    # The policy's digest and the key of a total or breaker, which names its place in the policy and who asks, say all else of it.
    key = (
        caller, operation.agent_id, operation.action, operation.risk_class, scenario, currency, decision.policy_digest, decision.verdict.value, decision.reason_code,
        decision.reasons, decision.approval, decision.approvable, decision.asks_person, permit_seconds, hand_out_is_start,
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
            shared_json([ask for ask in decision.limits if ask.is_total], decision.breakers),
        )  # fmt: skip
    return found


_interned: dict[tuple[Any, ...], GuardTerms] = {}
_MOST_TERMS = 4096

_NEVER = ("approver", 1, 0)
"""Approval terms of a decision that no approval can follow."""


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
