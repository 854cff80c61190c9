"""Payments to look at for what a settlement system told, and what was found there; all SQL of `refunds.settlement_*`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry
from worker.refunds.ledger import LedgerUnavailable

Value = TypeVar("Value")

_TO_LOOK_AT = """
select payment_ref, clock_timestamp() as looked_from from refunds.settlement_events where tenant_id = %(tenant_id)s and looked_at is null
group by payment_ref order by min(received_at) limit %(limit)s
"""
# Events that come while the payment is looked at are looked into again: only those from before are closed.
_KEEP_FINDINGS = """
with closed as (
  update refunds.settlement_events set looked_at = clock_timestamp()
  where tenant_id = %(tenant_id)s and payment_ref = %(payment_ref)s and looked_at is null and received_at < %(looked_from)s)
insert into refunds.settlement_findings
  (tenant_id, system, system_refund, finding, payment_ref, amount_minor, currency, ledger_entry_id, reason)
select %(tenant_id)s, f.* from jsonb_to_recordset(%(findings)s) as f
  (system text, system_refund text, finding text, payment_ref text, amount_minor bigint, currency text, ledger_entry_id text, reason text)
on conflict do nothing returning system_refund
"""
_FINDINGS = """
select system, system_refund, finding, payment_ref, amount_minor, currency, ledger_entry_id, reason
from refunds.settlement_findings where tenant_id = %(tenant_id)s order by found_at
"""
_IS_KNOWN = "select exists (select from refunds.orders where tenant_id = %(tenant_id)s and payment_ref = any(%(names)s::text[]))"


@dataclass(frozen=True, slots=True)
class PaymentToLookAt:
    """A payment that open events name; what comes after `looked_from` is looked into again."""

    payment_ref: str
    looked_from: datetime


@dataclass(frozen=True, slots=True)
class Finding:
    """A refund at the settlement system that is not as the ledger has it; `ledger_entry_id` None: made elsewhere."""

    system: str
    system_refund: str
    finding: str
    payment_ref: str
    amount_minor: int
    currency: str
    ledger_entry_id: str | None
    reason: str | None

    def __str__(self) -> str:
        whose = f" of {self.ledger_entry_id}" if self.ledger_entry_id else ""
        why = f": {self.reason}" if self.reason else ""
        amount = f"{self.amount_minor} in minor units of {self.currency}"
        return f"{self.system} {self.system_refund}{whose} ({self.payment_ref}, {amount}): {self.finding.replace('_', ' ')}{why}"


class SettlementFindings:
    """One tenant's. Thread-safe; every call is one transaction and raises `LedgerUnavailable`."""

    def __init__(self, pool: Pool, tenant_id: uuid.UUID) -> None:
        self._pool, self._tenant_id = pool, tenant_id

    def to_look_at(self, limit: int) -> list[PaymentToLookAt]:
        """Payments of open events, the oldest first."""
        return self._rows(_TO_LOOK_AT, class_row(PaymentToLookAt), limit=limit)

    def keep(self, looked: PaymentToLookAt, findings: Sequence[Finding]) -> set[str]:
        """Close the payment's events and keep what was found; the refunds that it is new of."""
        rows = Jsonb([asdict(one) for one in findings])
        return set(self._rows(_KEEP_FINDINGS, scalar_row, findings=rows, **asdict(looked)))

    def all(self) -> list[Finding]:
        """Everything found so far, the oldest first."""
        return self._rows(_FINDINGS, class_row(Finding))

    def is_payment_known(self, names: Sequence[str]) -> bool:
        """Whether an order names the payment by one of these."""
        return bool(self._rows(_IS_KNOWN, scalar_row, names=list(names))[0])

    def _rows(self, statement: str, row_factory: Any, **fields: Any) -> list[Any]:
        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                return cursor.execute(statement.encode(), {"tenant_id": self._tenant_id, **fields}).fetchall()

        try:
            return call_with_retry(self._pool, call)
        except (EngineUnavailable, StillDeciding) as error:
            raise LedgerUnavailable(error.detail) from error
