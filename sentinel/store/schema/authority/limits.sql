-- Limits: budget used per limit and window part, held by permits, captured by reported successes.

-- Budget used per limit and window part. held: reserved by live permits. captured: reported successes.
-- override_*: what a person approved above the limit; counted, but outside the cap's invariant.
create table sentinel.usage (
  tenant_id               uuid not null,
  limit_key               text not null,                                   -- "policy/limit|owner"
  bucket                  timestamptz not null,                            -- start of the day, month or slice
  window_seconds          integer not null,                                -- 0 for a calendar window
  cap_minor               bigint not null,                                 -- as the policy said when it last was asked
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
  subject      text not null,                                              -- whom the first limit is about: agent, account, …
  amount_minor bigint not null check (amount_minor > 0),
  limit_keys   text[] not null,                                            -- the limits it is counted in
  buckets      timestamptz[] not null,
  overrides    boolean[] not null,                                         -- a person lifted this limit: held beside the cap
  state        text not null check (state in ('held', 'captured', 'released')),
  created_at   timestamptz not null,
  settled_at   timestamptz,
  primary key (tenant_id, permit_id)
) with (fillfactor = 70);

-- One limit of a request, as the policy declares it: a cap over a calendar window or a rolling one.
create type sentinel.limit_ask as (
  limit_key text, subject text, "window" text, window_seconds integer, bucket_seconds integer, zone text,
  cap_minor bigint, verdict text, reason_code text
);

-- How full a limit's current part is, and whether the amount asked for still fits.
create type sentinel.limit_state as (
  limit_key text, bucket timestamptz, window_seconds integer, cap_minor bigint, used_minor bigint, fits boolean,
  verdict text, reason_code text
);

-- The part of its window that is being filled at this moment, by a limit's terms; and the first part that still counts. A rolling
-- window also counts the part that it only half covers, so it is never shorter than promised.
create or replace function sentinel.part_of(kind text, bucket_seconds integer, zone text, moment timestamptz) returns timestamptz
language sql stable parallel safe as $$
  select case kind when 'calendar_day' then date_trunc('day', moment, zone) when 'calendar_month' then date_trunc('month', moment, zone)
                   else date_bin(make_interval(secs => bucket_seconds), moment, 'epoch') end
$$;
create or replace function sentinel.first_part_of(kind text, window_seconds integer, bucket_seconds integer, zone text, moment timestamptz)
returns timestamptz language sql stable parallel safe as $$
  select case kind when 'rolling' then date_bin(make_interval(secs => bucket_seconds), moment - make_interval(secs => window_seconds), 'epoch')
                   else sentinel.part_of(kind, bucket_seconds, zone, moment) end
$$;

-- Per limit: the window part being filled, and whether the amount still fits.
create or replace function sentinel.limit_states(tenant uuid, asks jsonb, amount bigint, moment timestamptz)
returns sentinel.limit_state[] language plpgsql stable as $$
begin
  return array(
    select (ask.limit_key, part.bucket, ask.window_seconds, ask.cap_minor, used.minor, used.minor + amount <= ask.cap_minor,
            ask.verdict, ask.reason_code)::sentinel.limit_state
    from jsonb_populate_recordset(null::sentinel.limit_ask, asks) as ask
    cross join lateral (
      select sentinel.part_of(ask."window", ask.bucket_seconds, ask.zone, moment) as bucket,
             sentinel.first_part_of(ask."window", ask.window_seconds, ask.bucket_seconds, ask.zone, moment) as since) as part
    cross join lateral (
      select coalesce(sum(u.held_minor + u.captured_minor), 0)::bigint as minor from sentinel.usage u
      where u.tenant_id = tenant and u.limit_key = ask.limit_key and u.bucket >= part.since) as used
    order by ask.limit_key);
end $$;

-- The locks of the budgets that are too tight, totals or the rest.
create or replace function sentinel.tight_locks(ask sentinel.guard_input, states sentinel.limit_state[], totals boolean) returns bigint[]
language plpgsql stable as $$
begin
  return array(
    select distinct sentinel.budget_lock(ask.tenant_id, l ->> 'subject') from unnest(states) as tight
    join jsonb_array_elements(ask.limits) as l on l ->> 'limit_key' = tight.limit_key
    where not tight.fits and coalesce((l ->> 'is_total')::boolean, false) = totals);
end $$;

-- Budget left for this request, after giving back what expired permits still hold of it, whoever held them.
create or replace function sentinel.fitted_limits(ask sentinel.guard_input, moment timestamptz)
returns sentinel.limit_state[] language plpgsql as $$
declare
  states sentinel.limit_state[];
  most integer := 100;
begin
  states := sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment);
  while exists (select from unnest(states) where not fits)
      and sentinel.release_expired_holding(sentinel.tight_locks(ask, states, false), most)
        + sentinel.release_expired_of_totals(ask.tenant_id, sentinel.tight_locks(ask, states, true), most) > 0 loop
    states := sentinel.limit_states(ask.tenant_id, ask.limits, ask.amount_minor, moment);
    most := least(2 * most, 1000);
  end loop;
  return states;
end $$;

-- Adds the amount to every limit's current part. Rows in key order, as everywhere; what does not fit is held beside the
-- cap, because a person lifted it.
create or replace function sentinel.hold_usage(tenant uuid, amount bigint, states sentinel.limit_state[]) returns void language plpgsql as $$
begin
  insert into sentinel.usage as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, override_held_minor)
    select tenant, leg.limit_key, leg.bucket, leg.window_seconds, leg.cap_minor,
           case when leg.fits then amount else 0 end, case when leg.fits then 0 else amount end
    from unnest(states) as leg order by leg.limit_key, leg.bucket
  on conflict (tenant_id, limit_key, bucket) do update set
    held_minor = u.held_minor + excluded.held_minor,
    override_held_minor = u.override_held_minor + excluded.override_held_minor,
    -- A lowered cap counts from the next reservation that fits; one that was within the old cap stays within it.
    cap_minor = case when excluded.held_minor > 0 then excluded.cap_minor else u.cap_minor end;
end $$;

-- The row that says what a permit holds.
create or replace function sentinel.reservation_of(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns sentinel.reservations language plpgsql as $$
begin
  return row(tenant, permit, operation, budget_subject, amount,
    array(select leg.limit_key from unnest(states) as leg), array(select leg.bucket from unnest(states) as leg),
    array(select not leg.fits from unnest(states) as leg), 'held', moment, null)::sentinel.reservations;
end $$;

create or replace function sentinel.hold_budget(
  tenant uuid, permit uuid, operation uuid, budget_subject text, amount bigint, states sentinel.limit_state[], moment timestamptz
) returns void language plpgsql as $$
declare
  held sentinel.reservations;
begin
  if cardinality(states) = 0 then return; end if;
  perform sentinel.hold_usage(tenant, amount, states);
  held := sentinel.reservation_of(tenant, permit, operation, budget_subject, amount, states, moment);
  insert into sentinel.reservations values (held.*);
end $$;

-- Held budget becomes captured (success) or free again (not executed, expired); a permit that holds nothing is passed over.
-- The plan must not depend on how much was held when it was made: a scan of all that is held is never the way.
create or replace function sentinel.settle_budgets(tenants uuid[], permits uuid[], settlement text, moment timestamptz)
returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with settled as (
    update sentinel.reservations r set state = settlement, settled_at = moment
    from unnest(tenants, permits) as p (tenant_id, permit_id)
    where r.tenant_id = p.tenant_id and r.permit_id = p.permit_id and r.state not in ('captured', 'released')
    returning r.tenant_id, r.amount_minor, r.limit_keys, r.buckets, r.overrides
  ), legs as (
    select s.tenant_id, leg.limit_key, leg.bucket,
           coalesce(sum(s.amount_minor) filter (where not leg.beside), 0)::bigint as within_minor,
           coalesce(sum(s.amount_minor) filter (where leg.beside), 0)::bigint as beside_minor
    from settled s cross join lateral unnest(s.limit_keys, s.buckets, s.overrides) as leg (limit_key, bucket, beside)
    group by s.tenant_id, leg.limit_key, leg.bucket
  )
  update sentinel.usage u set
    held_minor = u.held_minor - l.within_minor, override_held_minor = u.override_held_minor - l.beside_minor,
    captured_minor = u.captured_minor + case when settlement = 'captured' then l.within_minor else 0 end,
    override_captured_minor = u.override_captured_minor + case when settlement = 'captured' then l.beside_minor else 0 end
  from legs l where u.tenant_id = l.tenant_id and u.limit_key = l.limit_key and u.bucket = l.bucket;
end $$;

-- What a permit held and gave back is held again, in the window parts of then: within the cap where it still fits, else beside
-- it. Only under the halt lock, which keeps guards out: they sum first and write after.
create or replace function sentinel.hold_again(tenant uuid, permit uuid) returns void language plpgsql as $$
declare
  r sentinel.reservations;
  leg record;
  beside boolean[] := '{}';
begin
  select * into r from sentinel.reservations where tenant_id = tenant and permit_id = permit and state = 'released' for update;
  if not found then return; end if;
  for leg in select l.limit_key, l.bucket from unnest(r.limit_keys, r.buckets) as l (limit_key, bucket) loop
    update sentinel.usage u set held_minor = u.held_minor + r.amount_minor
    where u.tenant_id = tenant and u.limit_key = leg.limit_key and u.bucket = leg.bucket and not exists (
      select from sentinel.usage place
      where place.tenant_id = tenant and place.limit_key = leg.limit_key and place.bucket >= leg.bucket
        and (place.bucket = leg.bucket or place.bucket < leg.bucket + make_interval(secs => place.window_seconds))
        and place.cap_minor < r.amount_minor + (
          select sum(o.held_minor + o.captured_minor) from sentinel.usage o
          where o.tenant_id = tenant and o.limit_key = leg.limit_key and o.bucket <= place.bucket
            and (o.bucket = place.bucket or o.bucket > place.bucket - make_interval(secs => place.window_seconds))));
    beside := beside || not found;
    if not found then
      update sentinel.usage u set override_held_minor = u.override_held_minor + r.amount_minor
      where u.tenant_id = tenant and u.limit_key = leg.limit_key and u.bucket = leg.bucket;
    end if;
  end loop;
  update sentinel.reservations set state = 'held', settled_at = null, overrides = beside where tenant_id = tenant and permit_id = permit;
end $$;

create or replace function sentinel.settle_budget(tenant uuid, permit uuid, settlement text, moment timestamptz)
returns void language plpgsql as $$
begin
  perform sentinel.settle_budgets(array[tenant], array[permit], settlement, moment);
end $$;
