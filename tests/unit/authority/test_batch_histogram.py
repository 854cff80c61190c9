"""A histogram that takes the observations of a whole commit says what one says that takes each alone."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from sentinel.authority.metrics import BatchHistogram

BUCKETS = (0.001, 0.01, 1.0)
SECONDS = (0.0, 0.001, 0.0010001, 0.01, 0.5, 1.0, 7.0, 0.0)


def exposed(kind: type[Histogram], batches: Iterable[tuple[float, ...]]) -> list[bytes]:
    registry = CollectorRegistry()
    histogram = kind("seconds", "How long.", buckets=BUCKETS, registry=registry)
    for batch in batches:
        if isinstance(histogram, BatchHistogram):
            histogram.observe_all(batch)
        else:
            for one in batch:
                histogram.observe(one)
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


def test_a_batch_is_counted_as_its_observations_one_by_one() -> None:
    batches = [SECONDS, (), (0.25,)]
    assert exposed(BatchHistogram, batches) == exposed(Histogram, batches)
