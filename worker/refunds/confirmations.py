"""The worker's side of confirm cards: open, read, deliver. Customers answer on the console's confirm page.

Every call is one statement. A card belongs to a row and a digest: a confirmation counts only for the digest it
confirmed. Delivery is at least once: a crash after sending sends the same link again, which still answers only once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import orjson
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from sentinel.core.confirm_link import ConfirmLink, ConfirmLinks, confirmation_digest
from sentinel.core.errors import EngineUnavailable, StillDeciding
from sentinel.store.database import Pool
from sentinel.store.queries import call_with_retry
from worker.refunds.ledger import LedgerUnavailable
from worker.refunds.settings import WorkerSettings

Value = TypeVar("Value")

HOLD_SECONDS = 60.0
"""How long a card is held in addition to the time for sending: cards of a worker that died are due again after it."""

OPEN = "select refunds.open_confirmations(%(tenant_id)s, %(asks)s, %(expires_seconds)s)"
LATEST = """
select ledger_entry_id, confirmation_id, digest, status, expires_at, delivered_at
from refunds.latest_confirmations(%(tenant_id)s, %(ids)s)
"""
# Only cards of rows that wait for their customer already: an answer that came before its row waits would not wake it.
TAKE_UNDELIVERED = """
with due as materialized (
  select u.confirmation_id from refunds.confirmations u
  where u.tenant_id = %(tenant_id)s and u.status = 'pending' and u.delivered_at is null
    and u.next_delivery_at <= statement_timestamp() and u.expires_at > statement_timestamp()
    and exists (select from refunds.ledger_entries e where e.tenant_id = u.tenant_id and e.ledger_entry_id = u.ledger_entry_id
                and e.status = 'APPROVAL_REQUIRED' and e.waiting_for = 'customer')
  order by u.next_delivery_at limit %(limit)s for update of u skip locked)
update refunds.confirmations c set delivery_attempts = c.delivery_attempts + 1,
  next_delivery_at = clock_timestamp() + make_interval(secs => %(hold_seconds)s)
from due where c.tenant_id = %(tenant_id)s and c.confirmation_id = due.confirmation_id
returning c.confirmation_id, c.ledger_entry_id, c.digest, c.order_ref, c.scenario, c.amount_minor, c.currency,
  c.language, c.contact, c.expires_at, c.delivery_attempts
"""
MARK_DELIVERED = """
update refunds.confirmations set delivered_at = clock_timestamp(), last_delivery_error = null
where tenant_id = %(tenant_id)s and confirmation_id = %(confirmation_id)s and delivered_at is null
"""
POSTPONE = """
update refunds.confirmations set last_delivery_error = %(error)s,
  next_delivery_at = coalesce(clock_timestamp() + make_interval(secs => %(due_in_seconds)s::double precision), 'infinity')
where tenant_id = %(tenant_id)s and confirmation_id = %(confirmation_id)s and delivered_at is null
"""
# For a row that a worker held at the moment of the answer: it went back to waiting without having seen the answer.
WAKE_ANSWERED = """
update refunds.ledger_entries e set next_attempt_at = clock_timestamp()
from refunds.confirmations c
where c.tenant_id = %(tenant_id)s and c.answered_at > statement_timestamp() - interval '1 hour'
  and e.tenant_id = c.tenant_id and e.ledger_entry_id = c.ledger_entry_id and e.status = 'APPROVAL_REQUIRED'
  and e.waiting_for = 'customer' and e.next_attempt_at > statement_timestamp()
"""


class CardStatus(StrEnum):
    """The status of a card, by the database's clock."""

    PENDING = "pending"
    CONFIRMED = "confirmed"
    DECLINED = "declined"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class ConfirmationRequest:
    """What a customer is to confirm: the row's own terms. `language` is a BCP 47 tag, `contact` where the link goes."""

    ledger_entry_id: str
    refund_id: str
    order_ref: str | None
    amount_minor: int
    currency: str
    channel: str
    scenario: str
    language: str | None = None
    contact: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A row's newest card."""

    ledger_entry_id: str
    confirmation_id: uuid.UUID
    digest: str
    status: str
    expires_at: datetime
    delivered_at: datetime | None

    def says(self, status: CardStatus, digest: str) -> bool:
        """Whether it has this status for exactly this digest."""
        return self.status == status and self.digest == digest


@dataclass(frozen=True, slots=True)
class UndeliveredCard:
    """A card whose link was not sent yet, taken for one try; amounts in minor units."""

    confirmation_id: uuid.UUID
    ledger_entry_id: str
    digest: str
    order_ref: str | None
    scenario: str
    amount_minor: int
    currency: str
    language: str | None
    contact: str | None = field(repr=False)
    expires_at: datetime
    delivery_attempts: int


class Confirmations:
    """The confirm cards of one tenant. Thread-safe. Every call to the database raises `LedgerUnavailable`.

    Without `secrets` no customer can be asked (`can_ask`); the cards that there are can be read, as what their customers
    answered still counts.
    """

    def __init__(
        self,
        pool: Pool,
        tenant_id: uuid.UUID,
        *,
        secrets: Sequence[str],
        base_url: str,
        expires_seconds: float = 86400.0,
    ) -> None:
        self._pool, self._tenant_id = pool, tenant_id
        self.can_ask = bool(secrets)
        self._links = ConfirmLinks(secrets)
        self._base_url, self._expires_seconds = base_url.rstrip("/"), float(expires_seconds)

    def digest_of(self, ask: ConfirmationRequest) -> str:
        """Return the digest that a confirmation of `ask` must be bound to."""
        return confirmation_digest(
            tenant_id=self._tenant_id, ledger_entry_id=ask.ledger_entry_id, refund_id=ask.refund_id,
            order_ref=ask.order_ref, amount_minor=ask.amount_minor, currency=ask.currency, channel=ask.channel,
            scenario=ask.scenario,
        )  # fmt: skip

    def open(self, asks: Sequence[ConfirmationRequest]) -> None:
        """Open a card for each ask unless its row and digest ever had one; a pending card with another digest is superseded."""
        if asks:
            batch = [
                {"ledger_entry_id": ask.ledger_entry_id, "digest": self.digest_of(ask), "language": ask.language, "contact": ask.contact}
                for ask in asks
            ]  # fmt: skip
            self._change(OPEN, asks=Jsonb(batch, dumps=orjson.dumps), expires_seconds=self._expires_seconds)

    def latest(self, ids: Sequence[str]) -> dict[str, Confirmation]:
        """Return the newest cards by ledger entry id. A pending card whose time is over is recorded as expired, for good."""
        return {card.ledger_entry_id: card for card in self._rows(Confirmation, LATEST, ids=list(ids))}

    def undelivered(self, limit: int, longest_seconds: float = 0.0) -> list[UndeliveredCard]:
        """Take up to `limit` cards whose link is due to be sent, for one try each of at most `longest_seconds`; no other worker gets
        them meanwhile."""
        hold = HOLD_SECONDS + limit * longest_seconds
        return self._rows(UndeliveredCard, TAKE_UNDELIVERED, limit=limit, hold_seconds=hold)

    def link(self, card: UndeliveredCard) -> str:
        """The address of a card's page. A bearer secret: for its customer only, never for a log."""
        link = ConfirmLink(self._tenant_id, card.confirmation_id, card.digest, card.expires_at)
        return f"{self._base_url}/confirm/{self._links.issue(link)}"

    def mark_delivered(self, confirmation_id: uuid.UUID) -> None:
        """Record that the link was sent."""
        self._change(MARK_DELIVERED, confirmation_id=confirmation_id)

    def postpone(self, confirmation_id: uuid.UUID, error: str, due_in_seconds: float | None) -> None:
        """Record that the link could not be sent; it is due again after `due_in_seconds`, or (None) never: a person must look."""
        self._change(POSTPONE, confirmation_id=confirmation_id, error=error, due_in_seconds=due_in_seconds)

    def wake_answered(self) -> int:
        """Make due the waiting rows whose customer has answered; returns how many there were."""
        return self._change(WAKE_ANSWERED)

    def _rows(self, shape: type[Value], statement: str, **fields: Any) -> list[Value]:
        def call(connection: psycopg.Connection[Any]) -> list[Value]:
            with connection.cursor(row_factory=class_row(shape)) as cursor:
                return cursor.execute(statement.encode(), {"tenant_id": self._tenant_id, **fields}).fetchall()

        return self._run(call)

    def _change(self, statement: str, **fields: Any) -> int:
        def call(connection: psycopg.Connection[Any]) -> int:
            return connection.execute(statement.encode(), {"tenant_id": self._tenant_id, **fields}).rowcount

        return self._run(call)

    def _run(self, call: Callable[[psycopg.Connection[Any]], Value]) -> Value:
        """Run `call`, retried on a lost connection: opening a card twice opens one, and a second take takes other cards."""
        try:
            return call_with_retry(self._pool, call)
        except (EngineUnavailable, StillDeciding) as error:
            raise LedgerUnavailable(error.detail) from error


def confirmations_from(settings: WorkerSettings, pool: Pool, tenant_id: uuid.UUID) -> Confirmations:
    """Build the confirm cards from the settings."""
    return Confirmations(
        pool, tenant_id, secrets=settings.confirm_secrets, base_url=settings.confirm_base_url,
        expires_seconds=settings.confirm_expires_seconds,
    )  # fmt: skip
