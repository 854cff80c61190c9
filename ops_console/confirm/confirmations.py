"""Confirm cards as the customer's page reads and answers them. The address a link was sent to is neither selected nor granted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.core.confirm_link import ConfirmLink, ConfirmLinks
from sentinel.core.errors import NotFound
from sentinel.store.database import Pool
from sentinel.store.queries import one_row, scalar


@dataclass(frozen=True, slots=True)
class CardRow:
    """A card as of `now`, the database's time; `status` is "pending" only while an answer counts. Amounts in minor units."""

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


# Reading changes nothing: mail programs open links before people do.
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
    """Record 'confirm' or 'decline' and return the result code of `refunds.answer_confirmation`. Raises `EngineUnavailable`."""
    found: str = scalar(pool, ANSWER, {
        "tenant_id": tenant_id, "confirmation_id": confirmation_id, "shown_digest": shown_digest, "answer": answer,
    })  # fmt: skip
    return found


ANSWERS = ("confirm", "decline")


class UnknownLink(NotFound):
    """The link is forged, truncated or another system's, or its card is gone; the error never says which."""

    def __init__(self) -> None:
        super().__init__("this confirm link is unknown")


def open_card(pool: Pool, links: ConfirmLinks, token: str) -> CardRow:
    """Read the card of a genuine link, whatever its status. Changes nothing.

    Raises `UnknownLink` (without a query if the signature is not ours) and `EngineUnavailable`.
    """
    link = _genuine(links, token)
    card = read_card(pool, link.tenant_id, link.confirmation_id)
    if card is None or card.digest != link.digest:
        raise UnknownLink
    # The link's own expiry applies too: extending a card's expiry does not revive links that were sent before.
    over = card.status == "pending" and link.is_over(card.now)
    return replace(card, status="expired") if over else card


def answer_card(pool: Pool, links: ConfirmLinks, token: str, *, shown_digest: str, answer: str) -> tuple[str, CardRow]:
    """Record an answer, one of `ANSWERS`; return (result code, the card as it was before).

    The code is `confirmed`, `declined`, `already_confirmed`, `already_declined`, `expired`, `superseded` or `changed`.
    Raises `UnknownLink` and `EngineUnavailable`; after the latter the answer may or may not have been recorded, and
    giving it again is harmless.
    """
    card = open_card(pool, links, token)
    if card.status == "expired":
        return "expired", card
    tenant_id = _genuine(links, token).tenant_id
    became = record_answer(pool, tenant_id, card.confirmation_id, shown_digest=shown_digest, answer=answer)
    if became == "unknown":
        raise UnknownLink
    return became, card


def _genuine(links: ConfirmLinks, token: str) -> ConfirmLink:
    link = links.read(token)
    if link is None:
        raise UnknownLink
    return link
