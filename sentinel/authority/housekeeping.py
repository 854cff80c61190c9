"""The housekeeper's statements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from sentinel.authority.engine import Authority
from sentinel.core.errors import SentinelError
from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call
from sentinel.store.ids import new_id

KEEP_HOUSE = "select permits_expired, approvals_expired, fell_in_doubt from sentinel.keep_house(%s, %s)"
RELEASE_RUN_OUT = "select sentinel.release_run_out(%s)"
MARK_CROWDED_KEYS = "select sentinel.mark_crowded_keys(%s, %s)"
SEQUENCE_EVENTS = "select sentinel.sequence_events(%s)"

_AT_ONCE = 100
_PERMITS_AT_ONCE = 200
"""As `sentinel.keep_house` has it: so few that a guard which waits for one of their budgets does not notice."""
CROWDED_SECONDS = 5
"""How long a key counts as crowded unless it is found so again: the housekeeper looks each second."""


@dataclass(frozen=True, slots=True)
class House:
    """What ran out in one round."""

    permits_expired: int
    approvals_expired: int
    fell_in_doubt: int


def keep_house(pool: Pool, report_deadline_seconds: int, *, seconds: float = 0.7) -> House:
    """Expire permits and approvals and put silent operations in doubt; more permits for so many `seconds` at most.

    Raises `EngineUnavailable`.
    """
    until = time.monotonic() + seconds
    ids = [new_id() for _ in range(2 * _AT_ONCE)]
    found = in_one_call(pool, lambda c: c.execute(KEEP_HOUSE, [report_deadline_seconds, ids]).fetchone())
    assert found is not None
    house = House(*found)
    permits, last = house.permits_expired, house.permits_expired
    while last == _PERMITS_AT_ONCE and time.monotonic() < until:
        last = release_run_out(pool)
        permits += last
    return replace(house, permits_expired=permits)


def release_run_out(pool: Pool, most: int = _PERMITS_AT_ONCE) -> int:
    """Give back what at most `most` permits that ran out unused hold; how many did. One transaction."""
    found = in_one_call(pool, lambda c: c.execute(RELEASE_RUN_OUT, [most]).fetchone())
    return found[0] if found else 0


def mark_crowded_keys(pool: Pool, most: int) -> int:
    """Note the keys that have `most` permits out, or more; how many there are."""
    found = in_one_call(pool, lambda c: c.execute(MARK_CROWDED_KEYS, [most, CROWDED_SECONDS]).fetchone())
    return found[0] if found else 0


def sequence_events(pool: Pool, most: int = 1000) -> int:
    """Give feed positions to at most `most` events; how many got one."""
    found = in_one_call(pool, lambda c: c.execute(SEQUENCE_EVENTS, [most]).fetchone())
    return found[0] if found else 0


SEQUENCE_SECONDS, HOUSE_SECONDS = 0.15, 1.0

log = structlog.get_logger("sentinel.house")


class Housekeeper(threading.Thread):
    """Keeps house until stopped. `tell` is called with the counts when something happened; `each_round` every round."""

    def __init__(
        self, authority: Authority, *, tell: Callable[[House], None] = lambda house: None,
        each_round: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(name="housekeeper", daemon=True)
        self._authority = authority
        self._tell = tell
        self._each_round = each_round
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Sequence often, keep house each second; a database that is away is only waited for."""
        rounds, away = 0, False
        while not self._stop_asked.wait(SEQUENCE_SECONDS):
            try:
                self._each_round()
                while sequence_events(self._authority.pool) >= 1000:
                    pass
                if rounds % round(HOUSE_SECONDS / SEQUENCE_SECONDS) == 0:
                    self._authority.clock.ask()
                    mark_crowded_keys(self._authority.pool, self._authority.open_permits_per_key)
                    self._tell(keep_house(self._authority.pool, self._authority.report_deadline_seconds))
                    self._authority.key_uses.write(self._authority.pool)
                away = False
            except SentinelError as error:
                if not away:
                    log.warning("housekeeping_waits", cause=error.detail)
                away = True
            except Exception:
                # Nobody would notice that time stands still: what one round breaks on, the next may not.
                log.exception("housekeeping_failed")
            rounds += 1

    def stop(self) -> None:
        """Ask it to end and wait for the round in hand."""
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=2)
