-- Limits: the budget used per owner, limit and window part; permits hold it, reported successes capture it.

-- Whether every slot of a budget is within its cap. Arrays of different lengths are not.
create or replace function sentinel.is_within_caps(held bigint[], captured bigint[], caps bigint[]) returns boolean language plpgsql immutable parallel safe as $$
begin
  for slot in 1 .. greatest(cardinality(held), cardinality(captured), cardinality(caps)) loop
    if held[slot] >= 0 and captured[slot] >= 0 and held[slot] + captured[slot] <= caps[slot] then continue; end if;
    return false;
  end loop;
  return true;
end $$;

-- What one owner has used of the limits of one policy: a slot for each limit, with the current window part. held: reserved by live permits.
-- captured: reported successes. usage_parts has the parts that are over, and amounts that a person approved above a cap.
create table sentinel.budgets (
  tenant_id      uuid not null,
  subject        text not null,                                            -- the owner: the end of the limit's key, e.g. "acct_1|USD"
  policy_id      text not null,
  limits         text[] not null,                                          -- a limit's key is "policy/limit|owner"
  buckets        timestamptz[] not null,                                   -- start of the current day, month or slice
  window_seconds integer[] not null,                                       -- 0 for a calendar window
  caps           bigint[] not null,                                        -- as the policy said at the latest reservation
  held           bigint[] not null,
  captured       bigint[] not null,
  primary key (tenant_id, subject, policy_id),
  constraint usage_within_cap check (sentinel.is_within_caps(held, captured, caps))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- Window parts that a slot has left behind. While a slot has a part, this table has none of that part's held and captured amounts.
-- override_*: amounts that a person approved above the limit, in any part; kept beside the cap and not compared with it.
create table sentinel.usage_parts (
  tenant_id               uuid not null,
  limit_key               text not null,                                   -- "policy/limit|owner"
  bucket                  timestamptz not null,
  window_seconds          integer not null,
  cap_minor               bigint not null,
  held_minor              bigint not null default 0 check (held_minor >= 0),
  captured_minor          bigint not null default 0 check (captured_minor >= 0),
  override_held_minor     bigint not null default 0 check (override_held_minor >= 0),
  override_captured_minor bigint not null default 0 check (override_captured_minor >= 0),
  primary key (tenant_id, limit_key, bucket),
  constraint usage_parts_within_cap check (held_minor + captured_minor <= cap_minor)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- The policy, limit and owner of a limit's key.
create or replace function sentinel.policy_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select split_part(limit_key, '/', 1) $$;
create or replace function sentinel.limit_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select split_part(split_part(limit_key, '|', 1), '/', 2) $$;
create or replace function sentinel.subject_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select substr(limit_key, strpos(limit_key, '|') + 1) $$;

-- Budget used per limit and window part, one row each. A query for one limit gives its key, policy and subject, which makes it one index
-- probe.
create view sentinel.usage as
  select tenant_id, limit_key, bucket, (array_agg(window_seconds order by is_slot desc))[1] as window_seconds,
         (array_agg(cap_minor order by is_slot desc))[1] as cap_minor, sum(held_minor)::bigint as held_minor,
         sum(captured_minor)::bigint as captured_minor, sum(override_held_minor)::bigint as override_held_minor,
         sum(override_captured_minor)::bigint as override_captured_minor, policy_id, subject
  from (
    select b.tenant_id, b.policy_id || '/' || slot.name || '|' || b.subject as limit_key, slot.bucket, slot.window_seconds, slot.cap_minor,
           slot.held_minor, slot.captured_minor, 0::bigint as override_held_minor, 0::bigint as override_captured_minor, b.policy_id, b.subject, true as is_slot
    from sentinel.budgets b cross join lateral unnest(b.limits, b.buckets, b.window_seconds, b.caps, b.held, b.captured)
      as slot (name, bucket, window_seconds, cap_minor, held_minor, captured_minor)
    union all
    select p.tenant_id, p.limit_key, p.bucket, p.window_seconds, p.cap_minor, p.held_minor, p.captured_minor, p.override_held_minor,
           p.override_captured_minor, sentinel.policy_of(p.limit_key), sentinel.subject_of(p.limit_key), false
    from sentinel.usage_parts p
  ) as parts
  group by tenant_id, limit_key, bucket, policy_id, subject;

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

-- By a limit's terms: the window part that is current at this moment, and the first part that still counts. A rolling window also counts
-- the part that it covers only partly, so it is never shorter than declared.
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

-- Per limit: the current window part, and whether the amount still fits.
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
      where u.tenant_id = tenant and u.limit_key = ask.limit_key and u.policy_id = sentinel.policy_of(ask.limit_key)
        and u.subject = sentinel.subject_of(ask.limit_key) and u.bucket >= part.since) as used
    order by ask.limit_key);
end $$;

-- The locks of the budgets whose limits do not fit: those of totals, or those of the other limits.
create or replace function sentinel.tight_locks(ask sentinel.guard_input, states sentinel.limit_state[], totals boolean) returns bigint[]
language plpgsql stable as $$
begin
  return array(
    select distinct sentinel.budget_lock(ask.tenant_id, l ->> 'subject') from unnest(states) as tight
    join jsonb_array_elements(ask.limits) as l on l ->> 'limit_key' = tight.limit_key
    where not tight.fits and coalesce((l ->> 'is_total')::boolean, false) = totals);
end $$;

-- The limit states of this request, after releasing what expired permits of any requester still hold of the limits that do not fit.
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

-- Holds an amount in one window part of a limit, within its cap. A slot whose part is over is moved to usage_parts first; an amount for a
-- part older than the slot's is added there too. A lowered cap applies from the next reservation that fits; earlier amounts stay.
create or replace function sentinel.hold_part(tenant uuid, key text, part timestamptz, seconds integer, cap bigint, minor bigint)
returns void language plpgsql as $$
#variable_conflict use_column
declare
  b sentinel.budgets;
  name text := sentinel.limit_of(key);
  slot integer;
begin
  select * into b from sentinel.budgets
  where tenant_id = tenant and subject = sentinel.subject_of(key) and policy_id = sentinel.policy_of(key) for update;
  slot := array_position(b.limits, name);
  if b.tenant_id is null then
    insert into sentinel.budgets (tenant_id, subject, policy_id, limits, buckets, window_seconds, caps, held, captured)
    values (tenant, sentinel.subject_of(key), sentinel.policy_of(key), array[name], array[part], array[seconds], array[cap], array[minor], array[0::bigint]);
  elsif slot is null then
    update sentinel.budgets set limits = limits || name, buckets = buckets || part, window_seconds = window_seconds || seconds,
      caps = caps || cap, held = held || minor, captured = captured || 0::bigint
    where tenant_id = tenant and subject = b.subject and policy_id = b.policy_id;
  elsif part >= b.buckets[slot] then
    if part > b.buckets[slot] then
      perform sentinel.add_part(tenant, key, b.buckets[slot], b.window_seconds[slot], b.caps[slot], b.held[slot], b.captured[slot]);
      b.held[slot] := 0; b.captured[slot] := 0;
    end if;
    update sentinel.budgets set buckets[slot] = part, window_seconds[slot] = seconds, caps[slot] = cap, held[slot] = b.held[slot] + minor,
      captured[slot] = b.captured[slot]
    where tenant_id = tenant and subject = b.subject and policy_id = b.policy_id;
  else
    perform sentinel.add_part(tenant, key, part, seconds, cap, minor, 0);
  end if;
end $$;

-- Adds amounts to a window part that no slot has; `beside`: held beside the cap, in any part.
create or replace function sentinel.add_part(
  tenant uuid, key text, part timestamptz, seconds integer, cap bigint, held bigint, captured bigint, beside bigint default 0
) returns void language plpgsql as $$
begin
  insert into sentinel.usage_parts as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, captured_minor, override_held_minor)
  values (tenant, key, part, seconds, cap, held, captured, beside)
  on conflict (tenant_id, limit_key, bucket) do update set
    held_minor = u.held_minor + excluded.held_minor, captured_minor = u.captured_minor + excluded.captured_minor,
    override_held_minor = u.override_held_minor + excluded.override_held_minor,
    window_seconds = case when excluded.held_minor + excluded.captured_minor > 0 then excluded.window_seconds else u.window_seconds end,
    cap_minor = case when excluded.held_minor + excluded.captured_minor > 0 then excluded.cap_minor else u.cap_minor end;
end $$;

-- Adds the amount to every limit's current part. Where it does not fit, it is held beside the cap, because a person lifted the limit.
create or replace function sentinel.hold_usage(tenant uuid, amount bigint, states sentinel.limit_state[]) returns void language plpgsql as $$
begin
  perform case when leg.fits then sentinel.hold_part(tenant, leg.limit_key, leg.bucket, leg.window_seconds, leg.cap_minor, amount)
               else sentinel.add_part(tenant, leg.limit_key, leg.bucket, leg.window_seconds, leg.cap_minor, 0, 0, amount) end
  from unnest(states) as leg;
end $$;

-- Adds two arrays of amounts slot by slot.
create or replace function sentinel.slots_added(one bigint[], other bigint[]) returns bigint[] language plpgsql immutable parallel safe as $$
begin
  for slot in 1 .. cardinality(one) loop one[slot] := one[slot] + other[slot]; end loop;
  return one;
end $$;

-- Returns the state with its reservation set to this amount in these limits; an earlier permit's reservation is cleared.
create or replace function sentinel.with_reservation(s sentinel.operation_states, amount bigint, states sentinel.limit_state[])
returns sentinel.operation_states language plpgsql as $$
begin
  s.reservation := null; s.reserved_minor := null; s.limit_keys := null; s.limit_owner := null; s.limit_buckets := null; s.parts_id := null;
  s.limit_overrides := null;
  if cardinality(states) = 0 then return s; end if;
  s.reservation := 'held'; s.reserved_minor := amount;
  s.limit_keys := array(select leg.limit_key from unnest(states) as leg);
  s.limit_buckets := array(select leg.bucket from unnest(states) as leg);
  s.limit_overrides := case when exists (select from unnest(states) as leg where not leg.fits) then array(select not leg.fits from unnest(states) as leg) end;
  return s;
end $$;

-- The fast way of settle_usage, which tries it first: settles what these states hold of each budget in one update per budget. Only if every
-- state names its limits and window parts by number and each budget has exactly these slots in exactly these parts; otherwise it does
-- nothing. Returns whether it settled them.
create or replace function sentinel.settle_slots(held sentinel.operation_states[], settlement text) returns boolean language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = on as $$
declare
  fits boolean;
  is_lost boolean;
begin
  with sums as materialized (
    select s.tenant_id, s.terms_id, s.parts_id, s.limit_owner, sum(s.reserved_minor)::bigint as minor
    from unnest(settle_slots.held) as s where s.reservation = 'held' group by 1, 2, 3, 4
  ), named as materialized (                                               -- budgets by terms and parts; subject '': the owner's
    select k.terms_id, k.parts_id, sentinel.policy_of(leg.limit_key) as policy_id, sentinel.subject_of(leg.limit_key) as subject,
           array_agg(sentinel.limit_of(leg.limit_key) order by leg.nth) as limits, array_agg(leg.bucket order by leg.nth) as buckets
    from (select distinct terms_id, parts_id from sums) as k
    cross join lateral (select one.limit_keys from sentinel.decision_terms one where one.terms_id = k.terms_id offset 0) as t
    cross join lateral (select one.buckets from sentinel.window_parts one where one.parts_id = k.parts_id offset 0) as w
    cross join lateral unnest(t.limit_keys, w.buckets) with ordinality as leg (limit_key, bucket, nth)
    group by 1, 2, 3, 4
  ), asked as materialized (
    select s.tenant_id, n.policy_id, case n.subject when '' then s.limit_owner else n.subject end as subject, n.limits, n.buckets, sum(s.minor)::bigint as minor
    from sums as s join named as n on n.terms_id = s.terms_id and n.parts_id = s.parts_id group by 1, 2, 3, 4, 5
  ), found as materialized (
    select a.minor, b.found_at, coalesce(b.limits = a.limits and b.buckets = a.buckets, false) as is_same
    from asked as a left join lateral (
      select one.ctid as found_at, one.limits, one.buckets from sentinel.budgets one
      where one.tenant_id = a.tenant_id and one.subject = a.subject and one.policy_id = a.policy_id offset 0) as b on true
  ), looked as materialized (
    select bool_and(f.is_same) and count(distinct f.found_at) = count(*) and not exists (
             select from unnest(settle_slots.held) as s where s.reservation = 'held'
             and (s.limit_keys is not null or s.limit_buckets is not null or s.limit_overrides is not null)) as fits, count(*) as budgets
    from found as f
  ), moved as (
    update sentinel.budgets u set held = sentinel.slots_added(u.held, array_fill(-f.minor, array[cardinality(u.held)])),
      captured = case when settlement = 'captured' then sentinel.slots_added(u.captured, array_fill(f.minor, array[cardinality(u.held)])) else u.captured end
    from found as f where u.ctid = f.found_at and (select one.fits from looked as one) returning 1
  )
  select coalesce(l.fits, false), l.fits and (select count(*) from moved) <> l.budgets into fits, is_lost from looked as l;
  if is_lost then raise exception 'a budget moved without its lock' using errcode = 'deadlock_detected'; end if;
  return fits;
end $$;

-- Settles the budget that these states still hold: it becomes captured (success) or free again (not executed, expired). The caller has
-- locked the states' rows and records the result in them. Each budget row is looked up by its key and then updated by its ctid, because a
-- join may read the whole table. An amount that is in no slot any more is taken from its row of usage_parts. The legs and slots of a large
-- batch are joined by hash: a nested loop would cost more than everything else that its reports do.
create or replace function sentinel.settle_usage(held sentinel.operation_states[], settlement text) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = on as $$
declare
  is_lost boolean;
begin
  if sentinel.settle_slots(held, settlement) then return; end if;
  with legs as materialized (
    select s.tenant_id, leg.limit_key, leg.bucket, sentinel.policy_of(leg.limit_key) as policy_id, sentinel.subject_of(leg.limit_key) as subject,
           sentinel.limit_of(leg.limit_key) as name,
           coalesce(sum(s.reserved_minor) filter (where not coalesce(leg.beside, false)), 0)::bigint as within_minor,
           coalesce(sum(s.reserved_minor) filter (where leg.beside), 0)::bigint as beside_minor
    from unnest(settle_usage.held) as s
    left join lateral (select one.limit_keys from sentinel.decision_terms one where one.terms_id = s.terms_id offset 0) as t on true
    left join lateral (select one.buckets from sentinel.window_parts one where one.parts_id = s.parts_id offset 0) as w on true
    cross join lateral unnest(coalesce(s.limit_keys, sentinel.owned_keys(t.limit_keys, s.limit_owner)), coalesce(s.limit_buckets, w.buckets), s.limit_overrides)
      as leg (limit_key, bucket, beside)
    where s.reservation = 'held' group by s.tenant_id, leg.limit_key, leg.bucket
  ), slots as materialized (
    select b.* from (select distinct tenant_id, subject, policy_id from legs) as o cross join lateral (
      select one.ctid as found_at, one.tenant_id, one.subject, one.policy_id, s.name, s.bucket, s.slot
      from sentinel.budgets one cross join lateral unnest(one.limits, one.buckets) with ordinality as s (name, bucket, slot)
      where one.tenant_id = o.tenant_id and one.subject = o.subject and one.policy_id = o.policy_id offset 0) as b
  ), settled as materialized (
    select f.found_at, array_agg(coalesce(l.within_minor, 0) order by f.slot) as minor, array_agg(-coalesce(l.within_minor, 0) order by f.slot) as less
    from slots as f
    left join legs as l on l.tenant_id = f.tenant_id and l.subject = f.subject and l.policy_id = f.policy_id and l.name = f.name and l.bucket = f.bucket
    group by f.found_at having max(l.within_minor) > 0
  ), moved as (
    update sentinel.budgets u set held = sentinel.slots_added(u.held, s.less),
      captured = case when settlement = 'captured' then sentinel.slots_added(u.captured, s.minor) else u.captured end
    from settled as s where u.ctid = s.found_at returning 1
  ), placed as materialized (
    select l.*, f.slot is not null as in_slot
    from legs as l
    left join slots as f on f.tenant_id = l.tenant_id and f.subject = l.subject and f.policy_id = l.policy_id and f.name = l.name and f.bucket = l.bucket
  ), outside as materialized (
    select p.*, case when p.in_slot then 0 else p.within_minor end as out_minor,
           (select parts.ctid from sentinel.usage_parts parts
            where parts.tenant_id = p.tenant_id and parts.limit_key = p.limit_key and parts.bucket = p.bucket) as found_at
    from placed as p where not p.in_slot or p.beside_minor > 0
  ), moved_parts as (
    update sentinel.usage_parts u set
      held_minor = u.held_minor - l.out_minor, override_held_minor = u.override_held_minor - l.beside_minor,
      captured_minor = u.captured_minor + case when settlement = 'captured' then l.out_minor else 0 end,
      override_captured_minor = u.override_captured_minor + case when settlement = 'captured' then l.beside_minor else 0 end
    from outside as l where u.ctid = l.found_at returning 1
  )
  select (select count(*) from moved) <> (select count(*) from settled)
      or (select count(*) from moved_parts) <> (select count(found_at) from outside) into is_lost;
  if is_lost then raise exception 'a budget moved without its lock' using errcode = 'deadlock_detected'; end if;
end $$;

-- Holds again what a permit held and gave back, in the window parts of its reservation: within the cap where it still fits, else beside it.
-- The caller holds the halt lock, which keeps out guards (they sum first and write later), and the locks of the budgets. Reads only the
-- parts from the longest window before the reservation's part to the longest after it: a limit in use for years has hundreds of thousands.
create or replace function sentinel.hold_again(tenant uuid, operation uuid) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
declare
  r sentinel.operation_states;
  leg record;
  longest interval;                                                        -- the window may have been another at another time
  parts sentinel.usage[];
  part sentinel.usage;
  beside boolean[] := '{}';
begin
  select * into r from sentinel.operation_states where tenant_id = tenant and operation_id = operation and reservation = 'released' for update;
  if not found then return; end if;
  for leg in select l.limit_key, l.bucket from sentinel.reservations held cross join lateral unnest(held.limit_keys, held.buckets) as l (limit_key, bucket)
             where held.tenant_id = tenant and held.operation_id = operation loop
    longest := (select make_interval(secs => max(u.window_seconds)) from sentinel.usage u
                where u.tenant_id = tenant and u.limit_key = leg.limit_key and u.policy_id = sentinel.policy_of(leg.limit_key)
                  and u.subject = sentinel.subject_of(leg.limit_key) and u.bucket >= leg.bucket);
    parts := array(select u from sentinel.usage u where u.tenant_id = tenant and u.limit_key = leg.limit_key
                     and u.policy_id = sentinel.policy_of(leg.limit_key) and u.subject = sentinel.subject_of(leg.limit_key)
                     and u.bucket between leg.bucket - longest and leg.bucket + longest);
    select * into part from unnest(parts) as u where u.bucket = leg.bucket;
    if part.bucket is null or exists (
        select from unnest(parts) as place
        where place.bucket >= leg.bucket and (place.bucket = leg.bucket or place.bucket < leg.bucket + make_interval(secs => place.window_seconds))
          and place.cap_minor < r.reserved_minor + (
            select sum(o.held_minor + o.captured_minor) from unnest(parts) as o
            where o.bucket <= place.bucket and (o.bucket = place.bucket or o.bucket > place.bucket - make_interval(secs => place.window_seconds)))) then
      beside := beside || true;
      if part.bucket is not null then
        perform sentinel.add_part(tenant, leg.limit_key, leg.bucket, part.window_seconds, part.cap_minor, 0, 0, r.reserved_minor);
      end if;
    else
      beside := beside || false;
      perform sentinel.hold_part(tenant, leg.limit_key, leg.bucket, part.window_seconds, part.cap_minor, r.reserved_minor);
    end if;
  end loop;
  update sentinel.operation_states set reservation = 'held', limit_overrides = beside where tenant_id = tenant and operation_id = operation;
end $$;
