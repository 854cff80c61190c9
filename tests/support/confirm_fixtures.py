"""Builders for tests of confirm cards: rows that wait for their customer, the worker's cards, the console's page."""

from __future__ import annotations

import uuid
from typing import Any

from ops_console.app import create_app
from ops_console.settings import ConsoleSettings
from sentinel.store.database import WORKER, Pool, with_role
from tests.support.asgi_client import InProcessApp
from tests.support.kept_sessions import connect
from worker.refunds.confirmations import ConfirmationRequest, Confirmations

SECRETS = ("only-for-tests-of-cards-0123456789",)
BASE_URL = "http://127.0.0.1:7861"


# From NEW through a claim to waiting, the way a worker does it.
CLAIM = """
update refunds.ledger_entries set status = 'GUARDING', last_event = 'claimed', event_number = event_number + 1,
  claim_epoch = claim_epoch + 1, claimed_by = 'w', lease_until = clock_timestamp() + interval '30 seconds', waiting_for = null
where ledger_entry_id = %s
"""
WAIT = """
update refunds.ledger_entries set status = 'APPROVAL_REQUIRED', last_event = 'approval_required', event_number = event_number + 1,
  waiting_for = 'customer', lease_until = null, next_attempt_at = clock_timestamp() + interval '1 day'
where ledger_entry_id = %s
"""


class Cards:
    """One tenant's ledger with cards, as the worker and as the console have it."""

    def __init__(self, url: str) -> None:
        self.url, self.tenant_id = url, uuid.uuid4()
        self.admin = connect(url)
        self.admin.execute("insert into sentinel.tenants (tenant_id, label) values (%s, 'shop')", [self.tenant_id])
        self.admin.execute("insert into refunds.defaults (tenant_id) values (%s)", [self.tenant_id])
        self.pool = Pool(with_role(url, WORKER), size=8)
        self.confirmations = self.of(self.tenant_id)
        self._apps: list[InProcessApp] = []

    def all(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Rows of a query as administrator."""
        return self.admin.execute(query.encode(), arguments or None).fetchall()

    def one(self, query: str, *arguments: Any) -> Any:
        """The first column of the first row of a query as administrator."""
        return self.all(query, *arguments)[0][0]

    def add(
        self, name: str, *, value: int = 980, currency: str = "EUR", order: str | None = "ORD-1", scenario: str = "fee"
    ) -> None:
        """A new row."""
        self.admin.execute(
            "insert into refunds.ledger_entries (ledger_entry_id, refund_id, amount_minor, currency, order_ref, channel, scenario)"
            " values (%s, %s, %s, %s, %s, 'private', %s)", [name, f"rf_{name}", value, currency, order, scenario])  # fmt: skip

    def of(self, tenant_id: uuid.UUID, **over: Any) -> Confirmations:
        """The worker's side for a tenant."""
        return Confirmations(self.pool, tenant_id, **{"secrets": SECRETS, "base_url": BASE_URL, **over})

    def waiting(
        self, name: str, *, language: str | None = None, contact: str | None = None, **row: Any
    ) -> ConfirmationRequest:
        """A row with an open card that waits for its customer."""
        self.add(name, **row)
        asked = self.ask(name, language=language, contact=contact)
        self.confirmations.open([asked])
        self.pause(name)
        return asked

    def ask(self, name: str, **over: Any) -> ConfirmationRequest:
        """What a row's own terms are."""
        row = self.all(
            "select refund_id, order_ref, amount_minor, currency, channel, scenario from refunds.ledger_entries"
            " where ledger_entry_id = %s", name)[0]  # fmt: skip
        terms = dict(
            zip(("refund_id", "order_ref", "amount_minor", "currency", "channel", "scenario"), row, strict=True)
        )
        return ConfirmationRequest(ledger_entry_id=name, **{**terms, **over})

    def pause(self, name: str) -> None:
        """The row goes to sleep for a day until its customer answers."""
        self.admin.execute(CLAIM, [name])
        self.admin.execute(WAIT, [name])

    def link(self, name: str, **over: Any) -> str:
        """The path of the row's page, as its customer gets it."""
        card = next(card for card in self.undelivered_now() if card.ledger_entry_id == name)
        return self.of(self.tenant_id, **over).link(card).removeprefix(BASE_URL)

    def undelivered_now(self) -> list[Any]:
        """Take everything that is to be sent, whoever took it before."""
        self.admin.execute(
            "update refunds.confirmations set next_delivery_at = clock_timestamp() where status = 'pending'"
        )
        return self.confirmations.undelivered(100)

    def status(self, name: str) -> str:
        """The stored status of a row's card."""
        return str(
            self.one(
                "select status from refunds.confirmations where ledger_entry_id = %s order by created_at desc", name
            )
        )

    def is_due(self, name: str) -> bool:
        """Whether a worker would take the row now."""
        return bool(
            self.one(
                "select next_attempt_at <= clock_timestamp() from refunds.ledger_entries where ledger_entry_id = %s",
                name,
            )
        )

    def let_expire(self, name: str) -> None:
        """The card's time ended a second ago."""
        run = self.admin.execute
        run("alter table refunds.confirmations disable trigger check_confirmation")
        run("update refunds.confirmations set created_at = created_at - interval '2 days', expires_at ="
            " clock_timestamp() - interval '1 second' where ledger_entry_id = %s", [name])  # fmt: skip
        run("alter table refunds.confirmations enable trigger check_confirmation")

    def app(self, **settings: Any) -> InProcessApp:
        """A console."""
        values = {
            "database_url": self.url,
            "insecure_cookies": True,
            "require_second_factor": "nobody",
            "confirm_secrets": SECRETS,
            **settings,
        }
        self._apps.append(InProcessApp(create_app(ConsoleSettings(**values))))
        return self._apps[-1]

    def close(self) -> None:
        """Give everything back."""
        for app in self._apps:
            app.close()
            context = app.flask.extensions["console"]
            context.pool.close()
            context.board.pool.close()
        self.pool.close()
        self.admin.close()
