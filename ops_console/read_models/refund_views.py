"""What the console shows of the refund ledger, and requests to a running worker to process one entry.

Apart from those requests, read models only: customers' accounts and words are not selected, so no page can show them by
mistake.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.sql import Literal

from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, changed, one_row
from sentinel.store.sql_template import SqlTemplate

STATUSES = ("NEW", "GUARDING", "ALLOWED", "APPROVAL_REQUIRED", "DENIED", "EXECUTED", "ERROR")
WORKER_SILENT_SECONDS = 30
MOST_LOOKED_AT = 10_000
"""How many entries of each status are scanned to count those of an agent."""


@dataclass(frozen=True, slots=True)
class LedgerEntryRow:
    """A ledger entry without customer data; amounts in minor units."""

    ledger_entry_id: str
    refund_id: str
    agent_id: str
    action: str
    status: str
    amount_minor: int
    currency: str
    channel: str
    scenario: str
    requested_at: datetime
    risk: dict[str, Any]
    decision: str | None
    reason_code: str | None
    proof_id: str | None
    operation_id: uuid.UUID | None
    approval_id: uuid.UUID | None
    waiting_for: str | None
    attempts: int
    last_error: str | None
    redaction_status: str
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StatusCount:
    """How many entries of an agent are in a status, among those that were scanned, and the oldest one's age in seconds.

    `is_all` is False if the status has more entries than were scanned.
    """

    status: str
    entries: int
    is_all: bool
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """The last seen worker of an agent; `silent` if that was more than `WORKER_SILENT_SECONDS` ago."""

    agent_id: str
    status: str
    last_action: str | None
    last_decision: str | None
    last_seen_at: datetime
    silent: bool


@dataclass(frozen=True, slots=True)
class OutboxLag:
    """Reports not yet acknowledged by the authority, and the oldest one's age in seconds."""

    open_reports: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class _Refusal:
    code: str | None


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A request to process one entry: when it finished, and the worker's result; both None while it is open."""

    finished_at: datetime | None
    result: dict[str, Any] | None


# Each status is scanned up to a bound, over the entries of all agents; NEW ones in the order in which they are due.
# Executed entries are looked up one by one from their executions, so that no plan scans the ledger.
_COUNT = SqlTemplate("""
select {status} as status, least(count(*) filter (where agent_id = %(agent_id)s), %(most)s)::integer as entries, count(*) <= %(most)s as is_all,
  coalesce(extract(epoch from clock_timestamp() - min(created_at) filter (where agent_id = %(agent_id)s)), 0)::double precision as oldest_seconds
from ({entries}) looked
""")
_ENTRIES = """
select agent_id, created_at from refunds.ledger_entries where tenant_id = %(tenant_id)s and status = {status} limit %(most)s + 1
"""
_ENTRIES_BY_STATUS = {
    "NEW": """
select agent_id, created_at from refunds.ledger_entries where tenant_id = %(tenant_id)s and status = 'NEW'
order by next_attempt_at, ledger_entry_id limit %(most)s + 1
""",
    "EXECUTED": """
select e.agent_id, e.created_at
from (select ledger_entry_id from refunds.executions where tenant_id = %(tenant_id)s limit %(most)s + 1) x
  cross join lateral (select agent_id, created_at from refunds.ledger_entries
                      where tenant_id = %(tenant_id)s and ledger_entry_id = x.ledger_entry_id limit 1) e
""",
}


def _count(status: str) -> str:
    entries = _ENTRIES_BY_STATUS.get(status) or SqlTemplate(_ENTRIES).fill(status=Literal(status))
    return _COUNT.fill(status=Literal(status), entries=entries)


COUNTS = " union all ".join(_count(status) for status in STATUSES)
LAST_WORKER = """
select agent_id, status, last_action, last_decision, last_seen_at,
       last_seen_at < clock_timestamp() - make_interval(secs => %(silent_seconds)s) as silent
from refunds.workers where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s
order by (mode = 'loop' and status <> 'stopped') desc, last_seen_at desc limit 1
"""
# The same for each agent, those whose worker does not run first. A worker only deletes old rows of its own agent, so an
# agent whose worker was last seen over a day ago is left out, unless no worker of the tenant runs at all.
LAST_WORKERS = """
with last as materialized (
  select distinct on (agent_id) agent_id, status, last_action, last_decision, last_seen_at,
         last_seen_at < clock_timestamp() - make_interval(secs => %(silent_seconds)s) as silent
  from refunds.workers where tenant_id = %(tenant_id)s
  order by agent_id, (mode = 'loop' and status <> 'stopped') desc, last_seen_at desc)
select agent_id, status, last_action, last_decision, last_seen_at, silent from last
where last_seen_at >= clock_timestamp() - interval '1 day' or not exists (select from last where not silent and status <> 'stopped')
order by silent or status <> 'running' desc, agent_id
"""
LISTENING = """
select agent_id, status, last_action, last_decision, last_seen_at, false as silent from refunds.workers
where tenant_id = %(tenant_id)s and mode = 'loop' and status <> 'stopped'
  and last_seen_at >= clock_timestamp() - make_interval(secs => %(silent_seconds)s) limit 1
"""
OUTBOX = """
select count(*)::integer as open_reports,
       coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::double precision as oldest_seconds
from refunds.outbox where tenant_id = %(tenant_id)s and acknowledged_at is null
"""
RETRY_REFUSAL = "select refunds.retry_refusal(%(tenant_id)s, %(ledger_entry_id)s) as code"
ASK = """
insert into refunds.process_requests (tenant_id, request_id, requested_by)
values (%(tenant_id)s, %(request_id)s, %(requested_by)s) on conflict do nothing
"""
ANSWER = """
select finished_at, result from refunds.process_requests where tenant_id = %(tenant_id)s and request_id = %(request_id)s
"""
# Only a request that no worker holds a lease on can be withdrawn.
WITHDRAW = """
update refunds.process_requests set finished_at = clock_timestamp(), result = '{"withdrawn": true}'
where tenant_id = %(tenant_id)s and request_id = %(request_id)s and finished_at is null
  and (lease_until is null or lease_until <= statement_timestamp())
"""


def counts(pool: Pool, tenant_id: uuid.UUID, agent_id: str) -> dict[str, StatusCount]:
    """An agent's entries by status, counted among at most `MOST_LOOKED_AT` entries of each status."""
    fields = {"tenant_id": tenant_id, "agent_id": agent_id, "most": MOST_LOOKED_AT}
    return {one.status: one for one in all_rows(pool, StatusCount, COUNTS, fields, plan_anew=True)}


def last_worker(pool: Pool, tenant_id: uuid.UUID, agent_id: str) -> WorkerRow | None:
    """The worker to show for an agent: its running loop if there is one, else the last one seen; None if there is none."""
    fields = {"tenant_id": tenant_id, "agent_id": agent_id, "silent_seconds": WORKER_SILENT_SECONDS}
    return one_row(pool, WorkerRow, LAST_WORKER, fields)


def last_workers(pool: Pool, tenant_id: uuid.UUID) -> list[WorkerRow]:
    """The worker to show for each of the tenant's agents, those that do not run first."""
    return all_rows(pool, WorkerRow, LAST_WORKERS, {"tenant_id": tenant_id, "silent_seconds": WORKER_SILENT_SECONDS})


def outbox_lag(pool: Pool, tenant_id: uuid.UUID) -> OutboxLag:
    """The reports that the worker still has to deliver to the authority."""
    found = one_row(pool, OutboxLag, OUTBOX, {"tenant_id": tenant_id})
    assert found is not None
    return found


def retry_refusal(pool: Pool, tenant_id: uuid.UUID, ledger_entry_id: str) -> str | None:
    """The code of why an entry in ERROR is not retried (`refunds.may_have_been_paid`); None if it can be."""
    found = one_row(pool, _Refusal, RETRY_REFUSAL, {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id})
    return None if found is None else found.code


def is_worker_listening(pool: Pool, tenant_id: uuid.UUID) -> bool:
    """Whether a worker loop of the tenant was seen in the last `WORKER_SILENT_SECONDS`."""
    fields = {"tenant_id": tenant_id, "silent_seconds": WORKER_SILENT_SECONDS}
    return one_row(pool, WorkerRow, LISTENING, fields) is not None


def ask_worker(pool: Pool, tenant_id: uuid.UUID, request_id: uuid.UUID, requested_by: str) -> None:
    """Insert a request for a worker to process one entry now; the same `request_id` again changes nothing."""
    changed(pool, ASK, {"tenant_id": tenant_id, "request_id": request_id, "requested_by": requested_by})


def worker_answer(pool: Pool, tenant_id: uuid.UUID, request_id: uuid.UUID) -> WorkerAnswer | None:
    """The request with its answer, if there is one yet; None for an unknown request."""
    return one_row(pool, WorkerAnswer, ANSWER, {"tenant_id": tenant_id, "request_id": request_id})


def withdraw_process_request(pool: Pool, tenant_id: uuid.UUID, request_id: uuid.UUID) -> bool:
    """Withdraw an open request. False if a worker has answered it meanwhile or holds a lease on it."""
    return changed(pool, WITHDRAW, {"tenant_id": tenant_id, "request_id": request_id}) == 1
