"""The authority's Prometheus metrics. Correct over several processes when PROMETHEUS_MULTIPROC_DIR is set before this is imported.

Labels come from closed sets: an action is counted under its name or pattern in a policy, and as "other" if no policy
covers it, so that a caller cannot create series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentinel.core.errors import SentinelError
from sentinel.store.database import Pool
from sentinel.store.ids import CLOCK_SKEW, first_id_at
from sentinel.store.loop_connections import LoopConnections
from sentinel.store.queries import one_row

DECISIONS = Counter("sentinel_decisions", "Decisions recorded, replays not counted.", ["action", "decision", "reason"])
REPLAYS = Counter("sentinel_replays", "Guard calls answered with the recorded decision.")


class BatchHistogram(Histogram):
    """A histogram without labels that takes many observations at once.

    With PROMETHEUS_MULTIPROC_DIR every single observation costs two system calls.
    """

    def observe_all(self, values: Sequence[float]) -> None:
        """Observe each value, with the same result as `observe` for each."""
        self._sum.inc(sum(values))
        for place, count in Counts(bisect_left(self._upper_bounds, value) for value in values).items():
            self._buckets[place].inc(count)


GUARD_SECONDS = BatchHistogram(
    "sentinel_guard_seconds", "Seconds from a guard request's arrival to its committed answer.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)  # fmt: skip
UNAVAILABLE = Counter("sentinel_engine_unavailable", "503 answers because nothing could be committed.")
RATE_LIMITED = Counter("sentinel_rate_limited", "Requests refused by the rate limit.")
POLICY_RELOADS = Counter(
    "sentinel_policy_reloads", "Policy reloads by result: loaded, or kept the last good set.", ["result"]
)
for _result in ("loaded", "kept_last_good"):
    # Create the series at zero: a rate over a series that begins with its first event does not count that event.
    POLICY_RELOADS.labels(_result)
POLICIES_NOT_IN_FORCE = Gauge(
    "sentinel_policies_not_in_force",
    "Policies in which this authority differs from the one that loaded its policies last: it was not reloaded. Alert on any.",
    multiprocess_mode="livemax",
)
HOUSEKEEPING = Counter("sentinel_housekeeping", "Rows that housekeeping changed, by what happened to them.", ["what"])
CHECKPOINT_FAILURES = Counter(
    "sentinel_checkpoint_failures",
    "Minutes without a checkpoint: its file cannot be written, or recorded events have changed.",
)
KEYS_TAKEN = Counter(
    "sentinel_keys_taken",
    "Guard requests for a ledger row or an order that were refused because another API key had used their idempotency key: alert on any.",
)
POOL_IN_USE = Gauge("sentinel_pool_in_use", "Database connections in use.", multiprocess_mode="livesum")
POOL_SIZE = Gauge("sentinel_pool_size", "Maximum number of database connections.", multiprocess_mode="livesum")
STREAMS = Gauge("sentinel_approval_streams", "Open approvals streams.", multiprocess_mode="livesum")


def note_connections(*pools: Pool | LoopConnections) -> None:
    """Set the gauges of this process's database connections.

    Call it periodically in every process: a scrape sums what each process set last.
    """
    POOL_IN_USE.set(sum(one.in_use for one in pools))
    POOL_SIZE.set(sum(one.size for one in pools))


class DatabaseGauges(Collector):
    """Gauges that are read from the database at each scrape."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges; only `sentinel_database_up 0` while the database does not answer."""
        try:
            found: DatabaseFigures | None = read_figures(self._pool)
        except SentinelError:
            found = None
        yield GaugeMetricFamily(
            "sentinel_database_up", "1 when the database answered this scrape.", float(found is not None)
        )
        if found is None:
            return
        yield GaugeMetricFamily("sentinel_reservations_held", "Reservations held.", found.reservations_held)
        yield GaugeMetricFamily(
            "sentinel_in_doubt", "Operations in doubt: started, with an unknown outcome.", found.in_doubt
        )
        yield GaugeMetricFamily(
            "sentinel_contradictions",
            "Successes reported after a person said not executed, not yet resolved: alert on any.",
            found.contradictions,
        )
        yield GaugeMetricFamily(
            "sentinel_approvals_pending",
            f"Pending approvals; of each tenant, at most {MOST_COUNTED:,} are counted.",
            found.approvals_pending,
        )
        yield GaugeMetricFamily(
            "sentinel_approvals_oldest_seconds",
            "Age of the oldest of the counted pending approvals.",
            found.approvals_oldest_seconds,
        )
        yield GaugeMetricFamily("sentinel_halts_in_force", "Halts in force.", found.halts_in_force)
        yield GaugeMetricFamily(
            "sentinel_breaker_halts_in_force", "Halts in force that a velocity breaker set.", found.breaker_halts
        )
        yield GaugeMetricFamily(
            "sentinel_feed_lag_seconds",
            "Age of the oldest event without a feed position: alert where it stays above a minute.",
            found.feed_lag_seconds,
        )
        yield GaugeMetricFamily(
            "sentinel_codes_guessed",
            "Operators whose correct password came with wrong codes repeatedly in the last hour: alert on any.",
            found.codes_guessed,
        )


MOST_COUNTED = 20_000
"""How many pending approvals of each tenant are counted and searched for the oldest: those that expire first."""
FIGURES = """
select
  (select count(*) from sentinel.operation_states
   where reservation = 'held' and (status in ('allowed', 'approved') and permit_id is not null or status = 'started' or status = 'in_doubt')) as reservations_held,
  (select count(*) from sentinel.operation_states where status = 'in_doubt') as in_doubt,
  (select count(*) from sentinel.operation_states where status = 'in_doubt' and in_doubt_reason = 'contradiction') as contradictions,
  pending.approvals_pending, pending.approvals_oldest_seconds,
  (select count(*) from sentinel.halts where lifted_at is null) as halts_in_force,
  (select count(*) from sentinel.halts where lifted_at is null and breaker_key is not null) as breaker_halts,
  -- The first past the mark and no more, however many wait. What was restored from another cluster may be past it too, with its position.
  coalesce((select extract(epoch from clock_timestamp() - e.occurred_at) from sentinel.event_rows e
     where e.transaction_id > (select coalesce(restart_at, transaction_id) from sentinel.sequencer)
       and e.transaction_id < pg_snapshot_xmax(pg_current_snapshot())
       and not exists (select from sentinel.feed f where f.tenant_id = e.tenant_id and f.event_id = e.event_id offset 0)
     order by e.transaction_id limit 1), 0)::float as feed_lag_seconds,
  (select count(*) from sentinel.events e
     where e.kind = 'operator_code_guessed' and e.kind not in ('decision', 'start', 'outcome') and e.event_id >= %(recent)s
       and e.occurred_at > clock_timestamp() - interval '1 hour') as codes_guessed
from (
  select count(*) as approvals_pending,
    coalesce(extract(epoch from clock_timestamp() - min(looked.created_at)), 0)::float as approvals_oldest_seconds
  from sentinel.tenants t cross join lateral (
    select a.created_at from sentinel.approvals a where a.tenant_id = t.tenant_id and a.status = 'pending'
    order by a.expires_at limit %(most)s) looked) pending
"""


@dataclass(frozen=True, slots=True)
class DatabaseFigures:
    """Counts over all tenants, with at most `MOST_COUNTED` pending approvals per tenant; ages in seconds."""

    reservations_held: int
    in_doubt: int
    contradictions: int
    approvals_pending: int
    approvals_oldest_seconds: float
    halts_in_force: int
    breaker_halts: int
    feed_lag_seconds: float
    codes_guessed: int


def read_figures(pool: Pool) -> DatabaseFigures:
    """Read the current figures. Raises `EngineUnavailable`."""
    fields = {"most": MOST_COUNTED, "recent": first_id_at(datetime.now(UTC) - timedelta(hours=1) - CLOCK_SKEW)}
    found = one_row(pool, DatabaseFigures, FIGURES, fields)
    assert found is not None
    return found
