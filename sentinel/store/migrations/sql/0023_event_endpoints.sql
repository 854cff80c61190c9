-- Where events go: the receivers of a tenant's events, how far each is in the feed, and what could not be delivered.

-- A receiver. `position` and `global_position` are its cursor: each event up to them is delivered, not asked for, or a dead letter.
-- Signing secrets are not here: the sender derives them from its own setting (sentinel/export/signing_secrets.py).
create table sentinel.event_endpoints (
  tenant_id        uuid not null references sentinel.tenants,
  endpoint_id      uuid not null,
  kind             text not null check (kind in ('webhook', 'decision_log', 'slack', 'mail')),
  url              text check (length(url) <= 2000),                       -- of a webhook; the others' addresses are the sender's settings
  event_types      text[] not null default '{}',                           -- what is sent; empty: every type
  secret_number    integer not null default 1 check (secret_number > 0),   -- of the signing secret; a rotation counts up
  old_secret_until timestamptz,                                            -- until then the secret before it signs too
  position         bigint not null,                                        -- in the tenant's feed
  global_position  bigint not null,                                        -- in the feed of what concerns every tenant
  epoch            integer not null default 0,                             -- of the sender's claim: who has an earlier one moves nothing
  lease_until      timestamptz not null default clock_timestamp(),
  attempts         integer not null default 0,                             -- in vain, of the event behind the cursor
  first_failed_at  timestamptz,
  next_attempt_at  timestamptz not null default clock_timestamp(),
  last_error       text check (length(last_error) <= 200),
  delivered_at     timestamptz,                                            -- of the latest delivery
  disabled_at      timestamptz,
  disabled_reason  text check (disabled_reason in ('administrator', 'gone')), -- gone: it answered 410
  created_at       timestamptz not null default clock_timestamp(),
  primary key (tenant_id, endpoint_id),
  constraint event_endpoints_address check ((kind = 'webhook') = (url is not null)),
  constraint event_endpoints_disabled check ((disabled_at is null) = (disabled_reason is null)),
  constraint event_endpoints_failing check ((attempts = 0) = (first_failed_at is null))
) with (fillfactor = 50);
create unique index event_endpoints_of_settings on sentinel.event_endpoints (kind, tenant_id) where kind <> 'webhook';

-- An event that its receiver did not take within the time allowed. The cursor is past it; a person may have it sent again.
create table sentinel.dead_letters (
  tenant_id       uuid not null,
  endpoint_id     uuid not null,
  event_id        uuid not null,
  feed_tenant_id  uuid not null,                                           -- whose feed the position is in: the tenant's, or the nil uuid
  position        bigint not null,
  attempts        integer not null,
  last_error      text not null check (length(last_error) <= 200),
  died_at         timestamptz not null default clock_timestamp(),
  resend_asked_at timestamptz,                                             -- null: nobody asks for another try now
  resend_asked_by text,
  lease_until     timestamptz not null default clock_timestamp(),          -- of the try that somebody asked for
  delivered_at    timestamptz,
  primary key (tenant_id, endpoint_id, event_id),
  foreign key (tenant_id, endpoint_id) references sentinel.event_endpoints,
  constraint dead_letters_asked_by check ((resend_asked_at is null) or resend_asked_by is not null),
  constraint dead_letters_delivered_once check (delivered_at is null or resend_asked_at is null)
) with (fillfactor = 70);
create index dead_letters_open on sentinel.dead_letters (died_at, tenant_id) where delivered_at is null;
create index dead_letters_asked on sentinel.dead_letters (resend_asked_at) where resend_asked_at is not null;

-- Replaced by its present text when the scripts are through.
create function sentinel.check_endpoint() returns trigger language plpgsql as $$ begin return new; end $$;

create trigger check_endpoint before update on sentinel.event_endpoints for each row execute function sentinel.check_endpoint();
create trigger never_forgotten before delete or truncate on sentinel.event_endpoints
  for each statement execute function sentinel.refuse_change();
create trigger never_forgotten before delete or truncate on sentinel.dead_letters
  for each statement execute function sentinel.refuse_change();
