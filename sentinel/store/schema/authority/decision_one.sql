-- The plain decision of a batch of one, in plain statements: they are much cheaper to begin than those of a set.

-- Records one new permission that nothing stands against, and answers it: an ALLOW that does not start with its answer. Null, and nothing
-- written, for everything else. What it leaves is the same as all_plain and record_batch would. The caller holds the locks of
-- locks_of_batch.
create or replace function sentinel.record_one(
  t sentinel.guard_terms, r sentinel.guard_row, sums sentinel.limit_sum[], rates sentinel.rate_sum[], parts sentinel.limit_parts,
  crowded uuid[], began timestamptz, moment timestamptz
) returns sentinel.guard_output language plpgsql as $$
declare
  body text;
  body_hash text;
  permit_end timestamptz := moment + make_interval(secs => t.permit_seconds);
  keys text[];
  own_locks bigint[];
  total_locks bigint[];
  one sentinel.guard_output;
begin
  if t.verdict <> 'ALLOW' or r.start_id is not null or t.hand_out_is_start or t.principal_id = any(crowded) then return null; end if;
  if exists (select from sentinel.halts where lifted_at is null)
    or exists (select from sentinel.operations o where o.idempotency_key = r.idempotency_key and o.tenant_id = t.tenant_id)
    or exists (select from sentinel.operation_states s
               where s.tenant_id = t.tenant_id and s.once_folded = sentinel.once_folded(r.once_key) and s.once_live) then
    return null;
  end if;
  if cardinality(sums) > 0 and cardinality(sentinel.tight_sums(sums, parts)) > 0 then return null; end if;
  if cardinality(rates) > 0 and sentinel.is_rate_tight(rates, moment) then return null; end if;

  -- From here it is allowed.
  perform sentinel.count_rates(rates, moment);
  body := r.part1 || sentinel.utc_text(moment) || '","decision":"ALLOW","facts_commitment":"' || r.facts_commitment || '","latency_ms":'
    || (r.elapsed_ms + ceil(extract(epoch from moment - began) * 1000)::integer) || r.part2 || t.reason_code || r.part3;
  body_hash := sentinel.sha256_text(body);
  if r.amount_minor is not null and cardinality(sums) > 0 then
    perform sentinel.hold_sums(sums, parts);
    keys := r.limit_keys || t.total_keys;
    own_locks := sentinel.budget_locks(t.tenant_id, r.subjects);
    total_locks := sentinel.budget_locks(t.tenant_id, t.total_subjects);
  end if;
  insert into sentinel.operations
    (tenant_id, operation_id, idempotency_key, principal_id, agent_id, action, resource, risk_class, digest, request, basis, salt,
     scenario, once_key, amount_minor, currency, created_at)
  values (t.tenant_id, r.operation_id, r.idempotency_key, t.principal_id, t.agent_id, t.action, r.resource, t.risk_class, r.digest, r.request,
     r.basis, r.salt, t.scenario, r.once_key, r.amount_minor, t.currency, began);
  insert into sentinel.events (tenant_id, event_id, kind, operation_id, agent_id, body, hash, occurred_at)
  values (t.tenant_id, r.event_id, 'decision', r.operation_id, t.agent_id, body, body_hash, moment);
  insert into sentinel.operation_states
    (tenant_id, operation_id, status, decision, reason_code, policy_id, policy_version, policy_label, policy_digest, decision_event_id,
     once_key, once_live, permit_id, permit_expires_at, principal_id, holds, total_holds, reserved_minor, limit_keys, limit_buckets, reservation)
  values (t.tenant_id, r.operation_id, 'allowed', 'ALLOW', t.reason_code, t.policy_id, t.policy_version, t.policy_label, t.policy_digest, r.event_id,
     r.once_key, r.once_key is not null, r.permit_id, permit_end, t.principal_id, own_locks, total_locks,
     case when keys is not null then r.amount_minor end, keys, case when keys is not null then sentinel.buckets_at(parts, t.limit_places) end,
     case when keys is not null then 'held' end);

  one.seq := r.seq; one.result := 'decided'; one.operation_id := r.operation_id; one.decision_event_id := r.event_id;
  one.decision := 'ALLOW'; one.reason_code := t.reason_code; one.status := 'allowed'; one.policy_id := t.policy_id;
  one.policy_version := t.policy_version; one.policy_label := t.policy_label; one.resource := r.resource; one.risk_class := t.risk_class;
  one.digest := r.digest; one.permit_id := r.permit_id; one.permit_expires_at := permit_end; one.pack := body; one.pack_hash := body_hash;
  one.decided_at := moment;
  return one;
end $$;
