-- The invariants: each is a query that returns its violations and must return no rows.
-- Run after every scenario of the tests and by `sentinel doctor`. Read-only; works on a live database.
-- A block is "-- name: sentence" followed by one query of one text column: the kind and the id of what is damaged, as a
-- person would look it up ("operation 0190…", "order 1001 of shop"). A query that the login may not run is reported as not checked; so is
-- one "with the authority" if the ledger is in this database and the authority's operations are in another.

-- executions_without_start: every execution has a started operation
-- with the authority
select 'execution ' || e.execution_id from refunds.executions e
where exists (select from sentinel.operations o where o.tenant_id = e.tenant_id)
  and not exists (select from sentinel.operation_states s
                  where s.tenant_id = e.tenant_id and s.operation_id = e.operation_id
                    and s.started_at is not null and s.start_event_id = e.start_event_id);

-- executions_other_than_permitted: an execution has the amount, currency and operation of its permit
-- with the authority
select 'execution ' || e.execution_id from refunds.executions e join sentinel.operations o using (tenant_id, operation_id)
where (e.amount_minor, e.currency) is distinct from (o.amount_minor, o.currency)
   or o.idempotency_key <> 'refund:' || e.ledger_entry_id;

-- executed_without_execution: a ledger row is EXECUTED exactly when it has one execution
select 'ledger entry ' || l.ledger_entry_id from refunds.ledger_entries l
left join (select tenant_id, ledger_entry_id, count(*) as times from refunds.executions group by 1, 2) e
  using (tenant_id, ledger_entry_id)
where (l.status = 'EXECUTED') <> (coalesce(e.times, 0) = 1);

-- held_differs: held budget is the sum of the live reservations, per limit and window part
with legs as (
  select r.tenant_id, l.limit_key, l.bucket, l.override, r.amount_minor
  from sentinel.reservations r
  cross join lateral unnest(r.limit_keys, r.buckets, r.overrides) as l(limit_key, bucket, override)
  where r.state = 'held'
), sums as (
  select tenant_id, limit_key, bucket,
    coalesce(sum(amount_minor) filter (where not override), 0) as held,
    coalesce(sum(amount_minor) filter (where override), 0) as override_held
  from legs group by 1, 2, 3
)
select format('budget %s from %s', limit_key, bucket) from sentinel.usage u full join sums s using (tenant_id, limit_key, bucket)
where (coalesce(u.held_minor, 0), coalesce(u.override_held_minor, 0)) <> (coalesce(s.held, 0), coalesce(s.override_held, 0));

-- captured_differs: captured budget is the sum of the reported successes, per limit and window part
with legs as (
  select r.tenant_id, l.limit_key, l.bucket, l.override, r.amount_minor
  from sentinel.reservations r join sentinel.operation_states o using (tenant_id, operation_id)
  cross join lateral unnest(r.limit_keys, r.buckets, r.overrides) as l(limit_key, bucket, override)
  where r.state = 'captured' and o.outcome = 'success'
), sums as (
  select tenant_id, limit_key, bucket,
    coalesce(sum(amount_minor) filter (where not override), 0) as captured,
    coalesce(sum(amount_minor) filter (where override), 0) as override_captured
  from legs group by 1, 2, 3
)
select format('budget %s from %s', limit_key, bucket) from sentinel.usage u full join sums s using (tenant_id, limit_key, bucket)
where (coalesce(u.captured_minor, 0), coalesce(u.override_captured_minor, 0)) <> (coalesce(s.captured, 0), coalesce(s.override_captured, 0));

-- cap_exceeded: held and captured never exceed the cap, in a calendar window nor in any position of a sliding one
-- Only limit keys whose sum over all time exceeds their cap are checked window by window. Parts of another window are left out: after a
-- change of the policy a later amount, under a higher cap, may be in an earlier part.
with used as materialized (
  select tenant_id, limit_key, bucket, window_seconds, cap_minor, held_minor, captured_minor from sentinel.usage
), suspects as materialized (
  select tenant_id, limit_key from used group by 1, 2 having sum(held_minor + captured_minor) > min(cap_minor)
)
-- A sliding sum for each length of a window: a limit in use for years has hundreds of thousands of parts.
select format('budget %s from %s', passed.limit_key, passed.bucket) from (select distinct window_seconds from used) as w
cross join lateral (
  select u.limit_key, u.bucket, u.cap_minor, u.held_minor + u.captured_minor as minor,
    sum(u.held_minor + u.captured_minor) over (partition by u.tenant_id, u.limit_key order by u.bucket range between
      greatest(make_interval(secs => w.window_seconds) - interval '1 microsecond', interval '0') preceding and current row) as within_window
  from suspects join used u using (tenant_id, limit_key) where u.window_seconds = w.window_seconds) as passed
where passed.cap_minor < passed.within_window and passed.minor > 0;

-- reservation_without_live_permit: a held reservation belongs to an operation whose permit is valid, that is started, or that is in doubt
select format('reservation %s of operation %s', s.permit_id, s.operation_id) from sentinel.operation_states s
where s.reservation = 'held' and (s.permit_id is null or s.status not in ('allowed', 'approved', 'started', 'in_doubt'));

-- done_twice: an operation that may happen only once is live or executed at most once
select format('once-key %s of operations %s', once_key, string_agg(operation_id::text, ', '))
from sentinel.operation_states where once_live group by tenant_id, once_key having count(*) > 1;

-- done_twice_spelled: of once-keys that differ only in spelling one is live, unless a person was asked, or said "not executed" of one
select format('once-key %s of operations %s', sentinel.once_folded(once_key), string_agg(operation_id::text, ', '))
from sentinel.operation_states s where once_live and once_key not like '%~'
  and not exists (select from sentinel.contradictions c where c.tenant_id = s.tenant_id and c.operation_id = s.operation_id)
group by tenant_id, sentinel.once_folded(once_key) having count(*) filter (where approval_id is null) > 1;

-- executed_twice: no refund has two executions
select format('refund %s by executions %s', refund_id, string_agg(execution_id::text, ', '))
from refunds.executions group by tenant_id, refund_id having count(*) > 1;

-- approval_by_requester: nobody approved what their own key requested
select format('approval %s by operator %s', v.approval_id, v.operator_id) from sentinel.approval_votes v join sentinel.approvals a using (tenant_id, approval_id)
where v.verdict = 'approve' and v.operator_id = a.requester_operator_id;

-- approval_without_quorum: an approved approval has the votes that it needed
select 'approval ' || a.approval_id from sentinel.approvals a
where a.status = 'approved' and a.required_people > (
  -- Its own votes, and those on the approvals it follows that listed every reason it has.
  with recursive chain as (
    select a.approval_id, a.follows
    union
    select earlier.approval_id, earlier.follows from chain c
    join sentinel.approvals earlier on earlier.tenant_id = a.tenant_id and earlier.approval_id = c.follows
    where earlier.operation_id = a.operation_id and a.reasons <@ earlier.reasons)
  select count(distinct v.operator_id) from chain c join sentinel.approval_votes v on v.tenant_id = a.tenant_id
    and v.approval_id = c.approval_id and v.verdict = 'approve');

-- approval_not_offered: nothing was approved where approval was not offered
select 'approval ' || approval_id from sentinel.approvals where status = 'approved' and not offers_approve;

-- handled_without_voice: a handled approval has the vote of the person who handled it, and its operation is denied
select 'approval ' || a.approval_id from sentinel.approvals a
left join sentinel.operation_states s on s.tenant_id = a.tenant_id and s.operation_id = a.operation_id and s.approval_id = a.approval_id
where a.handled_reference is not null and (s.status is distinct from 'denied' or not exists (
  select from sentinel.approval_votes v
  where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id and v.verdict = 'handled'));

-- approval_after_expiry: no approval was given after its expiry
select 'approval ' || approval_id from sentinel.approvals where status = 'approved' and decided_at > expires_at;

-- permit_without_approval: an operation that needed approval started only after it was approved
select 'operation ' || s.operation_id from sentinel.operation_states s
where s.decision = 'APPROVAL_REQUIRED' and s.started_at is not null
  and not exists (select from sentinel.approvals a where a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
                    and a.status = 'approved' and a.decided_at <= s.started_at);

-- started_after_expiry: nothing started after its permit had expired
select 'operation ' || operation_id from sentinel.operation_states where started_at > permit_expires_at;

-- started_under_halt: nothing started while a halt covered it
-- By what was halted, with all times of it together: breakers set thousands of halts of the same few agents.
with halted as materialized (
  select tenant_id, scope, target, range_agg(tstzrange(set_at, case when lifted_at < set_at then set_at else lifted_at end, '()')) as during
  from sentinel.halts group by 1, 2, 3
)
select 'operation ' || s.operation_id from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
join halted h on h.scope = 'global' or h.tenant_id = s.tenant_id and (
  h.scope = 'tenant' or h.scope = 'agent' and h.target = o.agent_id or h.scope = 'scenario' and h.target = o.scenario
  or h.scope = 'agent_action' and h.target = o.agent_id || ' ' || o.action
  or h.scope = 'action' and (h.target = o.action or right(h.target, 2) = '.*' and starts_with(o.action, left(h.target, -1))))
where s.started_at <@ h.during;

-- started_after_not_executed: nothing started, or was answered as started, after a person resolved it as not executed
select 'operation ' || s.operation_id from sentinel.operation_states s
where s.started_at > s.not_executed_at or s.act_until > s.not_executed_at or exists (
  select from sentinel.events e where e.tenant_id = s.tenant_id and e.operation_id = s.operation_id and e.kind = 'start'
    and e.occurred_at > s.not_executed_at);

-- not_executed_without_word: a resolution as not executed names the person, and was made only once nobody could act under the start any more
select 'operation ' || s.operation_id from sentinel.operation_states s where s.not_executed_at is not null and not exists (
  select from sentinel.events e where e.tenant_id = s.tenant_id and e.operation_id = s.operation_id
    and e.kind = 'in_doubt_resolved' and e.body::jsonb ->> 'executed' = 'false' and e.occurred_at = s.not_executed_at);

-- executed_though_not_executed: if the ledger has an execution of what a person resolved as not executed, the contradiction is recorded
select 'ledger entry ' || e.ledger_entry_id from refunds.executions e join sentinel.operation_states s using (tenant_id, operation_id)
where s.not_executed_at is not null and not exists (
  select from sentinel.contradictions c where c.tenant_id = s.tenant_id and c.operation_id = s.operation_id);

-- contradiction_not_held: a contradiction has its event and its halt, and its budget is held while it is open
select 'operation ' || c.operation_id from sentinel.contradictions c join sentinel.operation_states s using (tenant_id, operation_id)
where not exists (select from sentinel.events e where e.tenant_id = c.tenant_id and e.event_id = c.event_id and e.kind = 'contradiction')
  or not exists (select from sentinel.halts h where h.tenant_id = c.tenant_id and h.halt_id = c.halt_id)
  or s.status = 'in_doubt' and s.reservation <> 'held';

-- position_gaps: the positions of a tenant's feed run 1, 2, 3 … without a gap, up to the newest one
select format('tenant %s: %s positions, the newest is %s, %s were given out', coalesce(f.tenant_id, h.tenant_id), f.number, f.last, h.position)
from (select tenant_id, max(position) as last, count(*) as number from sentinel.feed group by tenant_id) f
full join sentinel.feed_heads h using (tenant_id)
where (f.last, f.number) is distinct from (h.position, h.position);

-- decision_without_proof: every operation has the proof pack of its decision, of the same moment
select 'operation ' || s.operation_id from sentinel.operation_states s
left join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id and e.kind = 'decision'
where e.event_id is null;

-- proof_altered: every event still has the hash of its body
select 'event ' || event_id from sentinel.events where hash is distinct from 'sha256:' || encode(sha256(convert_to(body, 'UTF8')), 'hex');

-- feed_beyond_decisions: the feed holds each event at most once, and only events
select format('position %s of tenant %s', f.position, f.tenant_id) from sentinel.feed f left join sentinel.events e using (tenant_id, event_id) where e.event_id is null;

-- feed_without_position: every event up to the sequencer's mark has a position; while restored events are placed, every event processed so far
-- A mark that this cluster's transactions have not reached is from before a restore: what was recorded since is below it, without a position
-- until the authority's housekeeping runs.
select 'event ' || e.event_id from sentinel.events e cross join sentinel.sequencer q
where coalesce(q.restart_at, q.transaction_id) < pg_snapshot_xmax(pg_current_snapshot())
  and e.transaction_id <= coalesce(least(q.restart_at, q.restored_upto), q.transaction_id)
  and not exists (select from sentinel.feed f where f.tenant_id = e.tenant_id and f.event_id = e.event_id);

-- operation_without_state: every operation has its state, and every event and state has its operation, or the protected change it is about
select 'operation ' || coalesce(o.operation_id, s.operation_id)
from sentinel.operations o full join sentinel.operation_states s using (tenant_id, operation_id)
where o.operation_id is null or s.operation_id is null
union
select 'operation ' || e.operation_id from sentinel.events e
where e.operation_id is not null
  and not exists (select from sentinel.operations o where o.tenant_id = e.tenant_id and o.operation_id = e.operation_id)
  and not exists (select from sentinel.protected_changes c where c.tenant_id = e.tenant_id and c.approval_id = e.operation_id);

-- request_altered: a recorded request matches its digest and the commitment in its proof pack
select 'operation ' || o.operation_id
from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
where o.digest is distinct from 'sha256:' || encode(sha256(convert_to(o.request, 'UTF8')), 'hex')
  or o.salt ~ '^[0-9a-f]{64}$' and strpos(e.body, '"operation_digest":"sha256:' || encode(sha256(
       'sentinel/operation'::bytea || '\x00'::bytea || decode(o.salt, 'hex') || convert_to(o.request, 'UTF8')), 'hex') || '"') = 0;

-- request_differs: an operation's columns, above all its amount, match its recorded request
select 'operation ' || o.operation_id
from sentinel.operations o
cross join lateral (select case when o.digest = 'sha256:' || encode(sha256(convert_to(o.request, 'UTF8')), 'hex')
                                then o.request::jsonb end as fields offset 0) r   -- offset 0: parsed once, not once per field
where (o.action, o.agent_id, o.resource, o.risk_class, o.amount_minor, o.currency) is distinct from (
  r.fields ->> 'action', r.fields ->> 'agent_id', r.fields ->> 'resource', r.fields ->> 'risk_class',
  (r.fields #>> '{params,amount,amount_minor}')::bigint, r.fields #>> '{params,amount,currency}') and r.fields is not null;

-- decision_differs: a state matches its proof pack, or a later event of its operation
select 'operation ' || s.operation_id
from sentinel.operation_states s join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
left join sentinel.decision_terms t on t.terms_id = s.terms_id
where s.operation_id is distinct from e.operation_id or coalesce(strpos(e.body, '"policy_digest":"' || t.policy_digest || '"'), 0) = 0
  or (strpos(e.body, '"decision":"' || s.decision || '"') = 0 or strpos(e.body, '"reason_code":"' || s.reason_code || '"') = 0) and not exists (
    select from sentinel.events l
    where l.tenant_id = s.tenant_id and l.operation_id = s.operation_id and l.kind <> 'decision' and case l.kind
      when 'refused' then s.decision = 'DENY' and strpos(l.body, '"reason_code":"' || s.reason_code || '"') > 0
      when 'approval_rejected' then s.decision = 'DENY' and s.reason_code = 'approval_rejected'
      when 'approval_handled' then s.decision = 'DENY' and s.reason_code = 'handled_by_person'
      when 'approval_expired' then s.decision = 'APPROVAL_REQUIRED' and s.reason_code = 'approval_expired'
      when 'asked_again' then s.decision = 'APPROVAL_REQUIRED' end);

-- status_differs: an operation's status fits its decision and its approval
select 'operation ' || s.operation_id
from sentinel.operation_states s
left join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id and a.operation_id = s.operation_id
where not coalesce(case s.status
  when 'allowed' then s.decision = 'ALLOW'
  when 'denied' then s.decision = 'DENY'
  when 'pending' then s.decision = 'APPROVAL_REQUIRED' and a.status = 'pending'
  when 'approved' then s.decision = 'APPROVAL_REQUIRED' and a.status = 'approved'
  when 'expired' then a.status = 'expired'
  else s.decision = 'ALLOW' or s.decision = 'APPROVAL_REQUIRED' and a.status = 'approved' end, false);

-- start_without_event: a start has its event, with the same operation, permit, start id and time
select 'operation ' || s.operation_id
from sentinel.operation_states s
left join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.start_event_id and e.kind = 'start'
where s.started_at is not null and ((e.operation_id, e.occurred_at, e.hash) is distinct from (s.operation_id, s.started_at, s.start_hash)
  or strpos(e.body, coalesce('"permit_id":"' || s.permit_id || '","start_id":"' || s.start_id || '"', '"start_step":"none"')) = 0);

-- outcome_without_event: an outcome matches its report, or the resolution by a person
select 'operation ' || s.operation_id
from sentinel.operation_states s
left join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.report_event_id and e.kind in ('outcome', 'contradiction')
where (s.report_digest is not null or s.report_event_id is not null) and (
    (e.operation_id, e.occurred_at, e.hash) is distinct from (s.operation_id, s.reported_at, s.report_hash))
  or s.outcome is not null and coalesce(strpos(e.body, '"outcome":"' || s.outcome || '"'), 0) = 0 and not exists (
    select from sentinel.events l
    where l.tenant_id = s.tenant_id and l.operation_id = s.operation_id and (
        l.kind = 'in_doubt_resolved' and strpos(l.body, case s.outcome when 'success' then '"executed":true' else '"executed":false' end) > 0
        or l.kind = 'contradiction' and strpos(l.body, '"outcome":"' || s.outcome || '"') > 0));

-- once_cleared: a once-key stays taken while its operation is live or executed, or a person handled it elsewhere
select format('once-key %s of operation %s', s.once_key, s.operation_id)
from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id)
where s.once_key is distinct from o.once_key
  or s.once_key is not null and not s.once_live and (
    s.status in ('pending', 'approved', 'started', 'in_doubt') or s.status = 'allowed' and s.permit_id is not null
    or s.status = 'completed' and s.outcome = 'success' or s.status = 'denied' and s.reason_code = 'handled_by_person')
  -- The once-key of an operation that was resolved as not executed was freed; an operation that has taken it since keeps it, even if the
  -- first one turns out to be executed.
  and not exists (select from sentinel.events e where e.tenant_id = s.tenant_id and e.operation_id = s.operation_id
                    and e.kind = 'contradiction');

-- reservation_freed: budget is held while its permit is valid or its outcome is open, captured by a success, and released otherwise
select format('reservation %s of operation %s', s.permit_id, s.operation_id)
from sentinel.operation_states s
where s.reservation is not null and s.reservation is distinct from case
  when s.permit_id is null then 'none'
  when s.status in ('allowed', 'approved', 'started', 'in_doubt') then 'held'
  when s.status = 'completed' and s.outcome = 'success' then 'captured' else 'released' end;

-- reservation_missing: a permit under a policy that limits its amount has a reservation of that amount
with limits as materialized (
  select p.policy_digest, l.item ->> 'when' as "when", c.currency
  from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'limits') as l (item)
  cross join lateral jsonb_object_keys(l.item -> 'cap') as c (currency)
), permits as materialized (
  select s.operation_id, s.permit_id, t.policy_id, o.action, o.currency
  from sentinel.operation_states s join sentinel.operations o using (tenant_id, operation_id) join sentinel.decision_terms t using (terms_id)
  where s.permit_id is not null and o.amount_minor is not null and s.reserved_minor is distinct from o.amount_minor
), limited as materialized (
  -- A renewed permit may be under a later policy version than the decision, so a reservation is required only if every known version has
  -- such a limit. Only limit conditions about the action alone are understood here.
  select k.* from (select distinct policy_id, action, currency from permits) k where not exists (
    select from sentinel.policies p where p.policy_id = k.policy_id and not exists (
      select from limits l where l.policy_digest = p.policy_digest and l.currency = k.currency and (l."when" is null
        or l."when" = format('action == "%s"', k.action)
        or k.action like substring(l."when" from '^action\.startsWith ?\( ?"([^"%_]+)" ?\)$') || '%')))
)
select format('operation %s, permit %s', operation_id, permit_id) from permits join limited using (policy_id, action, currency);

-- cap_other_than_policy: the cap of a budget is one that a recorded policy declares for that limit and currency
with caps as (
  select p.policy_id || '/' || (l.item ->> 'id') as name, c.key as currency, c.value::bigint as cap_minor
  from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'limits') as l (item)
  cross join lateral jsonb_each_text(l.item -> 'cap') as c
)
select format('budget %s from %s', u.limit_key, u.bucket) from sentinel.usage u
where not exists (select from caps c where c.name = split_part(u.limit_key, '|', 1) and c.cap_minor = u.cap_minor
                    and c.currency = any (string_to_array(u.limit_key, '|')));

-- velocity_differs: a velocity breaker has counted what was allowed, and possibly renewed, since its last halt was lifted
with declared as materialized (
  select p.policy_digest, p.policy_id || '/' || (b.item ->> 'id') as name, b.item ->> 'per' as per, b.item -> 'amount' as amount,
         make_interval(secs => (b.item ->> 'seconds')::integer / 10) as part
  from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'breakers') as b (item)
), lifted as (
  -- A pause that was replaced by a kill was not lifted.
  select h.tenant_id, h.scope, h.target, max(h.lifted_at) as at from sentinel.halts h
  where h.lifted_at is not null and not exists (
    select from sentinel.halts k where (k.tenant_id, k.scope, k.target, k.set_at) = (h.tenant_id, h.scope, h.target, h.lifted_at)
      and h.level = 'pause' and k.level = 'kill')
  group by 1, 2, 3
), counted as (
  select o.tenant_id, d.name || '|' || who.target as breaker_key, date_bin(d.part, e.occurred_at, 'epoch') as bucket,
         coalesce(o.currency, '') as currency, count(*) as most, coalesce(sum(o.amount_minor), 0) as most_minor,
         -- An operation that was allowed at the very moment of a lift may be before or after it, so it counts only in `most`.
         count(*) filter (where l.at is null or e.occurred_at > l.at) as least,
         coalesce(sum(o.amount_minor) filter (where l.at is null or e.occurred_at > l.at), 0) as least_minor
  from sentinel.events e
  join sentinel.operation_states s on s.tenant_id = e.tenant_id and s.operation_id = e.operation_id and s.decision_event_id = e.event_id
  join sentinel.operations o on o.tenant_id = s.tenant_id and o.operation_id = s.operation_id
  join sentinel.decision_terms t on t.terms_id = s.terms_id
  join declared d on d.policy_digest = t.policy_digest and (d.amount = '{}' or d.amount ? o.currency)
  cross join lateral (select case d.per when 'tenant' then '' else o.agent_id end as target) who
  left join lifted l on l.tenant_id = o.tenant_id and l.scope = d.per and l.target = who.target
  where e.occurred_at > now() - interval '1 day' and (l.at is null or e.occurred_at >= l.at) and strpos(e.body, '"decision":"ALLOW"') > 0
  group by 1, 2, 3, 4
)
select format('breaker %s from %s', breaker_key, bucket)
from sentinel.velocity v full join counted c using (tenant_id, breaker_key, bucket, currency)
-- Housekeeping deletes the counts after a day.
where bucket > now() - interval '23 hours' and split_part(breaker_key, '|', 1) in (select name from declared)
  and not (coalesce(v.operations, 0) >= coalesce(c.least, 0) and coalesce(v.amount_minor, 0) >= coalesce(c.least_minor, 0)
    and (coalesce(v.operations, 0) <= coalesce(c.most, 0) and coalesce(v.amount_minor, 0) <= coalesce(c.most_minor, 0)
      -- Renewals are not recorded here: any operation whose first count is gone may have been renewed and counted again.
      or exists (select from sentinel.operations o join declared d on d.name = split_part(breaker_key, '|', 1)
                 join sentinel.operation_states s on s.tenant_id = o.tenant_id and s.operation_id = o.operation_id
                 join sentinel.decision_terms t on t.terms_id = s.terms_id
                 left join lifted l on l.tenant_id = o.tenant_id and l.scope = d.per and l.target = substr(breaker_key, strpos(breaker_key, '|') + 1)
                 where o.tenant_id = v.tenant_id and (d.per = 'tenant' or o.agent_id = substr(breaker_key, strpos(breaker_key, '|') + 1))
                   and (o.created_at < bucket - d.part * 8 or o.created_at <= l.at or starts_with(d.name, t.policy_id || '/')
                     and t.policy_digest not in (select before.policy_digest from declared before where before.name = d.name)))));

-- velocity_exceeded: in no window did a velocity breaker let more pass than a recorded policy declares
with declared as materialized (
  select p.policy_id || '/' || (b.item ->> 'id') as name, make_interval(secs => min((b.item ->> 'seconds')::integer)) as window_length,
         case when bool_and(b.item ->> 'count' is not null) then max((b.item ->> 'count')::bigint) end as most_operations
  from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'breakers') as b (item) group by 1
), amounts as materialized (
  select p.policy_id || '/' || (b.item ->> 'id') as name, c.key as currency, max(c.value::bigint) as most_minor
  from sentinel.policies p cross join lateral jsonb_array_elements(p.canonical::jsonb -> 'breakers') as b (item)
  cross join lateral jsonb_each_text(b.item -> 'amount') as c group by 1, 2
)
select format('breaker %s from %s', v.breaker_key, v.bucket) from sentinel.velocity v
join declared d on d.name = split_part(v.breaker_key, '|', 1)
left join amounts a on a.name = d.name and a.currency = v.currency
cross join lateral (
  select sum(w.operations) as operations, sum(w.amount_minor) filter (where w.currency = v.currency) as amount_minor
  from sentinel.velocity w
  where w.tenant_id = v.tenant_id and w.breaker_key = v.breaker_key and w.bucket <= v.bucket and w.bucket > v.bucket - d.window_length) passed
where passed.operations > d.most_operations or passed.amount_minor > a.most_minor;

-- policy_altered: a recorded policy text matches its digest
select format('policy %s, %s', policy_id, policy_digest) from sentinel.policies
where policy_digest <> 'sha256:' || encode(sha256(convert_to(canonical, 'UTF8')), 'hex');

-- vote_beyond_role: a voter had the role that the approval required, at the time of the vote
with changes as materialized (
  select tenant_id, occurred_at, substring(body from '"operator_id":"([^"]*)"') as operator_id,
         substring(body from '"from":"([^"]*)"') as was, substring(body from '"to":"([^"]*)"') as became
  from sentinel.events where kind not in ('decision', 'start', 'outcome') and kind = 'operator_role_set'
)
select format('approval %s by operator %s', v.approval_id, v.operator_id)
from sentinel.approval_votes v join sentinel.approvals a using (tenant_id, approval_id)
left join sentinel.operators p using (tenant_id, operator_id)
cross join lateral (select coalesce(
  (select c.became from changes c where c.tenant_id = v.tenant_id and c.operator_id = v.operator_id::text
     and c.occurred_at <= v.voted_at order by c.occurred_at desc limit 1),
  (select c.was from changes c where c.tenant_id = v.tenant_id and c.operator_id = v.operator_id::text
     and c.occurred_at > v.voted_at order by c.occurred_at limit 1),
  p.role) as role) as then_in
where coalesce(then_in.role not in ('admin', a.required_role), true);

-- vote_without_event: every vote, and the result of every approval, is in the events
select format('approval %s by operator %s', v.approval_id, v.operator_id)
from sentinel.approval_votes v join sentinel.approvals a using (tenant_id, approval_id)
where not exists (
  select from sentinel.events e where e.tenant_id = v.tenant_id and e.operation_id = a.operation_id and e.kind = 'approval_vote'
    and e.occurred_at = v.voted_at and strpos(e.body, v.approval_id::text) > 0 and strpos(e.body, '"verdict":"' || v.verdict || '"') > 0)
union
select 'approval ' || a.approval_id from sentinel.approvals a
where a.status <> 'pending' and not exists (
  select from sentinel.events e where e.tenant_id = a.tenant_id and e.operation_id = a.operation_id and e.occurred_at = a.decided_at
    and e.kind <> 'decision' and e.kind = 'approval_' || case when a.handled_reference is not null then 'handled' else a.status end
    and strpos(e.body, a.approval_id::text) > 0);

-- approval_of_another: an approval has the amount, action, agent and digest of its operation
select 'approval ' || a.approval_id from sentinel.approvals a left join sentinel.operations o using (tenant_id, operation_id)
where not exists (select from sentinel.protected_changes c where c.tenant_id = a.tenant_id and c.approval_id = a.approval_id)
  and (a.digest, a.action, a.agent_id, a.resource, a.amount_minor, a.currency)
  is distinct from (o.digest, o.action, o.agent_id, o.resource, o.amount_minor, o.currency);

-- change_without_approval: a change that waited for a second administrator was made only after one approved it
select 'approval ' || c.approval_id from sentinel.protected_changes c left join sentinel.approvals a using (tenant_id, approval_id)
where c.outcome = 'done' and (a.status is distinct from 'approved' or a.decided_at > c.done_at
  or a.digest <> 'sha256:' || encode(sha256(convert_to(c.request, 'UTF8')), 'hex'));

-- execution_before_start: nothing was executed before its start
-- with the authority
select 'execution ' || e.execution_id from refunds.executions e join sentinel.operation_states s using (tenant_id, operation_id)
where e.executed_at < s.started_at;

-- execution_of_another: an execution has the amount, refund, operation and start id of its ledger entry, and the authority knows that start
-- with the authority
select 'execution ' || e.execution_id from refunds.executions e left join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where (e.amount_minor, e.currency, e.refund_id, e.operation_id, e.start_id)
  is distinct from (l.amount_minor, l.currency, l.refund_id, l.operation_id, l.start_id)
union
select 'execution ' || e.execution_id from refunds.executions e join sentinel.operation_states s using (tenant_id, operation_id)
where e.start_id is distinct from s.start_id;

-- execution_missing: every payment that a worker reported has its execution in the ledger
-- with the authority
select format('ledger entry %s, operation %s', l.ledger_entry_id, s.operation_id)
from refunds.ledger_entries l join sentinel.operations o on o.tenant_id = l.tenant_id and o.idempotency_key = l.idempotency_key
  and o.agent_id = l.agent_id and o.action = l.action
join sentinel.operation_states s on s.tenant_id = o.tenant_id and s.operation_id = o.operation_id
join sentinel.events r on r.tenant_id = s.tenant_id and r.event_id = s.report_event_id
where s.outcome = 'success' and strpos(r.body, '"outcome":"success"') > 0 and not exists (
  select from refunds.executions e where e.tenant_id = l.tenant_id and e.ledger_entry_id = l.ledger_entry_id);

-- ledger_trail_differs: a ledger entry has the status to which the last event of its trail led, and as many events as it counts
select 'ledger entry ' || l.ledger_entry_id from refunds.ledger_entries l
left join (select tenant_id, ledger_entry_id, count(*) as steps, (array_agg(to_status order by event_id desc))[1] as led_to
           from refunds.ledger_events group by 1, 2) t using (tenant_id, ledger_entry_id)
where (l.status, l.event_number) is distinct from (coalesce(t.led_to, 'NEW'), coalesce(t.steps, 0));

-- ledger_entry_missing: every record about a ledger entry refers to one that exists
select 'ledger entry ' || m.ledger_entry_id from (
  select tenant_id, ledger_entry_id from refunds.ledger_events union select tenant_id, ledger_entry_id from refunds.outbox
  union select tenant_id, ledger_entry_id from refunds.step_trails union select tenant_id, ledger_entry_id from refunds.effects
  union select tenant_id, ledger_entry_id from refunds.confirmations) m
where not exists (select from refunds.ledger_entries l where l.tenant_id = m.tenant_id and l.ledger_entry_id = m.ledger_entry_id);

-- shared_steps_missing: every trail whose steps refer to shared steps finds them
select 'ledger entry ' || t.ledger_entry_id from refunds.step_trails t
where t.shared_id is not null
  and not exists (select from refunds.shared_steps s where s.tenant_id = t.tenant_id and s.shared_id = t.shared_id);

-- operation_without_entry: every operation that a worker of this ledger requested has its ledger entry
-- with the authority
select format('ledger entry %s, operation %s', substr(o.idempotency_key, 8), o.operation_id) from sentinel.operations o
where o.idempotency_key like 'refund:%'
  and strpos(o.request, '"ledger_entry_id":"' || substr(o.idempotency_key, 8) || '"') > 0
  and exists (select from refunds.workers w where w.tenant_id = o.tenant_id and w.agent_id = o.agent_id)
  and not exists (select from refunds.ledger_entries l
                  where l.tenant_id = o.tenant_id and l.ledger_entry_id = substr(o.idempotency_key, 8));

-- report_parked: no report to the authority is refused permanently, or postponed by more than a day
select format('report %s of ledger entry %s', outbox_id, ledger_entry_id) from refunds.outbox
where acknowledged_at is null and next_attempt_at > clock_timestamp() + interval '1 day';

-- stuck_claims: no ledger entry is held more than half a minute past its lease
select 'ledger entry ' || ledger_entry_id from refunds.ledger_entries
where status in ('GUARDING', 'ALLOWED') and lease_until < statement_timestamp() - interval '30 seconds';

-- executed_without_confirmation: an entry whose customer was asked is executed only after the customer confirmed
select 'ledger entry ' || ledger_entry_id from refunds.ledger_entries l join refunds.executions e using (tenant_id, ledger_entry_id)
where exists (select from refunds.confirmations c where c.tenant_id = l.tenant_id and c.ledger_entry_id = l.ledger_entry_id)
  and not exists (select from refunds.confirmations c where c.tenant_id = l.tenant_id and c.ledger_entry_id = l.ledger_entry_id
                    and c.status = 'confirmed' and c.answered_at <= e.executed_at
                    and (c.amount_minor, c.currency) = (e.amount_minor, e.currency));

-- executed_without_effects: an execution whose entry has effects outside has every required one done
select 'execution ' || e.execution_id from refunds.executions e
join (select tenant_id, ledger_entry_id, count(*) filter (where state = 'done') as done, max(must_total) as wanted
      from refunds.effects where not best_effort group by 1, 2) f using (tenant_id, ledger_entry_id)
where f.done <> f.wanted;

-- effect_forgotten: an effect in progress or being compensated belongs to an entry that a worker still returns to
select format('effect %s of ledger entry %s', f.effect_number, f.ledger_entry_id) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.state in ('intended', 'compensating') and not f.best_effort and l.status in ('EXECUTED', 'DENIED', 'ERROR');

-- refund_half_undone: a refused saga leaves no effect: done effects beside a refused one only while a worker is compensating them
select format('effect %s of ledger entry %s', f.effect_number, f.ledger_entry_id) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.state = 'done' and not f.best_effort and l.status in ('EXECUTED', 'DENIED', 'ERROR')
  and exists (select from refunds.effects o where o.tenant_id = f.tenant_id and o.ledger_entry_id = f.ledger_entry_id
                and o.state = 'refused' and not o.best_effort);

-- effect_of_another: an effect belongs to the start of its entry
select format('effect %s of ledger entry %s', f.effect_number, f.ledger_entry_id) from refunds.effects f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.operation_reference is distinct from l.start_id;

-- flips_in_evidence: a switch has the state and the share of accounts of its last recorded change
with said as materialized (
  select tenant_id, event_id, kind, occurred_at, body::jsonb ->> 'switch' as name, (body::jsonb ->> 'canary_percent')::integer as percent
  from sentinel.events where kind not in ('decision', 'start', 'outcome') and kind in ('switch_on', 'switch_off')
), last as (
  select distinct on (tenant_id, name) tenant_id, name, kind, percent from said order by tenant_id, name, occurred_at desc, event_id desc
)
select 'switch ' || name from sentinel.switches s full join last l using (tenant_id, name)
where (s.is_on, s.canary_percent) is distinct from
    (l.kind = 'switch_on', case l.kind when 'switch_on' then coalesce(l.percent, s.canary_percent) else 0 end)
  or not exists (select from said e where e.tenant_id = s.tenant_id and e.name = s.name and e.occurred_at = s.changed_at
                   and e.kind = case when s.is_on then 'switch_on' else 'switch_off' end);

-- halts_in_evidence: every recorded halt is in force as it was set, or its lift is recorded
with said as materialized (
  select tenant_id, kind, body::jsonb ->> 'halt_id' as halt_id, body::jsonb ->> 'scope' as scope, body::jsonb ->> 'target' as target,
         body::jsonb ->> 'level' as level
  from sentinel.events
  where kind not in ('decision', 'start', 'outcome') and kind in ('halt_set', 'halt_lifted')
)
select 'halt ' || e.halt_id from said e
where e.kind = 'halt_set' and not exists (select from sentinel.halts h where h.halt_id::text = e.halt_id and h.tenant_id = e.tenant_id)
union all
select 'halt ' || h.halt_id from sentinel.halts h
left join said s on s.kind = 'halt_set' and s.halt_id = h.halt_id::text and s.tenant_id = h.tenant_id
where s.halt_id is null or (coalesce(s.scope, h.scope), coalesce(s.target, h.target), coalesce(s.level, h.level)) <> (h.scope, h.target, h.level)
  or h.lifted_at is not null and not exists (
    select from said e where e.kind = 'halt_lifted' and e.halt_id = h.halt_id::text and e.tenant_id = h.tenant_id)
  -- A pause that was replaced by a kill was not lifted.
  and not exists (select from sentinel.halts k where (k.tenant_id, k.scope, k.target, k.set_at) = (h.tenant_id, h.scope, h.target, h.lifted_at));

-- roles_in_evidence: an operator has the role that the events gave last, where they give one
with given as materialized (
  select distinct on (tenant_id, body::jsonb ->> 'operator_id') tenant_id, body::jsonb ->> 'operator_id' as operator_id,
         coalesce(body::jsonb ->> 'to', body::jsonb ->> 'role') as role
  from sentinel.events
  where kind not in ('decision', 'start', 'outcome') and kind in ('operator_added', 'operator_role_set')
  order by tenant_id, body::jsonb ->> 'operator_id', occurred_at desc, event_id desc
)
select 'operator ' || g.operator_id from given g
left join sentinel.operators o on o.tenant_id = g.tenant_id and o.operator_id::text = g.operator_id
where o.role is distinct from g.role;

-- deactivations_in_evidence: an operator who was deactivated, and not reactivated since, is not active
with said as materialized (
  -- Earlier versions named the events shut_out and let_in.
  select distinct on (tenant_id, body::jsonb ->> 'operator_id') tenant_id, body::jsonb ->> 'operator_id' as operator_id, kind
  from sentinel.events
  where kind not in ('decision', 'start', 'outcome')
    and kind in ('operator_deactivated', 'operator_shut_out', 'operator_reactivated', 'operator_let_in')
  order by tenant_id, body::jsonb ->> 'operator_id', occurred_at desc, event_id desc
)
select 'operator ' || o.operator_id from sentinel.operators o join said e on e.tenant_id = o.tenant_id and e.operator_id = o.operator_id::text
where o.active and e.kind in ('operator_deactivated', 'operator_shut_out');

-- keys_in_evidence: an agent's key has the scopes and the agent that its events give, and ends when they say, or earlier
with said as materialized (
  select tenant_id, kind, body::jsonb ->> 'key_id' as key_id, body::jsonb as fields from sentinel.events
  where kind not in ('decision', 'start', 'outcome') and kind in ('key_created', 'key_rotated', 'key_revoked')
), ended as (
  select tenant_id, key_id, min(ends_at) as ends_at from (
    select tenant_id, key_id, (fields ->> 'expires_at')::timestamptz as ends_at from said where kind <> 'key_revoked'
    union all
    select tenant_id, fields ->> 'old_key_id', (fields ->> 'old_expires_at')::timestamptz from said where kind = 'key_rotated') as ends
  group by 1, 2
)
select 'key ' || k.key_id from sentinel.agent_keys k
left join said e on e.tenant_id = k.tenant_id and e.key_id = k.key_id::text and e.kind <> 'key_revoked'
left join ended n on n.tenant_id = k.tenant_id and n.key_id = k.key_id::text
where e.key_id is null
  or (e.fields ->> 'agent_id') is distinct from k.agent_id or (e.fields -> 'scopes') is distinct from to_jsonb(k.scopes)
  or (e.fields ->> 'owner_operator_id') is distinct from k.owner_operator_id::text
  or coalesce(k.expires_at, 'infinity') > coalesce(n.ends_at, 'infinity')
  or k.revoked_at is null and exists (
    select from said r where r.tenant_id = k.tenant_id and r.key_id = k.key_id::text and r.kind = 'key_revoked');

-- webhooks_in_evidence: a webhook has the address and the types with which it was added, and is disabled where the events say so last
with said as materialized (
  select tenant_id, event_id, kind, occurred_at, body::jsonb ->> 'endpoint_id' as endpoint_id, body::jsonb ->> 'url' as url,
         body::jsonb -> 'event_types' as event_types
  from sentinel.events
  where kind not in ('decision', 'start', 'outcome') and kind in ('webhook_added', 'webhook_disabled', 'webhook_enabled')
)
select 'webhook ' || w.endpoint_id from sentinel.event_endpoints w
where w.kind = 'webhook' and (
  not exists (
    select from said e where e.tenant_id = w.tenant_id and e.endpoint_id = w.endpoint_id::text and e.kind = 'webhook_added'
      and e.url = w.url and e.event_types = to_jsonb(w.event_types))
  or w.disabled_at is null and 'webhook_disabled' = (
    select e.kind from said e where e.tenant_id = w.tenant_id and e.endpoint_id = w.endpoint_id::text
    order by e.occurred_at desc, e.event_id desc limit 1));

-- wrong_execution_found: reconciliation has found no wrong execution in the last 30 days (`worker reconcile` says which)
select format('execution %s: %s', execution_id, finding) from refunds.wrong_executions where found_at > clock_timestamp() - interval '30 days';

-- order_in_two_lanes: each order has one review, and no lane before its decision nor none after it
select format('order %s of %s', order_id, source) from orders.reviews group by tenant_id, source, order_id having count(*) > 1
union all
select format('order %s of %s', order_id, source) from orders.reviews where (lane is null) <> (status in ('RECEIVED', 'SCORED'));

-- order_trail_differs: an order has the status to which the last event of its trail led
select format('order %s of %s', r.order_id, r.source) from orders.reviews r
left join lateral (select e.to_lane, e.to_status from orders.events e
                   where e.tenant_id = r.tenant_id and e.review_id = r.review_id order by e.event_id desc limit 1) last on true
where (r.status, r.lane) is distinct from (coalesce(last.to_status, 'RECEIVED'), last.to_lane);

-- order_way_not_declared: every event of an order's trail is in the table of lanes
select format('order %s of %s', r.order_id, r.source) from orders.events e join orders.reviews r using (tenant_id, review_id) where not exists (
  select from orders.transitions t where (t.from_lane, t.from_status, t.event, t.to_lane, t.to_status)
    = (coalesce(e.from_lane, '-'), e.from_status, e.event, coalesce(e.to_lane, '-'), e.to_status));

-- order_fulfilled_though_denied: no fulfilment is intended or done for an order that is high, denied, held or refunded
select format('order %s of %s', r.order_id, r.source) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'fulfil' and f.state in ('intended', 'done')
  and (r.lane = 'high' or f.lane <> r.lane or r.decision = 'DENY' or r.status <> case f.state when 'done' then 'FULFILLED' else 'STARTED' end);

-- order_fulfilled_without_effect: a fulfilled order has its fulfilment, done under its own operation
select format('order %s of %s', r.order_id, r.source) from orders.reviews r where r.status = 'FULFILLED' and not exists (
  select from orders.effects f where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'fulfil'
    and f.state = 'done' and f.operation_id = r.operation_id);

-- order_fulfilled_without_start: the authority started every fulfilment, where its operations are in this database
-- with the authority
select format('order %s of %s', r.order_id, r.source) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'fulfil' and f.state = 'done' and exists (select from sentinel.operations o where o.tenant_id = f.tenant_id)
  and not exists (select from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
                  where o.tenant_id = f.tenant_id and o.operation_id = f.operation_id and s.started_at is not null
                    and o.idempotency_key = 'order:' || r.source || ':' || r.order_id);

-- order_report_parked: no report of an order to the authority is refused permanently, or postponed by more than a day
select format('report of order %s of %s', r.order_id, r.source) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'fulfil' and f.reported_at is null and f.report_due_at > clock_timestamp() + interval '1 day';

-- order_effect_twice: each effect of an order exists once, and no operation belongs to two orders
select format('order %s of %s', r.order_id, r.source) from orders.effects f join orders.reviews r using (tenant_id, review_id)
group by f.tenant_id, r.source, r.order_id, f.kind having count(*) > 1
union all
select 'operation ' || operation_id from orders.effects group by tenant_id, operation_id having count(distinct review_id) > 1;

-- order_held_without_hold: every held order has a hold for the shop, and no other order has one
select format('order %s of %s', r.order_id, r.source) from orders.reviews r where r.status = 'HELD' and not exists (
  select from orders.effects f where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.kind = 'hold')
union all
select format('order %s of %s', r.order_id, r.source) from orders.effects f join orders.reviews r using (tenant_id, review_id)
where f.kind = 'hold' and r.status <> 'HELD';

-- order_decision_not_kept: an analyst's last decision matches the order's status, was made by a person, and is not of a denied order
select format('order %s of %s', r.order_id, r.source) from orders.reviews r
where (status in ('REFUND_FILED', 'REFUND_REFUSED')) <> (resolution is not distinct from 'refund')
  or (resolution = 'hold' and status <> 'HELD') or (resolution is not null and lane = 'high');

-- order_refund_missing: a refunded order has its ledger entry, for the amount paid, and is tracked until that entry has ended
select format('order %s of %s', r.order_id, r.source) from orders.reviews r where r.status in ('REFUND_FILED', 'REFUND_REFUSED') and not exists (
  select from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
  where f.tenant_id = r.tenant_id and f.review_id = r.review_id and l.action = 'refund.create'
    and l.refund_id = orders.refund_name(r.source, r.order_id) and (l.amount_minor, l.currency) = (r.amount_minor, r.currency)
    and f.state = any(case r.status when 'REFUND_FILED' then array['filed', 'paid', 'handled'] else array['refused'] end));

-- order_refund_died_unseen: a filed refund that was denied or failed has brought its order back to a person, within 2 minutes
select 'ledger entry ' || f.ledger_entry_id from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
where f.state = 'filed' and l.status in ('DENIED', 'ERROR') and l.updated_at < statement_timestamp() - interval '2 minutes';

-- order_refund_beside_hold: an order whose filed refund was paid is REFUND_FILED or REFUND_REFUSED
select 'ledger entry ' || f.ledger_entry_id from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
join orders.reviews r using (tenant_id, review_id)
where l.status = 'EXECUTED' and r.status not in ('REFUND_FILED', 'REFUND_REFUSED');

-- order_gave_up: no order ended because the shop refused it: such an order waits for a person, who may retry, refund or hold it
select format('order %s of %s', r.order_id, r.source) from orders.reviews r join orders.effects f using (tenant_id, review_id)
where f.kind = 'fulfil' and f.state = 'refused' and not (r.status = 'SHOP_REFUSED' or coalesce(r.resolution in ('hold', 'refund'), false)
  or exists (select from orders.effects h where h.tenant_id = r.tenant_id and h.review_id = r.review_id and h.kind = 'hold'
             and h.state = 'done'));

-- order_queued_without_approval: a queued order has its approval in this database; without it no analyst could decide
select format('order %s of %s', r.order_id, r.source) from orders.reviews r where r.status = 'QUEUED' and not exists (
  select from sentinel.approvals a where a.tenant_id = r.tenant_id and a.approval_id = r.approval_id
    and a.operation_id = r.operation_id);

-- order_stuck: no order is in progress more than half a minute past its lease, or past the time when it was due again
select format('order %s of %s', order_id, source) from orders.reviews
where status in ('RECEIVED', 'SCORED', 'DECIDED', 'STARTED') and next_attempt_at < statement_timestamp() - interval '30 seconds';

-- order_answer_of_another: a recorded response belongs to its own order, and is final only if the order is
select format('delivery of order %s of %s', d.order_id, d.source) from orders.deliveries d left join orders.reviews r using (tenant_id, review_id)
where (r.source, r.order_id) is distinct from (d.source, d.order_id)
  or (d.is_final and r.status not in ('FULFILLED', 'HELD'));

-- shop_did_unasked: the simulated shop did nothing that was not recorded first
select format('order %s of %s', s.order_id, s.source) from orders.simulated_shop s where not exists (
  select from orders.reviews r join orders.effects f using (tenant_id, review_id)
  where (r.tenant_id, r.source, r.order_id) = (s.tenant_id, s.source, s.order_id) and f.operation_id = s.operation_id
    and f.state <> 'cancelled' and f.kind = case s.status when 'fulfilled' then 'fulfil' else 'hold' end);

-- order_budget_differs: an order's budget is the sum of its ledger entries, part by part, and no entry is without one
with sums as (
  select e.tenant_id, e.channel, e.source, e.order_ref,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'reserved'), 0) as reserved,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'executed'), 0) as executed,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'handled'), 0) as handled,
    coalesce(sum(e.amount_minor) filter (where e.currency = c.currency and e.budget_part = 'in_doubt'), 0) as in_doubt,
    count(*) filter (where e.currency <> c.currency and e.budget_part <> 'returned') as uncounted
  from refunds.ledger_entries e
  join refunds.order_budgets c on (c.tenant_id, c.channel, c.source, c.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
  group by 1, 2, 3, 4
)
select format('order %s of %s', b.order_ref, concat_ws('/', b.channel, nullif(b.source, ''))) from refunds.order_budgets b left join sums s using (tenant_id, channel, source, order_ref)
        where (b.reserved_minor, b.executed_minor, b.handled_minor, b.in_doubt_minor, b.uncounted_entries)
           <> (coalesce(s.reserved, 0), coalesce(s.executed, 0), coalesce(s.handled, 0), coalesce(s.in_doubt, 0), coalesce(s.uncounted, 0))
union all
select 'ledger entry ' || e.ledger_entry_id from refunds.ledger_entries e where e.order_ref is not null and not exists (
       select from refunds.order_budgets b where (b.tenant_id, b.channel, b.source, b.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref));

-- order_budget_exceeded: what is taken of an order is at most what was paid, except for what could not be refused
select format('order %s of %s', order_ref, concat_ws('/', channel, nullif(source, ''))) from refunds.order_budgets
where reserved_minor + executed_minor + handled_minor + in_doubt_minor - beyond_minor > paid_minor;

-- order_budget_part_wrong: an entry's amount is in the part of its order's budget that its status requires
select 'ledger entry ' || ledger_entry_id from refunds.ledger_entries
where order_ref is not null and (
  (status = 'EXECUTED') <> coalesce(budget_part in ('executed', 'returned'), false) or status = 'ALLOWED' and budget_part is null
  or budget_part = 'returned' and not exists (
    select from refunds.settlement_findings f
    where f.tenant_id = ledger_entries.tenant_id and f.ledger_entry_id = ledger_entries.ledger_entry_id and f.finding = 'refund_failed')
  or status = 'DENIED' and (reason_code is not distinct from 'handled_by_person') <> (budget_part is not distinct from 'handled')
  or status in ('DENIED', 'ERROR') and budget_part is not distinct from 'reserved');

-- order_over_refunded: no more was refunded of an order than was paid, by the worker and by people together, except for what banks returned
select format('order %s of %s', o.order_ref, concat_ws('/', o.channel, nullif(o.source, ''))) from refunds.orders o
join (
  select l.tenant_id, l.channel, l.source, l.order_ref, l.currency, sum(coalesce(e.amount_minor, l.amount_minor)) as back
  from refunds.ledger_entries l
  left join refunds.executions e on e.tenant_id = l.tenant_id and e.ledger_entry_id = l.ledger_entry_id
  where e.execution_id is not null and l.budget_part is distinct from 'returned' or l.status = 'DENIED' and l.reason_code = 'handled_by_person'
    or l.status = 'ERROR' and l.budget_part = 'handled'
  group by 1, 2, 3, 4, 5) r using (tenant_id, channel, source, order_ref, currency)
where r.back > o.paid_minor;

-- aap_consumed_not_started: a consumed request of the Agent Approval Protocol has a started operation, which no other request has
select 'request ' || r.request_id from sentinel.aap_requests r
where r.consumed_at is not null and r.question is not null and (
  not exists (select from sentinel.operation_states s
              where s.tenant_id = r.tenant_id and s.operation_id = r.operation_id and s.started_at is not null)
  or exists (select from sentinel.aap_requests o where o.tenant_id = r.tenant_id and o.operation_id = r.operation_id
             and o.consumed_at is not null and o.request_id <> r.request_id));

-- export_cursor_beyond_feed: no receiver's cursor is past the end of its feed; a trigger ensures that it never goes back
select 'receiver ' || e.endpoint_id from sentinel.event_endpoints e
where e.position < 0 or e.global_position < 0
   or e.position > coalesce((select h.position from sentinel.feed_heads h where h.tenant_id = e.tenant_id), 0)
   or e.global_position > coalesce((select h.position from sentinel.feed_heads h where h.tenant_id = '00000000-0000-0000-0000-000000000000'), 0);

-- dead_letter_not_passed: a dead letter is an event of a feed of its receiver, at its position, and the receiver's cursor is past it
select 'dead letter ' || d.event_id || ' of receiver ' || d.endpoint_id from sentinel.dead_letters d
left join sentinel.event_endpoints e using (tenant_id, endpoint_id)
where e.endpoint_id is null or d.feed_tenant_id not in (d.tenant_id, '00000000-0000-0000-0000-000000000000')
   or d.position > case when d.feed_tenant_id = d.tenant_id then e.position else e.global_position end
   or not exists (select from sentinel.feed f
                  where f.tenant_id = d.feed_tenant_id and f.position = d.position and f.event_id = d.event_id);
