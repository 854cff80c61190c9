"""Refunds at Stripe: a `SettlementSystem` that gives back part or all of the payment that an order was paid with.

The order's fact `payment_ref` names the payment (`pi_…` or `ch_…`), which is fixed before a refund of it is first
requested. The key towards Stripe is derived from the tenant and the entry's idempotency key, so it is the same even
after the database was restored to a state from before the start. Stripe forgets keys after a day or more: therefore the
payment's refunds are read first, and each refund keeps its key in its metadata.

    GET  /v1/refunds?payment_intent=…       is a refund with our key there?
    GET  /v1/payment_intents/{id}           (or /v1/charges/{id}) is it paid in the currency of the refund?
    POST /v1/refunds                        Idempotency-Key, amount, metadata

A refund that is `succeeded` or `pending` counts as done: Stripe has accepted it, and reports by webhook if a bank sends
it back.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sentinel.core.stripe_units import stripe_amount
from sentinel.platform.outbound.client import SystemReadiness
from worker.outbound.effects import EffectRefused, EffectResult, NoAnswer, Settled, one_line
from worker.refunds.rows import LedgerRow
from worker.settlement.stripe_api import API, StripeApi

_log = logging.getLogger("worker")

KEY_NAME, ENTRY_NAME = "sentinel_key", "ledger_entry_id"
"""The metadata fields of our refunds."""

PAYMENT = re.compile(r"(pi|ch|py)_[A-Za-z0-9_]{1,120}", re.ASCII)
_REFUND = re.compile(r"(re|pyr)_[A-Za-z0-9_]{1,120}", re.ASCII)
DONE, NOT_DONE = frozenset({"succeeded", "pending"}), frozenset({"failed", "canceled"})


@dataclass(frozen=True, slots=True)
class Payment:
    """The payment that a refund gives back: its name at Stripe, and the entry's own idempotency key."""

    payment_ref: str | None
    idempotency_key: str
    is_fixed: bool = False
    """Whether a refund of it may have been requested already: then the entry is refunded from this payment only."""
    named_now: str | None = None
    """The payment that the order names now."""


class Payments(Protocol):
    """Finds the payment of a refund. Raises `LedgerUnavailable`."""

    tenant_id: uuid.UUID

    def payment_of(self, ledger_entry_id: str) -> Payment | None:
        """The payment of the entry's refund; None for an unknown entry."""

    def payment_of_reference(self, system: str, reference: uuid.UUID) -> Payment | None:
        """The payment of the entry whose effect is recorded under this reference."""

    def fix_payment(self, system: str, row: LedgerRow, payment_ref: str) -> str | None:
        """Fix the payment of the row's effect once; return the fixed one. None: the claim was lost or the time to act is over."""


def idempotency_key(tenant_id: uuid.UUID, entry_key: str) -> str:
    """Stripe's idempotency key of an entry's refund: 64 hexadecimal digits of SHA-256."""
    return hashlib.sha256(f"sentinel/stripe/{tenant_id}/{entry_key}".encode()).hexdigest()


class StripeRefunds:
    """Stripe as a settlement system. Without a key it is never ready. Thread-safe; only `Payments` may raise."""

    name, moves_money = "stripe", True

    def __init__(
        self, api_key: str | None, payments: Payments | None, timeout_seconds: float = 5.0, *, url: str = API,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._api_key, self._payments = api_key or "", payments
        self.api = StripeApi(self._api_key, url, timeout_seconds)
        self._readiness = SystemReadiness(self.api.can_read_refunds, now)

    @property
    def is_configured(self) -> bool:
        """Whether it has a key."""
        return bool(self._api_key)

    def is_ready(self) -> bool:
        """Whether Stripe let the key read refunds within the last 5 seconds; waits at most one second for Stripe's answer."""
        return bool(self._api_key) and self._payments is not None and self._readiness.get()

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Refund the row's amount once; the entry's own key prevents a second refund, whatever `reference` is."""
        found = self._payments.payment_of(row.ledger_entry_id) if self._payments else None
        if found is None or found.payment_ref is None:
            return EffectRefused("the order has no known payment_ref")
        if not PAYMENT.fullmatch(found.payment_ref):
            return EffectRefused("the order's payment_ref is not a Stripe payment (pi_… or ch_…)")
        amount = stripe_amount(row.amount_minor, row.currency)
        if amount is None:
            return EffectRefused(f"Stripe cannot express this amount of {row.currency}")
        if found.is_fixed and found.named_now not in (None, found.payment_ref):
            _log.error(
                "the order of %s names payment %s by now; its refund was begun with %s and stays there",
                row.ledger_entry_id, found.named_now, found.payment_ref,
            )  # fmt: skip
        there = self._look(found)
        if there is not _ABSENT:
            return there
        currency = self.api.currency_of(found.payment_ref)
        if isinstance(currency, EffectRefused | NoAnswer):
            return currency
        if currency != row.currency:
            return EffectRefused(f"the payment was in {currency}")
        fixed = self._fix(row, found.payment_ref)
        if fixed is None:
            return NoAnswer("another worker took the lease over, or the time to act has ended")
        if fixed != found.payment_ref:
            return NoAnswer("another attempt was started with another payment")
        return self._create(row, found, amount)

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Look whether the refund recorded under `reference` is there."""
        found = self._payments.payment_of_reference(self.name, reference) if self._payments else None
        if found is None:
            return NoAnswer("the record names no payment")
        if found.payment_ref is None or not PAYMENT.fullmatch(found.payment_ref):
            # A payment is fixed before Stripe is asked for a refund: without a valid one, Stripe never was asked.
            return _ABSENT
        if not found.is_fixed and isinstance(self.api.refunds_of(found.payment_ref), EffectRefused):
            # Stripe refuses to show the payment, and no refund of it was requested.
            return _ABSENT
        return self._look(found)

    def _fix(self, row: LedgerRow, payment_ref: str) -> str | None:
        assert self._payments is not None
        return self._payments.fix_payment(self.name, row, payment_ref)

    def is_ours(self, refund: Mapping[str, Any]) -> str | None:
        """The id of the entry that we made a refund for; None for a refund made elsewhere."""
        metadata = refund.get("metadata") or {}
        entry = metadata.get(ENTRY_NAME)
        found = self._payments.payment_of(entry) if self._payments and isinstance(entry, str) else None
        return entry if found is not None and metadata.get(KEY_NAME) == self._key(found) else None

    def _look(self, found: Payment) -> EffectResult:
        """Look for the payment's refund that carries our key."""
        key, refunds = self._key(found), self.api.refunds_of(found.payment_ref or "")
        if isinstance(refunds, EffectRefused | NoAnswer):
            # A look that Stripe refused proves nothing: the refund may be there.
            return NoAnswer(refunds.reason if isinstance(refunds, EffectRefused) else refunds.detail)
        results = [_result(refund) for refund in refunds if (refund.get("metadata") or {}).get(KEY_NAME) == key]
        done = next((each for each in results if isinstance(each, Settled)), None)
        unsure = next((each for each in results if isinstance(each, NoAnswer)), None)
        return done or unsure or (results[0] if results else _ABSENT)

    def _create(self, row: LedgerRow, found: Payment, amount: int) -> EffectResult:
        key = self._key(found)
        metadata = {KEY_NAME: key, ENTRY_NAME: row.ledger_entry_id, "refund_id": row.refund_id}
        made = self.api.refund(found.payment_ref or "", amount, key, metadata)
        if isinstance(made, EffectRefused | NoAnswer):
            return made
        if made.get("amount") != amount or str(made.get("currency")).upper() != row.currency:
            return NoAnswer("the answer is about another amount")
        return _result(made)

    def _key(self, found: Payment) -> str:
        assert self._payments is not None
        return idempotency_key(self._payments.tenant_id, found.idempotency_key)


_ABSENT = EffectRefused("not there")


def _result(refund: Mapping[str, Any]) -> EffectResult:
    """Map a refund object's status to a result; an unexpected form is no answer."""
    name, status = refund.get("id"), refund.get("status")
    if not isinstance(name, str) or not _REFUND.fullmatch(name):
        return NoAnswer("the answer is not a refund")
    if status in DONE:
        return Settled(name)
    if status in NOT_DONE:
        return EffectRefused(f"{name} {status}: {one_line(refund.get('failure_reason') or 'no reason given', 60)}")
    return NoAnswer(f"{name} is {one_line(status, 40)}")
