"""A settlement system behind a small HTTP interface; not ready until it is configured.

    GET    {url}/ready                       200 when it can take effects
    POST   {url}/effects                     Idempotency-Key: the reference; {kind, reference, ledger_entry_id, refund_id,
                                             order_ref, amount: {value, currency}} → 200/201 {"status": "done", "reference"}
    GET    {url}/effects/{reference}         200 {"status": "done", "reference"} · 404/410 problem: surely not there
    DELETE {url}/effects/{reference}         204, or 200 {"status": "undone"}; 404/410 problem: nothing there; final

The system must give one effect per reference, and must not let a reference come to life again after a DELETE. Only what
is exactly one of these answers counts: a proxy's login page or error page is no answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from sentinel.core.money import money_out
from sentinel.platform.outbound.client import JsonClient
from worker.outbound.effects import EffectResult, NoAnswer, Refused, Reply, Settled, call_effect, one_line
from worker.refunds.rows import LedgerRow


class HttpSystem:
    """One outside system. Without `url` it is never ready. Thread-safe; nothing raises."""

    def __init__(
        self, name: str, url: str | None, api_key: str | None, timeout_seconds: float = 5.0, *, moves_money: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.name, self.moves_money = name, moves_money
        self._client = JsonClient(url or "", api_key or "", timeout_seconds, now=now)

    @property
    def is_configured(self) -> bool:
        """Whether it has an address."""
        return bool(self._client.url)

    def is_ready(self) -> bool:
        """Whether it is configured and said so itself in the last 5 seconds; waits at most one second for that."""
        return self.is_configured and self._client.is_ready()

    def settle(self, row: LedgerRow, reference: uuid.UUID) -> EffectResult:
        """Ask for the effect once."""
        body = {
            "kind": self.name, "reference": str(reference), "ledger_entry_id": row.ledger_entry_id,
            "refund_id": row.refund_id, "order_ref": row.order_ref, "amount": money_out(row.money),
            **({"source": row.source} if row.source else {}),
        }  # fmt: skip
        reply = self._call("POST", "/effects", reference, body)
        if isinstance(reply, NoAnswer):
            return reply
        return _done(reply) if reply.is_done else reply.not_done()

    def look_up(self, reference: uuid.UUID) -> EffectResult:
        """Whether the effect is there."""
        reply = self._call("GET", f"/effects/{reference}", reference)
        if isinstance(reply, NoAnswer):
            return reply
        if reply.status == 200:
            return _done(reply)
        return Refused("not there") if reply.is_absence else NoAnswer(reply.why)

    def compensate(self, reference: uuid.UUID) -> EffectResult:
        """Take the effect back."""
        reply = self._call("DELETE", f"/effects/{reference}", reference)
        if isinstance(reply, NoAnswer):
            return reply
        undone = reply.status == 200 and reply.body.get("status") == "undone"
        if reply.status == 204 or undone or reply.is_absence:
            return Settled(str(reference))
        return reply.not_done()

    def _call(self, method: str, path: str, key: uuid.UUID, body: object = None) -> Reply | NoAnswer:
        return call_effect(self._client, method, path, key, body) if self._client.url else NoAnswer("not configured")


def _done(reply: Reply) -> Settled | NoAnswer:
    reference = reply.body.get("reference")
    if reply.body.get("status") != "done" or not isinstance(reference, str) or not one_line(reference):
        return NoAnswer(f"a {reply.status} that does not say done")
    return Settled(one_line(reference))
