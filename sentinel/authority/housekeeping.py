"""Housekeeping: expire permits and approvals, put silent starts in doubt, give feed positions to events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from sentinel.authority.engine import Authority
from sentinel.platform.ongoing_failures import OngoingFailures
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import call_with_retry

RUN_HOUSEKEEPING = "select permits_expired, approvals_expired, fell_in_doubt from sentinel.run_housekeeping(%s, %s)"
RELEASE_EXPIRED_PERMITS = "select sentinel.release_run_out(%s)"
EXPIRE_APPROVALS = "select sentinel.expire_due_approvals(%s)"
DOUBT_UNREPORTED_STARTS = "select sentinel.doubt_unreported_starts(%s, %s)"
MARK_KEYS_AT_LIMITS = "select sentinel.mark_keys_at_limits(%s, %s, %s)"
SEQUENCE_EVENTS = "select sentinel.sequence_events(%s)"

_BATCH_SIZE = 100
_PERMIT_BATCH_SIZE = 200
"""The same as in `sentinel.run_housekeeping`: so few that a guard waiting for one of their budgets is not delayed."""
_SEQUENCED_AT_ONCE = 1000
LIMIT_MARK_SECONDS = 5
"""How long a key's mark (too many open permits or approvals) lasts unless renewed; housekeeping renews it each second."""


@dataclass(frozen=True, slots=True)
class ExpiredCounts:
    """How many permits and approvals expired, and how many operations fell in doubt, in one run."""

    permits_expired: int
    approvals_expired: int
    fell_in_doubt: int


def run_housekeeping(pool: Pool, report_deadline_seconds: int, *, seconds: float = 0.7) -> ExpiredCounts:
    """Expire permits and approvals and put silent operations in doubt; return the counts.

    Further batches of each follow while there are more, for at most `seconds`. Raises `EngineUnavailable`.
    """
    until = time.monotonic() + seconds
    ids = [new_id() for _ in range(2 * _BATCH_SIZE)]
    found = call_with_retry(pool, lambda c: c.execute(RUN_HOUSEKEEPING, [report_deadline_seconds, ids]).fetchone())
    assert found is not None
    permits, approvals, doubts = last_permits, last_approvals, last_doubts = found
    while time.monotonic() < until and (
        last_permits == _PERMIT_BATCH_SIZE or last_approvals == _BATCH_SIZE or last_doubts == _BATCH_SIZE
    ):
        last_permits = release_expired_permits(pool) if last_permits == _PERMIT_BATCH_SIZE else 0
        last_approvals = expire_approvals(pool) if last_approvals == _BATCH_SIZE else 0
        last_doubts = doubt_unreported_starts(pool, report_deadline_seconds) if last_doubts == _BATCH_SIZE else 0
        permits, approvals, doubts = permits + last_permits, approvals + last_approvals, doubts + last_doubts
    return ExpiredCounts(permits, approvals, doubts)


def release_expired_permits(pool: Pool) -> int:
    """Release the reservations of one batch of expired unused permits, in one transaction, and return their number."""
    found = call_with_retry(pool, lambda c: c.execute(RELEASE_EXPIRED_PERMITS, [_PERMIT_BATCH_SIZE]).fetchone())
    return found[0] if found else 0


def expire_approvals(pool: Pool) -> int:
    """Expire one batch of overdue approvals, in one transaction, and return their number."""
    ids = [new_id() for _ in range(_BATCH_SIZE)]
    found = call_with_retry(pool, lambda c: c.execute(EXPIRE_APPROVALS, [ids]).fetchone())
    return found[0] if found else 0


def doubt_unreported_starts(pool: Pool, report_deadline_seconds: int) -> int:
    """Put one batch of silent operations in doubt, in one transaction, and return their number."""
    fields = [report_deadline_seconds, [new_id() for _ in range(_BATCH_SIZE)]]
    found = call_with_retry(pool, lambda c: c.execute(DOUBT_UNREPORTED_STARTS, fields).fetchone())
    return found[0] if found else 0


def mark_keys_at_limits(pool: Pool, most_permits: int, most_questions: int) -> int:
    """Mark the keys that have at least so many open permits or pending approvals, and return their number."""
    found = call_with_retry(
        pool, lambda c: c.execute(MARK_KEYS_AT_LIMITS, [most_permits, most_questions, LIMIT_MARK_SECONDS]).fetchone()
    )
    return found[0] if found else 0


def sequence_events(pool: Pool, most: int = _SEQUENCED_AT_ONCE) -> int:
    """Give feed positions to the next `most` events and the rest of the last one's transaction; return how many.

    After a restore this counts restored events too, which already have their positions; it returns 0 once there are no
    more.
    """
    found = call_with_retry(pool, lambda c: c.execute(SEQUENCE_EVENTS, [most]).fetchone())
    return found[0] if found else 0


SEQUENCE_SECONDS, HOUSEKEEPING_SECONDS = 0.15, 1.0
SEQUENCE_MOST_SECONDS = 0.7
"""How long one round may give positions before its other steps run: after a restore there may be millions of events."""

log = structlog.get_logger("sentinel.housekeeping")


class Housekeeper(threading.Thread):
    """The housekeeping thread. `tell` is called with the counts of each run, and the steps `each_round` in every round."""

    def __init__(
        self, authority: Authority, *, tell: Callable[[ExpiredCounts], None] = lambda _: None,
        each_round: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        super().__init__(name="housekeeper", daemon=True)
        self._authority = authority
        self._tell = tell
        self._each_round = each_round
        self._stop_asked = threading.Event()
        self._failures = OngoingFailures()

    def run(self) -> None:
        """Give feed positions every SEQUENCE_SECONDS and expire every HOUSEKEEPING_SECONDS, until stopped.

        Steps that fail, as while the database is unreachable, are tried again in a later round.
        """
        rounds = 0
        while not self._stop_asked.wait(SEQUENCE_SECONDS):
            steps = [*self._each_round, self._sequence]
            if rounds % round(HOUSEKEEPING_SECONDS / SEQUENCE_SECONDS) == 0:
                steps += [self._authority.clock.refresh, self._mark_keys, self._expire, self._note_key_uses]
            for step in steps:
                # A failing step must not keep the others from running, nor end the thread: nothing would expire any more.
                with self._failures.logged(log, "housekeeping", step):
                    step()
            rounds += 1

    def _sequence(self) -> None:
        until = time.monotonic() + SEQUENCE_MOST_SECONDS
        while sequence_events(self._authority.pool) >= _SEQUENCED_AT_ONCE and time.monotonic() < until:
            pass

    def _mark_keys(self) -> None:
        authority = self._authority
        mark_keys_at_limits(authority.pool, authority.open_permits_per_key, authority.open_questions_per_key)

    def _expire(self) -> None:
        self._tell(run_housekeeping(self._authority.pool, self._authority.report_deadline_seconds))

    def _note_key_uses(self) -> None:
        self._authority.key_uses.write(self._authority.pool)

    def stop(self) -> None:
        """Stop after the current round; wait for it at most two seconds."""
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=2)
