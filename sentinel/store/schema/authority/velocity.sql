-- Velocity breakers: a declared rate within minutes. An operation that would pass it is refused, and its agent or tenant is halted until a
-- person lifts the halt.

-- One row per breaker, window part and currency. An operation is counted when it is allowed, and again when its permit is renewed after
-- that count has left the window or was deleted. A count is never given back: a rate is about what was set in motion. Lifting the halt
-- deletes the rows, so that counting starts from zero.
create table sentinel.velocity (
  tenant_id    uuid not null,
  breaker_key  text not null,
  bucket       timestamptz not null,
  currency     text not null,                                              -- empty for operations without an amount
  scope        text not null check (scope in ('agent', 'tenant')),
  target       text not null,
  operations   integer not null check (operations > 0),
  amount_minor bigint not null check (amount_minor >= 0),
  primary key (tenant_id, breaker_key, bucket, currency)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
create index velocity_bucket on sentinel.velocity (bucket);

-- One breaker of a request, as the policy declares it; a maximum that is null limits nothing.
create type sentinel.breaker_ask as (
  breaker_key text, scope text, target text, window_seconds integer, bucket_seconds integer, most_operations integer, most_minor bigint,
  declared text
);

-- The first breaker that this operation would pass, or null. The part that the window covers only partly counts too, so the window is never
-- shorter than declared. A transaction that decides holds the breaker's lock, so the counts read here are complete.
create or replace function sentinel.passed_breaker(ask sentinel.guard_input, moment timestamptz)
returns sentinel.breaker_ask language plpgsql stable as $$
declare
  b sentinel.breaker_ask;
  passed sentinel.breaker_ask;
begin
  for b in select * from jsonb_populate_recordset(null::sentinel.breaker_ask, ask.breakers) order by breaker_key loop
    if (select coalesce(sum(v.operations), 0) >= b.most_operations
            or coalesce(sum(v.amount_minor) filter (where v.currency = ask.currency), 0) + ask.amount_minor > b.most_minor
        from sentinel.velocity v
        where v.tenant_id = ask.tenant_id and v.breaker_key = b.breaker_key
          and v.bucket >= date_bin(make_interval(secs => b.bucket_seconds), moment - make_interval(secs => b.window_seconds), 'epoch')) then
      return b;
    end if;
  end loop;
  return passed;
end $$;

-- Those of the request's breakers that no longer count this operation: its count at the decision, or at the last renewal, has left the
-- window (by the same parts as in passed_breaker) or was deleted when a halt was lifted; or the policy that decided had no such breaker.
create or replace function sentinel.breakers_without(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz) returns jsonb
language plpgsql stable as $$
begin
  return (
    select jsonb_agg(b) from sentinel.operation_rows o cross join lateral jsonb_array_elements(ask.breakers) as b
    cross join lateral jsonb_populate_record(null::sentinel.breaker_ask, b) as r
    cross join lateral (select (s.counted_at ->> r.breaker_key)::timestamptz as at_renewal) as known
    -- It was counted at the moment of the decision, which may be later than created_at by a wait for locks.
    left join sentinel.event_rows e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
    cross join lateral (select coalesce(known.at_renewal, e.occurred_at, o.created_at) as at) as counted
    where o.tenant_id = s.tenant_id and o.operation_id = s.operation_id and (
      date_bin(make_interval(secs => r.bucket_seconds), counted.at, 'epoch')
        < date_bin(make_interval(secs => r.bucket_seconds), moment - make_interval(secs => r.window_seconds), 'epoch')
      or exists (select from sentinel.halts h
        where h.tenant_id = s.tenant_id and h.scope = r.scope and h.target = r.target and h.lifted_at >= counted.at)
      or known.at_renewal is null and exists (
        select from sentinel.decision_terms t where t.terms_id = s.terms_id and t.policy_digest <> ask.policy_digest and not exists (
          select from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'breakers') as d
          where p.policy_digest = t.policy_digest and p.policy_id || '/' || (d ->> 'id') = split_part(r.breaker_key, '|', 1)
            and d ->> 'per' = r.scope and (d -> 'amount' = '{}' or d -> 'amount' ? ask.currency)))));
end $$;

create or replace function sentinel.count_velocity(ask sentinel.guard_input, moment timestamptz) returns void language plpgsql as $$
begin
  insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
  select ask.tenant_id, b.breaker_key, date_bin(make_interval(secs => b.bucket_seconds), moment, 'epoch'), coalesce(ask.currency, ''),
         b.scope, b.target, 1, coalesce(ask.amount_minor, 0)
  from jsonb_populate_recordset(null::sentinel.breaker_ask, ask.breakers) as b order by b.breaker_key
  on conflict (tenant_id, breaker_key, bucket, currency) do update set
    operations = v.operations + 1, amount_minor = v.amount_minor + excluded.amount_minor;
end $$;

-- Halts the agent or tenant that would pass the rate, in the transaction of the decision that is refused for it. The halt is a pause: a
-- person decides who may go on, by lifting it. Only a transaction that holds the halt lock alone may set a halt: one that shares it
-- ends here with SQLSTATE SNTRP, and its caller calls record_decisions_alone.
create or replace function sentinel.trip_breaker(ask sentinel.guard_input, b sentinel.breaker_ask, moment timestamptz)
returns void language plpgsql as $$
begin
  if not sentinel.holds_halt_lock() then
    raise exception 'a breaker trips' using errcode = 'SNTRP';
  end if;
  perform sentinel.insert_halt(ask.tenant_id, ask.approval_id, b.scope, b.target, 'pause', 'the next would pass ' || b.declared,
    'velocity breaker ' || split_part(b.breaker_key, '|', 1), ask.second_event_id, moment, b.breaker_key);
end $$;

-- Deletes the counts of an agent or tenant whose halt a person lifts: otherwise its next operation would trip the breaker again.
create or replace function sentinel.reset_velocity(owner uuid, halt_scope text, halt_target text) returns void language sql as $$
  delete from sentinel.velocity where tenant_id = owner and scope = halt_scope and target = halt_target
$$;
