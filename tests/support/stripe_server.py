"""Stripe on loopback as far as refunds go, shaped by its published API: idempotency, over-refunds, errors, webhooks.

It keeps what it really did. Faults are those of `RecordingServer`: what happens first and only then fails is a payment whose
answer is lost. `forget_keys` is Stripe after a day: it answers a known key as if it were new.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import stripe

from tests.support.recording_server import RecordingServer
from tests.support.scripted_server import Asked, Script


@dataclass
class Payment:
    """A payment and what was given back of it."""

    amount: int
    currency: str
    refunds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def refunded(self) -> int:
        return sum(each["amount"] for each in self.refunds if each["status"] not in ("failed", "canceled"))


def stripe_error(status: int, kind: str, code: str | None = None, message: str = "no") -> Script:
    """An error as Stripe writes it."""
    error = {"type": kind, "message": message, **({"code": code} if code else {})}
    return lambda asked: asked.answer(status, json.dumps({"error": error}).encode())


class StripeServer(RecordingServer):
    """`payments` by id; a new refund has `next_status`. `naive`: it knows no key again, and looks at no sum."""

    def __init__(self, *, naive: bool = False) -> None:
        super().__init__(naive=naive)
        self.payments: dict[str, Payment] = {}
        self.next_status = "succeeded"
        self.page = 100
        self._keys: dict[str, tuple[bytes, int, bytes]] = {}
        self._numbers = itertools.count(1)

    def pay(self, name: str, amount: int, currency: str = "usd") -> str:
        """Somebody paid."""
        self.payments[name] = Payment(amount, currency)
        return name

    def forget_keys(self) -> None:
        """A day has gone by."""
        self._keys.clear()

    def refunds_of(self, name: str) -> list[dict[str, Any]]:
        return self.payments[name].refunds

    def set_status(self, refund_id: str, status: str, reason: str | None = None) -> None:
        """A bank has spoken."""
        refund = self._refund(refund_id)
        assert refund is not None
        refund.update(status=status, failure_reason=reason)

    def event(self, kind: str, about: dict[str, Any], name: str | None = None) -> bytes:
        """The body of a webhook."""
        found = {"id": name or f"evt_{next(self._numbers)}", "object": "event", "type": kind, "created": int(time.time()),
                 "api_version": "2026-01-01", "livemode": False, "data": {"object": about}}  # fmt: skip
        return json.dumps(found).encode()

    @staticmethod
    def signature(body: bytes, secret: str, at: int | None = None) -> str:
        """The header that signs a webhook, as Stripe's own package makes it."""
        return str(stripe.WebhookSignature.generate_signature_header(body.decode(), secret, at))

    def do(self, asked: Asked) -> None:
        if asked.method == "POST":
            self._create(asked)

    def act(self, asked: Asked) -> None:
        status, body = self._create(asked) if asked.method == "POST" else self._read(asked)
        asked.answer(status, body)

    def _create(self, asked: Asked) -> tuple[int, bytes]:
        key = asked.headers.get("idempotency-key", "")
        with self.lock:
            if not self.naive and key in self._keys:
                body, status, answer = self._keys[key]
                if body != asked.body:
                    return _error(
                        400,
                        "idempotency_error",
                        "Keys for idempotent requests can only be used with the same parameters",
                    )
                return status, answer
            status, answer = self._refund_payment(asked.body)
            self._keys[key] = (asked.body, status, answer)
            return status, answer

    def _refund_payment(self, body: bytes) -> tuple[int, bytes]:
        given = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.bodies.append(given)
        name = given.get("payment_intent") or given.get("charge") or ""
        payment, amount = self.payments.get(name), int(given["amount"])
        if payment is None:
            return _error(404, "invalid_request_error", "No such payment", "resource_missing")
        if not self.naive and payment.refunded + amount > payment.amount:
            spent = payment.refunded == payment.amount
            return _error(400, "invalid_request_error", "over", "charge_already_refunded" if spent else None)
        refund = {
            "id": f"re_{next(self._numbers)}", "object": "refund", "amount": amount, "currency": payment.currency,
            "status": self.next_status, "failure_reason": None, "created": int(time.time()),
            "payment_intent": name if name.startswith("pi_") else None, "charge": name if name.startswith("ch_") else None,
            "metadata": {k[9:-1]: v for k, v in given.items() if k.startswith("metadata[")},
        }  # fmt: skip
        payment.refunds.append(refund)
        return 200, json.dumps(refund).encode()

    def _read(self, asked: Asked) -> tuple[int, bytes]:
        url = urlsplit(asked.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self.lock:
            if url.path == "/v1/refunds":
                return 200, json.dumps(self._list(given)).encode()
            name = url.path.rpartition("/")[2]
            found = self._refund(name) if url.path.startswith("/v1/refunds/") else self._payment(name)
            if found is None:
                return _error(404, "invalid_request_error", "No such object", "resource_missing")
            return 200, json.dumps(found).encode()

    def _list(self, given: dict[str, str]) -> dict[str, Any]:
        name = given.get("payment_intent") or given.get("charge")
        every = [r for n, p in self.payments.items() if name in (None, n) for r in reversed(p.refunds)]
        start = next((n + 1 for n, r in enumerate(every) if r["id"] == given.get("starting_after")), 0)
        size = min(int(given.get("limit", "10")), self.page)
        return {
            "object": "list",
            "url": "/v1/refunds",
            "has_more": len(every) > start + size,
            "data": every[start : start + size],
        }

    def _refund(self, name: str) -> dict[str, Any] | None:
        return next((r for p in self.payments.values() for r in p.refunds if r["id"] == name), None)

    def _payment(self, name: str) -> dict[str, Any] | None:
        found = self.payments.get(name)
        return found and {"id": name, "object": "payment_intent" if name.startswith("pi_") else "charge", "currency": found.currency,
                          "amount": found.amount, "amount_refunded": found.refunded}  # fmt: skip


def _error(status: int, kind: str, message: str, code: str | None = None) -> tuple[int, bytes]:
    error = {"type": kind, "message": message, **({"code": code} if code else {})}
    return status, json.dumps({"error": error}).encode()
