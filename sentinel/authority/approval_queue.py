"""The approval queue of operators: one list of approvals of all kinds. `approval_details` has the details of one.

Pending approvals come riskiest first (`risk_rank` in `schema/authority/approvals.sql`), then by expiry; decided ones
come newest first. This module only reads: `approvals.resolve_approval` and, for orders, `order_views.resolve` decide.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, LiteralString

from sqlalchemy import (
    Boolean,
    Integer,
    Select,
    Text,
    TextClause,
    and_,
    bindparam,
    case,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
    text,
    tuple_,
)

from sentinel.authority.approvals import APPROVALS_GIVEN, COLUMNS, ApprovalRow
from sentinel.authority.reasons import ESCALATIONS
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, one_row
from sentinel.store.sql_template import SqlTemplate
from sentinel.store.tables import APPROVALS, LIMIT, sql_text, value

KINDS = ("refund", "escalation", "order", "change", "other")
STATUSES = ("pending", "decided", "approved", "rejected", "handled", "expired")
ORDER_ACTION = "order.fulfill"
MOST_LOOKED = 500
"""How many pending approvals one call searches for those that a reader may vote on: each takes a subquery."""
MOST_DECIDED = 2_000
"""How many decided approvals one call searches for those of one kind, for which there is no index."""
MOST_COUNTED = 5_000
"""How many pending approvals of a tenant are counted, those that expire first; with more, the count is only a minimum."""
Cursor = tuple[int, datetime, uuid.UUID]
"""A place in a list: the risk rank, `expires_at` (of a decided approval `decided_at`) and id of the approval there."""

# An escalation is a refund that a workflow handed to a person, whatever its amount; a change (of people, keys or
# receivers) was requested by an operator and not by an agent.
KIND_SQL = f"""
case when sentinel.is_protected_change(a) then 'change'
     when a.action = '{ORDER_ACTION}' then 'order'
     when not starts_with(a.action, 'refund.') then 'other'
     when a.reasons && array[{", ".join(f"'{code}'" for code in ESCALATIONS)}]::text[] then 'escalation'
     else 'refund' end
"""


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One approval of the queue. Amounts in minor units; `status` is one of `STATUSES` other than "decided".

    `risk_rank` is 1 (looked at first) to 3. `mine` is the reader's own vote, if any.
    """

    approval_id: uuid.UUID
    kind: str
    risk_rank: int
    agent_id: str
    action: str
    resource: str
    amount_minor: int | None
    currency: str | None
    digest: str
    reasons: list[str]
    offers_approve: bool
    required_people: int
    approvals_given: int
    status: str
    created_at: datetime
    expires_at: datetime
    seconds_left: float
    decided_at: datetime | None
    decided_by: str | None
    mine: str | None


@dataclass(frozen=True, slots=True)
class _PartEnd:
    risk_rank: int
    at: datetime
    approval_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class QueueState:
    """The number of pending approvals and the newest of them, to detect changes.

    `pending` is at most `MOST_COUNTED`, and `is_all` is False if there are more. `newest` is None if none of the
    tenant's latest `MOST_LOOKED` approvals is pending.
    """

    pending: int
    is_all: bool
    newest: uuid.UUID | None


RISK_RANK_SQL = "sentinel.risk_rank(a.required_people, a.reasons)"
_COLUMNS = SqlTemplate("""
a.approval_id, {kind_sql} as kind, {rank} as risk_rank, a.agent_id, a.action, a.resource, a.amount_minor, a.currency, a.digest, a.reasons,
a.offers_approve, a.required_people,
{approvals_given},
case when a.status = 'pending' then case when a.expires_at <= statement_timestamp() then 'expired' else 'pending' end
     when a.handled_reference is not null then 'handled' else a.status end as status,
a.created_at, a.expires_at, extract(epoch from a.expires_at - statement_timestamp())::double precision as seconds_left,
a.decided_at, a.decided_by,
(select v.verdict from sentinel.approval_votes v where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id
   and v.operator_id = :operator_id) as mine
""").fill(kind_sql=KIND_SQL, rank=RISK_RANK_SQL, approvals_given=APPROVALS_GIVEN)
_A = APPROVALS.alias("a")
_LINES = select(text(_COLUMNS)).select_from(_A).where(_A.c.tenant_id == value("tenant_id", uuid.UUID))
_CURSORS, _DECIDED_CURSORS = (
    select(text(f"{RISK_RANK_SQL} as risk_rank, {at} as at, a.approval_id"))
    .select_from(_A)
    .where(_A.c.tenant_id == value("tenant_id", uuid.UUID))
    for at in ("a.expires_at", "a.decided_at")
)
_OF_KIND = literal_column(KIND_SQL, Text()) == value("kind", str)
_OF_AGENT = _A.c.agent_id == value("agent_id", str)
# The requesting key with its predecessors and successors by rotation: they are one principal.
_OF_KEY = _A.c.principal_id == value("principal_id", uuid.UUID)
# The columns of the index approvals_queue after the tenant, which are also the columns of the cursor.
_QUEUE_ORDER = (literal_column(RISK_RANK_SQL, Integer()), _A.c.expires_at, _A.c.approval_id)
_BEHIND_PENDING = tuple_(*_QUEUE_ORDER) > tuple_(
    bindparam("after_rank", type_=Integer()), value("after_at", datetime), value("after_id", uuid.UUID)
)
_UP_TO = tuple_(*_QUEUE_ORDER) <= tuple_(
    bindparam("last_rank", type_=Integer()), value("last_at", datetime), value("last_id", uuid.UUID)
)
_DECIDED_ORDER = (_A.c.decided_at, _A.c.approval_id)
_BEHIND_DECIDED = tuple_(*_DECIDED_ORDER) < tuple_(value("after_at", datetime), value("after_id", uuid.UUID))
_UP_TO_DECIDED = tuple_(*_DECIDED_ORDER) >= tuple_(value("last_at", datetime), value("last_id", uuid.UUID))
# Approvals that the reader may vote on and has not: those rules of `sentinel.resolve_approval` that hold for every
# vote, except that the reader is not the requester (_READER_ASKED).
_FOR_READER = text("""
not exists (select from sentinel.approval_votes v where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id
  and v.operator_id = :operator_id)
and exists (select from sentinel.operators p where p.tenant_id = a.tenant_id and p.operator_id = :operator_id and p.active
  and p.role in ('admin', a.required_role) and coalesce(p.changed_by_another_at <= a.created_at, true))
""")
_READER_ASKED = func.sentinel.is_requester(literal_column("a"), value("operator_id", uuid.UUID), type_=Boolean())
# Must use the index approvals_pending. In the order of ids, the planner would scan past every decided approval to find
# the few pending ones; `offset 0` keeps it from that plan.
_NEWEST_PENDING = SqlTemplate("""
a.approval_id = any(array(
  select p.approval_id from (
    select w.approval_id from sentinel.approvals w
    where w.tenant_id = :tenant_id and w.status = 'pending' and w.expires_at > statement_timestamp() {narrowed} offset 0) as p
  order by p.approval_id desc limit :limit))
""")
# Must use the index approvals_of_agent, one status at a time, so its columns are compared and ordered as rows. With
# equalities on agent and status, the primary key would give the same order, and the planner might scan it past the
# approvals of all other agents.
_NEWEST_OF_AGENT = SqlTemplate("""
a.approval_id = any(array(
  select w.approval_id from unnest(array[{statuses}]) as s (status) cross join lateral (
    select p.approval_id from sentinel.approvals p
    where p.tenant_id = :tenant_id and (p.agent_id, p.status) >= (:agent_id, s.status) and {up_to} {narrowed}
    order by p.agent_id desc, p.status desc, p.approval_id desc limit :limit) as w
  order by w.approval_id desc limit :limit))
""")
# Changes of people, keys and receivers are few, and have a table of their own. `any(array(...))` makes the planner look
# up each approval by its primary key, whatever row counts it estimates.
_IS_CHANGE = text("""
a.approval_id = any(array(select c.approval_id from sentinel.protected_changes c where c.tenant_id = :tenant_id))
""")
# Decided approvals, with the conditions of the partial indexes approvals_handled and approvals_by_status.
_IS_HANDLED = and_(_A.c.decided_at.is_not(None), _A.c.handled_reference.is_not(None))
_HAS_STATUS = and_(_A.c.decided_at.is_not(None), _A.c.handled_reference.is_(None), _A.c.status == value("status", str))
_DECIDED_AS = {"decided": _A.c.decided_at.is_not(None), "handled": _IS_HANDLED}
"""Conditions by the value of the page's `status`; every other value is compared with the column (_HAS_STATUS)."""
_HAS_EXPIRED = or_(_HAS_STATUS, and_(text("a.status = 'pending'"), _A.c.expires_at <= func.statement_timestamp()))
QUEUE_STATE = """
select least(counted.pending, %(most)s)::integer as pending, counted.pending <= %(most)s as is_all, newest.approval_id as newest
from (
  select count(*) as pending from (
    select from sentinel.approvals where tenant_id = %(tenant_id)s and status = 'pending' and expires_at > statement_timestamp()
    order by expires_at limit %(most)s + 1) few) counted
left join lateral (
  select asked.approval_id from (
    select approval_id, status, expires_at from sentinel.approvals where tenant_id = %(tenant_id)s
    order by approval_id desc limit %(most_looked)s) asked
  where asked.status = 'pending' and asked.expires_at > statement_timestamp() order by asked.approval_id desc limit 1) newest on true
"""


def _pending(rows: Select[Any], *, of_kind: bool, behind: bool, of_agent: bool, of_key: bool = False) -> Select[Any]:
    """Return the query narrowed to pending approvals in queue order.

    The flags narrow it further to one kind, to those after the cursor, to one agent and to one key.
    """
    pending = rows.where(text("a.status = 'pending'"), _A.c.expires_at > func.statement_timestamp())
    pending = pending.where(*([_OF_KIND] if of_kind else []), *([_BEHIND_PENDING] if behind else []))
    pending = pending.where(*([_OF_AGENT] if of_agent else []), *([_OF_KEY] if of_key else []))
    return pending.order_by(*_QUEUE_ORDER)


@cache
def pending_sql(
    *, of_kind: bool, behind: bool, of_agent: bool = False, of_key: bool = False, for_reader: bool = False, up_to: bool = False
) -> str:  # fmt: skip
    """Return the SQL of a page of pending approvals; the first four flags are those of `_pending`.

    `for_reader` keeps those that the reader may vote on and has not; `up_to` then ends the page at a given place.
    """
    page = _pending(_LINES, of_kind=of_kind, behind=behind, of_agent=of_agent, of_key=of_key)
    if for_reader:
        # A case, because in an `and` the planner may evaluate the costly requester check before the cheap comparison
        # of places.
        did_not_ask = case((_UP_TO, not_(_READER_ASKED)), else_=false()) if up_to else not_(_READER_ASKED)
        page = page.where(_FOR_READER, did_not_ask, *([_UP_TO] if up_to else []))
    return sql_text(page.limit(LIMIT))


@cache
def part_end_sql(*, of_kind: bool, behind: bool, of_agent: bool = False) -> str:
    """Return the SQL of the place of the last approval in a part of the queue, and of the approval after it."""
    ends = _pending(_CURSORS, of_kind=of_kind, behind=behind, of_agent=of_agent)
    return sql_text(ends.offset(bindparam("offset", type_=Integer())).limit(LIMIT))


def pending_page(
    pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, *, kind: str | None, after: Cursor | None, limit: int,
    agent_id: str | None, principal_id: uuid.UUID | None = None,
) -> list[QueueRow]:  # fmt: skip
    """Return pending approvals after the cursor `after`, riskiest and soonest to expire first.

    `agent_id` and `principal_id` narrow them to the requests of one agent or principal. `mine` is the vote of `reader`.
    """
    statement = pending_sql(
        of_kind=kind is not None, behind=after is not None, of_agent=agent_id is not None, of_key=principal_id is not None
    )  # fmt: skip
    asked = _asked(tenant_id, reader, kind, after, limit) | {"agent_id": agent_id, "principal_id": principal_id}
    return all_rows(pool, QueueRow, statement, asked)


def page_for_reader(
    pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, *, kind: str | None, after: Cursor | None, limit: int,
    agent_id: str | None,
) -> tuple[list[QueueRow], Cursor | None]:  # fmt: skip
    """Return those of the next `MOST_LOOKED` pending approvals after `after` that the reader may vote on and has not.

    The second value is the place where the searched part ends, or None if no pending approval comes after it. Without a
    reader there are no rows.
    """
    of_kind, behind, of_agent = kind is not None, after is not None, agent_id is not None
    asked = _asked(tenant_id, reader, kind, after, 2) | {"agent_id": agent_id, "offset": MOST_LOOKED - 1}
    last = _last(all_rows(pool, _PartEnd, part_end_sql(of_kind=of_kind, behind=behind, of_agent=of_agent), asked))
    statement = pending_sql(of_kind=of_kind, behind=behind, of_agent=of_agent, for_reader=True, up_to=last is not None)
    last_rank, last_at, last_id = last or (None, None, None)
    asked = _asked(tenant_id, reader, kind, after, limit)
    asked |= {"agent_id": agent_id, "last_rank": last_rank, "last_at": last_at, "last_id": last_id}
    return all_rows(pool, QueueRow, statement, asked), last


def _last(ends: list[_PartEnd]) -> Cursor | None:
    """Return where a part ends if an approval comes after it, else None; `ends` is its last approval and the next one."""
    return (ends[0].risk_rank, ends[0].at, ends[0].approval_id) if len(ends) == 2 else None


def _asked(
    tenant_id: uuid.UUID, reader: uuid.UUID | None, kind: str | None, after: Cursor | None, limit: int
) -> dict[str, Any]:
    rank, at, after_id = after or (None, None, None)
    return {
        "tenant_id": tenant_id, "operator_id": reader, "kind": kind, "after_rank": rank, "after_at": at, "after_id": after_id,
        "limit": limit,
    }  # fmt: skip


def _decided(rows: Select[Any], status: str, *, behind: bool) -> Select[Any]:
    """Return the query narrowed to approvals decided as `status`, newest first; `behind`: only those after the cursor."""
    decided = rows.where(_DECIDED_AS.get(status, _HAS_STATUS), *([_BEHIND_DECIDED] if behind else []))
    return decided.order_by(*(one.desc() for one in _DECIDED_ORDER))


@cache
def decided_sql(
    status: str,
    *,
    behind: bool,
    of_kind: bool = False,
    of_agent: bool = False,
    changes: bool = False,
    up_to: bool = False,
) -> str:
    """Return the SQL of a page of approvals decided as `status`, newest first.

    `behind`: after the cursor. `changes`, `of_kind` and `of_agent` narrow it to changes of people, keys and receivers,
    to one kind and to one agent. `up_to`: ends at a given place.
    """
    page = _decided(_LINES, status, behind=behind)
    page = page.where(
        *([_IS_CHANGE] if changes else []), *([_OF_KIND] if of_kind else []), *([_OF_AGENT] if of_agent else [])
    )
    return sql_text(page.where(*([_UP_TO_DECIDED] if up_to else [])).limit(LIMIT))


@cache
def decided_end_sql(status: str, *, behind: bool) -> str:
    """Return the SQL of the place of the last approval in a part of the decided ones, and of the approval after it."""
    ends = _decided(_DECIDED_CURSORS, status, behind=behind)
    return sql_text(ends.offset(bindparam("offset", type_=Integer())).limit(LIMIT))


def decided_page(
    pool: Pool, tenant_id: uuid.UUID, reader: uuid.UUID | None, *, kind: str | None, status: str,
    after: tuple[datetime, uuid.UUID] | None, limit: int, agent_id: str | None,
) -> tuple[list[QueueRow], Cursor | None]:  # fmt: skip
    """Return decided and expired approvals behind the cursor `after` = (decided_at, id), newest first.

    `status` is one of `STATUSES` other than "pending". For one kind other than "change", or for one agent, only the
    next `MOST_DECIDED` are searched; the second value is then the place where they end, or None if no decided approval
    comes after them.
    """
    at, last_id = after or (None, None)
    asked: dict[str, Any] = {
        "tenant_id": tenant_id, "operator_id": reader, "kind": kind, "agent_id": agent_id, "status": status, "after_at": at,
        "after_id": last_id,
        "limit": limit,
    }  # fmt: skip
    behind, changes = after is not None, kind == "change"
    of_kind, of_agent = kind is not None and not changes, agent_id is not None
    last: Cursor | None = None
    if of_kind or (of_agent and not changes):
        part = asked | {"limit": 2, "offset": MOST_DECIDED - 1}
        last = _last(all_rows(pool, _PartEnd, decided_end_sql(status, behind=behind), part))
    statement = decided_sql(
        status, behind=behind, of_kind=of_kind, of_agent=of_agent, changes=changes, up_to=last is not None
    )
    asked |= {"last_at": last and last[1], "last_id": last and last[2]}
    return all_rows(pool, QueueRow, statement, asked), last


def _newest_pending(*, behind: bool, of_agent: bool) -> TextClause:
    """Return the condition for the newest pending approvals: of one agent or all, from the start or after the cursor."""
    narrowed = ("and w.approval_id < :before " if behind else "") + ("and w.agent_id = :agent_id" if of_agent else "")
    return text(_NEWEST_PENDING.fill(narrowed=narrowed))


def _newest_of_agent(status: str | None, *, behind: bool, handled: bool | None) -> TextClause:
    """Return the condition for one agent's newest approvals, of one status or all; `handled` as for `list_sql`.

    `behind`: only those after the cursor.
    """
    statuses: LiteralString = {
        None: "'pending', 'approved', 'rejected', 'expired'", "expired": "'expired', 'pending'", "approved": "'approved'",
        "rejected": "'rejected'",
    }[status]  # fmt: skip
    narrowed: LiteralString = ""
    if status == "expired":
        narrowed = "and (p.status = 'expired' or p.expires_at <= statement_timestamp())"
    elif status == "rejected" and handled is not None:
        narrowed = "and p.handled_reference is not null" if handled else "and p.handled_reference is null"
    up_to: LiteralString = (
        "(p.agent_id, p.status, p.approval_id) < (:agent_id, s.status, :before)"
        if behind
        else "(p.agent_id, p.status) <= (:agent_id, s.status)"
    )
    return text(_NEWEST_OF_AGENT.fill(statuses=statuses, up_to=up_to, narrowed=narrowed))


@cache
def list_sql(*, status: str | None, behind: bool, handled: bool | None = None, of_agent: bool = False) -> str:
    """Return the SQL of a page of approvals, newest first, of one status (of `ApprovalRow`) and one agent, or of all.

    `behind`: after the cursor. `handled` narrows rejected ones to those that a person handled (True) or to the others
    (False). Conditions use the stored columns, which are indexed; the computed status is known only once a row is read.
    """
    page = select(text(COLUMNS)).select_from(_A).where(_A.c.tenant_id == value("tenant_id", uuid.UUID))
    if status == "pending":
        page = page.where(_newest_pending(behind=behind, of_agent=of_agent))
    elif of_agent:
        page = page.where(_newest_of_agent(status, behind=behind, handled=handled))
    elif status == "expired":
        page = page.where(_HAS_EXPIRED)
    elif status == "rejected" and handled is not False:
        page = page.where(_IS_HANDLED if handled else or_(_IS_HANDLED, _HAS_STATUS))
    elif status is not None:
        page = page.where(_HAS_STATUS)
    if behind:
        page = page.where(_A.c.approval_id < value("before", uuid.UUID))
    return sql_text(page.order_by(_A.c.approval_id.desc()).limit(LIMIT))


def list_approvals(
    pool: Pool, tenant_id: uuid.UUID, *, status: str | None = None, before: uuid.UUID | None = None, limit: int,
    handled: bool | None = None, agent_id: str | None = None,
) -> list[ApprovalRow]:  # fmt: skip
    """Return approvals older than the approval `before`, newest first, optionally of one status and agent.

    `handled` is as for `list_sql`. Ids are UUIDv7, so the primary key is in order of time and the last id seen is the
    cursor.
    """
    fields = {"tenant_id": tenant_id, "status": status, "agent_id": agent_id, "before": before, "limit": limit}
    statement = list_sql(status=status, behind=before is not None, handled=handled, of_agent=agent_id is not None)
    return all_rows(pool, ApprovalRow, statement, fields)


def queue_state(pool: Pool, tenant_id: uuid.UUID) -> QueueState:
    """Return the number of pending approvals and the newest; the cost is bounded however many are pending."""
    fields = {"tenant_id": tenant_id, "most": MOST_COUNTED, "most_looked": MOST_LOOKED}
    found = one_row(pool, QueueState, QUEUE_STATE, fields)
    assert found is not None
    return found
