"""What time does by itself: permits and approvals run out, silent operations fall in doubt, events get positions.

Any process may do it at any moment; the database lets one at a time and skips what others hold. When keys were used each
process writes for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from sentinel.authority.engine import Authority
from sentinel.authority.housekeeping import House, keep_house, mark_crowded_keys, sequence_events
from sentinel.core.errors import SentinelError

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
