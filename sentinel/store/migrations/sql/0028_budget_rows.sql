-- A budget is one row for each owner and policy, with a slot for each limit; parts of windows that are over stand beside it, with what
-- people lifted above a cap.
create function sentinel.is_within_caps(held bigint[], captured bigint[], caps bigint[]) returns boolean language plpgsql immutable parallel safe as $$
begin
  for slot in 1 .. greatest(cardinality(held), cardinality(captured), cardinality(caps)) loop
    if held[slot] >= 0 and captured[slot] >= 0 and held[slot] + captured[slot] <= caps[slot] then continue; end if;
    return false;
  end loop;
  return true;
end $$;

create table sentinel.budgets (
  tenant_id      uuid not null,
  subject        text not null,
  policy_id      text not null,
  limits         text[] not null,
  buckets        timestamptz[] not null,
  window_seconds integer[] not null,
  caps           bigint[] not null,
  held           bigint[] not null,
  captured       bigint[] not null,
  primary key (tenant_id, subject, policy_id),
  constraint usage_within_cap check (sentinel.is_within_caps(held, captured, caps))
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

create table sentinel.usage_parts (
  tenant_id               uuid not null,
  limit_key               text not null,
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

create function sentinel.policy_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select split_part(limit_key, '/', 1) $$;
create function sentinel.limit_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select split_part(split_part(limit_key, '|', 1), '/', 2) $$;
create function sentinel.subject_of(limit_key text) returns text language sql immutable parallel safe as
  $$ select substr(limit_key, strpos(limit_key, '|') + 1) $$;


insert into sentinel.budgets (tenant_id, subject, policy_id, limits, buckets, window_seconds, caps, held, captured)
select tenant_id, sentinel.subject_of(limit_key), sentinel.policy_of(limit_key), array_agg(sentinel.limit_of(limit_key) order by limit_key),
       array_agg(bucket order by limit_key), array_agg(window_seconds order by limit_key), array_agg(cap_minor order by limit_key),
       array_agg(held_minor order by limit_key), array_agg(captured_minor order by limit_key)
from (select distinct on (tenant_id, limit_key) * from sentinel.usage order by tenant_id, limit_key, bucket desc) as newest group by 1, 2, 3;

insert into sentinel.usage_parts
select u.tenant_id, u.limit_key, u.bucket, u.window_seconds, u.cap_minor, case when n.is_newest then 0 else u.held_minor end,
       case when n.is_newest then 0 else u.captured_minor end, u.override_held_minor, u.override_captured_minor
from sentinel.usage u join (
  select tenant_id, limit_key, bucket, bucket = max(bucket) over (partition by tenant_id, limit_key) as is_newest from sentinel.usage
) as n using (tenant_id, limit_key, bucket)
where not n.is_newest or u.override_held_minor > 0 or u.override_captured_minor > 0;

drop table sentinel.usage;
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
