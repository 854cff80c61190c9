"""Confirm cards as their customer's page reads and answers them. Where a link was sent is not selected, nor granted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from sentinel.store.database import Pool
from sentinel.store.rows import one_row, single


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card as it stands at `now`, the database's: pending only while an answer counts. Amounts in minor units."""

    confirmation_id: uuid.UUID
    digest: str
    order_ref: str | None
    channel: str
    scenario: str
    amount_minor: int
    currency: str
    language: str | None
    status: str
    expires_at: datetime
    answered_at: datetime | None
    now: datetime


# Reading changes nothing, whoever reads: programs look at links before people do.
READ_CARD = """
select c.confirmation_id, c.digest, c.order_ref, c.channel, c.scenario, c.amount_minor, c.currency, c.language,
  case when c.status <> 'pending' then c.status
       when c.expires_at <= statement_timestamp() then 'expired'
       when not refunds.entry_is_open(c.tenant_id, c.ledger_entry_id) then 'superseded'
       else 'pending' end as status,
  c.expires_at, c.answered_at, statement_timestamp() as now
from refunds.confirmations c where c.tenant_id = %(tenant_id)s and c.confirmation_id = %(confirmation_id)s
"""
ANSWER = "select refunds.answer_confirmation(%(tenant_id)s, %(confirmation_id)s, %(shown_digest)s, %(answer)s)"


def read_card(pool: Pool, tenant_id: uuid.UUID, confirmation_id: uuid.UUID) -> CardRow | None:
    """The card, or None. Raises `EngineUnavailable`."""
    return one_row(pool, CardRow, READ_CARD, {"tenant_id": tenant_id, "confirmation_id": confirmation_id})


def record_answer(
    pool: Pool, tenant_id: uuid.UUID, confirmation_id: uuid.UUID, *, shown_digest: str, answer: str
) -> str:
    """What became of 'confirm' or 'decline'; the words are those of `refunds.answer_confirmation`. Raises `EngineUnavailable`."""
    found: str = single(pool, ANSWER, {
        "tenant_id": tenant_id, "confirmation_id": confirmation_id, "shown_digest": shown_digest, "answer": answer,
    })  # fmt: skip
    return found
