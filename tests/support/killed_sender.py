"""A sender that kills itself (SIGKILL) at its nth step: `python -m tests.support.killed_sender N`, with the sender's settings.

A step is anything that it says to the database or to a receiver; it dies before the odd ones happen and after the even ones did.
Exits with 0 when there is nothing left to send and it lived so long.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sentinel.export.build import make_sender
from sentinel.export.settings import load_export_settings
from sentinel.store.database import EXPORTER, Pool, with_role

STEPS = ("claim", "events_after", "advance", "fail", "release", "take_resend", "mark")


class Steps:
    """Counts, and kills this process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.fatal, self.taken = fatal, 0

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step, before and after which this process may end."""

        def counted(*given: Any, **named: Any) -> Any:
            self._count()
            found = step(*given, **named)
            self._count()
            return found

        return counted

    def _count(self) -> None:
        self.taken += 1
        if self.taken == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Send until nothing is left, or until the nth step."""
    settings = load_export_settings()
    pool = Pool(with_role(settings.database_url, EXPORTER), size=1)
    sender, steps = make_sender(settings, pool), Steps(int(sys.argv[1]))
    for name in STEPS:
        setattr(sender._deliveries, name, steps.around(getattr(sender._deliveries, name)))
    for receiver in sender._receivers.values():
        object.__setattr__(receiver, "client", _Counted(receiver.client, steps))  # type: ignore[attr-defined]
    while sender.round():
        pass
    pool.close()


class _Counted:
    """The outbound client, each of whose requests is a step."""

    def __init__(self, client: Any, steps: Steps) -> None:
        self.exchange = steps.around(client.exchange)


if __name__ == "__main__":
    main()
