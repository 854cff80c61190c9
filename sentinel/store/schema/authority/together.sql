-- Totals and rates that many rows of a batch share, asked once for all of them. Where all fit together each fits alone, and
-- they are written with one statement each; where not, the rows are asked one by one, which is exact.

-- The parts of totals that these rows would fill, or null where they do not all fit, or would pass a breaker.
create or replace function sentinel.plan_together(asks sentinel.guard_input[], moment timestamptz)
returns sentinel.planned_total[] language plpgsql stable as $$
declare
  planned sentinel.planned_total[];
  all_fit boolean;
begin
  if exists (
      select from (
        select g.tenant_id, b.breaker_key, b.window_seconds, b.bucket_seconds, g.currency, min(b.most_operations) as most_operations,
               min(b.most_minor) as most_minor, sum(g.minor) as minor,
               sum(sum(g.operations)) over (partition by g.tenant_id, b.breaker_key) as operations
        from (select a.tenant_id, a.breakers, a.currency, count(*) as operations, sum(a.amount_minor) as minor
              from unnest(asks) as a where a.verdict = 'ALLOW' and a.breakers is not null group by 1, 2, 3) as g
        cross join lateral jsonb_populate_recordset(null::sentinel.breaker_ask, g.breakers) as b group by 1, 2, 3, 4, 5) as w
      cross join lateral (
        select coalesce(sum(v.operations), 0) as operations, coalesce(sum(v.amount_minor) filter (where v.currency = w.currency), 0) as minor
        from sentinel.velocity v
        where v.tenant_id = w.tenant_id and v.breaker_key = w.breaker_key
          and v.bucket >= date_bin(make_interval(secs => w.bucket_seconds), moment - make_interval(secs => w.window_seconds), 'epoch')) as u
      where u.operations + w.operations > w.most_operations or u.minor + w.minor > w.most_minor) then
    return null;
  end if;
  select array_agg(row(w.tenant_id, w.limit_key, w.bucket, w.window_seconds, w.cap_minor)::sentinel.planned_total),
         bool_and(w.used_minor + w.minor <= w.cap_minor)
    into planned, all_fit
  from (
    select g.tenant_id, s.limit_key, s.bucket, s.window_seconds, min(s.cap_minor) as cap_minor, max(s.used_minor) as used_minor, sum(g.minor) as minor
    from (select a.tenant_id, a.totals, sum(a.amount_minor) as minor
          from unnest(asks) as a where a.verdict <> 'DENY' and a.totals is not null and a.amount_minor is not null group by 1, 2) as g
    cross join lateral unnest(sentinel.limit_states(g.tenant_id, g.totals, 0, moment)) as s group by 1, 2, 3, 4) as w;
  return case when coalesce(all_fit, true) then coalesce(planned, '{}') end;
end $$;

-- The totals of one row as they are planned: what its permit holds.
create or replace function sentinel.planned_states(tenant uuid, totals jsonb, planned sentinel.planned_total[])
returns sentinel.limit_state[] language plpgsql stable as $$
begin
  return array(
    select (p.limit_key, p.bucket, p.window_seconds, p.cap_minor, null, true, null, null)::sentinel.limit_state
    from unnest(planned) as p
    where p.tenant_id = tenant and p.limit_key in (select t ->> 'limit_key' from jsonb_array_elements(totals) as t) order by p.limit_key);
end $$;

-- Writes what the permitted of these rows take of their totals and add to their rates.
create or replace function sentinel.write_together(asks sentinel.guard_input[], permitted integer[], planned sentinel.planned_total[], moment timestamptz)
returns void language plpgsql as $$
begin
  insert into sentinel.usage as u (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor)
  select p.tenant_id, p.limit_key, p.bucket, p.window_seconds, p.cap_minor, sum(g.minor)
  from (select a.tenant_id, a.totals, sum(a.amount_minor) as minor
        from unnest(asks) as a where a.seq = any(permitted) and a.totals is not null and a.amount_minor is not null group by 1, 2) as g
  cross join lateral jsonb_array_elements(g.totals) as t
  join unnest(planned) as p on p.tenant_id = g.tenant_id and p.limit_key = t ->> 'limit_key'
  group by 1, 2, 3, 4, 5
  on conflict (tenant_id, limit_key, bucket) do update set held_minor = u.held_minor + excluded.held_minor, cap_minor = excluded.cap_minor;

  insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
  select g.tenant_id, b.breaker_key, date_bin(make_interval(secs => b.bucket_seconds), moment, 'epoch'), g.currency, b.scope, b.target,
         sum(g.operations), sum(g.minor)
  from (select a.tenant_id, a.breakers, coalesce(a.currency, '') as currency, count(*) as operations, coalesce(sum(a.amount_minor), 0) as minor
        from unnest(asks) as a where a.seq = any(permitted) and a.breakers is not null group by 1, 2, 3) as g
  cross join lateral jsonb_populate_recordset(null::sentinel.breaker_ask, g.breakers) as b
  group by 1, 2, 3, 4, 5, 6
  on conflict (tenant_id, breaker_key, bucket, currency) do update set
    operations = v.operations + excluded.operations, amount_minor = v.amount_minor + excluded.amount_minor;
end $$;
