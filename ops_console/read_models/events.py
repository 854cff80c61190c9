"""The append-only log as operators read it: pages of events by their ids, newest first, and the events of one operation.

Ids are ordered by time (UUIDv7, made by the program that records the event), so a page needs no other index. A filter
without an index scans a bounded number of events per page and reports how far it came; nothing here reads the whole
log.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Integer, Text, and_, literal_column, or_, select, text

from sentinel.store.database import Pool
from sentinel.store.ids import CLOCK_SKEW, first_id_at
from sentinel.store.queries import all_rows, scalar
from sentinel.store.sql_template import SqlTemplate
from sentinel.store.tables import EVENTS, FEED, LIMIT, OPERATIONS, STATES, sql_text, value

LOOKED_AT = 20_000
"""How many events one page scans for those that match the filter."""
MOST_PAGES = 50
"""How many pages are read for one file at most: with a filter that matches little, a file ends before the log does."""
MOST_OF_OPERATION = 200
"""How many events of one operation are read, the newest: one that is requested again for days leaves many."""
COMMON = ("decision", "start", "outcome")
"""Kinds that occur for every operation; events of other kinds are rare and have an index (`schema/authority/events.sql`)."""
KINDS = (
    *COMMON, "refused", "asked_again", "approval_vote", "approval_approved", "approval_rejected", "approval_handled",
    "approval_expired", "in_doubt", "in_doubt_resolved", "contradiction", "halt_set", "halt_lifted", "switch_on", "switch_off",
    "gate_report_recorded", "check_report", "operator_added", "operator_role_set", "operator_deactivated", "operator_reactivated",
    "operator_password_reset", "operator_second_factor_reset", "operator_sessions_ended", "operator_access_ended", "operator_confirmed",
    "operator_password_changed", "operator_second_factor_set", "operator_second_factor_removed", "operator_code_guessed",
    "key_created", "key_rotated", "key_revoked", "change_asked",
    "webhook_added", "webhook_secret_rotated", "webhook_disabled", "webhook_enabled", "dead_letters_discarded", "policy_in_force", "policies_withdrawn",
)  # fmt: skip
"""The kinds that the page offers for choosing; those of policies occur only in the log of every tenant. Other text is valid too."""

_FIRST, _LAST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event: canonical `body` and its `hash`, the amount of its operation in minor units; `position` None: not in the feed yet."""

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
    """Which events are wanted; None is any. `since` is inclusive, `until` exclusive; `before` is the cursor."""

    kind: str | None = None
    agent_id: str | None = None
    operation_id: uuid.UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, newest first. `before` is the cursor of the next page, None at the log's end. `searching`: the scan
    stopped at its bound before the page was full.
    """

    events: list[EventRow]
    before: uuid.UUID | None
    searching: bool


# The agent that an event is about. Rows of doubts and halts that earlier versions wrote name no agent: then it is the
# operation's agent, or the one that the halt stopped.
_AGENT = SqlTemplate("""coalesce({event}.agent_id,
  (select a.agent_id from sentinel.operations a where a.tenant_id = {event}.tenant_id and a.operation_id = {event}.operation_id),
  case when {event}.kind in ('halt_set', 'halt_lifted')
       then sentinel.halted_agent({event}.body::jsonb ->> 'scope', {event}.body::jsonb ->> 'target') end)""")
_E, _O, _F = EVENTS.alias("e"), OPERATIONS.alias("o"), FEED.alias("p")
_TENANT_ID, _ONE = value("tenant_id", uuid.UUID), literal_column("1", Integer())
_OPERATION_ID = value("operation_id", uuid.UUID)
_DECIDED = select(STATES.c.decision_event_id).where(STATES.c.tenant_id == _TENANT_ID, STATES.c.operation_id == _OPERATION_ID).scalar_subquery()  # fmt: skip
# Conditions that an index answers, by the way a page scans the log.
_LOOKED_BY: dict[str, list[Any]] = {
    "id": [],
    # True of every event: the predicate of the index events_seldom_of_tenant, which statements without it cannot use.
    "rare kind": [text(f"e.kind not in ({', '.join(repr(kind) for kind in COMMON)}) and e.occurred_at > '-infinity'")],
    "operation": [
        or_(and_(_E.c.operation_id == _OPERATION_ID, text("e.kind <> 'decision'")), _E.c.event_id == _DECIDED)
    ],
}
# Conditions that are checked on each scanned event, by field of the filter.
_FITS: dict[str, Callable[[Any], Any]] = {
    "kind": lambda looked: looked.kind == value("kind", str),
    "agent_id": lambda looked: literal_column(_AGENT.fill(event="looked"), Text()) == value("agent_id", str),
    "since": lambda looked: looked.occurred_at >= value("since", datetime),
    "until": lambda looked: looked.occurred_at < value("until", datetime),
}
OF_OPERATION = SqlTemplate("""
select e.event_id, e.kind, e.operation_id, {agent} as agent_id, e.body, e.hash, e.occurred_at, o.amount_minor, o.currency, p.position
from (
  select d.* from sentinel.operation_states s join sentinel.events d on d.tenant_id = s.tenant_id and d.event_id = s.decision_event_id
  where s.tenant_id = %(tenant_id)s and s.operation_id = %(operation_id)s
  union all
  select l.* from sentinel.events l where l.tenant_id = %(tenant_id)s and l.operation_id = %(operation_id)s and l.kind <> 'decision'
) e
left join sentinel.operations o using (tenant_id, operation_id)
left join sentinel.feed p using (tenant_id, event_id)
order by e.occurred_at desc, e.event_id desc limit %(limit)s
""").fill(agent=_AGENT.fill(event="e"))


@cache
def page_texts(looked_by: str, asked: tuple[str, ...]) -> tuple[str, str]:
    """Return two SQL texts: a page with these fields of the filter, and the id at which its scan ended (no row at the log's end)."""
    look = value("look", int)
    behind = (
        select(_E).where(_E.c.tenant_id == _TENANT_ID, _E.c.event_id < value("before", uuid.UUID))
        .where(_E.c.event_id >= value("oldest", uuid.UUID), *_LOOKED_BY[looked_by]).order_by(_E.c.event_id.desc())
    )  # fmt: skip
    looked = behind.limit(look).subquery("looked")
    fits = select(looked).where(*(_FITS[name](looked.c) for name in asked))
    found = fits.order_by(looked.c.event_id.desc()).limit(LIMIT).cte("found")
    shown = [column for column in found.c if column.name not in ("tenant_id", "agent_id")]
    agent = literal_column(_AGENT.fill(event="found"), Text()).label("agent_id")
    page = (
        select(*shown, agent, _O.c.amount_minor, _O.c.currency, _F.c.position).select_from(found)
        .outerjoin(_O, and_(_O.c.tenant_id == _TENANT_ID, _O.c.operation_id == found.c.operation_id))
        .outerjoin(_F, and_(_F.c.tenant_id == _TENANT_ID, _F.c.event_id == found.c.event_id))
        .order_by(found.c.event_id.desc())
    )  # fmt: skip
    return sql_text(page), sql_text(behind.with_only_columns(_E.c.event_id).offset(look - _ONE).limit(_ONE))


def events_page(pool: Pool, tenant_id: uuid.UUID, wanted: EventFilter, *, limit: int) -> EventPage:
    """The newest `limit` events after the cursor that match, or as many as the scanned part of the log has."""
    asked = {name: getattr(wanted, name) for name in _FITS if getattr(wanted, name) is not None}
    statement, ended = page_texts(_looked_by(wanted), tuple(asked))
    fields = {
        **asked, "tenant_id": tenant_id, "operation_id": wanted.operation_id, "before": _newest(wanted),
        "oldest": _oldest(wanted), "look": LOOKED_AT, "limit": limit,
    }  # fmt: skip
    found = all_rows(pool, EventRow, statement, fields)
    if len(found) == limit:
        return EventPage(found, found[-1].event_id, searching=False)
    looked_to = scalar(pool, ended, fields)
    return EventPage(found, looked_to, searching=looked_to is not None)


class EventsOfFile:
    """The events of one file: at most `most` that match, newest first. Iterate once; one batch is in memory at a time.

    Also ends after `MOST_PAGES` pages, however few match. Once iterated, `before` is the cursor of the next file, None
    at the log's end.
    """

    def __init__(self, pool: Pool, tenant_id: uuid.UUID, wanted: EventFilter, *, most: int) -> None:
        self._pool, self._tenant_id, self._wanted, self._most = pool, tenant_id, wanted, most
        self.before: uuid.UUID | None = None

    def __iter__(self) -> Iterator[EventRow]:
        left, wanted = self._most, self._wanted
        for _ in range(MOST_PAGES):
            page = events_page(self._pool, self._tenant_id, wanted, limit=min(left, 1000))
            yield from page.events
            left -= len(page.events)
            self.before = page.before
            if page.before is None or left == 0:
                return
            wanted = replace(wanted, before=page.before)


def events_of(
    pool: Pool, tenant_id: uuid.UUID, operation_id: uuid.UUID, *, limit: int = MOST_OF_OPERATION
) -> list[EventRow]:
    """The newest `limit` events of one operation, oldest first."""
    fields = {"tenant_id": tenant_id, "operation_id": operation_id, "limit": limit}
    return all_rows(pool, EventRow, OF_OPERATION, fields)[::-1]


def _looked_by(wanted: EventFilter) -> str:
    if wanted.operation_id is not None:
        return "operation"
    return "rare kind" if wanted.kind is not None and wanted.kind not in COMMON else "id"


def _newest(wanted: EventFilter) -> uuid.UUID:
    latest = _LAST if wanted.until is None else first_id_at(wanted.until + CLOCK_SKEW)
    return latest if wanted.before is None else min(latest, wanted.before)


def _oldest(wanted: EventFilter) -> uuid.UUID:
    return _FIRST if wanted.since is None else first_id_at(wanted.since - CLOCK_SKEW)
