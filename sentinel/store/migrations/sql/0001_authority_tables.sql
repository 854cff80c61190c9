-- The authority's tables. tenant_id opens every key, so that a database per tenant or a sharded one stays open.
-- Other indexes do not open with it: on a young table without statistics the planner would take one of them, by tenant
-- alone, for a row that the primary key finds, and keep that plan.
-- What is append-only has INSERT and SELECT grants only (deploy/roles.sql) and a trigger that refuses the rest.

create schema sentinel;

create table sentinel.tenants (
  tenant_id   uuid primary key,
  label       text not null check (label ~ '^[a-z0-9][a-z0-9-]{0,62}$'),   -- public name, e.g. "public-demo"
  created_at  timestamptz not null default clock_timestamp()
);

create table sentinel.operators (
  tenant_id     uuid not null references sentinel.tenants,
  operator_id   uuid not null,
  email         text not null check (email = lower(email)),
  password_hash text not null,                                             -- argon2id
  role          text not null check (role in ('viewer', 'approver', 'admin')),
  active        boolean not null default true,
  created_at    timestamptz not null default clock_timestamp(),
  primary key (tenant_id, operator_id),
  constraint operators_email_once unique (tenant_id, email)
);
create index operators_by_email on sentinel.operators (email);

create table sentinel.operator_sessions (
  tenant_id    uuid not null,
  session_hash bytea not null,                                             -- SHA-256 of the cookie's value
  operator_id  uuid not null,
  csrf_token   text not null,
  created_at   timestamptz not null default clock_timestamp(),
  last_seen_at timestamptz not null default clock_timestamp(),
  expires_at   timestamptz not null,                                       -- absolute end
  revoked_at   timestamptz,
  primary key (tenant_id, session_hash),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_sessions_by_hash on sentinel.operator_sessions (session_hash);

create table sentinel.operator_tokens (
  tenant_id   uuid not null,
  token_id    uuid not null,
  token_hash  bytea not null,
  operator_id uuid not null,
  label       text not null default '',
  created_at  timestamptz not null default clock_timestamp(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  primary key (tenant_id, token_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
create index operator_tokens_by_hash on sentinel.operator_tokens (token_hash);

-- Sign-in attempts of the last minutes, for throttling; swept by the housekeeper.
create table sentinel.sign_in_attempts (
  attempt_id   bigint generated always as identity primary key,
  account_hash bytea not null,                                             -- SHA-256 of the e-mail tried: no user list leaks
  address      text not null,
  succeeded    boolean not null,
  attempted_at timestamptz not null default clock_timestamp()
);
create index sign_in_attempts_recent on sentinel.sign_in_attempts (attempted_at);

create table sentinel.agent_keys (
  tenant_id         uuid not null references sentinel.tenants,
  key_id            uuid not null,
  principal_id      uuid not null,                                         -- who it is, the same over rotations
  key_hash          bytea not null,                                        -- SHA-256; the key itself has 178 random bits
  hint              text not null,                                         -- its first characters, to recognise it
  label             text not null default '',
  agent_id          text,                                                  -- bound to this agent, or null for any
  scopes            text[] not null,
  owner_operator_id uuid,                                                  -- who answers for it: never approves for it
  created_at        timestamptz not null default clock_timestamp(),
  expires_at        timestamptz,
  revoked_at        timestamptz,
  primary key (tenant_id, key_id),
  constraint agent_keys_hash_once unique (tenant_id, key_hash)
);
create index agent_keys_by_hash on sentinel.agent_keys (key_hash);

-- Every policy text that ever decided, by digest: what a proof pack's policy_digest means.
create table sentinel.policies (
  policy_digest  text primary key check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  policy_id      text not null,
  policy_version text not null,
  canonical      text not null,
  first_seen_at  timestamptz not null default clock_timestamp()
);

-- Identity of an operation: one exact action under one idempotency key. Append-only.
create table sentinel.operations (
  tenant_id       uuid not null,
  operation_id    uuid not null,
  idempotency_key text not null,
  principal_id    uuid not null,
  agent_id        text not null,
  action          text not null,
  resource        text not null,
  risk_class      text not null,
  digest          text not null,                                           -- of the canonical operation
  request         text not null,                                           -- the canonical operation itself
  salt            text not null,                                           -- 32 random bytes, hex: opens the commitments
  scenario        text,
  once_key        text,
  amount_minor    bigint check (amount_minor between 1 and 1000000000000),
  currency        text check ((currency is null) = (amount_minor is null)),
  created_at      timestamptz not null,
  primary key (tenant_id, operation_id),
  constraint operations_key_once unique (tenant_id, idempotency_key)
);

-- The life of an operation: the one row that moves.
create table sentinel.operation_states (
  tenant_id         uuid not null,
  operation_id      uuid not null,
  status            text not null check (status in
                      ('allowed', 'pending', 'approved', 'expired', 'denied', 'started', 'in_doubt', 'completed')),
  decision          text not null check (decision in ('ALLOW', 'APPROVAL_REQUIRED', 'DENY')),
  reason_code       text not null,
  policy_id         text not null,
  policy_version    text not null,
  policy_label      text not null,
  policy_digest     text not null,
  decision_event_id uuid not null,
  once_key          text,
  once_live         boolean not null default false,                        -- holds what may happen only once
  approval_id       uuid,
  permit_id         uuid,
  permit_expires_at timestamptz,
  start_id          uuid,
  started_at        timestamptz,
  start_event_id    uuid,
  start_hash        text,
  outcome           text check (outcome in ('success', 'error')),
  report_digest     text,
  reported_at       timestamptz,
  report_event_id   uuid,
  report_hash       text,
  in_doubt_since    timestamptz,
  in_doubt_reason   text,
  primary key (tenant_id, operation_id),
  constraint started_has_time check ((started_at is not null) = (status in ('started', 'in_doubt', 'completed'))),
  constraint permit_has_end check ((permit_id is null) = (permit_expires_at is null)),
  constraint doubt_has_reason check (status <> 'in_doubt' or in_doubt_reason is not null)
) with (fillfactor = 60);
create unique index operation_states_once on sentinel.operation_states (tenant_id, once_key) where once_live;
create index operation_states_permits on sentinel.operation_states (permit_expires_at)
  where status in ('allowed', 'approved') and permit_id is not null;
create index operation_states_started on sentinel.operation_states (started_at) where status = 'started';
create index operation_states_in_doubt on sentinel.operation_states (tenant_id, in_doubt_since) where status = 'in_doubt';

-- Budget used per limit and window part. held: reserved by live permits. captured: reported successes.
-- override_*: what a person approved above the limit; counted, but outside the cap's invariant.
create table sentinel.usage (
  tenant_id               uuid not null,
  limit_key               text not null,
  bucket                  timestamptz not null,                            -- start of the day, month or slice
  window_seconds          integer not null,                                -- 0 for a calendar window
  cap_minor               bigint not null,
  held_minor              bigint not null default 0 check (held_minor >= 0),
  captured_minor          bigint not null default 0 check (captured_minor >= 0),
  override_held_minor     bigint not null default 0 check (override_held_minor >= 0),
  override_captured_minor bigint not null default 0 check (override_captured_minor >= 0),
  primary key (tenant_id, limit_key, bucket),
  constraint usage_within_cap check (held_minor + captured_minor <= cap_minor)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- Budget held by one permit over all its limits; legs are parallel arrays in usage's key order.
create table sentinel.reservations (
  tenant_id    uuid not null,
  permit_id    uuid not null,
  operation_id uuid not null,
  subject      text not null,
  amount_minor bigint not null check (amount_minor > 0),
  limit_keys   text[] not null,
  buckets      timestamptz[] not null,
  overrides    boolean[] not null,
  state        text not null check (state in ('held', 'captured', 'released')),
  created_at   timestamptz not null,
  settled_at   timestamptz,
  primary key (tenant_id, permit_id)
) with (fillfactor = 70);
create index reservations_held on sentinel.reservations (operation_id) where state = 'held';

create table sentinel.approvals (
  tenant_id     uuid not null,
  approval_id   uuid not null,
  operation_id  uuid not null,
  principal_id  uuid not null,                                             -- who asked
  requester_operator_id uuid,                                              -- the person answering for the asking key
  agent_id      text not null,
  action        text not null,
  resource      text not null,
  amount_minor  bigint,
  currency      text,
  digest        text not null,                                             -- of the operation: what was shown is what is approved
  reasons       text[] not null,                                           -- the only reasons this approval can lift
  policy_digest text not null,
  required_role text not null check (required_role in ('approver', 'admin')),
  required_people integer not null check (required_people between 1 and 5),
  status        text not null default 'pending' check (status in ('pending', 'approved', 'rejected', 'expired')),
  created_at    timestamptz not null,
  expires_at    timestamptz not null,
  decided_at    timestamptz,
  decided_by    text,                                                      -- the deciding operators' addresses
  reason        text,
  primary key (tenant_id, approval_id),
  constraint decided_has_time check ((status = 'pending') = (decided_at is null)),
  constraint approved_in_time check (status <> 'approved' or decided_at <= expires_at)
);
create index approvals_pending on sentinel.approvals (tenant_id, expires_at) where status = 'pending';
create index approvals_decided on sentinel.approvals (tenant_id, decided_at) where decided_at is not null;
create index approvals_operation on sentinel.approvals (operation_id);

create table sentinel.approval_votes (
  tenant_id   uuid not null,
  approval_id uuid not null,
  operator_id uuid not null,
  verdict     text not null check (verdict in ('approve', 'reject')),
  reason      text not null,
  via         text not null check (via in ('console', 'local_administrator')),
  voted_at    timestamptz not null,
  primary key (tenant_id, approval_id, operator_id),                       -- one person, one voice
  foreign key (tenant_id, approval_id) references sentinel.approvals
);

-- One transition, and none without the voices it takes: who cannot vote (the authority) cannot approve either.
create function sentinel.check_approval() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' and new.status <> 'pending' or tg_op = 'UPDATE' and old.status <> 'pending' and new.status <> old.status then
    raise exception 'an approval begins pending and is decided once' using errcode = 'check_violation', constraint = 'approval_decided_once';
  end if;
  if tg_op = 'UPDATE' and old.status = 'pending' and new.status in ('approved', 'rejected') and (
      select count(*) from sentinel.approval_votes v
      where v.tenant_id = new.tenant_id and v.approval_id = new.approval_id
        and v.verdict = case new.status when 'approved' then 'approve' else 'reject' end
    ) < (case new.status when 'approved' then new.required_people else 1 end) then
    raise exception 'an approval needs the voices of its people' using errcode = 'check_violation', constraint = 'approval_has_voices';
  end if;
  return new;
end $$;
create trigger check_approval before insert or update on sentinel.approvals
  for each row execute function sentinel.check_approval();

create table sentinel.halts (
  tenant_id uuid not null,                                                 -- the nil uuid for a global halt
  halt_id   uuid not null,
  scope     text not null check (scope in ('global', 'tenant', 'agent', 'action', 'scenario')),
  target    text not null default '',
  level     text not null default 'kill' check (level in ('pause', 'kill')),
  reason    text not null,
  set_by    text not null,
  set_at    timestamptz not null,
  lifted_by text,
  lifted_at timestamptz,
  primary key (tenant_id, halt_id),
  constraint lifted_by_someone check ((lifted_at is null) = (lifted_by is null)),
  constraint target_fits_scope check ((target = '') = (scope in ('global', 'tenant')))
);
create unique index halts_in_force on sentinel.halts (tenant_id, scope, target) where lifted_at is null;

-- Evidence: one row per decision, start, outcome, approval and halt; canonical body and its hash. Append-only.
-- transaction_id lets the sequencer hand out positions in an order without gaps, outside the hot transaction.
create table sentinel.events (
  tenant_id      uuid not null,
  event_id       uuid not null,
  kind           text not null,
  operation_id   uuid,
  agent_id       text,
  body           text not null,
  hash           text not null,
  occurred_at    timestamptz not null,
  transaction_id xid8 not null default pg_current_xact_id(),
  primary key (tenant_id, event_id)
);
create index events_operation on sentinel.events (operation_id);
create index events_transaction on sentinel.events (transaction_id, event_id);

-- Position of each event within its tenant, 1, 2, 3, … : what readers poll and streams resume from.
create table sentinel.feed (
  tenant_id uuid not null,
  position  bigint not null check (position > 0),
  event_id  uuid not null,
  primary key (tenant_id, position),
  constraint feed_event_once unique (tenant_id, event_id)
);

create table sentinel.feed_heads (
  tenant_id uuid primary key,
  position  bigint not null
);

create table sentinel.sequencer (
  only_row       boolean primary key default true check (only_row),
  transaction_id xid8 not null
);
insert into sentinel.sequencer (transaction_id) values ('0');

-- Reports of actions that were only checked, not guarded (the partner of action/check).
create table sentinel.check_reports (
  tenant_id   uuid not null,
  request_id  text not null,
  digest      text not null,
  event_id    uuid not null,
  received_at timestamptz not null,
  primary key (tenant_id, request_id)
);

create function sentinel.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;

create trigger append_only before update or delete or truncate on sentinel.events
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.operations
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.feed
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.approval_votes
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.check_reports
  for each statement execute function sentinel.refuse_change();
create trigger append_only before update or delete or truncate on sentinel.policies
  for each statement execute function sentinel.refuse_change();

-- What the public board may read: decisions only, as proof packs; the feed adds their position.
-- A pack's proof_id is "pf_" and its event's id in hex: 74 random bits, so that holding one is having been given it.
create view sentinel.public_proofs as
  select tenant_id, event_id, agent_id, body, hash, occurred_at from sentinel.events where kind = 'decision';

create view sentinel.public_feed as
  select f.tenant_id, f.position, e.event_id, e.agent_id, e.body, e.hash, e.occurred_at
  from sentinel.feed f join sentinel.events e using (tenant_id, event_id)
  where e.kind = 'decision';

create view sentinel.public_tenants as select tenant_id, label from sentinel.tenants;
