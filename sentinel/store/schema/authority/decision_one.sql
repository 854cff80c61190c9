-- The plain decision of a batch of one, in plain statements: they are much cheaper to begin than those of a set.

-- The limits of one permission, each with the part of its window that is being filled: usage and reservations name them by these arrays.
create type sentinel.held_parts as (
  keys text[], buckets timestamptz[], since timestamptz[], caps bigint[], seconds integer[], locks bigint[], total_locks bigint[], subject text
);

create or replace function sentinel.parts_of_one(
  tenant uuid, limits sentinel.limit_terms[], legs sentinel.limit_leg[], moment timestamptz
) returns sentinel.held_parts language plpgsql stable as $$
declare
  p sentinel.held_parts;
  leg sentinel.limit_leg;
  l sentinel.limit_terms;
  lock bigint;
begin
  foreach leg in array legs loop
    l := limits[leg.limit_place + 1];
    p.keys := p.keys || leg.limit_key;
    p.buckets := p.buckets || sentinel.part_of(l."window", l.bucket_seconds, l.zone, moment);
    p.since := p.since || sentinel.first_part_of(l."window", l.window_seconds, l.bucket_seconds, l.zone, moment);
    p.caps := p.caps || l.cap_minor;
    p.seconds := p.seconds || l.window_seconds;
    p.subject := coalesce(p.subject, leg.subject);
    lock := sentinel.budget_lock(tenant, leg.subject);
    if leg.shared is null then
      if not coalesce(lock = any(p.locks), false) then p.locks := p.locks || lock; end if;
    elsif not coalesce(lock = any(p.total_locks), false) then p.total_locks := p.total_locks || lock;
    end if;
  end loop;
  return p;
end $$;

-- Counts one permission against the breakers of who asks; false, and nothing counted, where it would pass one.
create or replace function sentinel.count_velocity_of_one(
  t sentinel.guard_terms, amount bigint, breakers sentinel.shared_breaker[], moment timestamptz
) returns boolean language plpgsql as $$
declare
  b sentinel.shared_breaker;
begin
  foreach b in array breakers loop
    if (select coalesce(sum(v.operations), 0) >= b.most_operations
            or coalesce(sum(v.amount_minor) filter (where v.currency = t.currency), 0) + amount > b.most_minor
        from sentinel.velocity v
        where v.tenant_id = t.tenant_id and v.breaker_key = b.breaker_key
          and v.bucket >= date_bin(make_interval(secs => b.bucket_seconds), moment - make_interval(secs => b.window_seconds), 'epoch')) then
      return false;
    end if;
  end loop;
  foreach b in array breakers loop
    insert into sentinel.velocity as v (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
    values (t.tenant_id, b.breaker_key, date_bin(make_interval(secs => b.bucket_seconds), moment, 'epoch'), coalesce(t.currency, ''), b.scope,
      b.target, 1, coalesce(amount, 0))
    on conflict (tenant_id, breaker_key, bucket, currency) do update set
      operations = v.operations + 1, amount_minor = v.amount_minor + excluded.amount_minor;
  end loop;
  return true;
end $$;

-- Records one new permission that nothing stands against, and answers it: an ALLOW that does not start with its answer. Null, and nothing
-- written, for everything else. What it leaves is the same as plain_rows and record_batch would. The caller holds the locks of
-- locks_of_batch.
create or replace function sentinel.record_one(
  t sentinel.guard_terms, r sentinel.guard_row, limits sentinel.limit_terms[], legs sentinel.limit_leg[],
  breakers sentinel.shared_breaker[], crowded uuid[], began timestamptz, moment timestamptz
) returns sentinel.guard_output language plpgsql as $$
declare
  p sentinel.held_parts;
  body text;
  body_hash text;
  permit_end timestamptz := moment + make_interval(secs => t.permit_seconds);
  one sentinel.guard_output;
begin
  if t.verdict <> 'ALLOW' or r.start_id is not null or t.hand_out_is_start or t.principal_id = any(crowded) then return null; end if;
  if exists (select from sentinel.halts where lifted_at is null)
    or exists (select from sentinel.operations o where o.idempotency_key = r.idempotency_key and o.tenant_id = t.tenant_id)
    or exists (select from sentinel.operation_states s
               where s.tenant_id = t.tenant_id and s.once_folded = sentinel.once_folded(r.once_key) and s.once_live) then
    return null;
  end if;
  if r.amount_minor is not null and cardinality(legs) > 0 then
    p := sentinel.parts_of_one(t.tenant_id, limits, legs, moment);
    if exists (
        select from unnest(p.keys, p.since, p.caps) as k (limit_key, since, cap_minor)
        where r.amount_minor + (select coalesce(sum(u.held_minor + u.captured_minor), 0) from sentinel.usage u
                                where u.tenant_id = t.tenant_id and u.limit_key = k.limit_key and u.bucket >= k.since) > k.cap_minor) then
      return null;
    end if;
  end if;
  if not sentinel.count_velocity_of_one(t, r.amount_minor, breakers, moment) then return null; end if;

  -- From here it is allowed.
  body := r.part1 || sentinel.utc_text(moment) || '","decision":"ALLOW","facts_commitment":"' || r.facts_commitment || '","latency_ms":'
    || (r.elapsed_ms + ceil(extract(epoch from moment - began) * 1000)::integer) || r.part2 || t.reason_code || r.part3;
  body_hash := sentinel.sha256_text(body);
  insert into sentinel.operations
    (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request, basis, salt,
     scenario, once_key, amount_minor, currency, created_at)
  values (t.tenant_id, r.operation_id, r.idempotency_key, t.principal_id, t.agent_id, t.action, r.resource, t.risk_class, r.digest, r.request,
     r.basis, r.salt, t.scenario, r.once_key, r.amount_minor, t.currency, began);
  insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  values (t.tenant_id, r.event_id, 'decision', r.operation_id, t.agent_id, body, body_hash, moment);
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest, decision_event_id,
     once_key, once_live, permit_id, permit_expires_at, principal_id, holds, total_holds)
  values (t.tenant_id, r.operation_id, 'allowed', 'ALLOW', t.reason_code, t.policy_id, t.policy_version, t.policy_label, t.policy_digest, r.event_id,
     r.once_key, r.once_key is not null, r.permit_id, permit_end, t.principal_id, p.locks, p.total_locks);
  if p.keys is not null then
    -- Each by its key: a join may read all that is there.
    for place in 1 .. cardinality(p.keys) loop
      update sentinel.usage u set held_minor = u.held_minor + r.amount_minor, cap_minor = p.caps[place]
      where u.tenant_id = t.tenant_id and u.limit_key = p.keys[place] and u.bucket = p.buckets[place];
      if not found then
        insert into sentinel.usage (tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor)
        values (t.tenant_id, p.keys[place], p.buckets[place], p.seconds[place], p.caps[place], r.amount_minor);
      end if;
    end loop;
    insert into sentinel.reservations
    values (t.tenant_id, r.permit_id, r.operation_id, p.subject, r.amount_minor, p.keys, p.buckets,
      array_fill(false, array[cardinality(p.keys)]), 'held', moment, null);
  end if;

  one.seq := r.seq; one.result := 'decided'; one.operation_id := r.operation_id; one.decision_event_id := r.event_id;
  one.decision := 'ALLOW'; one.reason_code := t.reason_code; one.status := 'allowed'; one.policy_id := t.policy_id;
  one.policy_version := t.policy_version; one.policy_label := t.policy_label; one.resource := r.resource; one.risk_class := t.risk_class;
  one.digest := r.digest; one.permit_id := r.permit_id; one.permit_expires_at := permit_end; one.pack := body; one.pack_hash := body_hash;
  one.decided_at := moment;
  return one;
end $$;
