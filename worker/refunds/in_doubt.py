"""Polls the authority for the outcome of refunds in doubt, so that their amounts are released or stay with the order.

The row's own guard request is repeated, which changes nothing there. An amount is released only when the authority has it
on record that a person decided "not executed": an agent's report of an error releases nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import orjson

from sentinel.client import Client, GuardAnswer, GuardQuestion, Rejected, Unreachable
from worker.refunds.ledger import Ledger
from worker.refunds.rows import RISK_CLASS, LedgerRow

EVERY_SECONDS = 10.0
AT_ONCE = 32


class InDoubtPoller:
    """For one tenant's ledger. Thread-safe; `look` raises `LedgerUnavailable`."""

    def __init__(self, ledger: Ledger, client: Client) -> None:
        self._ledger, self._client = ledger, client
        self._lock, self._next_at = threading.Lock(), 0.0

    def run_due(self) -> None:
        """Run `look` if the last one is long enough ago."""
        with self._lock:
            if time.monotonic() < self._next_at:
                return
            self._next_at = time.monotonic() + EVERY_SECONDS
        self.look()

    def look(self) -> list[str]:
        """Ask about every row in doubt, oldest first; returns those that are in doubt no more."""
        settled: list[str] = []
        rows = self._ledger.in_doubt()
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            settled += self._ledger.settle_in_doubt(_words(part, self._client.guard_many([_question(r) for r in part])))
        return settled


def _words(
    rows: Sequence[LedgerRow], answers: Sequence[GuardAnswer | Unreachable | Rejected]
) -> dict[str, bool]:  # fmt: skip
    """id → whether it was executed, for those that have an outcome."""
    found = {}
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, GuardAnswer) and answer.resolution == "not_executed":
            found[row.ledger_entry_id] = False
        elif isinstance(answer, GuardAnswer) and (answer.status, answer.outcome) == ("completed", "success"):
            found[row.ledger_entry_id] = True
    return found


def _question(row: LedgerRow) -> GuardQuestion:
    return {
        "action": row.action, "params": orjson.loads(row.guard_request or "{}"), "idempotency_key": row.idempotency_key,
        "resource": row.resource, "risk_class": RISK_CLASS, "agent_id": row.agent_id,
        "evidence_context": {"correlation_id": row.ledger_entry_id},
    }  # fmt: skip
