-- Workers: their heartbeats, their cursors, and what operators ask of them.

-- The worker's processes, and when each was last seen.
create table refunds.workers (
  tenant_id     uuid not null default refunds.default_tenant(),
  worker_id     text not null,                                             -- one process
  agent_id      text not null,
  mode          text not null check (mode in ('loop', 'once')),
  status        text not null check (status in ('running', 'stopped', 'authority_unreachable')),
  last_action   text,                                                      -- of the last decided row
  last_decision text,
  last_seen_at  timestamptz not null default clock_timestamp(),            -- heartbeat
  primary key (tenant_id, worker_id)
);

-- The moment since which people's decisions may still matter to waiting rows; earlier ones have been handled.
create table refunds.approval_cursors (
  tenant_id uuid not null,
  agent_id  text not null,
  since     timestamptz not null,
  primary key (tenant_id, agent_id)
);

-- An operator's request that a running worker process one entry now; the worker stores the result here.
create table refunds.process_requests (
  tenant_id    uuid not null,
  request_id   uuid not null,
  requested_by text not null,                                              -- the operator
  requested_at timestamptz not null default clock_timestamp(),
  claimed_by   text,                                                       -- the worker that took it
  lease_until  timestamptz,
  finished_at  timestamptz,
  result       jsonb,                                                      -- the result as shown to the operator
  primary key (tenant_id, request_id)
);
create index process_requests_open on refunds.process_requests (tenant_id, requested_at) where finished_at is null;
