"""The pauses after failures: of the mechanism, and of each outbox that has them."""

from __future__ import annotations

import pytest

from sentinel.export import deliveries
from sentinel.platform.backoff import Backoff
from worker import notify
from worker.orders import alerts, transitions


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (deliveries.BACKOFF, [5, 10, 20, 40, 3600, 3600]),
        (notify.BACKOFF, [15, 30, 60, 120, 3600, 3600]),
        (alerts.BACKOFF, [5, 10, 20, 40, 3600, 3600]),
        (transitions.BACKOFF, [2, 4, 8, 16, 300, 300]),
        (transitions.BACKOFF_IN_SILENCE, [2, 4, 8, 16, 48, 48]),
    ],
)
def test_pauses_double_from_the_first_to_the_longest(backoff: Backoff, pauses: list[float]) -> None:
    assert [backoff.pause_seconds(failed_before) for failed_before in (0, 1, 2, 3, 10, 10**6)] == pauses
    assert [backoff.pause_seconds(2, spread) for spread in (0.5, 1.0)] == [pauses[2] * 1.125, pauses[2] * 1.25]
