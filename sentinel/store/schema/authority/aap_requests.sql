-- Requests of the Agent Approval Protocol: what a client submitted, its operation, and what the client did with it.

-- One tool call of one client. A request's state is its operation's state; this table has only what the operation does not.
create table sentinel.aap_requests (
  tenant_id       uuid not null,
  request_id      uuid not null,
  principal_id    uuid not null,                                           -- whose key submitted it
  idempotency_key text not null check (length(idempotency_key) <= 255),
  agent_id        text not null,
  submission      text not null,                                           -- the body, as canonical JSON; a repeat must be equal
  question        text,                                                    -- the operation to ask about, as JSON; null: there is none
  refusal         text,                                                    -- why tools.yaml does not permit the call
  reasoning       text check (length(reasoning) <= 4000),                  -- the agent's own words: shown, set apart, to people who decide
  operation_id    uuid,                                                    -- set when the operation was asked
  created_at      timestamptz not null,
  deadline_at     timestamptz not null check (deadline_at > created_at),
  cancelled_at    timestamptz,
  consume_key     text check (length(consume_key) <= 255),                 -- the key under which it may be started
  consumed_at     timestamptz,                                             -- when it was started under that key
  decided_at      timestamptz,                                             -- of the approval that was consumed
  expires_at      timestamptz,
  outcome         text check (outcome in ('succeeded', 'failed')),
  outcome_note    text,
  reported_at     timestamptz,
  primary key (tenant_id, request_id),
  constraint aap_requests_key_once unique (tenant_id, principal_id, idempotency_key),
  constraint aap_requests_consumed check ((consumed_at is null) = (expires_at is null) and (consumed_at is null) = (decided_at is null)
    and (consumed_at is null or consume_key is not null) and (outcome is null or consumed_at is not null)
    and (outcome is null) = (reported_at is null)),
  constraint aap_requests_cancelled check (cancelled_at is null or consume_key is null)
) with (fillfactor = 70);
create index aap_requests_operation on sentinel.aap_requests (tenant_id, operation_id) where operation_id is not null;
