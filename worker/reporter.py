"""Reports to the authority: sent from the outbox until acknowledged. Sending one twice is harmless, forgetting one is not."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import orjson

from sentinel.client import Client, KeyConflict, Rejected, Unreachable
from worker.crew import Crew
from worker.failpoints import Failpoint, Failpoints
from worker.ledger import Ledger
from worker.next_steps import Patience
from worker.rows import Report

_CONTRADICTED = (400, 409, 422)
"""Refused for what it says: another try says the same, so a person must look."""

SWEEP = 128


class Reporter:
    """Delivers reports and keeps book about it."""

    def __init__(self, ledger: Ledger, client: Client, crew: Crew, patience: Patience, failpoints: Failpoints) -> None:
        self._ledger, self._client, self._crew = ledger, client, crew
        self._patience, self._failpoints = patience, failpoints

    def deliver(self, reports: Sequence[Report]) -> int:
        """Send and acknowledge; returns how many were received. What failed stays in the outbox."""
        failures = {
            report.outbox_id: failure
            for report, failure in zip(reports, self._crew.map(self._send, reports), strict=True)
            if failure is not None
        }
        received = [report.outbox_id for report in reports if report.outbox_id not in failures]
        self._ledger.acknowledge(received)
        self._ledger.postpone_reports(failures)
        if received:
            self._failpoints.hit(Failpoint.AFTER_ACK)
        return len(received)

    def sweep(self, *, older_than_seconds: float) -> int:
        """Send what is open and due. Stops at the first round in which nothing was received."""
        total = 0
        while reports := self._ledger.take_reports(
            SWEEP, retry_seconds=self._patience.pause_seconds(3), older_than_seconds=older_than_seconds
        ):
            received = self.deliver(reports)
            total += received
            if not received or len(reports) < SWEEP:
                break
        return total

    def _send(self, report: Report) -> tuple[str, float | None] | None:
        """None when received, else (what happened, seconds until the next try or None)."""
        self._failpoints.hit(Failpoint.BEFORE_REPORT)
        try:
            self._client.report(**orjson.loads(report.payload))
        except Unreachable as error:
            return error.detail[:500], self._patience.pause_seconds(report.attempts, error.retry_after_seconds or 0.0)
        except KeyConflict as error:
            return error.detail[:500], None
        except Rejected as error:
            refused_for_good = error.status in _CONTRADICTED
            return error.detail[:500], None if refused_for_good else self._patience.pause_seconds(report.attempts)
        self._failpoints.hit(Failpoint.AFTER_REPORT)
        return None


def report_id() -> uuid.UUID:
    """A new report's id; the authority recognises a repeated report by its content, people by this."""
    return uuid.uuid4()
