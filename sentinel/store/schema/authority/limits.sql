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

-- What a permit holds, as its operation's state has it.
create or replace function sentinel.with_reservation(s sentinel.operation_states, amount bigint, states sentinel.limit_state[])
returns sentinel.operation_states language plpgsql as $$
begin
  if cardinality(states) = 0 then return s; end if;
  s.reservation := 'held'; s.reserved_minor := amount;
  s.limit_keys := array(select leg.limit_key from unnest(states) as leg);
  s.limit_buckets := array(select leg.bucket from unnest(states) as leg);
  s.limit_overrides := case when exists (select from unnest(states) as leg where not leg.fits) then array(select not leg.fits from unnest(states) as leg) end;
  return s;
end $$;

-- Held budget becomes captured (success) or free again (not executed, expired): what these states, whose rows the caller has locked,
-- still hold. The caller writes down in the states what became of it. Each row of usage is looked up by its key and then taken
-- from its place, because a join may read all that is there.
create or replace function sentinel.settle_usage(held sentinel.operation_states[], settlement text) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  with legs as (
    select s.tenant_id, leg.limit_key, leg.bucket,
           coalesce(sum(s.reserved_minor) filter (where not coalesce(leg.beside, false)), 0)::bigint as within_minor,
           coalesce(sum(s.reserved_minor) filter (where leg.beside), 0)::bigint as beside_minor
    from unnest(held) as s cross join lateral unnest(s.limit_keys, s.limit_buckets, s.limit_overrides) as leg (limit_key, bucket, beside)
    where s.reservation = 'held' group by s.tenant_id, leg.limit_key, leg.bucket
  ), placed as materialized (
    select l.*, (select u.ctid from sentinel.usage u where u.tenant_id = l.tenant_id and u.limit_key = l.limit_key and u.bucket = l.bucket) as found_at
    from legs as l
  )
  update sentinel.usage u set
    held_minor = u.held_minor - l.within_minor, override_held_minor = u.override_held_minor - l.beside_minor,
    captured_minor = u.captured_minor + case when settlement = 'captured' then l.within_minor else 0 end,
    override_captured_minor = u.override_captured_minor + case when settlement = 'captured' then l.beside_minor else 0 end
  from placed as l where u.ctid = l.found_at;
end $$;

-- What a permit held and gave back is held again, in the window parts of then: within the cap where it still fits, else beside
-- it. Only under the halt lock, which keeps guards out: they sum first and write after.
create or replace function sentinel.hold_again(tenant uuid, operation uuid) returns void language plpgsql as $$
declare
  r sentinel.operation_states;
  leg record;
  beside boolean[] := '{}';
begin
  select * into r from sentinel.operation_states where tenant_id = tenant and operation_id = operation and reservation = 'released' for update;
  if not found then return; end if;
  for leg in select l.limit_key, l.bucket from unnest(r.limit_keys, r.limit_buckets) as l (limit_key, bucket) loop
    update sentinel.usage u set held_minor = u.held_minor + r.reserved_minor
    where u.tenant_id = tenant and u.limit_key = leg.limit_key and u.bucket = leg.bucket and not exists (
      select from sentinel.usage place
      where place.tenant_id = tenant and place.limit_key = leg.limit_key and place.bucket >= leg.bucket
        and (place.bucket = leg.bucket or place.bucket < leg.bucket + make_interval(secs => place.window_seconds))
        and place.cap_minor < r.reserved_minor + (
          select sum(o.held_minor + o.captured_minor) from sentinel.usage o
          where o.tenant_id = tenant and o.limit_key = leg.limit_key and o.bucket <= place.bucket
            and (o.bucket = place.bucket or o.bucket > place.bucket - make_interval(secs => place.window_seconds))));
    beside := beside || not found;
    if not found then
      update sentinel.usage u set override_held_minor = u.override_held_minor + r.reserved_minor
      where u.tenant_id = tenant and u.limit_key = leg.limit_key and u.bucket = leg.bucket;
    end if;
  end loop;
  update sentinel.operation_states set reservation = 'held', limit_overrides = beside where tenant_id = tenant and operation_id = operation;
end $$;
