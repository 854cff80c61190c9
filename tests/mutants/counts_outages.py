"""The worker of before: every try without an answer is an attempt of the row, whatever kept the answer away."""

from __future__ import annotations

from sentinel.client import Rejected, Unreachable
from worker.refunds import transitions
from worker.refunds.rows import Change, LedgerRow, ReleaseLease
from worker.refunds.transitions import RetryPolicy


def after_no_answer(row: LedgerRow, error: Unreachable | Rejected, policy: RetryPolicy) -> Change | ReleaseLease:
    """Counts, and gives up after the last."""
    if row.attempts + 1 >= policy.max_attempts:
        return transitions.give_up(row, f"no answer after {row.attempts + 1} attempts: {error.detail}")
    return transitions.put_back(row, error.detail, policy.pause_seconds(row.attempts), failures=1)
