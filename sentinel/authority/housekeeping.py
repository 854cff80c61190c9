"""Periodic expiry of permits and approvals, silent starts put in doubt, feed positions given to events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from sentinel.authority.engine import Authority
from sentinel.core.errors import SentinelError
from sentinel.store.database import Pool
from sentinel.store.ids import new_id
from sentinel.store.queries import call_with_retry

RUN_HOUSEKEEPING = "select permits_expired, approvals_expired, fell_in_doubt from sentinel.run_housekeeping(%s, %s)"
RELEASE_EXPIRED_PERMITS = "select sentinel.release_run_out(%s)"
EXPIRE_APPROVALS = "select sentinel.expire_due_approvals(%s)"
MARK_KEYS_AT_LIMITS = "select sentinel.mark_keys_at_limits(%s, %s, %s)"
SEQUENCE_EVENTS = "select sentinel.sequence_events(%s)"

_BATCH_SIZE = 100
_PERMIT_BATCH_SIZE = 200
"""As `sentinel.run_housekeeping` has it: so few that a guard which waits for one of their budgets does not notice."""
LIMIT_MARK_SECONDS = 5
"""How long the mark lasts unless renewed: the housekeeper looks each second."""


@dataclass(frozen=True, slots=True)
class ExpiredCounts:
    """What expired in one round."""

    permits_expired: int
    approvals_expired: int
    fell_in_doubt: int


def run_housekeeping(pool: Pool, report_deadline_seconds: int, *, seconds: float = 0.7) -> ExpiredCounts:
    """Expire permits and approvals and put silent operations in doubt; further batches of permits and approvals for at most `seconds`.

    Raises `EngineUnavailable`.
    """
    until = time.monotonic() + seconds
    ids = [new_id() for _ in range(2 * _BATCH_SIZE)]
    found = call_with_retry(pool, lambda c: c.execute(RUN_HOUSEKEEPING, [report_deadline_seconds, ids]).fetchone())
    assert found is not None
    expired = ExpiredCounts(*found)
    permits, approvals = expired.permits_expired, expired.approvals_expired
    last_permits, last_approvals = permits, approvals
    while (last_permits == _PERMIT_BATCH_SIZE or last_approvals == _BATCH_SIZE) and time.monotonic() < until:
        last_permits = release_expired_permits(pool) if last_permits == _PERMIT_BATCH_SIZE else 0
        last_approvals = expire_approvals(pool, _BATCH_SIZE) if last_approvals == _BATCH_SIZE else 0
        permits, approvals = permits + last_permits, approvals + last_approvals
    return replace(expired, permits_expired=permits, approvals_expired=approvals)


def release_expired_permits(pool: Pool, most: int = _PERMIT_BATCH_SIZE) -> int:
    """Release the reservations of at most `most` expired unused permits; returns how many. One transaction."""
    found = call_with_retry(pool, lambda c: c.execute(RELEASE_EXPIRED_PERMITS, [most]).fetchone())
    return found[0] if found else 0


def expire_approvals(pool: Pool, most: int) -> int:
    """Expire at most `most` approvals whose time is over; returns how many. One transaction."""
    ids = [new_id() for _ in range(most)]
    found = call_with_retry(pool, lambda c: c.execute(EXPIRE_APPROVALS, [ids]).fetchone())
    return found[0] if found else 0


def mark_keys_at_limits(pool: Pool, most_permits: int, most_questions: int) -> int:
    """Mark the keys with as many or more open permits, or pending approvals; returns how many."""
    found = call_with_retry(
        pool, lambda c: c.execute(MARK_KEYS_AT_LIMITS, [most_permits, most_questions, LIMIT_MARK_SECONDS]).fetchone()
    )
    return found[0] if found else 0


def sequence_events(pool: Pool, most: int = 1000) -> int:
    """Give feed positions to the next `most` events, and the rest of the last one's transaction; returns how many it went through.

    After a restore that counts those that have their positions from before: 0 is returned once the restored ones are through.
    """
    found = call_with_retry(pool, lambda c: c.execute(SEQUENCE_EVENTS, [most]).fetchone())
    return found[0] if found else 0


SEQUENCE_SECONDS, HOUSEKEEPING_SECONDS = 0.15, 1.0
SEQUENCE_MOST_SECONDS = 0.7
"""How long a round goes on with positions while everything else of it waits: after a restore there may be millions to go through."""

log = structlog.get_logger("sentinel.housekeeping")


def _postponed(step: Callable[[], None]) -> str | None:
    """Why a step could not be done now; None when it was, or failed in a way that is logged here."""
    try:
        step()
    except SentinelError as error:
        return error.detail
    except Exception:
        # A step that fails must not end the thread: nothing would expire any more.
        log.exception("housekeeping_failed")
    return None


class Housekeeper(threading.Thread):
    """The housekeeping thread. `tell` is called with the counts of each run; each of `each_round` every round."""

    def __init__(
        self, authority: Authority, *, tell: Callable[[ExpiredCounts], None] = lambda expired: None,
        each_round: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        super().__init__(name="housekeeper", daemon=True)
        self._authority = authority
        self._tell = tell
        self._each_round = each_round
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Sequence events often, expire each second; wait while the database is unreachable."""
        rounds, away = 0, False
        while not self._stop_asked.wait(SEQUENCE_SECONDS):
            steps = [*self._each_round, self._sequence]
            if rounds % round(HOUSEKEEPING_SECONDS / SEQUENCE_SECONDS) == 0:
                steps += [self._authority.clock.refresh, self._mark_keys, self._expire, self._note_key_uses]
            # Each by itself: what one cannot do is no reason for another not to be done.
            causes = [cause for step in steps if (cause := _postponed(step)) is not None]
            if causes and not away:
                log.warning("housekeeping_postponed", cause=causes[0])
            away = bool(causes)
            rounds += 1

    def _sequence(self) -> None:
        until = time.monotonic() + SEQUENCE_MOST_SECONDS
        while sequence_events(self._authority.pool) >= 1000 and time.monotonic() < until:
            pass

    def _mark_keys(self) -> None:
        authority = self._authority
        mark_keys_at_limits(authority.pool, authority.open_permits_per_key, authority.open_questions_per_key)

    def _expire(self) -> None:
        self._tell(run_housekeeping(self._authority.pool, self._authority.report_deadline_seconds))

    def _note_key_uses(self) -> None:
        self._authority.key_uses.write(self._authority.pool)

    def stop(self) -> None:
        """Stop after the current round."""
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=2)
