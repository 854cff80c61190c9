"""The worker of before: every try without an answer is an attempt of the row, whatever kept the answer away."""

from __future__ import annotations

from sentinel.client import Rejected, Unreachable
from worker import next_steps
from worker.next_steps import Patience
from worker.rows import Change, Lapse, LedgerRow


def after_no_answer(row: LedgerRow, error: Unreachable | Rejected, patience: Patience) -> Change | Lapse:
    """Counts, and gives up after the last."""
    if row.attempts + 1 >= patience.max_attempts:
        return next_steps.give_up(row, f"no answer after {row.attempts + 1} attempts: {error.detail}")
    return next_steps.put_back(row, error.detail, patience.pause_seconds(row.attempts), failures=1)
