"""What would happen to what is due, without doing any of it: no claim, no question that is recorded, no trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentinel.client import Client, Rejected, Unreachable
from sentinel.core.money import Money, money_out
from worker.crew import Crew
from worker.facts import guard_request
from worker.ledger import Ledger
from worker.rows import KnownFacts, LedgerRow


@dataclass(frozen=True, slots=True)
class Foresight:
    """What would be decided on one row now; `decision` is None when there was no answer."""

    ledger_entry_id: str
    refund_id: str
    money: Money
    decision: str | None
    reason_code: str | None
    detail: str | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ledger_entry_id": self.ledger_entry_id, "refund_id": self.refund_id, "amount": money_out(self.money),
            "decision": self.decision, "reason_code": self.reason_code, "detail": self.detail,
        }  # fmt: skip


def foresee(ledger: Ledger, client: Client, *, limit: int, concurrency: int) -> list[Foresight]:
    """Ask `check` about up to `limit` due rows. Raises `LedgerUnavailable`."""
    rows = ledger.peek(limit)
    known = ledger.facts([row.ledger_entry_id for row in rows])
    crew = Crew(concurrency)
    try:
        return crew.map(lambda row: _foresight(client, row, known[row.ledger_entry_id]), rows)
    finally:
        crew.close()


def _foresight(client: Client, row: LedgerRow, known: KnownFacts) -> Foresight:
    params = row.params or guard_request(row, known)
    try:
        answer = client.check(action=row.action, params=params, agent_id=row.agent_id)
    except (Unreachable, Rejected) as error:
        return Foresight(row.ledger_entry_id, row.refund_id, row.money, None, None, error.detail)
    return Foresight(row.ledger_entry_id, row.refund_id, row.money, answer.decision, answer.reason_code, None)
