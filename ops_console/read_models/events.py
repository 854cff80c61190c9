"""The append-only log as operators read it: pages of events by their ids, newest first, and the events of one operation.

Ids are made in order of time by whoever asks (UUIDv7), so a page needs no other index. A filter that an index does not
answer looks through a bounded number of events a page and says how far it came; nothing here reads the whole log.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sentinel.store.database import Pool
from sentinel.store.ids import first_id_at
from sentinel.store.rows import all_rows, single

LOOKED_AT = 20_000
"""How many events one page looks through for those that fit."""
COMMON = ("decision", "start", "outcome")
"""Kinds that come with every operation; the others are few and have an index (`0004_console.sql`)."""
KINDS = (
    *COMMON, "refused", "asked_again", "approval_vote", "approval_approved", "approval_rejected", "approval_handled",
    "approval_expired", "in_doubt", "in_doubt_resolved", "contradiction", "halt_set", "halt_lifted", "switch_on", "switch_off",
    "gate_report_recorded", "check_report", "operator_added", "operator_role_set", "operator_shut_out", "operator_let_in",
    "operator_password_reset", "operator_second_factor_reset", "operator_sessions_ended",
    "operator_password_changed", "operator_second_factor_set", "operator_second_factor_removed",
    "key_created", "key_rotated", "key_revoked",
)  # fmt: skip
"""The kinds that there are, for choosing; another one is only another text."""

_ID_SLACK = timedelta(hours=1)
"""Ids carry the time of the machine that asked, events the database's: so far the two may be apart."""
_FIRST, _LAST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event: canonical `body` and its `hash`; amount of its operation in minor units; no position yet is None."""

    event_id: uuid.UUID
    kind: str
    operation_id: uuid.UUID | None
    agent_id: str | None
    body: str
    hash: str
    occurred_at: datetime
    amount_minor: int | None
    currency: str | None
    position: int | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events; None is any. `since` is part of the time asked for, `until` is not; `before` is the cursor."""

    kind: str | None = None
    agent_id: str | None = None
    operation_id: uuid.UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, newest first; `before` continues behind them, None at the log's end. `searching` when more may fit there."""

    events: list[EventRow]
    before: uuid.UUID | None
    searching: bool


_RARE = f"and e.kind not in ({', '.join(repr(kind) for kind in COMMON)})"
# Newest first from behind the cursor, as far as this page looks. `{inner}` is what an index answers.
_LOOKED = """
  select e.event_id, e.kind, e.operation_id, e.agent_id, e.body, e.hash, e.occurred_at from sentinel.events e
  where e.tenant_id = %(tenant_id)s and e.event_id < %(before)s and e.event_id >= %(oldest)s {inner}
  order by e.event_id desc limit %(look)s"""
_PAGE = f"""
with found as (
  select * from ({_LOOKED}) as looked
  where (%(kind)s::text is null or kind = %(kind)s) and (%(agent_id)s::text is null or agent_id = %(agent_id)s)
    and (%(since)s::timestamptz is null or occurred_at >= %(since)s)
    and (%(until)s::timestamptz is null or occurred_at < %(until)s)
  order by event_id desc limit %(limit)s
)
select f.*, o.amount_minor, o.currency, p.position from found f
left join sentinel.operations o on o.tenant_id = %(tenant_id)s and o.operation_id = f.operation_id
left join sentinel.feed p on p.tenant_id = %(tenant_id)s and p.event_id = f.event_id
order by f.event_id desc
"""
# Where looking ended; no row when there is nothing more behind.
_ENDED = """
select e.event_id from sentinel.events e
where e.tenant_id = %(tenant_id)s and e.event_id < %(before)s and e.event_id >= %(oldest)s {inner}
order by e.event_id desc offset %(look)s - 1 limit 1
"""
_OF_OPERATION = "and e.operation_id = %(operation_id)s"
PAGES = {inner: (_PAGE.format(inner=inner), _ENDED.format(inner=inner)) for inner in ("", _RARE, _OF_OPERATION)}
OF_OPERATION = """
select e.event_id, e.kind, e.operation_id, e.agent_id, e.body, e.hash, e.occurred_at, o.amount_minor, o.currency, p.position
from sentinel.events e
left join sentinel.operations o using (tenant_id, operation_id)
left join sentinel.feed p using (tenant_id, event_id)
where e.tenant_id = %(tenant_id)s and e.operation_id = %(operation_id)s
order by e.occurred_at, e.event_id limit %(limit)s
"""


def events_page(pool: Pool, tenant_id: uuid.UUID, wanted: EventFilter, *, limit: int) -> EventPage:
    """The newest `limit` events that fit behind the cursor, or as many as the part looked through has."""
    statement, ended = PAGES[_inner(wanted)]
    fields = {
        "tenant_id": tenant_id, "kind": wanted.kind, "agent_id": wanted.agent_id, "operation_id": wanted.operation_id,
        "since": wanted.since, "until": wanted.until, "before": _newest(wanted), "oldest": _oldest(wanted),
        "look": LOOKED_AT, "limit": limit,
    }  # fmt: skip
    found = all_rows(pool, EventRow, statement, fields)
    if len(found) == limit:
        return EventPage(found, found[-1].event_id, searching=False)
    looked_to = single(pool, ended, fields)
    return EventPage(found, looked_to, searching=looked_to is not None)


def all_events(pool: Pool, tenant_id: uuid.UUID, wanted: EventFilter, *, most: int) -> Iterator[EventRow]:
    """At most `most` events that fit, newest first, a batch in memory at a time; each batch is a question of its own."""
    left = most
    while left > 0:
        page = events_page(pool, tenant_id, wanted, limit=min(left, 1000))
        yield from page.events
        left -= len(page.events)
        if page.before is None:
            return
        wanted = replace(wanted, before=page.before)


def events_of(pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID, *, limit: int = 200) -> list[EventRow]:
    """What happened to one operation, oldest first."""
    return all_rows(
        pool, EventRow, OF_OPERATION, {"tenant_id": tenant_id, "operation_id": operation_id, "limit": limit}
    )


def _inner(wanted: EventFilter) -> str:
    if wanted.operation_id is not None:
        return _OF_OPERATION
    return _RARE if wanted.kind is not None and wanted.kind not in COMMON else ""


def _newest(wanted: EventFilter) -> uuid.UUID:
    latest = _LAST if wanted.until is None else first_id_at(wanted.until + _ID_SLACK)
    return latest if wanted.before is None else min(latest, wanted.before)


def _oldest(wanted: EventFilter) -> uuid.UUID:
    return _FIRST if wanted.since is None else first_id_at(wanted.since - _ID_SLACK)
