"""Lease renewal: the rows that this process has in progress, and the heartbeat that renews their leases.

Only rows in progress are renewed, so a released row's lease expires as planned; and only for a limited time, so that another
worker can take over from a batch that never ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from worker.refunds.ledger import Ledger, LedgerUnavailable

_log = logging.getLogger("worker")

LONGEST_HOLD_SECONDS = 600.0


class LeaseKeeper:
    """The rows in progress and their leases. Thread-safe."""

    def __init__(self, ledger: Ledger, heartbeat_seconds: float) -> None:
        self._ledger, self._heartbeat_seconds = ledger, heartbeat_seconds
        self._held: dict[str, float] = {}
        self._ended = threading.Event()

    @contextmanager
    def holding(self, ids: Sequence[str]) -> Iterator[None]:
        """Renew the leases of these rows during the block."""
        now = time.monotonic()
        self._held.update(dict.fromkeys(ids, now))
        try:
            yield
        finally:
            for each in ids:
                self._held.pop(each, None)

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Renew leases during the block, in a thread of its own."""
        beating = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        beating.start()
        try:
            yield
        finally:
            self._ended.set()
            beating.join(0.2)

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_seconds):
            oldest = time.monotonic() - LONGEST_HOLD_SECONDS
            ids = [each for each, since in list(self._held.items()) if since > oldest]
            if not ids:
                continue
            try:
                self._ledger.extend(ids)
            except LedgerUnavailable as error:
                # Without renewal the leases expire and the rows go to another worker.
                _log.warning("claims could not be renewed: %s", error)
