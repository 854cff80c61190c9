-- Where events are sent: the receivers of a tenant's events, how far each is in the feed, and the events that could not be delivered.

-- A receiver. `position` and `global_position` are its cursor: every event up to them was delivered, is of a type that the receiver does
-- not get, or is a dead letter.
-- Signing secrets are not here: the sender derives them from its own setting (sentinel/export/signing_secrets.py).
create table sentinel.event_endpoints (
  tenant_id        uuid not null references sentinel.tenants,
  endpoint_id      uuid not null,
  kind             text not null check (kind in ('webhook', 'decision_log', 'slack', 'mail')),
  url              text check (length(url) <= 2000),                       -- of a webhook; other addresses are settings of the sender
  event_types      text[] not null default '{}',                           -- the types that are sent; empty: all
  secret_number    integer not null default 1 check (secret_number > 0),   -- of the signing secret; each rotation adds 1
  old_secret_until timestamptz,                                            -- until then the previous secret signs too
  position         bigint not null,                                        -- in the tenant's feed
  global_position  bigint not null,                                        -- in the feed of events that concern all tenants
  epoch            integer not null default 0,                             -- of the sender's claim; writes of an earlier one are refused
  lease_until      timestamptz not null default clock_timestamp(),
  attempts         integer not null default 0,                             -- failed deliveries of the next event
  first_failed_at  timestamptz,
  next_attempt_at  timestamptz not null default clock_timestamp(),
  last_error       text check (length(last_error) <= 200),
  delivered_at     timestamptz,                                            -- of the latest delivery
  disabled_at      timestamptz,
  disabled_reason  text check (disabled_reason in ('administrator', 'gone', 'setting')), -- gone: it answered 410; setting: no sender has it
  created_at       timestamptz not null default clock_timestamp(),
  served_at        timestamptz not null default clock_timestamp(),         -- when a sender last had its address as a setting
  primary key (tenant_id, endpoint_id),
  constraint event_endpoints_address check ((kind = 'webhook') = (url is not null)),
  constraint event_endpoints_disabled check ((disabled_at is null) = (disabled_reason is null)),
  constraint event_endpoints_failing check ((attempts = 0) = (first_failed_at is null))
) with (fillfactor = 50);
create unique index event_endpoints_of_settings on sentinel.event_endpoints (kind, tenant_id) where kind <> 'webhook';

-- An event that its receiver did not accept within the time allowed. The cursor is past it; a person may have it sent again, or discard it.
create table sentinel.dead_letters (
  tenant_id       uuid not null,
  endpoint_id     uuid not null,
  event_id        uuid not null,
  feed_tenant_id  uuid not null,                                           -- the feed of the position: the tenant's, or the nil uuid
  position        bigint not null,
  attempts        integer not null,
  last_error      text not null check (length(last_error) <= 200),
  died_at         timestamptz not null default clock_timestamp(),
  resend_asked_at timestamptz,                                             -- null: no retry is requested
  resend_asked_by text,
  lease_until     timestamptz not null default clock_timestamp(),          -- of the requested retry
  delivered_at    timestamptz,
  discarded_at    timestamptz,                                             -- by a person: it is not delivered any more
  discarded_by     text,
  discarded_reason text check (length(discarded_reason) <= 500),
  primary key (tenant_id, endpoint_id, event_id),
  foreign key (tenant_id, endpoint_id) references sentinel.event_endpoints,
  constraint dead_letters_asked_by check ((resend_asked_at is null) or resend_asked_by is not null),
  constraint dead_letters_delivered_once check (delivered_at is null or resend_asked_at is null),
  constraint dead_letters_discarded check ((discarded_at is null) = (discarded_by is null) and (discarded_at is null) = (discarded_reason is null)),
  constraint dead_letters_wanted check (discarded_at is null or resend_asked_at is null)
) with (fillfactor = 70);
create index dead_letters_open on sentinel.dead_letters (died_at, tenant_id) where delivered_at is null and discarded_at is null;
create index dead_letters_asked on sentinel.dead_letters (resend_asked_at) where resend_asked_at is not null;

-- The current end of a feed: where a new receiver starts.
create or replace function sentinel.feed_head(tenant uuid) returns bigint language sql stable as $$
  select coalesce((select h.position from sentinel.feed_heads h where h.tenant_id = tenant), 0)
$$;

create or replace function sentinel.endpoint_facts(e sentinel.event_endpoints, who text) returns jsonb language sql stable as $$
  select jsonb_build_object('by', who, 'endpoint_id', e.endpoint_id, 'event_types', e.event_types, 'url', e.url,
    'secret_number', e.secret_number)
$$;

-- Inserts a new receiver, which gets events from now on. Returns done, or endpoint_known if the id exists already.
create or replace function sentinel.add_endpoint(tenant uuid, p jsonb, who text, event uuid) returns text language plpgsql as $$
declare
  e sentinel.event_endpoints;
begin
  insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, url, event_types, position, global_position)
  values (tenant, (p ->> 'endpoint_id')::uuid, 'webhook', p ->> 'url',
    array(select jsonb_array_elements_text(p -> 'event_types')), sentinel.feed_head(tenant),
    sentinel.feed_head('00000000-0000-0000-0000-000000000000'))
  on conflict do nothing returning * into e;
  if not found then return 'endpoint_known'; end if;
  perform sentinel.append_event(tenant, event, 'webhook_added', null, null, clock_timestamp(), sentinel.endpoint_facts(e, who));
  return 'done';
end $$;

-- Enables or disables a webhook, or rotates its secret. An enabled one continues where it stopped. Returns done, unknown or same.
create or replace function sentinel.change_endpoint(tenant uuid, act text, p jsonb, who text, event uuid) returns text language plpgsql as $$
declare
  e sentinel.event_endpoints;
  id uuid := (p ->> 'endpoint_id')::uuid;
begin
  if act = 'webhook.disable' then
    update sentinel.event_endpoints set disabled_at = clock_timestamp(), disabled_reason = 'administrator'
    where tenant_id = tenant and endpoint_id = id and kind = 'webhook' and disabled_at is null returning * into e;
  elsif act = 'webhook.enable' then
    update sentinel.event_endpoints set disabled_at = null, disabled_reason = null, attempts = 0, first_failed_at = null,
      next_attempt_at = clock_timestamp()
    where tenant_id = tenant and endpoint_id = id and kind = 'webhook' and disabled_at is not null returning * into e;
  else
    update sentinel.event_endpoints set secret_number = secret_number + 1,
      old_secret_until = clock_timestamp() + make_interval(secs => (p ->> 'overlap_seconds')::integer)
    where tenant_id = tenant and endpoint_id = id and kind = 'webhook' and secret_number = (p ->> 'secret_number')::integer returning * into e;
  end if;
  if e.endpoint_id is null then
    return case when exists (select from sentinel.event_endpoints where tenant_id = tenant and endpoint_id = id and kind = 'webhook')
           then 'same' else 'unknown' end;
  end if;
  perform sentinel.append_event(tenant, event,
    case act when 'webhook.disable' then 'webhook_disabled' when 'webhook.enable' then 'webhook_enabled' else 'webhook_secret_rotated' end,
    null, null, clock_timestamp(), sentinel.endpoint_facts(e, who));
  return 'done';
end $$;

-- Disables a webhook that answered 410 (gone): nothing is sent to it until an administrator enables it. Security definer, because the
-- sender's role cannot write events. Returns false if it is disabled already.
create or replace function sentinel.disable_gone_endpoint(tenant uuid, endpoint uuid, event uuid) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  e sentinel.event_endpoints;
begin
  update sentinel.event_endpoints set disabled_at = clock_timestamp(), disabled_reason = 'gone', last_error = 'http_410',
    lease_until = clock_timestamp()
  where tenant_id = tenant and endpoint_id = endpoint and kind = 'webhook' and disabled_at is null returning * into e;
  if not found then return false; end if;
  perform sentinel.append_event(tenant, event, 'webhook_disabled', null, null, clock_timestamp(),
    sentinel.endpoint_facts(e, 'sentinel') || jsonb_build_object('reason', 'gone'));
  return true;
end $$;

-- Discards one of a receiver's dead letters or, with `letter` null, all open ones: they are not delivered any more. `who` and `why` are
-- stored. Returns how many, and appends one event.
create or replace function sentinel.discard_dead_letters(tenant uuid, endpoint uuid, letter uuid, who text, why text, event uuid) returns integer
language plpgsql as $$
declare
  letters uuid[];
begin
  with put as (
    update sentinel.dead_letters d set discarded_at = clock_timestamp(), discarded_by = who, discarded_reason = why, resend_asked_at = null
    where d.tenant_id = tenant and d.endpoint_id = endpoint and (letter is null or d.event_id = letter)
      and d.delivered_at is null and d.discarded_at is null
    returning d.event_id)
  select array_agg(p.event_id order by p.event_id) into letters from put p;
  if letters is null then return 0; end if;
  perform sentinel.append_event(tenant, event, 'dead_letters_discarded', null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'endpoint_id', endpoint, 'letters', cardinality(letters), 'first_letter', letters[1], 'last_letter', letters[cardinality(letters)],
    'reason', why));
  return cardinality(letters);
end $$;

-- Creates a receiver whose address is a setting of the sender, when the sender first runs with it. One that had ended starts again from the
-- current end of the feed.
create or replace function sentinel.open_endpoint(tenant uuid, endpoint uuid, endpoint_kind text, types text[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into sentinel.event_endpoints (tenant_id, endpoint_id, kind, event_types, position, global_position)
  values (tenant, endpoint, endpoint_kind, types, sentinel.feed_head(tenant), sentinel.feed_head('00000000-0000-0000-0000-000000000000'))
  on conflict do nothing;
  perform sentinel.keep_served(tenant, array[endpoint_kind], null);
end $$;

-- Records that a sender has the addresses (settings) of the tenant's receivers of these kinds; one that had ended starts again from the
-- current end of the feed. Receivers whose address no sender had for `unserved_seconds` (null: not checked) end: nothing is sent to them,
-- and they do not count as behind. Returns how many ended.
create or replace function sentinel.keep_served(tenant uuid, kinds text[], unserved_seconds integer) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  ended integer;
begin
  update sentinel.event_endpoints e set disabled_at = null, disabled_reason = null, attempts = 0, first_failed_at = null,
    next_attempt_at = clock_timestamp(), position = greatest(e.position, sentinel.feed_head(tenant)),
    global_position = greatest(e.global_position, sentinel.feed_head('00000000-0000-0000-0000-000000000000'))
  where e.tenant_id = tenant and e.kind = any(kinds) and e.disabled_reason = 'setting';
  update sentinel.event_endpoints e set served_at = clock_timestamp() where e.tenant_id = tenant and e.kind = any(kinds) and e.kind <> 'webhook';
  update sentinel.event_endpoints e set disabled_at = clock_timestamp(), disabled_reason = 'setting'
  where e.kind <> 'webhook' and e.disabled_at is null and (e.tenant_id = tenant and e.kind = any(kinds)) is not true
    and e.served_at <= clock_timestamp() - make_interval(secs => unserved_seconds);
  get diagnostics ended = row_count;
  return ended;
end $$;

-- Refuses a change of what a receiver is (its kind, url, types); its state may change, but its cursor never goes back.
create or replace function sentinel.check_endpoint() returns trigger language plpgsql as $$
begin
  if (new.tenant_id, new.endpoint_id, new.kind, new.url, new.event_types, new.created_at)
     is distinct from (old.tenant_id, old.endpoint_id, old.kind, old.url, old.event_types, old.created_at) then
    raise exception 'what a receiver is cannot change' using errcode = 'check_violation', constraint = 'event_endpoints_fixed';
  end if;
  if new.position < old.position or new.global_position < old.global_position then
    raise exception 'a cursor goes forward' using errcode = 'check_violation', constraint = 'event_endpoints_forward';
  end if;
  return new;
end $$;

create trigger check_endpoint before update on sentinel.event_endpoints for each row execute function sentinel.check_endpoint();
create trigger never_forgotten before delete or truncate on sentinel.event_endpoints
  for each statement execute function sentinel.refuse_change();
create trigger never_forgotten before delete or truncate on sentinel.dead_letters
  for each statement execute function sentinel.refuse_change();
