"""The result of a run for operators: what happened to each row."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.core.money import Money, money_out
from worker.refunds.rows import Change, LedgerRow, OpenCounts, ReleaseLease
from worker.refunds.states import LedgerState

_NEXT = {
    LedgerState.EXECUTED: "done",
    LedgerState.DENIED: "done",
    LedgerState.APPROVAL_REQUIRED: "waits for a person's decision",
    LedgerState.NEW: "is tried again later",
    LedgerState.ERROR: "needs a person",
    LedgerState.GUARDING: "is taken up again when its claim ends",
    LedgerState.ALLOWED: "is taken up again when its claim ends",
}


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row after a run. `detail` says why, where something did not go through."""

    ledger_entry_id: str
    refund_id: str
    money: Money
    decision: str | None
    reason_code: str | None
    state: LedgerState
    detail: str | None = None
    harmless: bool = False
    waiting_for: str | None = None
    put_off: bool = False
    """It waits for something outside that says nothing about it; no attempt was counted."""

    @property
    def failed(self) -> bool:
        """Whether something went wrong, in contrast to being refused or waiting."""
        return self.state is LedgerState.ERROR or (self.detail is not None and not self.harmless)

    @property
    def what_next(self) -> str:
        """A sentence for a person."""
        return "waits for its customer" if self.waiting_for == "customer" else _NEXT[self.state]

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the operators' requests."""
        return {
            "ledger_entry_id": self.ledger_entry_id, "refund_id": self.refund_id, "amount": money_out(self.money),
            "decision": self.decision, "reason_code": self.reason_code, "status": str(self.state), "next": self.what_next,
            "failed": self.failed, "detail": self.detail,
        }  # fmt: skip


@dataclass(slots=True)
class RunResult:
    """What a run did. `trouble` is why it ended early, if it did."""

    rows: list[RowResult] = field(default_factory=list)
    reported: int = 0
    open: OpenCounts | None = None
    trouble: str | None = None

    @property
    def failed(self) -> bool:
        """Whether anything went wrong, with a row or outside."""
        return self.trouble is not None or any(row.failed for row in self.rows)

    @property
    def row_failed(self) -> bool:
        """Whether a row failed for what it is itself."""
        return any(row.failed and not row.put_off for row in self.rows)

    @property
    def why_outside(self) -> str | None:
        """Why rows are put off that nothing is wrong with, in one line; None when none is."""
        waiting = [row for row in self.rows if row.put_off]
        if self.trouble is None and not waiting:
            return None
        why = self.trouble or f"no answer: {waiting[0].detail}"
        return f"{why}; {len(waiting)} rows wait, no attempt was counted" if waiting else why


def of_change(change: Change, *, harmless: bool = False) -> RowResult:
    """The row after an applied event."""
    row = change.row
    return RowResult(
        row.ledger_entry_id, row.refund_id, row.money, change.decision or row.decision, change.reason_code or row.reason_code,
        change.to_state, change.last_error, harmless, change.waiting_for, change.outside,
    )  # fmt: skip


def result_of_release(release: ReleaseLease, state: LedgerState) -> RowResult:
    """The row after its lease was released in `state`."""
    return replace(untouched(release.row, state, release.last_error), put_off=release.outside)


def lease_lost(row: LedgerRow, state: LedgerState) -> RowResult:
    """The lease was taken over while we worked on the row: no failure, the other worker goes on."""
    return untouched(row, state, "another worker took the lease over", harmless=True)


def untouched(row: LedgerRow, state: LedgerState, detail: str | None, *, harmless: bool = False) -> RowResult:
    """A row that ended in `state` without an event of ours."""
    return RowResult(
        row.ledger_entry_id, row.refund_id, row.money, row.decision, row.reason_code, state, detail, harmless
    )
