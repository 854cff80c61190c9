-- What must hold at every moment, each as a query that counts violations: 0 rows wrong, or something is broken.
-- Run after every scenario of the tests and by `sentinel doctor`. Read-only; works on a live database.
-- A block is "-- name: sentence" followed by one query that returns one number.

-- executions_without_start: every execution has a started operation behind it
select count(*) from refunds.executions e
where exists (select from sentinel.operations o where o.tenant_id = e.tenant_id)
  and not exists (select from sentinel.operation_states s
                  where s.tenant_id = e.tenant_id and s.operation_id = e.operation_id
                    and s.started_at is not null and s.start_event_id = e.start_event_id);

-- executions_other_than_permitted: amount, currency and operation of an execution are the permit's
select count(*) from refunds.executions e join sentinel.operations o using (tenant_id, operation_id)
where (e.amount_minor, e.currency) is distinct from (o.amount_minor, o.currency)
   or o.idempotency_key <> 'refund:' || e.ledger_entry_id;

-- executed_without_execution: a ledger row is EXECUTED exactly when it has one execution
select count(*) from refunds.ledger_entries l
left join (select tenant_id, ledger_entry_id, count(*) as times from refunds.executions group by 1, 2) e
  using (tenant_id, ledger_entry_id)
where (l.status = 'EXECUTED') <> (coalesce(e.times, 0) = 1);

-- held_differs: held budget is the sum of the live reservations, per limit and window part
with legs as (
  select r.tenant_id, l.limit_key, l.bucket, l.override, r.amount_minor, r.state
  from sentinel.reservations r
  cross join lateral unnest(r.limit_keys, r.buckets, r.overrides) as l(limit_key, bucket, override)
), sums as (
  select tenant_id, limit_key, bucket,
    coalesce(sum(amount_minor) filter (where state = 'held' and not override), 0) as held,
    coalesce(sum(amount_minor) filter (where state = 'held' and override), 0) as override_held
  from legs group by 1, 2, 3
)
select count(*) from sentinel.usage u full join sums s using (tenant_id, limit_key, bucket)
where (coalesce(u.held_minor, 0), coalesce(u.override_held_minor, 0)) <> (coalesce(s.held, 0), coalesce(s.override_held, 0));

-- captured_differs: captured budget is the sum of the reported successes, per limit and window part
with legs as (
  select r.tenant_id, l.limit_key, l.bucket, l.override, r.amount_minor
  from sentinel.reservations r join sentinel.operation_states o using (tenant_id, operation_id)
  cross join lateral unnest(r.limit_keys, r.buckets, r.overrides) as l(limit_key, bucket, override)
  where r.state = 'captured' and o.outcome = 'success' and o.permit_id = r.permit_id
), sums as (
  select tenant_id, limit_key, bucket,
    coalesce(sum(amount_minor) filter (where not override), 0) as captured,
    coalesce(sum(amount_minor) filter (where override), 0) as override_captured
  from legs group by 1, 2, 3
)
select count(*) from sentinel.usage u left join sums s using (tenant_id, limit_key, bucket)
where (u.captured_minor, u.override_captured_minor) <> (coalesce(s.captured, 0), coalesce(s.override_captured, 0));

-- cap_exceeded: held and captured never exceed the cap, in a calendar window nor in any position of a sliding one
select count(*) from sentinel.usage u
where u.cap_minor < (
  select sum(o.held_minor + o.captured_minor) from sentinel.usage o
  where o.tenant_id = u.tenant_id and o.limit_key = u.limit_key and o.bucket <= u.bucket
    and (o.bucket = u.bucket or o.bucket > u.bucket - make_interval(secs => u.window_seconds)))
  and u.held_minor + u.captured_minor > 0;

-- reservation_without_live_permit: a held reservation belongs to a permit that lives, started or is in doubt
select count(*) from sentinel.reservations r
left join sentinel.operation_states s on s.tenant_id = r.tenant_id and s.operation_id = r.operation_id and s.permit_id = r.permit_id
where r.state = 'held' and (s.status is null or s.status not in ('allowed', 'approved', 'started', 'in_doubt'));

-- done_twice: what may happen only once is live or executed at most once
select count(*) from (
  select tenant_id, once_key from sentinel.operation_states where once_live group by 1, 2 having count(*) > 1) twice;

-- done_twice_spelled: of what may happen only once, no two spellings are live unless a person was asked about the second
select count(*) from (
  select tenant_id, once_folded from sentinel.operation_states where once_live and once_key not like '%~'
  group by 1, 2 having count(*) filter (where approval_id is null) > 1) twice;

-- executed_twice: no refund has two executions
select count(*) from (
  select tenant_id, refund_id from refunds.executions group by 1, 2 having count(*) > 1) twice;

-- approval_by_requester: nobody approved what a key of theirs asked for
select count(*) from sentinel.approval_votes v join sentinel.approvals a using (tenant_id, approval_id)
where v.verdict = 'approve' and v.operator_id = a.requester_operator_id;

-- approval_without_quorum: an approved approval has as many people as it needed
select count(*) from sentinel.approvals a
where a.status = 'approved' and a.required_people > (
  select count(*) from sentinel.approval_votes v
  where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id and v.verdict = 'approve');

-- approval_not_offered: nothing was approved where approving was not offered
select count(*) from sentinel.approvals where status = 'approved' and not offers_approve;

-- handled_without_voice: what is handled by a person has that person's word, and is denied to the machine
select count(*) from sentinel.approvals a
left join sentinel.operation_states s on s.tenant_id = a.tenant_id and s.operation_id = a.operation_id and s.approval_id = a.approval_id
where a.handled_reference is not null and (s.status is distinct from 'denied' or not exists (
  select from sentinel.approval_votes v
  where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id and v.verdict = 'handled'));

-- approval_after_expiry: no approval was given after its end
select count(*) from sentinel.approvals where status = 'approved' and decided_at > expires_at;

-- permit_without_approval: what needed a person started only after one approved
select count(*) from sentinel.operation_states s
where s.decision = 'APPROVAL_REQUIRED' and s.started_at is not null
  and not exists (select from sentinel.approvals a where a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
                    and a.status = 'approved' and a.decided_at <= s.started_at);

-- started_after_expiry: nothing started after its permit's end
select count(*) from sentinel.operation_states where started_at > permit_expires_at;

-- started_under_halt: nothing started while a halt covered it
select count(*) from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
join sentinel.halts h on h.scope = 'global' or h.tenant_id = s.tenant_id and (
  h.scope = 'tenant' or h.scope = 'agent' and h.target = o.agent_id or h.scope = 'scenario' and h.target = o.scenario
  or h.scope = 'action' and (h.target = o.action or right(h.target, 2) = '.*' and o.action like left(h.target, -1) || '%'))
where s.started_at > h.set_at and (h.lifted_at is null or s.started_at < h.lifted_at);

-- position_gaps: positions of a tenant run 1, 2, 3 … without a hole
select count(*) from (
  select tenant_id, max(position) as last, count(*) as number from sentinel.feed group by tenant_id) f
where last <> number;

-- decision_without_proof: every operation has its decision's proof pack, from the same moment
select count(*) from sentinel.operation_states s
left join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id and e.kind = 'decision'
where e.event_id is null;

-- proof_altered: every event still has the hash of its body
select count(*) from sentinel.events where hash <> 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex');

-- feed_beyond_decisions: the feed holds each event at most once and nothing that is not an event
select count(*) from sentinel.feed f left join sentinel.events e using (tenant_id, event_id) where e.event_id is null;

-- stuck_claims: no ledger row is held half a minute past its lease
select count(*) from refunds.ledger_entries
where status in ('GUARDING', 'ALLOWED') and lease_until < clock_timestamp() - interval '30 seconds';

-- executed_without_confirmation: a row whose customer was asked is executed only after that customer confirmed
select count(*) from refunds.ledger_entries l join refunds.executions e using (tenant_id, ledger_entry_id)
where exists (select from refunds.confirmations c where c.tenant_id = l.tenant_id and c.ledger_entry_id = l.ledger_entry_id)
  and not exists (select from refunds.confirmations c where c.tenant_id = l.tenant_id and c.ledger_entry_id = l.ledger_entry_id
                    and c.status = 'confirmed' and c.answered_at <= e.executed_at
                    and (c.amount_minor, c.currency) = (e.amount_minor, e.currency));

-- executed_without_effects: an execution whose entry has effects outside has every one that must be done, done
select count(*) from refunds.executions e
join (select tenant_id, ledger_entry_id, count(*) filter (where state = 'done') as done, max(must_total) as wanted
      from refunds.effects where not best_effort group by 1, 2) f using (tenant_id, ledger_entry_id)
where f.done <> f.wanted;

-- effect_forgotten: an effect under way or being taken back belongs to an entry that a worker still comes back to
select count(*) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.state in ('intended', 'compensating') and not f.best_effort and l.status in ('EXECUTED', 'DENIED', 'ERROR');

-- refund_half_undone: a refused saga has nothing left of it: done effects beside a refused one only while a worker is at it
select count(*) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.state = 'done' and not f.best_effort and l.status in ('EXECUTED', 'DENIED', 'ERROR')
  and exists (select from refunds.effects o where o.tenant_id = f.tenant_id and o.ledger_entry_id = f.ledger_entry_id
                and o.state = 'refused' and not o.best_effort);

-- effect_of_another: an effect belongs to the start of its entry
select count(*) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.operation_reference is distinct from l.start_id;

-- flips_in_evidence: how a switch stands is what the last recorded flip of it says
select count(*) from sentinel.switches s where not exists (
  select from sentinel.events e where e.tenant_id = s.tenant_id and e.occurred_at = s.changed_at
    and e.kind = case when s.is_on then 'switch_on' else 'switch_off' end
    and case when e.kind in ('switch_on', 'switch_off') then e.body::jsonb ->> 'switch' end = s.name);

-- wrong_execution_found: reconciliation has found no wrong execution in the last 30 days (`worker reconcile` says which)
select count(*) from refunds.wrong_executions where found_at > clock_timestamp() - interval '30 days';

-- order_in_two_lanes: each order has one review, and no lane before its decision nor none after it
select (select count(*) from (select from orders.reviews group by tenant_id, source, order_id having count(*) > 1) twice)
  + (select count(*) from orders.reviews where (lane is null) <> (status in ('RECEIVED', 'SCORED')));

-- order_trail_differs: where an order stands is where the last step of its trail led
select count(*) from orders.reviews r
left join lateral (select e.to_lane, e.to_status from orders.events e
                   where e.tenant_id = r.tenant_id and e.review_id = r.review_id order by e.event_id desc limit 1) last on true
where (r.status, r.lane) is distinct from (coalesce(last.to_status, 'RECEIVED'), last.to_lane);

-- order_way_not_declared: every step of a trail is in the table of lanes
select count(*) from orders.events e where not exists (
  select from orders.transitions t where (t.from_lane, t.from_status, t.event, t.to_lane, t.to_status)
    = (coalesce(e.from_lane, '-'), e.from_status, e.event, coalesce(e.to_lane, '-'), e.to_status));

-- order_fulfilled_though_denied: no fulfilment is intended or done for an order that is high, denied, held or refunded
select count(*) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'fulfil' and f.state in ('intended', 'done')
  and (r.lane = 'high' or f.lane <> r.lane or r.decision = 'DENY' or r.status <> case f.state when 'done' then 'FULFILLED' else 'STARTED' end);

-- order_fulfilled_without_effect: a fulfilled order has its fulfilment, done under its own operation
select count(*) from orders.reviews r where r.status = 'FULFILLED' and not exists (
  select from orders.effects f where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'fulfil'
    and f.state = 'done' and f.operation_id = r.operation_id);

-- order_fulfilled_without_start: the authority started what was fulfilled, where it keeps its operations here
select count(*) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'fulfil' and f.state = 'done' and exists (select from sentinel.operations o where o.tenant_id = f.tenant_id)
  and not exists (select from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
                  where o.tenant_id = f.tenant_id and o.operation_id = f.operation_id and s.started_at is not null
                    and o.idempotency_key = 'order:' || r.source || ':' || r.order_id);

-- order_effect_twice: each effect of an order is there once, and no operation stands for two orders
select (select count(*) from (select from orders.effects f join orders.reviews r using (tenant_id, review_id)
                              group by f.tenant_id, r.source, r.order_id, f.kind having count(*) > 1) twice)
  + (select count(*) from (select from orders.effects group by tenant_id, operation_id having count(distinct review_id) > 1) shared);

-- order_held_without_hold: whatever is held is to be held in the shop too, and nothing else is
select (select count(*) from orders.reviews r where r.status = 'HELD' and not exists (
          select from orders.effects f where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'hold'))
  + (select count(*) from orders.effects f join orders.reviews r using (tenant_id, review_id)
     where f.kind = 'hold' and r.status <> 'HELD');

-- order_word_not_kept: an analyst's word is where the order went, and only a queued order's
select count(*) from orders.reviews
where (status = 'REFUND_FILED') <> (resolution is not distinct from 'refund')
  or (resolution = 'hold' and status <> 'HELD') or (resolution is not null and lane <> 'medium');

-- order_refund_missing: a refunded order has its row in the ledger, over what was paid
select count(*) from orders.reviews r where r.status = 'REFUND_FILED' and not exists (
  select from refunds.ledger_entries l where l.tenant_id = r.tenant_id
    and l.ledger_entry_id = orders.refund_name(r.source, r.order_id) and l.action = 'refund.create'
    and (l.amount_minor, l.currency) = (r.amount_minor, r.currency));

-- order_queued_without_approval: a queued order has its approval in this database, or no analyst could decide it
select count(*) from orders.reviews r where r.status = 'QUEUED' and not exists (
  select from sentinel.approvals a where a.tenant_id = r.tenant_id and a.approval_id = r.approval_id
    and a.operation_id = r.operation_id);

-- order_stuck: no order is under way half a minute past its lease, or past when it was to be taken up again
select count(*) from orders.reviews
where status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED') and next_attempt_at < clock_timestamp() - interval '30 seconds';

-- order_answer_of_another: a recorded answer is its own order's, and says that it is over only when it is
select count(*) from orders.deliveries d left join orders.reviews r using (tenant_id, review_id)
where (r.source, r.order_id) is distinct from (d.source, d.order_id)
  or (d.is_final and r.status not in ('FULFILLED', 'HELD', 'REFUND_FILED'));

-- shop_did_unasked: the simulated shop did nothing that was not on record first
select count(*) from orders.simulated_shop s where not exists (
  select from orders.reviews r join orders.effects f using (tenant_id, review_id)
  where (r.tenant_id, r.source, r.order_id) = (s.tenant_id, s.source, s.order_id) and f.operation_id = s.operation_id
    and f.state <> 'cancelled' and f.kind = case s.status when 'fulfilled' then 'fulfil' else 'hold' end);
