-- Figures for the console's first page.

-- Sampled figures for the charts of the last hour; not evidence.
create table sentinel.gauge_samples (
  tenant_id              uuid not null,
  taken_at               timestamptz not null,
  oldest_waiting_seconds double precision not null check (oldest_waiting_seconds >= 0),
  in_doubt               integer not null check (in_doubt >= 0),           -- operations
  halts                  integer not null check (halts >= 0),              -- in force
  worker_lag_seconds     double precision check (worker_lag_seconds >= 0), -- null: the ledger did not answer
  primary key (tenant_id, taken_at)
);
