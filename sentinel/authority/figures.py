"""A few counts for metrics and health, in one query each."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from sentinel.store.database import Pool
from sentinel.store.failures import in_one_call

FIGURES = """
select
  (select count(*) from sentinel.reservations where state = 'held') as reservations_held,
  (select count(*) from sentinel.operation_states where status = 'in_doubt') as in_doubt,
  (select count(*) from sentinel.operation_states where status = 'in_doubt' and in_doubt_reason = 'contradiction') as contradictions,
  (select count(*) from sentinel.approvals where status = 'pending') as approvals_pending,
  (select coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::float
     from sentinel.approvals where status = 'pending') as approvals_oldest_seconds,
  (select count(*) from sentinel.halts where lifted_at is null) as halts_in_force,
  (select count(*) from sentinel.halts where lifted_at is null and breaker_key is not null) as breaker_halts,
  (select coalesce(extract(epoch from clock_timestamp() - min(e.occurred_at)), 0)::float from sentinel.events e
     where e.transaction_id >= (select transaction_id from sentinel.sequencer)
       and not exists (select from sentinel.feed f where f.tenant_id = e.tenant_id and f.event_id = e.event_id)) as feed_lag_seconds
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts over all tenants; ages in seconds."""

    reservations_held: int
    in_doubt: int
    contradictions: int
    approvals_pending: int
    approvals_oldest_seconds: float
    halts_in_force: int
    breaker_halts: int
    feed_lag_seconds: float


def read_figures(pool: Pool) -> Figures:
    """The figures now. Raises `EngineUnavailable`."""

    def call(connection: object) -> Figures:
        with connection.cursor(row_factory=class_row(Figures)) as cursor:  # type: ignore[attr-defined]
            found: Figures = cursor.execute(FIGURES).fetchone()
            return found

    return in_one_call(pool, call)
