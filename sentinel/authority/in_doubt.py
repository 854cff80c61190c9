"""Operations in doubt (started, outcome unknown): listing them, and recording how a person resolved one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.authority.actor import Actor
from sentinel.core.errors import Conflict, NotFound, StillActing
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import act_once, all_rows, one_row


@dataclass(frozen=True, slots=True)
class InDoubtRow:
    """A started operation without a known outcome; its budget stays held. Amounts in minor units."""

    operation_id: uuid.UUID
    idempotency_key: str
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    in_doubt_reason: str
    started_at: datetime
    in_doubt_since: datetime
    act_until: datetime | None
    """Until when the caller may act, so that "not executed" cannot be recorded yet; None if it can."""


@dataclass(frozen=True, slots=True)
class InDoubtTotal:
    """How much is in doubt in one currency; `currency` and `amount_minor` are None for operations without an amount.

    `oldest` is since when the oldest of them is in doubt.
    """

    currency: str | None
    operations: int
    amount_minor: int | None
    oldest: datetime


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation with everything that a person needs to resolve its doubt. Amounts in minor units."""

    operation_id: uuid.UUID
    idempotency_key: str
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    digest: str
    status: str
    decision: str
    reason_code: str
    policy_label: str
    outcome: str | None
    started_at: datetime | None
    reported_at: datetime | None
    in_doubt_reason: str | None
    in_doubt_since: datetime | None
    held_minor: int | None
    once_key_held: bool
    act_until: datetime | None
    """Until when the caller may act, so that "not executed" cannot be recorded yet; None if it can."""
    not_executed_at: datetime | None
    halt_id: uuid.UUID | None
    """The halt that a contradiction set, if there was one."""


_IN_DOUBT = """
select o.operation_id, o.idempotency_key, o.agent_id, o.action, o.resource, o.amount_minor, o.currency,
       s.in_doubt_reason, s.started_at, s.in_doubt_since,
       case when s.act_until > clock_timestamp() then s.act_until end as act_until
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.tenant_id = %(tenant_id)s and s.status = 'in_doubt'
"""
_LONGEST = "order by s.in_doubt_since, s.operation_id limit %(limit)s"
LIST_IN_DOUBT = f"{_IN_DOUBT} {_LONGEST}"
LIST_BEHIND = f"{_IN_DOUBT} and (s.in_doubt_since, s.operation_id) > (%(after_at)s, %(after_id)s) {_LONGEST}"
# By currency first: minor units of different currencies are not comparable.
_GREATEST = "o.amount_minor desc nulls last, s.in_doubt_since, s.operation_id limit %(limit)s"
BY_AMOUNT = f"{_IN_DOUBT} order by o.currency nulls last, {_GREATEST}"
OF_CURRENCY = f"{_IN_DOUBT} and o.currency = %(currency)s order by {_GREATEST}"
TOTALS = """
select o.currency, count(*)::integer as operations, sum(o.amount_minor)::bigint as amount_minor, min(s.in_doubt_since) as oldest
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.tenant_id = %(tenant_id)s and s.status = 'in_doubt' group by o.currency order by o.currency
"""
FIND_OPERATION = """
select o.operation_id, o.idempotency_key, o.agent_id, o.action, o.resource, o.amount_minor, o.currency, o.digest, s.status,
       s.decision, s.reason_code, t.policy_label, s.outcome, s.started_at, s.reported_at, s.in_doubt_reason, s.in_doubt_since,
       case when s.reservation = 'held' then s.reserved_minor end as held_minor,
       s.once_live as once_key_held, case when s.act_until > clock_timestamp() then s.act_until end as act_until,
       s.not_executed_at, c.halt_id
from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
join sentinel.decision_terms t on t.terms_id = s.terms_id
left join sentinel.contradictions c using (tenant_id, operation_id)
where o.tenant_id = %(tenant_id)s and o.operation_id = %(operation_id)s
"""
RESOLVE_IN_DOUBT = """
select result, act_until from sentinel.resolve_in_doubt(%(tenant_id)s, %(operation_id)s, %(executed)s, %(resolved_by)s, %(evidence)s, %(event_id)s,
  %(in_doubt_since)s::timestamptz)
"""


def list_in_doubt(
    pool: Pool, tenant_id: uuid.UUID, *, limit: int = 200, by_amount: bool = False, currency: str | None = None,
    after: tuple[datetime, uuid.UUID] | None = None,
) -> list[InDoubtRow]:  # fmt: skip
    """Return the tenant's operations in doubt, longest in doubt first, after the cursor (in_doubt_since, operation_id).

    `by_amount` orders them by currency, then largest amounts first; `currency` keeps only that currency, largest
    amounts first. Both ignore the cursor.
    """
    longest = LIST_IN_DOUBT if after is None else LIST_BEHIND
    statement = OF_CURRENCY if currency is not None else BY_AMOUNT if by_amount else longest
    after_at, after_id = after or (None, None)
    return all_rows(pool, InDoubtRow, statement, {
        "tenant_id": tenant_id, "limit": limit, "currency": currency, "after_at": after_at, "after_id": after_id,
    })  # fmt: skip


def in_doubt_totals(pool: Pool, tenant_id: uuid.UUID) -> list[InDoubtTotal]:
    """Return the tenant's totals in doubt, by currency."""
    return all_rows(pool, InDoubtTotal, TOTALS, {"tenant_id": tenant_id})


def find_operation(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID) -> OperationRow | None:
    """Return the tenant's operation with that id, whatever its state, or None."""
    return one_row(pool, OperationRow, FIND_OPERATION, {"tenant_id": tenant_id, "operation_id": operation_id})


@dataclass(frozen=True, slots=True)
class _Resolution:
    """`result` is "resolved", "unknown", "not_in_doubt", "changed" or "still_acting"; the last has an `act_until`."""

    result: str
    act_until: datetime | None


def resolve_in_doubt(
    pool: Pool,
    actor: Actor,
    operation_id: uuid.UUID,
    *,
    executed: bool,
    evidence: str,
    in_doubt_since: datetime | None = None,
) -> None:
    """Resolve an operation in doubt as executed or not executed. Needs the role admin, because it may release budget.

    "Executed" captures the budget, "not executed" releases it and is final: nothing can start under that idempotency
    key any more. `in_doubt_since` identifies the doubt that the person looked at; without it only "not executed" after
    a contradiction is refused. Raises `NotFound`, `Forbidden`, `StillActing` ("not executed" while the caller may still
    act on its start), `Conflict` if the operation is not in doubt or in another doubt, or `MayBeRecorded` if the
    connection was lost and the resolution may be recorded.
    """
    actor.must_be("admin")
    done = act_once(pool, _Resolution, RESOLVE_IN_DOUBT, {
        "tenant_id": actor.tenant_id, "operation_id": operation_id, "executed": executed, "resolved_by": actor.name,
        "evidence": evidence, "event_id": new_id(), "in_doubt_since": in_doubt_since,
    }, is_taken=lambda found: found.result == "resolved")  # fmt: skip
    if done.result == "unknown":
        raise NotFound("there is no operation with this id")
    if done.result == "still_acting":
        assert done.act_until is not None
        raise StillActing(done.act_until)
    if done.result == "changed":
        raise Conflict(_CONTRADICTED if in_doubt_since is None else _ANOTHER_DOUBT)
    if done.result == "not_in_doubt":
        raise Conflict(_where_it_stands(find_operation(pool, actor.tenant_id, operation_id)))


_ANOTHER_DOUBT = (
    "the operation has changed since you looked at it: something more was reported; look at it again before you decide"
)
_CONTRADICTED = (
    'a success was reported after "not executed": look at the operation again, and give its current in_doubt_since'
)


def _where_it_stands(found: OperationRow | None) -> str:
    """Return a sentence that says why there is no doubt to resolve.

    `found` was read after the refusal, so by now it may be in doubt.
    """
    if found is None or found.status == "in_doubt":
        return "the operation was not in doubt; try again"
    later = ": it becomes in doubt if no outcome is reported in time" if found.status == "started" else ""
    return f"the operation is not in doubt, it is {found.status.replace('_', ' ')}{later}"
