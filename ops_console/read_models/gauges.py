"""Samples of each tenant's state over the last hour, taken by a console, for the overview's charts and nothing else.

These figures cannot be computed afterwards from other tables: an operation that is no longer in doubt, for example,
does not keep the time since when it was.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sentinel.authority import approval_queue
from sentinel.store.database import Pool
from sentinel.store.queries import all_rows, changed

HOUR_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class WorkerLag:
    """How many seconds the tenant's oldest due ledger entry, which its worker has not begun, is late."""

    tenant_id: uuid.UUID
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A tenant's state `seconds_ago`: the age of its oldest pending approval (of those that are counted), operations in
    doubt, halts in force, and its worker's lag; in seconds, the lag None if the ledger did not answer."""

    seconds_ago: float
    oldest_waiting_seconds: float
    in_doubt: int
    halts: int
    worker_lag_seconds: float | None


WORKER_LAGS = """
select tenant_id, greatest(extract(epoch from statement_timestamp() - min(next_attempt_at)), 0)::double precision as seconds
from refunds.ledger_entries where status = 'NEW' and next_attempt_at <= statement_timestamp() group by tenant_id
"""
# Several consoles may sample: one that comes soon after another adds nothing. A global halt counts for every tenant.
TAKE = """
with over as (delete from sentinel.gauge_samples where taken_at < statement_timestamp() - make_interval(secs => %(kept_seconds)s)),
wanted as (
  select t.tenant_id from sentinel.tenants t
  where not exists (select from sentinel.gauge_samples s where s.tenant_id = t.tenant_id
                    and s.taken_at > statement_timestamp() - make_interval(secs => %(apart_seconds)s)))
insert into sentinel.gauge_samples (tenant_id, taken_at, oldest_waiting_seconds, in_doubt, halts, worker_lag_seconds)
select w.tenant_id, statement_timestamp(),
  greatest(coalesce(extract(epoch from statement_timestamp() - a.oldest_at), 0), 0), coalesce(d.operations, 0),
  coalesce(h.halts, 0) + (select count(*) from sentinel.halts g where g.lifted_at is null and g.scope = 'global'),
  case when %(lags_known)s then coalesce(l.seconds, 0) end
from wanted w
left join lateral (
  select min(few.created_at) as oldest_at from (
    select p.created_at from sentinel.approvals p
    where p.tenant_id = w.tenant_id and p.status = 'pending' and p.expires_at > statement_timestamp()
    order by p.expires_at limit %(most_counted)s) few) a on true
left join (select tenant_id, count(*) as operations from sentinel.operation_states
           where status = 'in_doubt' group by tenant_id) d using (tenant_id)
left join (select tenant_id, count(*) as halts from sentinel.halts
           where lifted_at is null and scope <> 'global' group by tenant_id) h using (tenant_id)
left join unnest(%(lag_tenants)s::uuid[], %(lag_seconds)s::double precision[]) l(tenant_id, seconds) using (tenant_id)
on conflict do nothing
"""
LAST_HOUR = """
select extract(epoch from statement_timestamp() - taken_at)::double precision as seconds_ago,
  oldest_waiting_seconds, in_doubt, halts, worker_lag_seconds
from sentinel.gauge_samples
where tenant_id = %(tenant_id)s and taken_at > statement_timestamp() - make_interval(secs => %(seconds)s) order by taken_at
"""


def worker_lags(ledger: Pool) -> list[WorkerLag]:
    """The lag of each tenant that has due entries; `ledger` is the ledger's pool. Raises `EngineUnavailable`."""
    return all_rows(ledger, WorkerLag, WORKER_LAGS)


def take_samples(pool: Pool, lags: list[WorkerLag] | None, *, apart_seconds: float) -> int:
    """Sample every tenant without a sample in the last `apart_seconds`; return how many. `lags` None: the ledger did not answer."""
    return changed(pool, TAKE, {
        "apart_seconds": apart_seconds, "kept_seconds": 2 * HOUR_SECONDS, "lags_known": lags is not None,
        "most_counted": approval_queue.MOST_COUNTED,
        "lag_tenants": [one.tenant_id for one in lags or ()], "lag_seconds": [one.seconds for one in lags or ()],
    })  # fmt: skip


def last_hour(pool: Pool, tenant_id: uuid.UUID) -> list[Sample]:
    """The tenant's samples of the last hour, oldest first."""
    return all_rows(pool, Sample, LAST_HOUR, {"tenant_id": tenant_id, "seconds": HOUR_SECONDS})
