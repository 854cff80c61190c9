"""Stripe's webhooks after refunds: stores signed events once, and looks for mismatches in the payments that they name.

    POST /webhooks/stripe    refund.created, refund.updated, refund.failed, charge.refunded, charge.refund.updated

Other events are accepted and ignored. An event only names a payment, whose refunds are then read from Stripe, so late,
repeated and reordered events lead to the same findings: `refund_failed` (a refund of ours that failed or was sent back
by a bank), `refunded_elsewhere` (a refund of our order that we did not make) and `payment_unknown` (Stripe refuses to
show the payment: the key is of another account or mode).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import orjson
import psycopg
import structlog
from psycopg.rows import class_row, scalar_row
from psycopg.types.json import Jsonb

from sentinel.core.errors import EngineUnavailable, InvalidInput, StillDeciding, Unauthenticated
from sentinel.core.stripe_units import our_amount
from sentinel.platform.http.bodies import framed_bytes, read_object, require_json_type
from sentinel.platform.http.openapi import Documentation
from sentinel.platform.http.wire import EdgeResponse, Request
from sentinel.store.database import Pool
from sentinel.store.queries import call_at_length, call_with_retry
from worker.outbound.effects import EffectRefused, NoAnswer, one_line
from worker.refunds.ledger import LedgerUnavailable
from worker.settlement.registry import Systems
from worker.settlement.stripe_refunds import DONE, NOT_DONE, PAYMENT, StripeRefunds

# Payments to look at, and the findings: all SQL of `refunds.settlement_*`.

Value = TypeVar("Value")

# In random order, so that payments for which Stripe never answers do not block the others in every process.
_TO_LOOK_AT = """
select payment_ref, clock_timestamp() as looked_from from (
  select distinct payment_ref from refunds.settlement_events where tenant_id = %(tenant_id)s and looked_at is null) open
order by random() limit %(limit)s
"""
# Payments that Stripe refused to show in the last 30 days, in random order.
_REFUSED_BEFORE = """
select payment_ref, clock_timestamp() as looked_from from (
  select distinct payment_ref from refunds.settlement_findings where tenant_id = %(tenant_id)s and finding = %(unknown)s
    and found_at > clock_timestamp() - interval '30 days') refused
order by random()
"""
# Close only events received before the look began: those that arrive during it need another look.
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
# The recorded findings, and refunds that were begun with another payment than their order names now
# (`payment_corrected`): while they are under way, and for 30 days after the correction where they are done, by when a
# person has seen it.
_FINDINGS = """
select system, system_refund, finding, payment_ref, amount_minor, currency, ledger_entry_id, reason from (
  select system, system_refund, finding, payment_ref, amount_minor, currency, ledger_entry_id, reason, found_at
  from refunds.settlement_findings where tenant_id = %(tenant_id)s
  union all
  select f.system, coalesce(f.system_reference, 'refund'), 'payment_corrected', f.payment_ref, e.amount_minor, e.currency,
    e.ledger_entry_id, 'its order names ' || o.payment_ref || ' by now', f.created_at
  from refunds.effects f join refunds.ledger_entries e using (tenant_id, ledger_entry_id)
  join refunds.orders o on (o.tenant_id, o.channel, o.source, o.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
  where f.tenant_id = %(tenant_id)s and f.system = 'stripe' and f.payment_ref <> o.payment_ref
    and f.state not in ('refused', 'compensated')
    and (f.state <> 'done' or o.recorded_at > clock_timestamp() - interval '30 days')) found
order by found_at
"""
_LET_GO = "select refunds.let_sent_back_go(%(tenant_id)s)"
_IS_KNOWN = "select exists (select from refunds.orders where tenant_id = %(tenant_id)s and payment_ref = any(%(names)s::text[]))"


UNKNOWN = "payment_unknown"
"""The finding of a payment that an event names but Stripe refuses to show: the key belongs to another account or mode."""


@dataclass(frozen=True, slots=True)
class PaymentToLookAt:
    """A payment that open events name; events received after `looked_from` need another look."""

    payment_ref: str
    looked_from: datetime


@dataclass(frozen=True, slots=True)
class StripeMismatch:
    """A refund at the settlement system that differs from the ledger; `ledger_entry_id` is None for one made elsewhere."""

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
        if self.finding == UNKNOWN:
            return f"{self.system} {self.payment_ref}: an event names this payment, but it cannot be read there{why}"
        amount = f"{self.amount_minor} in minor units of {self.currency}"
        return f"{self.system} {self.system_refund}{whose} ({self.payment_ref}, {amount}): {self.finding.replace('_', ' ')}{why}"


class SettlementFindings:
    """The events and findings of one tenant. Thread-safe; every call is one transaction and raises `LedgerUnavailable`.

    With `at_length` a call may take minutes, as for commands.
    """

    def __init__(self, pool: Pool, tenant_id: uuid.UUID, *, at_length: bool = False) -> None:
        self._pool, self._tenant_id = pool, tenant_id
        self._call = call_at_length if at_length else call_with_retry

    def to_look_at(self, limit: int) -> list[PaymentToLookAt]:
        """Read up to `limit` payments of open events, in random order."""
        return self._rows(_TO_LOOK_AT, class_row(PaymentToLookAt), limit=limit)

    def refused_before(self) -> list[PaymentToLookAt]:
        """Read the payments of the last 30 days whose events were closed because Stripe refused to show them, in random order."""
        return self._rows(_REFUSED_BEFORE, class_row(PaymentToLookAt), unknown=UNKNOWN)

    def keep(self, looked: PaymentToLookAt, findings: Sequence[StripeMismatch]) -> set[str]:
        """Close the payment's events and store the findings; return the system refunds whose finding is new."""
        rows = Jsonb([asdict(one) for one in findings])
        return set(self._rows(_KEEP_FINDINGS, scalar_row, findings=rows, **asdict(looked)))

    def let_sent_back_go(self) -> list[str]:
        """Stop counting refunds that a bank sent back against their orders; return the ids of the entries that this changed."""
        return self._rows(_LET_GO, scalar_row)

    def all(self) -> list[StripeMismatch]:
        """Read all findings, oldest first."""
        return self._rows(_FINDINGS, class_row(StripeMismatch))

    def is_payment_known(self, names: Sequence[str]) -> bool:
        """Whether an order of ours names the payment by one of these names."""
        return bool(self._rows(_IS_KNOWN, scalar_row, names=list(names))[0])

    def _rows(self, statement: str, row_factory: Any, **fields: Any) -> list[Any]:
        def call(connection: psycopg.Connection[Any]) -> list[Any]:
            with connection.cursor(row_factory=row_factory) as cursor:
                return cursor.execute(statement.encode(), {"tenant_id": self._tenant_id, **fields}).fetchall()

        try:
            return self._call(self._pool, call)
        except (EngineUnavailable, StillDeciding) as error:
            raise LedgerUnavailable(error.detail) from error


# Events, and looking at the payments that they name.

PATH = "/webhooks/stripe"
TOLERANCE_SECONDS = 300
"""How far a signature's time may be before or after now."""
KINDS = frozenset({"refund.created", "refund.updated", "refund.failed", "charge.refunded", "charge.refund.updated"})
EVERY_SECONDS, AT_ONCE = 5.0, 50
_GIVE_UP_AFTER = 3
"""A look ends after this many payments without an answer: Stripe is unreachable, and each costs its whole timeout."""
_EVENT = re.compile(r"evt_[A-Za-z0-9_]{1,120}", re.ASCII)
_SIGNATURE = re.compile(r"t=(?P<time>[0-9]{1,12})(?:,v[0-9]{1,3}=[0-9a-f]{1,200})+", re.ASCII)

_KEEP = "select refunds.record_settlement_event(%(tenant_id)s, 'stripe', %(event_id)s, %(kind)s, %(payment_ref)s)"

DOCUMENTATION = Documentation(
    "A signed event from Stripe",
    description="An event is stored once; then the payment that it names is read. Events that are not about a refund are accepted and ignored.",
    responses={200: ("Stored, already known, or not about a refund.", {
        "type": "object", "required": ["received", "used", "duplicate"],
        "properties": {name: {"type": "boolean"} for name in ("received", "used", "duplicate")},
    })},
    problems=(400, 401, 411, 413, 415, 429, 503),
)  # fmt: skip

log = structlog.get_logger("worker")


@dataclass(frozen=True, slots=True)
class StripeEvent:
    """A verified event about a payment."""

    event_id: str
    kind: str
    payment_ref: str


def verified(body: bytes, signature: str | None, secrets: Sequence[str], now: float) -> bool:
    """Whether one of the secrets signed exactly this body, at a time within `TOLERANCE_SECONDS` of `now`."""
    import stripe

    # One form only: in a looser one the package could read another time than is checked here.
    found = _SIGNATURE.fullmatch(signature or "")
    if found is None or abs(int(found["time"]) - now) > TOLERANCE_SECONDS:
        return False
    for secret in secrets:
        try:
            if stripe.WebhookSignature.verify_header(body, signature, secret):
                return True
        except (stripe.SignatureVerificationError, UnicodeDecodeError):
            continue
    return False


def event_of(found: Mapping[str, Any]) -> StripeEvent | None:
    """Read the payment that an event names; None for an event about no refund. Raises `InvalidInput`."""
    name, kind = found.get("id"), found.get("type")
    if not isinstance(name, str) or not _EVENT.fullmatch(name):
        raise InvalidInput.of("id", "must be the name of an event")
    if kind not in KINDS:
        return None
    data = found.get("data")
    about = data.get("object") if isinstance(data, dict) else None
    if not isinstance(about, dict):
        raise InvalidInput.of("data.object", "must be an object")
    charge = about.get("id") if about.get("object") == "charge" else about.get("charge")
    payment = about.get("payment_intent") or charge
    if not isinstance(payment, str) or not PAYMENT.fullmatch(payment):
        raise InvalidInput.of("data.object", "must name a payment intent or a charge")
    return StripeEvent(name, str(kind), payment)


@dataclass(frozen=True, slots=True)
class StripeWebhook:
    """Receives the webhooks of one tenant; an event is answered once it is stored.

    `count_address` counts a request against its address, and raises `RateLimited` beyond the limit.
    """

    pool: Pool
    tenant_id: uuid.UUID
    secrets: Sequence[str]
    threads: ThreadPoolExecutor
    count_address: Callable[[dict[str, Any]], None]
    now: Callable[[], float] = time.time

    async def deliver(self, request: Request) -> EdgeResponse:
        """Receive one delivery. Raises `RateLimited`, `Unauthenticated` for a bad signature, and what the body's checks raise."""
        # Check the rate before a thread is taken: the outside calls of orders need the threads too.
        self.count_address(request.environ)
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._answer, request.environ)

    def _answer(self, environ: dict[str, Any]) -> EdgeResponse:
        body = framed_bytes(environ)
        if not verified(body, environ.get("HTTP_STRIPE_SIGNATURE"), self.secrets, self.now()):
            raise Unauthenticated
        require_json_type(environ)
        event = event_of(read_object(body))
        is_new = event is not None and self._keep(event)
        return EdgeResponse(
            orjson.dumps({"received": True, "used": event is not None, "duplicate": event is not None and not is_new})
        )

    def _keep(self, event: StripeEvent) -> bool:
        fields = {
            "tenant_id": self.tenant_id,
            "event_id": event.event_id,
            "kind": event.kind,
            "payment_ref": event.payment_ref,
        }

        def call(connection: psycopg.Connection[Any]) -> bool:
            found = connection.execute(_KEEP, fields).fetchone()
            return found is not None and bool(found[0])

        return call_with_retry(self.pool, call)


class SettlementWatch:
    """Looks at the payments that events name. Thread-safe; raises `LedgerUnavailable`."""

    def __init__(self, store: SettlementFindings, systems: Systems) -> None:
        self._store = store
        found = systems.adapters.get(StripeRefunds.name)
        self._stripe = found if isinstance(found, StripeRefunds) and found.is_configured else None
        # Payments to look at once more because this process may have another key; None: not read yet.
        self._once_more: list[PaymentToLookAt] | None = None

    def look(self) -> list[StripeMismatch]:
        """Look at the payments of open events; return new findings. An event stays open while Stripe does not answer.

        Payments that Stripe refused to show before this process began, as to a key of another account or mode, are
        looked at once more: Stripe does not send their events again.

        Refunds that any look has found to be sent back are then no longer counted against their orders, even where this
        look fails.
        """
        if self._stripe is None:
            return []
        try:
            return self._look_at_payments(self._stripe)
        finally:
            for entry in self._store.let_sent_back_go():
                log.error(
                    "refund_sent_back", entry=entry, cause="its customer does not have it, and its order owes it again"
                )

    def _look_at_payments(self, stripe: StripeRefunds) -> list[StripeMismatch]:
        found: list[StripeMismatch] = []
        unanswered = 0
        for looked in self._payments():
            payment_ref = looked.payment_ref
            refunds = stripe.api.refunds_of(payment_ref)
            if isinstance(refunds, NoAnswer):
                log.warning("settlement_not_looked_at", payment_ref=payment_ref, cause=refunds.detail)
                unanswered += 1
                if unanswered >= _GIVE_UP_AFTER:
                    break
                continue
            if isinstance(refunds, EffectRefused):
                findings = [StripeMismatch("stripe", payment_ref, UNKNOWN, payment_ref, 0, "", None, refunds.reason)]
            else:
                findings = self._findings(stripe, payment_ref, refunds)
            new = self._store.keep(looked, findings)
            self._once_more = [one for one in self._once_more or () if one.payment_ref != payment_ref]
            for finding in findings:
                if finding.system_refund in new:
                    log.error(
                        "settlement_finding",
                        finding=finding.finding,
                        refund=finding.system_refund,
                        entry=finding.ledger_entry_id,
                    )
                    found.append(finding)
        return found

    def _payments(self) -> list[PaymentToLookAt]:
        if self._once_more is None:
            self._once_more = self._store.refused_before()
        found = self._store.to_look_at(AT_ONCE)
        named = {looked.payment_ref for looked in found}
        again = [looked for looked in self._once_more if looked.payment_ref not in named]
        payments = (found + random.sample(again, len(again)))[:AT_ONCE]
        # Mixed, so that those of either kind for which Stripe never answers do not block the other kind either.
        random.shuffle(payments)
        return payments

    def _findings(
        self, stripe: StripeRefunds, payment_ref: str, refunds: Sequence[Mapping[str, Any]]
    ) -> list[StripeMismatch]:
        found = []
        for refund in refunds:
            entry, status = stripe.is_ours(refund), refund.get("status")
            if entry is not None and status in NOT_DONE:
                found.append(_finding(refund, "refund_failed", payment_ref, entry))
            names = [name for name in (refund.get("payment_intent"), refund.get("charge"), payment_ref) if name]
            if entry is None and status in DONE and self._store.is_payment_known(names):
                found.append(_finding(refund, "refunded_elsewhere", payment_ref, None))
        return found


def _finding(refund: Mapping[str, Any], what: str, payment_ref: str, entry: str | None) -> StripeMismatch:
    currency = str(refund.get("currency")).upper()[:3]
    reason = one_line(refund.get("failure_reason") or "", 200) or None
    amount = our_amount(int(refund.get("amount") or 0), currency)
    return StripeMismatch("stripe", str(refund.get("id")), what, payment_ref, amount, currency, entry, reason)
