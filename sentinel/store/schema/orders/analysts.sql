-- Analysts' decisions on orders, and the refunds that they file.

-- Every decision of an analyst on an order; a review holds the last one only. Append-only.
create table orders.analyst_decisions (
  tenant_id   uuid not null,
  review_id   uuid not null,
  decision_id bigint generated always as identity,
  from_status text not null,                                               -- the review's status at the decision
  decision    text not null check (decision in ('fulfil', 'refund', 'hold', 'retry')),
  operator_id uuid not null,
  decided_by  text not null,                                               -- the operator's address
  reason      text not null,
  via         text not null,
  decided_at  timestamptz not null default clock_timestamp(),
  primary key (tenant_id, review_id, decision_id),
  foreign key (review_id, tenant_id) references orders.reviews
);
create trigger append_only before update or delete or truncate on orders.analyst_decisions
  for each statement execute function refunds.refuse_change();

-- Refunds of orders that people filed, one row per try; each is followed until its ledger row has ended.
create table orders.refunds (
  tenant_id       uuid not null,
  review_id       uuid not null,
  attempt         integer not null check (attempt >= 1),                   -- 1, 2, …
  ledger_entry_id text not null,                                           -- its ledger row
  filed_by        uuid,                                                    -- null: filed before this column existed
  reason          text not null,
  via             text not null,
  state           text not null default 'filed' check (state in ('filed', 'paid', 'handled', 'refused', 'closed')),
  carried_to      uuid,                                                    -- the approval on which the filer's vote was recorded
  carried_result  text,                                                    -- the result of that vote
  refused_code    text,                                                    -- why the ledger row was denied or failed
  filed_at        timestamptz not null default clock_timestamp(),
  ended_at        timestamptz,
  primary key (tenant_id, review_id, attempt),
  constraint refunds_row_once unique (tenant_id, ledger_entry_id),
  constraint refunds_ended check ((state = 'filed') = (ended_at is null)),
  foreign key (review_id, tenant_id) references orders.reviews
);

-- For the periodic tracking: only the few that are open, or back with a person.
create index refunds_followed on orders.refunds (tenant_id, filed_at) where state in ('filed', 'refused');

-- The refund id of an order; an order id that does not fit the ledger's ids is replaced by its hash.
create or replace function orders.refund_name(source text, order_id text) returns text language sql immutable parallel safe as $$
  select case when named ~ '^[A-Za-z0-9._:/@-]{1,120}$' then named else 'order:' || source || ':md5-' || md5(order_id) end
  from (select 'order:' || source || ':' || order_id as named) n
$$;

-- The account of an order's customer in the ledger, where accounts belong to a channel: prefixed with the source, because two sources may
-- use the same customer id; one that does not fit the ledger is replaced by its hash.
create or replace function orders.account_name(source text, account_ref text) returns text language sql immutable parallel safe as $$
  select case when length(named) <= 128 then named else source || ':md5-' || md5(account_ref) end
  from (select source || ':' || account_ref as named) n
$$;

-- When an order was placed: the time in its facts, but no later than it was received. A stored time that this database cannot parse counts
-- as the oldest possible one, so the order is past every deadline and comes back to a person.
create or replace function orders.placed_at(r orders.reviews) returns timestamptz language plpgsql stable as $$
declare
  oldest constant timestamptz := '0001-01-01 00:00:00+00';
begin
  return greatest(oldest, least(r.received_at, (r.order_facts->>'placed_at')::timestamptz));
exception when data_exception then
  return oldest;
end $$;

-- Files a refund: inserts a ledger row with the escalation analyst_refund, and the order's facts if there are none yet. Every try has the
-- same refund id, so a refund that the authority still holds for an earlier try is not paid again. No part of an order id starts with a
-- dot, so the id of a try cannot be another order's. If the order's facts, or else a ledger row of the order, have the customer's account
-- without the source prefix, that account is used. A worker whose key is bound to an agent takes only that agent's rows, so the row gets an
-- agent with a running worker: the default agent if one of its workers was seen within 10 minutes, else that of the worker seen last.
create or replace function orders.file_refund(r orders.reviews, operator uuid, why text, how text) returns text language plpgsql as $$
declare
  account text := case when r.account_ref = coalesce(
      (select o.account_ref from refunds.orders o
       where o.tenant_id = r.tenant_id and o.channel = 'retail' and o.source = r.source and o.order_ref = r.order_id),
      (select e.account_ref from refunds.ledger_entries e
       where e.tenant_id = r.tenant_id and e.channel = 'retail' and e.source = r.source and e.order_ref = r.order_id
         and e.account_ref = r.account_ref limit 1)) then r.account_ref
    else orders.account_name(r.source, r.account_ref) end;
  default_agent constant text := 'retail-refund-agent';                    -- the ledger's default
  agent text := coalesce((
    select w.agent_id from refunds.workers w where w.tenant_id = r.tenant_id
    order by w.agent_id = default_agent and w.last_seen_at > clock_timestamp() - interval '10 minutes' desc, w.last_seen_at desc
    limit 1), default_agent);
  refund text := orders.refund_name(r.source, r.order_id);
  tries integer := 1 + (select count(*) from orders.refunds f where f.tenant_id = r.tenant_id and f.review_id = r.review_id);
  named text := case when tries = 1 then refund when length(refund) <= 109 then refund || '/.try' || tries
    else 'order:' || r.source || ':md5-' || md5(r.order_id) || '/.try' || tries end;
begin
  insert into refunds.orders (tenant_id, channel, source, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (r.tenant_id, 'retail', r.source, r.order_id, account,
          orders.placed_at(r), r.amount_minor, r.currency) on conflict do nothing;
  insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, agent_id, action, amount_minor, currency, channel, scenario,
    account_ref, source, order_ref, escalation)
  values (r.tenant_id, named, refund, agent, 'refund.create', r.amount_minor, r.currency, 'retail', 'standard', account, r.source,
    r.order_id, 'analyst_refund');
  insert into orders.refunds (tenant_id, review_id, attempt, ledger_entry_id, filed_by, reason, via)
  values (r.tenant_id, r.review_id, tries, named, operator, why, how);
  return named;
end $$;

-- Retries the last refund filed of an order in its own row, which failed and surely was not paid: a new row of the same refund would be
-- denied because of what the authority holds for this one. Not used if its key is taken (`refund_key_is_taken`): a new row has another key.
-- The operator who retries it becomes its filer, who has approved it.
create or replace function orders.retry_refund(failed refunds.ledger_entries, operator uuid, person text, why text, how text) returns text
language plpgsql as $$
begin
  perform from refunds.retry_entries(failed.tenant_id, array[failed.ledger_entry_id], person, why);
  update orders.refunds set state = 'filed', ended_at = null, refused_code = null, filed_by = operator, reason = why, via = how,
    carried_to = null, carried_result = null
  where tenant_id = failed.tenant_id and ledger_entry_id = failed.ledger_entry_id and state = 'refused';
  return failed.ledger_entry_id;
end $$;

-- Appends an analyst's decision to the trail; decisions are made only through the functions below. It is no earlier than the status that it
-- is about, also where the clock was set back since: a retry needs a decision from after that (check_review).
create or replace function orders.record_analyst_decision(r orders.reviews, decision text, operator uuid, person text, why text, how text)
returns void language sql as $$
  insert into orders.analyst_decisions (tenant_id, review_id, from_status, decision, operator_id, decided_by, reason, via, decided_at)
  values (r.tenant_id, r.review_id, r.status, decision, operator, person, why, how, greatest(clock_timestamp(), r.updated_at))
$$;

-- Requests the hold of an order that is now HELD, due at once; one that was refused before is tried again.
create or replace function orders.request_hold(r orders.reviews) returns void language sql as $$
  insert into orders.effects as f (tenant_id, review_id, kind, lane, operation_id)
  values (r.tenant_id, r.review_id, 'hold', r.lane, r.operation_id)
  on conflict (review_id, kind, tenant_id) do update set state = 'intended', next_attempt_at = clock_timestamp()
  where f.state in ('intended', 'refused')
$$;

-- Makes the report of a refused fulfilment due: it will not be retried, so the authority gets the outcome of the start.
create or replace function orders.abandon_fulfilment(r orders.reviews) returns void language sql as $$
  update orders.effects set report_due_at = clock_timestamp()
  where tenant_id = r.tenant_id and review_id = r.review_id and kind = 'fulfil' and state = 'refused'
    and report_due_at is null and reported_at is null
$$;

-- Whether this order has no lane because the authority refuses the question about it, as its alert `question_refused` says.
create or replace function orders.question_is_refused(r orders.reviews) returns boolean language sql stable as $$
  select r.status = 'SCORED' and exists (select from orders.alerts n where n.order_id = r.order_id and n.source = r.source
    and n.kind = 'question_refused' and n.tenant_id = r.tenant_id)
$$;

-- Holds an order that the authority was never asked about: it goes through the transitions of a denial, with the review's id in place of
-- the authority's operation id.
create or replace function orders.hold_unasked(r orders.reviews) returns void language plpgsql as $$
begin
  update orders.reviews set status = 'DECIDED', lane = 'high', last_event = 'denied', decision = 'DENY', reason_code = 'question_refused',
    operation_id = r.review_id, decided_at = clock_timestamp(), epoch = epoch + 1, lease_until = null, holder = null
  where tenant_id = r.tenant_id and review_id = r.review_id and status = 'SCORED';
  update orders.reviews set status = 'HELD', last_event = 'held'
  where tenant_id = r.tenant_id and review_id = r.review_id and status = 'DECIDED' returning * into r;
  perform orders.request_hold(r);
end $$;

-- Records a person's decision on an order that came back, that the authority cannot be asked about, or whose hold the shop has not
-- accepted. `r` is locked. It loosens nothing: a retry repeats what was permitted and started, and a refund is a new question to the
-- authority.
create or replace function orders.resolve_returned(r orders.reviews, operator uuid, analyst_decision text, why text, how text)
returns table (result text, approvals_given integer, people_required integer, ledger_entry_id text) language plpgsql as $$
#variable_conflict use_column
declare
  person text;
  refusal text;
  filed text;
  to_status text;
  failed refunds.ledger_entries;                                           -- the refund that brought the order back
begin
  -- Waits for a concurrent retry of the ledger row, so that its result is seen below.
  select l.* into failed from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
  where f.tenant_id = r.tenant_id and f.review_id = r.review_id and f.state = 'refused' for update of l;
  select p.email into person from sentinel.operators p
  where p.tenant_id = r.tenant_id and p.operator_id = operator and p.active and p.role in ('approver', 'admin');
  refusal := case
    when person is null then 'role'
    when not coalesce(analyst_decision = any(case r.status when 'SHOP_REFUSED' then array['retry', 'refund', 'hold']
      when 'REFUND_REFUSED' then array['retry', 'hold'] when 'HELD' then array['retry']
      when 'SCORED' then case when orders.question_is_refused(r) then array['hold'] end end), false) then 'not_queued'
    -- A process that is asking the authority now may get the order started, so no decision is accepted until its lease is over.
    when r.status = 'SCORED' and r.lease_until > clock_timestamp() then 'under_way'
    when r.status = 'HELD' and not exists (select from orders.effects f where f.tenant_id = r.tenant_id
         and f.review_id = r.review_id and f.kind = 'hold' and f.state = 'intended') then 'nothing_to_retry'
    when r.status = 'SHOP_REFUSED' and analyst_decision = 'retry'
         and sentinel.halt_over(r.tenant_id, 'order-review', 'order.fulfill', null) is not null then 'halted'
    when r.status = 'REFUND_REFUSED' and orders.refund_is_live(r) then 'refund_exists'
    when analyst_decision = 'retry' and orders.refund_is_undecided(failed) then 'refund_undecided'
    when analyst_decision = 'refund' then orders.refund_refusal(r) end;
  if refusal is not null then return query select refusal, null::integer, null::integer, null::text; return; end if;
  perform orders.record_analyst_decision(r, analyst_decision, operator, person, why, how);
  if r.status = 'SCORED' then
    perform orders.hold_unasked(r);
    return query select analyst_decision, null::integer, null::integer, null::text; return;
  end if;
  to_status := case when analyst_decision = 'hold' then 'HELD' when analyst_decision = 'refund' or r.status = 'REFUND_REFUSED' then 'REFUND_FILED'
    when r.status = 'SHOP_REFUSED' then 'STARTED' end;
  if to_status = 'STARTED' then
    update orders.reviews set status = 'STARTED', last_event = 'retried', lease_until = null, holder = null, attempts = 0,
      next_attempt_at = clock_timestamp()
    where tenant_id = r.tenant_id and review_id = r.review_id and status = r.status;
    update orders.effects set state = 'intended'
    where tenant_id = r.tenant_id and review_id = r.review_id and kind = 'fulfil' and state = 'refused';
  elsif to_status is not null then
    update orders.reviews set status = to_status, last_event = case to_status when 'HELD' then 'held' else 'refund_filed' end,
      resolution = case to_status when 'HELD' then 'hold' else 'refund' end, resolved_by = person, resolution_reason = why,
      resolved_at = clock_timestamp()
    where tenant_id = r.tenant_id and review_id = r.review_id and status = r.status;
    perform orders.abandon_fulfilment(r);
    if analyst_decision = 'retry' and failed.status = 'ERROR' and refunds.may_have_been_paid(failed) is null and not orders.refund_key_is_taken(failed) then
      filed := orders.retry_refund(failed, operator, person, why, how);
    end if;
    update orders.refunds set state = 'closed'
    where tenant_id = r.tenant_id and review_id = r.review_id and state = 'refused';
  end if;
  if to_status = 'REFUND_FILED' and filed is null then
    filed := orders.file_refund(r, operator, why, how);
  elsif to_status = 'HELD' or r.status = 'HELD' then
    perform orders.request_hold(r);
  end if;
  return query select analyst_decision, null::integer, null::integer, filed;
end $$;

-- Whether a refund of this order may still be paid, or may have been paid.
create or replace function orders.refund_is_live(r orders.reviews) returns boolean language sql stable as $$
  select exists (
    select from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
    where f.tenant_id = r.tenant_id and f.review_id = r.review_id and (
      l.status not in ('DENIED', 'ERROR') or exists (
        select from orders.refund_operation(l) s
        where s.status in ('started', 'in_doubt') or s.status = 'completed' and s.outcome = 'success')))
$$;

-- Whether the authority has a different operation under the idempotency key of a refund that failed: every retry would get this conflict.
create or replace function orders.refund_key_is_taken(failed refunds.ledger_entries) returns boolean language sql stable as $$
  select coalesce(failed.status = 'ERROR' and failed.last_error like 'key_conflict:%', false)
$$;

-- The operation state of a filed refund: of the operation that its ledger row names or, if the answer was lost, of the one under its key
-- with the same agent, action and amount. Another requester may have used the key for something else, which says nothing about this refund.
create or replace function orders.refund_operation(l refunds.ledger_entries) returns setof sentinel.operation_states language sql stable as $$
  select s.* from sentinel.operations o join sentinel.operation_states s using (tenant_id, operation_id)
  where o.tenant_id = l.tenant_id and o.idempotency_key = l.idempotency_key
    and (o.operation_id = l.operation_id or not orders.refund_key_is_taken(l)
      and (o.agent_id, o.action, o.amount_minor, o.currency) = (l.agent_id, l.action, l.amount_minor, l.currency))
$$;

-- Whether it is unknown if a failed refund was paid: then it is not retried, and no other is filed. A person's "not executed" settles it,
-- whatever state an effect of it is in.
create or replace function orders.refund_is_undecided(failed refunds.ledger_entries) returns boolean language sql stable as $$
  select coalesce(failed.status = 'ERROR' and refunds.may_have_been_paid(failed) <> 'not_executed'
    and (failed.reason_code is distinct from 'not_executed' or failed.budget_part is not null), false)
$$;

-- The same checks by review id, for the console, whose role may not read all columns of a review; the last function returns the operation
-- of a refund that is in doubt.
create or replace function orders.has_live_refund(tenant uuid, review uuid) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select orders.refund_is_live(r) from orders.reviews r where r.tenant_id = tenant and r.review_id = review
$$;
create or replace function orders.has_undecided_refund(tenant uuid, review uuid) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select exists (select from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
    where f.tenant_id = tenant and f.review_id = review and f.state = 'refused' and orders.refund_is_undecided(l))
$$;
create or replace function orders.refund_in_doubt(tenant uuid, review uuid) returns uuid
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.operation_id from orders.refunds f join refunds.ledger_entries l using (tenant_id, ledger_entry_id)
  cross join lateral orders.refund_operation(l) s
  where f.tenant_id = tenant and f.review_id = review and s.status = 'in_doubt' order by f.attempt desc limit 1
$$;

-- Why no refund of this order can be filed now; null if one can.
create or replace function orders.refund_refusal(r orders.reviews) returns text language sql stable as $$
  select case when r.amount_minor = 0 then 'nothing_paid'
    when exists (select from refunds.ledger_entries e where e.tenant_id = r.tenant_id
      and e.refund_id = orders.refund_name(r.source, r.order_id)) then 'refund_exists' end
$$;

-- Records an analyst's decision on an order: fulfil, refund or hold a queued one; retry, refund or hold one that came back; hold one that
-- the authority cannot be asked about. Security definer, because the console's role may neither change a review nor write into the ledger
-- except through this function. It locks the review first and the approval second, in the same order as everywhere.
-- A decision is about the status that was shown: "retry" must name it, because it means something else in each status; other decisions may.
-- A decision on an approval may name it: an approval requested since then, under stricter terms, has the same digest.
-- result: the decision; "recorded" while more people have to approve; or a refusal, and then nothing was written.
create or replace function orders.resolve_review(
  tenant uuid, src text, ord text, operator uuid, analyst_decision text, why text, shown_digest text, shown_status text,
  shown_approval uuid, how text, event uuid, second_event uuid
) returns table (result text, approvals_given integer, people_required integer, ledger_entry_id text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  r orders.reviews;
  said record;
  filed text;
  refusal text;
  person text;
begin
  select * into r from orders.reviews where tenant_id = tenant and source = src and order_id = ord for update;
  if shown_status <> r.status or shown_status is null and analyst_decision = 'retry' and r.review_id is not null then
    return query select 'status_changed', null::integer, null::integer, null::text; return;
  end if;
  if r.status in ('SCORED', 'SHOP_REFUSED', 'REFUND_REFUSED', 'HELD') then
    return query select * from orders.resolve_returned(r, operator, analyst_decision, why, how); return;
  end if;
  refusal := case when r.review_id is null then 'unknown'
    when r.status <> 'QUEUED' or r.resolution is not null or r.approval_id is null or analyst_decision = 'retry' then 'not_queued'
    when shown_approval <> r.approval_id then 'approval_changed'
    -- Which approval an order names is written by the intake: a decision on an order decides no approval of anything else.
    when not exists (select from sentinel.approvals a
        join sentinel.operation_rows q on q.tenant_id = a.tenant_id and q.operation_id = a.operation_id
        where a.tenant_id = tenant and a.approval_id = r.approval_id and (a.agent_id, a.action) = ('order-review', 'order.fulfill')
          and q.idempotency_key = 'order:' || r.source || ':' || r.order_id) then 'changed'
    when analyst_decision = 'refund' then orders.refund_refusal(r) end;
  if refusal is not null then return query select refusal, null::integer, null::integer, null::text; return; end if;
  select * into said from sentinel.resolve_approval(tenant, r.approval_id, operator,
    case analyst_decision when 'fulfil' then 'approve' else 'reject' end, why, shown_digest, how, event, second_event);
  select p.email into person from sentinel.operators p where p.tenant_id = tenant and p.operator_id = operator;
  if said.result in ('approved', 'rejected', 'recorded') then
    perform orders.record_analyst_decision(r, analyst_decision, operator, person, why, how);
  end if;
  if said.result not in ('approved', 'rejected') then
    return query select said.result, said.approvals_given, said.people_required, null::text; return;
  end if;
  -- An approved order stays queued until the intake has its permit; it is due at once.
  update orders.reviews set resolution = analyst_decision, resolved_by = person, resolution_reason = why, resolved_at = clock_timestamp(),
    next_attempt_at = clock_timestamp(),
    status = case analyst_decision when 'fulfil' then 'QUEUED' when 'refund' then 'REFUND_FILED' else 'HELD' end,
    last_event = case analyst_decision when 'fulfil' then last_event when 'refund' then 'refund_filed' else 'held' end
  where tenant_id = tenant and review_id = r.review_id and status = 'QUEUED' and resolution is null;
  if analyst_decision = 'refund' then
    filed := orders.file_refund(r, operator, why, how);
  elsif analyst_decision = 'hold' then
    perform orders.request_hold(r);
  end if;
  return query select analyst_decision, said.approvals_given, said.people_required, filed;
end $$;

-- The closed try because of which a later try of the same order was denied (`duplicate_resource`): the authority holds the refund id for
-- it, and it is in progress again, or only its being closed prevents that. Such tries exist because an older "retry" filed a new row, where
-- it now retries the existing one.
create or replace function orders.try_that_holds_refund(denied orders.refunds) returns integer language sql stable as $$
  select c.attempt from orders.refunds c join refunds.ledger_entries e using (tenant_id, ledger_entry_id)
  join sentinel.operation_states s on s.tenant_id = e.tenant_id and s.operation_id = e.operation_id
  where c.tenant_id = denied.tenant_id and c.review_id = denied.review_id and c.state = 'closed' and s.once_live
    and (e.status not in ('DENIED', 'ERROR') or e.status = 'ERROR' and refunds.may_have_been_paid(e) = 'closed_by_analyst')
  order by c.attempt limit 1
$$;

-- Tracks filed refunds; returns how many it processed. The person who filed one has approved it: if its ledger row needs an approval for no
-- reasons other than those the person knew, their vote is recorded on that approval, under all rules of approvals. The amount and whether
-- there is an account are on the order, so a limit of the account, or the one that all without an account share, is among them: a large
-- order exceeds it by itself. A limit over all accounts (`total_exceeded`) is not. A row that was denied or failed brings the order back to
-- a person (REFUND_REFUSED), with the reason and an alert. If such a row continues after all, or has ended again since the end that was
-- recorded, the order goes back to REFUND_FILED. If its doubt was resolved, the reason is updated: `refund_failed` may have been paid,
-- `refund_unpaid` surely was not. A try that was denied because of an earlier one is closed in favour of that one
-- (`try_that_holds_refund`).
create or replace function orders.track_filed_refunds(tenant uuid, most integer, events uuid[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  f record;
  held text;
  carried text;
  why text;
  done integer := 0;
begin
  for f in
    select o.review_id, o.attempt, o.filed_by, o.reason, o.via, o.state, o.ended_at, l.ledger_entry_id, l.status, l.reason_code, l.last_error,
      (select max(v.occurred_at) from refunds.ledger_events v where v.tenant_id = l.tenant_id
       and v.ledger_entry_id = l.ledger_entry_id and v.to_status in ('DENIED', 'ERROR')) as last_end,
      case when o.state = 'refused' and l.reason_code = 'duplicate_resource' then orders.try_that_holds_refund(o) end as held_by,
      l.approval_id, a.digest, coalesce(s.status = 'completed' and s.outcome = 'success', false) as is_done,
      l.status = 'ERROR' and coalesce(refunds.may_have_been_paid(l), 'not_executed') = 'not_executed' as is_unpaid,
      l.reason_code = 'handled_by_person' or l.status = 'ERROR' and l.budget_part = 'handled' as is_handled,
      -- Which approval a row names is written by the worker: it must be the one of the row's own question.
      a.status = 'pending' and a.action = l.action and (a.amount_minor, a.currency) = (r.amount_minor, r.currency)
        and (a.agent_id, a.resource) = (l.agent_id, 'refund/' || l.refund_id)
        and exists (select from sentinel.operation_rows q
          where q.tenant_id = a.tenant_id and q.operation_id = a.operation_id and q.idempotency_key = l.idempotency_key)
        and 'analyst_refund' = any(a.reasons)
        and a.reasons <@ array['analyst_refund', 'amount_needs_approval', 'limit_exceeded', 'account_unknown']::text[] as may_carry
    from orders.refunds o
    join refunds.ledger_entries l on l.tenant_id = o.tenant_id and l.ledger_entry_id = o.ledger_entry_id
    join orders.reviews r on r.tenant_id = o.tenant_id and r.review_id = o.review_id
    left join sentinel.operation_states s on s.tenant_id = l.tenant_id and s.operation_id = l.operation_id
    left join sentinel.approvals a on a.tenant_id = l.tenant_id and a.approval_id = l.approval_id
      and l.status = 'APPROVAL_REQUIRED'
    where o.tenant_id = tenant and o.state in ('filed', 'refused') and case o.state
      when 'filed' then l.status in ('EXECUTED', 'DENIED', 'ERROR')
        or l.status = 'APPROVAL_REQUIRED' and o.filed_by is not null and o.carried_to is distinct from l.approval_id
      else r.status = 'REFUND_REFUSED'
        and (l.status not in ('DENIED', 'ERROR') or s.status = 'completed' and s.outcome = 'success'
          or exists (select from refunds.ledger_events v where v.tenant_id = l.tenant_id and v.ledger_entry_id = l.ledger_entry_id
            and v.to_status in ('DENIED', 'ERROR') and v.occurred_at > o.ended_at)
          or l.reason_code = 'duplicate_resource' and orders.try_that_holds_refund(o) is not null
          or r.last_error like 'refund_failed:%' and l.status = 'ERROR'
            and (l.budget_part = 'handled' or coalesce(refunds.may_have_been_paid(l), 'not_executed') = 'not_executed')) end
    -- The review too: who decides on an order locks it first, and then its refunds.
    order by o.filed_at limit least(most, cardinality(events) / 2) for update of r, o skip locked
  loop
    done := done + 1;
    why := case when f.status = 'DENIED' then 'refund_denied: ' || coalesce(f.reason_code, 'no reason given')
      else case when f.is_unpaid then 'refund_unpaid: ' else 'refund_failed: ' end
        || coalesce(f.last_error, f.reason_code, 'no reason given') end;
    if f.held_by is not null then
      update orders.reviews r set last_error = left(coalesce('refund_unpaid: ' || e.last_error, r.last_error), 500)
      from orders.refunds c join refunds.ledger_entries e using (tenant_id, ledger_entry_id)
      where r.tenant_id = tenant and r.review_id = f.review_id and r.status = 'REFUND_REFUSED'
        and c.tenant_id = tenant and c.review_id = f.review_id and c.attempt = f.held_by returning r.last_error into held;
      -- The review is locked and still REFUND_REFUSED, so no person has decided otherwise meanwhile.
      if found then
        update orders.refunds set state = 'closed' where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
        update orders.refunds set state = 'refused', refused_code = left(held, 200)
        where tenant_id = tenant and review_id = f.review_id and attempt = f.held_by;
      end if;
    elsif f.state = 'refused' and f.is_unpaid and not f.is_done and not coalesce(f.last_end > f.ended_at, false) then
      update orders.refunds set refused_code = left(why, 200)
      where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
      update orders.reviews set last_error = left(why, 500)
      where tenant_id = tenant and review_id = f.review_id and status = 'REFUND_REFUSED';
    elsif f.state = 'refused' then
      update orders.refunds set state = case when f.is_done then 'paid' when f.is_handled then 'handled' else 'filed' end,
        refused_code = null, ended_at = case when f.is_done or f.is_handled then clock_timestamp() end
      where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
      update orders.reviews set status = 'REFUND_FILED', last_event = 'refund_filed'
      where tenant_id = tenant and review_id = f.review_id and status = 'REFUND_REFUSED';
    elsif f.status = 'APPROVAL_REQUIRED' then
      carried := 'left_to_others';
      if f.may_carry then
        select v.result into carried from sentinel.resolve_approval(tenant, f.approval_id, f.filed_by, 'approve', f.reason,
          f.digest, f.via, events[2 * done - 1], events[2 * done]) v;
      end if;
      update orders.refunds set carried_to = f.approval_id, carried_result = carried
      where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
    elsif f.is_done or f.status = 'EXECUTED' or f.is_handled then
      update orders.refunds set state = case when f.is_handled and not f.is_done then 'handled' else 'paid' end, ended_at = clock_timestamp()
      where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
    else
      update orders.refunds set state = 'refused', refused_code = left(why, 200), ended_at = coalesce(f.last_end, clock_timestamp())
      where tenant_id = tenant and review_id = f.review_id and attempt = f.attempt;
      update orders.reviews set status = 'REFUND_REFUSED', last_event = 'refund_refused', last_error = left(why, 500)
      where tenant_id = tenant and review_id = f.review_id and status = 'REFUND_FILED';
      insert into orders.alerts (tenant_id, kind, source, order_id, occasion, summary, details)
      select r.tenant_id, 'refund_refused', r.source, r.order_id, 'try ' || f.attempt || (
          select coalesce(', again ' || nullif(count(*), 0), '') from refunds.retries t
          where t.tenant_id = tenant and t.ledger_entry_id = f.ledger_entry_id),
        left(case when f.status = 'DENIED' or f.is_unpaid then 'the refund of an order was not paid: '
          else 'the refund of an order failed, and may have been paid: ' end || why, 500),
        jsonb_build_object('reason', why, 'ledger_entry_id', f.ledger_entry_id)
      from orders.reviews r where r.tenant_id = tenant and r.review_id = f.review_id
      on conflict on constraint alerts_once do nothing;
    end if;
  end loop;
  return done;
end $$;
