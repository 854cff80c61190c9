-- The plain decision of a batch of one row, in simple statements: their start-up cost is much lower than that of the set statements.

-- Holds an amount in every slot of one owner's budget. Only if the row has exactly the slots asked for, their window parts are the current
-- ones, and the amount fits each cap beside what the slot has and what earlier parts of its window have (`older`). Otherwise returns false
-- and writes nothing. The caller holds the lock of the owner's budgets.
create or replace function sentinel.hold_slots(
  tenant uuid, owner text, policy text, names text[], parts timestamptz[], seconds integer[], most bigint[], older bigint[], taken bigint[]
) returns boolean language plpgsql as $$
begin
  update sentinel.budgets b set held = sentinel.slots_added(b.held, taken), caps = most
  where b.tenant_id = tenant and b.subject = owner and b.policy_id = policy and b.buckets = parts and b.limits = names
    and sentinel.is_within_caps(sentinel.slots_added(b.held, taken), sentinel.slots_added(b.captured, older), most);
  if found then return true; end if;
  if exists (select from sentinel.budgets b where b.tenant_id = tenant and b.subject = owner and b.policy_id = policy)
    or not sentinel.is_within_caps(taken, older, most) then
    return false;
  end if;
  insert into sentinel.budgets (tenant_id, subject, policy_id, limits, buckets, window_seconds, caps, held, captured)
  values (tenant, owner, policy, names, parts, seconds, most, taken, array_fill(0::bigint, array[cardinality(taken)]));
  return true;
end $$;

-- Holds everything that one row takes, owner by owner, with the same result as hold_sums. When it returns false, part of it may have been
-- written: the caller rolls it back.
create or replace function sentinel.hold_alone(
  sums sentinel.budget_sum[], limits sentinel.limit_terms[], buckets timestamptz[], moment timestamptz
) returns boolean language plpgsql as $$
declare
  k sentinel.budget_sum;
  l sentinel.limit_terms;
  keys text[];                                                             -- slots with a rolling window; `since`: first part that counts
  since timestamptz[];
  older bigint[];                                                          -- amount used in the earlier parts of those
  place integer := 0;
  parts timestamptz[];
  seconds integer[];
  most bigint[];
  before bigint[];
begin
  foreach k in array sums loop
    if k.is_mixed then return false; end if;
    for slot in 1 .. cardinality(k.limits) loop
      l := limits[k.limit_places[slot] + 1];
      if l."window" = 'rolling' then
        keys := keys || (k.policy_id || '/' || k.limits[slot] || '|' || k.subject);
        since := since || sentinel.first_part_of(l."window", l.window_seconds, l.bucket_seconds, l.zone, moment);
      end if;
    end loop;
  end loop;
  if keys is not null then
    older := array(
      select (select coalesce(sum(p.held_minor + p.captured_minor), 0) from sentinel.usage_parts p
              where p.tenant_id = k.tenant_id and p.limit_key = r.limit_key and p.bucket >= r.since)::bigint
      from unnest(keys, since) with ordinality as r (limit_key, since, nth) order by r.nth);
  end if;
  foreach k in array sums loop
    parts := null; seconds := null; most := null; before := null;
    for slot in 1 .. cardinality(k.limits) loop
      l := limits[k.limit_places[slot] + 1];
      parts := parts || buckets[l.place + 1]; seconds := seconds || l.window_seconds; most := most || l.cap_minor;
      if l."window" = 'rolling' then place := place + 1; before := before || older[place]; else before := before || 0::bigint; end if;
    end loop;
    if not sentinel.hold_slots(k.tenant_id, k.subject, k.policy_id, k.limits, parts, seconds, most, before, k.taken) then return false; end if;
  end loop;
  return true;
end $$;

-- Counts one allowed row against its requester's breakers; returns false when it would pass one. The caller holds the breakers' locks, so
-- the counts read here are complete and no other transaction adds to them.
create or replace function sentinel.count_alone(rates sentinel.rate_sum[], moment timestamptz) returns boolean language plpgsql as $$
declare
  b sentinel.rate_sum;
  part timestamptz;
begin
  foreach b in array rates loop
    if b.is_mixed or (
        select coalesce(sum(v.operations), 0) + b.operations > b.most_operations
            or coalesce(sum(v.amount_minor) filter (where v.currency = b.currency), 0) + b.amount_minor > b.most_minor
        from sentinel.velocity v
        where v.tenant_id = b.tenant_id and v.breaker_key = b.breaker_key
          and v.bucket >= date_bin(make_interval(secs => b.bucket_seconds), moment - make_interval(secs => b.window_seconds), 'epoch')) then
      return false;
    end if;
    part := date_bin(make_interval(secs => b.bucket_seconds), moment, 'epoch');
    update sentinel.velocity v set operations = v.operations + b.operations, amount_minor = v.amount_minor + b.amount_minor
    where v.tenant_id = b.tenant_id and v.breaker_key = b.breaker_key and v.bucket = part and v.currency = b.currency;
    if found then continue; end if;
    insert into sentinel.velocity (tenant_id, breaker_key, bucket, currency, scope, target, operations, amount_minor)
    values (b.tenant_id, b.breaker_key, part, b.currency, b.scope, b.target, b.operations, b.amount_minor);
  end loop;
  return true;
end $$;

-- Records one new ALLOW that no halt, once-key, limit, breaker or permit limit is against, and returns its answer; the rows are the same as
-- record_batch would write. Returns null in every other case; rows may then be written and locks taken, and the caller, who holds the
-- halt lock, rolls them back.
create or replace function sentinel.record_one(
  t sentinel.guard_terms, r sentinel.guard_row, limits sentinel.limit_terms[], sums sentinel.budget_sum[], rates sentinel.rate_sum[],
  began timestamptz, patience_ms integer
) returns sentinel.guard_output language plpgsql as $$
declare
  deadline timestamptz := began + make_interval(secs => patience_ms / 1000.0);
  own_locks bigint[] := sentinel.budget_locks(t.tenant_id, r.subjects);
  total_locks bigint[] := sentinel.budget_locks(t.tenant_id, t.total_subjects);
  locks bigint[] := own_locks || total_locks || sentinel.operation_lock(t.tenant_id, r.idempotency_key);
  moment timestamptz;
  buckets timestamptz[];
  l sentinel.limit_terms;
  b sentinel.rate_sum;
  latency integer;
  body text;
  body_hash bytea;
  is_start boolean := r.start_id is not null or coalesce(t.hand_out_is_start, false);
  start_body text;
  start_hash text;
  permit_end timestamptz;
  is_reserved boolean := false;
begin
  if r.once_key is not null then locks := locks || sentinel.once_lock(t.tenant_id, r.once_key); end if;
  foreach b in array rates loop locks := locks || sentinel.velocity_lock(b.tenant_id, b.breaker_key); end loop;
  perform sentinel.take_locks(locks, deadline);

  moment := clock_timestamp();
  permit_end := moment + make_interval(secs => t.permit_seconds);
  if exists (select from sentinel.halts where lifted_at is null)
    or not is_start and exists (
      select from sentinel.keys_at_limit c where c.principal_id = t.principal_id and c.open_permits > 0 and c.valid_until > began)
    or exists (select from sentinel.operations o where o.idempotency_key = r.idempotency_key and o.tenant_id = t.tenant_id)
    or exists (select from sentinel.operation_states s
               where s.tenant_id = t.tenant_id and sentinel.once_folded(s.once_key) = sentinel.once_folded(r.once_key) and s.once_live) then
    return null;
  end if;
  if t.terms_id is null then t := (sentinel.put_in_terms(array[t]))[1]; end if;
  if not sentinel.count_alone(rates, moment) then return null; end if;
  if r.amount_minor is not null and cardinality(sums) > 0 then
    foreach l in array limits loop buckets := buckets || sentinel.part_of(l."window", l.bucket_seconds, l.zone, moment); end loop;
    if not sentinel.hold_alone(sums, limits, buckets, moment) then return null; end if;
    is_reserved := true;
  end if;

  latency := r.elapsed_ms + ceil(extract(epoch from moment - began) * 1000)::integer;
  body := sentinel.pack_text(t.pack_template, r.amount_value, sentinel.utc_text(moment), 'ALLOW', r.facts_commitment, latency, r.ledger_entry_id,
    r.operation_commitment, r.event_id, t.reason_code, r.refund_id);
  body_hash := sha256(convert_to(body, 'UTF8'));
  insert into sentinel.operation_rows
    (tenant_id, operation_id, principal_id, created_at, terms_id, amount_minor, idempotency_key, resource, digest, params, request, salt,
     scenario, once_key, currency, basis)
  values (t.tenant_id, r.operation_id, t.principal_id, began, t.terms_id, r.amount_minor, r.idempotency_key, r.resource, r.digest, r.params,
     r.request, r.salt, t.scenario, r.once_key, t.currency, r.basis);
  insert into sentinel.event_rows
    (tenant_id, event_id, operation_id, occurred_at, terms_id, latency_ms, kind, hash, facts_commitment, operation_commitment, amount_value,
     ledger_entry_id, refund_id, trace)
  values (t.tenant_id, r.event_id, r.operation_id, moment, t.terms_id, latency, 'decision', body_hash, r.facts_commitment, r.operation_commitment,
     r.amount_value, r.ledger_entry_id, r.refund_id, r.trace);
  if is_start then
    start_body := sentinel.start_text(r.second_event_id, r.operation_id, t.agent_id, t.action, r.permit_id, r.start_id, sentinel.utc_text(moment));
    start_hash := sentinel.sha256_text(start_body);
    insert into sentinel.event_rows (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
    values (t.tenant_id, r.second_event_id, 'start', r.operation_id, t.agent_id, start_body, sentinel.hash_bytes(start_hash), moment);
  end if;
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, terms_id, decision_event_id, once_key, once_live, permit_id, permit_expires_at,
     start_id, started_at, start_event_id, start_hash, act_until, principal_id, holds, total_holds, reserved_minor, limit_keys, limit_owner, parts_id, reservation)
  values (t.tenant_id, r.operation_id, case when is_start then 'started' else 'allowed' end, 'ALLOW', t.reason_code, t.terms_id, r.event_id,
     r.once_key, r.once_key is not null, r.permit_id, permit_end, r.start_id, case when is_start then moment end,
     case when is_start then r.second_event_id end, start_hash, case when is_start then sentinel.leave_until(r.act_seconds, moment) end, t.principal_id,
     case when is_reserved then own_locks end, case when is_reserved then total_locks end, case when is_reserved then r.amount_minor end,
     case when is_reserved and t.own_keys is null then r.limit_keys || t.total_keys end,
     case when is_reserved and t.own_keys is not null then coalesce(r.subjects[1], '') end,
     case when is_reserved then sentinel.number_of_parts(sentinel.buckets_at(buckets, t.limit_places)) end, case when is_reserved then 'held' end);
  return row(r.seq, 'decided', r.operation_id, r.event_id, 'ALLOW', t.reason_code, 'allowed', t.policy_id, t.policy_version, t.policy_label,
    r.resource, t.risk_class, 'sha256:' || encode(r.digest, 'hex'), null, r.permit_id, permit_end, null, null, null, null, null,
    body, 'sha256:' || encode(body_hash, 'hex'), moment,
    case when r.start_id is not null then r.second_event_id end, case when r.start_id is not null then start_hash end,
    case when r.start_id is not null then false end)::sentinel.guard_output;
end $$;
