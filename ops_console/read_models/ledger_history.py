"""The history of one ledger entry: what the worker did with it, and what the authority has on record about its
operation.

The ledger and the authority may be two databases. Customer data is left out: no account, order, address or free text.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ops_console.read_models.events import EventRow, events_of
from sentinel.store.database import Pool
from sentinel.store.ids import uuid_or_none
from sentinel.store.queries import all_rows
from sentinel.store.sql_template import SqlTemplate

MOST = 200
"""How many records of each kind are read, the newest: an entry that is retried for days leaves many."""


@dataclass(frozen=True, slots=True)
class LedgerEventRow:
    """One change of the entry's status."""

    event: str
    to_status: str
    claim_epoch: int
    worker: str | None
    reason_code: str | None
    occurred_at: datetime
    note: str | None = None
    """The reason that a person gave for the change."""


@dataclass(frozen=True, slots=True)
class Trail:
    """One run of the workflow: its steps as the worker recorded them, each with `at_ms` since the run's beginning."""

    claim_epoch: int
    steps: list[dict[str, Any]]
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class LedgerEffectRow:
    """An effect in an outside system; `reference` is our id for it there, `system_reference` the system's own.

    Stripe is not sent `reference`: there a refund is found by its payment (`payment_ref`) and its metadata.
    """

    effect_number: int
    system: str
    best_effort: bool
    state: str
    reference: uuid.UUID
    system_reference: str | None
    last_error: str | None
    tries: int
    created_at: datetime
    payment_ref: str | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A confirm card. `last_delivery_error` is the kind of failure, without the address that the link was for."""

    status: str
    amount_minor: int
    currency: str
    created_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    delivered_at: datetime | None
    delivery_attempts: int
    last_delivery_error: str | None


@dataclass(frozen=True, slots=True)
class LedgerExecutionRow:
    """The money movement; amounts in minor units."""

    execution_id: uuid.UUID
    system: str
    amount_minor: int
    currency: str
    executed_at: datetime


@dataclass(frozen=True, slots=True)
class LedgerReportRow:
    """A report to the authority in the worker's outbox; `acknowledged_at` is None until the authority has it."""

    attempts: int
    last_error: str | None
    acknowledged_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Wrong:
    """A finding of the reconciliation about the entry's execution, or `refund_failed`: it was sent back by a bank."""

    finding: str
    found_at: datetime


@dataclass(frozen=True, slots=True)
class Life:
    """Everything on record about an entry; each list oldest first."""

    events: list[LedgerEventRow]
    trails: list[Trail]
    effects: list[LedgerEffectRow]
    cards: list[Card]
    executions: list[LedgerExecutionRow]
    reports: list[LedgerReportRow]
    wrong: list[Wrong]
    evidence: list[EventRow]


_OF_ENTRY = "tenant_id = %(tenant_id)s and ledger_entry_id = %(ledger_entry_id)s"
EVENTS = SqlTemplate("""
select event, to_status, claim_epoch, worker, reason_code, occurred_at, note from refunds.ledger_events
where {of_entry} order by event_id desc limit %(most)s
""").fill(of_entry=_OF_ENTRY)
TRAILS = SqlTemplate("""
select claim_epoch, steps, occurred_at from refunds.trails where {of_entry} order by trail_id desc limit %(most)s
""").fill(of_entry=_OF_ENTRY)
EFFECTS = SqlTemplate("""
select effect_number, system, best_effort, state, reference, system_reference, last_error, tries, created_at, payment_ref
from refunds.effects where {of_entry} order by effect_number desc
""").fill(of_entry=_OF_ENTRY)
CARDS = SqlTemplate("""
select status, amount_minor, currency, created_at, expires_at, answered_at, delivered_at, delivery_attempts, last_delivery_error
from refunds.confirmations where {of_entry} order by created_at desc limit %(most)s
""").fill(of_entry=_OF_ENTRY)
EXECUTIONS = SqlTemplate("""
select execution_id, system, amount_minor, currency, executed_at from refunds.executions where {of_entry}
""").fill(of_entry=_OF_ENTRY)
# By the outbox ids that the runs' trails recorded, because the outbox has no index by entry.
REPORTS = SqlTemplate("""
select attempts, last_error, acknowledged_at, created_at
from refunds.outbox where {of_entry} and outbox_id = any(%(reports)s) order by created_at desc limit %(most)s
""").fill(of_entry=_OF_ENTRY)
WRONG = """
select w.finding, w.found_at from refunds.wrong_executions w join refunds.executions x using (tenant_id, execution_id)
where x.tenant_id = %(tenant_id)s and x.ledger_entry_id = %(ledger_entry_id)s
union all
select s.finding, s.found_at from refunds.settlement_findings s
where s.tenant_id = %(tenant_id)s and s.ledger_entry_id = %(ledger_entry_id)s order by found_at desc
"""


def history_of(
    ledger: Pool, authority: Pool, tenant_id: uuid.UUID, *, ledger_entry_id: str, operation_id: uuid.UUID | None
) -> Life:
    """Read what happened to an entry from both databases; the newest `MOST` records of each kind."""
    fields = {"tenant_id": tenant_id, "ledger_entry_id": ledger_entry_id, "most": MOST}
    evidence = [] if operation_id is None else events_of(authority, tenant_id, operation_id, limit=MOST)
    trails = all_rows(ledger, Trail, TRAILS, fields)[::-1]
    return Life(
        all_rows(ledger, LedgerEventRow, EVENTS, fields)[::-1],
        trails,
        all_rows(ledger, LedgerEffectRow, EFFECTS, fields)[::-1],
        all_rows(ledger, Card, CARDS, fields)[::-1],
        all_rows(ledger, LedgerExecutionRow, EXECUTIONS, fields),
        all_rows(ledger, LedgerReportRow, REPORTS, {**fields, "reports": _reports(trails)})[::-1],
        all_rows(ledger, Wrong, WRONG, fields)[::-1],
        evidence,
    )


def _reports(trails: list[Trail]) -> list[uuid.UUID]:
    said = (step.get("output", {}).get("report") for trail in trails for step in trail.steps)
    return [found for found in (uuid_or_none(str(one)) for one in said if one is not None) if found is not None]
