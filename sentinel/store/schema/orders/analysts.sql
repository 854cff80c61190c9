-- What an analyst says about a queued order.

-- What a refund of an order is called; an order id that the ledger's names cannot hold goes in as its hash.
create or replace function orders.refund_name(source text, order_id text) returns text language sql immutable parallel safe as $$
  select case when named ~ '^[A-Za-z0-9._:/@-]{1,120}$' then named else 'order:' || source || ':md5-' || md5(order_id) end
  from (select 'order:' || source || ':' || order_id as named) n
$$;

-- The refund as a new row of the ledger, guarded by its worker like any other, and the order as a fact where it is none yet.
create or replace function orders.file_refund(r orders.reviews) returns void language plpgsql as $$
declare
  named text := orders.refund_name(r.source, r.order_id);
begin
  insert into refunds.orders (tenant_id, channel, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (r.tenant_id, 'retail', r.order_id, r.account_ref,
          least(r.received_at, (r.order_facts->>'placed_at')::timestamptz), r.amount_minor, r.currency) on conflict do nothing;
  insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, action, amount_minor, currency, channel, scenario,
    account_ref, order_ref)
  values (r.tenant_id, named, named, 'refund.create', r.amount_minor, r.currency, 'retail', 'standard', r.account_ref, r.order_id);
end $$;

-- The trail of what people said: nobody says anything but through the functions below.
create or replace function orders.keep_word(r orders.reviews, word text, operator uuid, person text, why text, how text)
returns void language sql as $$
  insert into orders.words (tenant_id, review_id, from_status, word, operator_id, said_by, reason, via)
  values (r.tenant_id, r.review_id, r.status, word, operator, person, why, how)
$$;

-- The hold that an order now HELD wants, at once; one that was given up before is tried again.
create or replace function orders.want_hold(r orders.reviews) returns void language sql as $$
  insert into orders.effects as f (tenant_id, review_id, kind, lane, operation_id)
  values (r.tenant_id, r.review_id, 'hold', r.lane, r.operation_id)
  on conflict (review_id, kind, tenant_id) do update set state = 'intended', next_attempt_at = clock_timestamp()
  where f.state in ('intended', 'refused')
$$;

-- Nobody tries to fulfil it any more: the authority is told what came of the start.
create or replace function orders.end_fulfilment(r orders.reviews) returns void language sql as $$
  update orders.effects set report_due_at = clock_timestamp()
  where tenant_id = r.tenant_id and review_id = r.review_id and kind = 'fulfil' and state = 'refused'
    and report_due_at is null and reported_at is null
$$;

-- A person's word on an order that came back, or whose hold the shop has not taken. `r` is locked. Nothing is loosened by
-- it: a retry is of what was permitted and started, a refund is a new question.
create or replace function orders.resolve_returned(r orders.reviews, operator uuid, word text, why text, how text)
returns table (result text, approvals_given integer, people_required integer, ledger_entry_id text) language plpgsql as $$
#variable_conflict use_column
declare
  person text;
  refusal text;
  filed text;
  to_status text;
begin
  select p.email into person from sentinel.operators p
  where p.tenant_id = r.tenant_id and p.operator_id = operator and p.active and p.role in ('approver', 'admin');
  refusal := case
    when person is null then 'role'
    when not coalesce(word = any(case r.status when 'SHOP_REFUSED' then array['retry', 'refund', 'hold']
      when 'REFUND_REFUSED' then array['retry', 'hold'] when 'HELD' then array['retry'] end), false) then 'not_queued'
    when r.status = 'HELD' and not exists (select from orders.effects f where f.tenant_id = r.tenant_id
         and f.review_id = r.review_id and f.kind = 'hold' and f.state in ('intended', 'refused')) then 'nothing_to_retry'
    when r.status = 'SHOP_REFUSED' and word = 'retry'
         and sentinel.halt_over(r.tenant_id, 'order-review', 'order.fulfill', null) is not null then 'halted'
    when word = 'refund' then orders.refund_refusal(r) end;
  if refusal is not null then return query select refusal, null::integer, null::integer, null::text; return; end if;
  perform orders.keep_word(r, word, operator, person, why, how);
  to_status := case when word = 'hold' then 'HELD' when word = 'refund' or r.status = 'REFUND_REFUSED' then 'REFUND_FILED'
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
    perform orders.end_fulfilment(r);
  end if;
  if to_status = 'REFUND_FILED' then
    perform orders.file_refund(r);
    filed := orders.refund_name(r.source, r.order_id);
  elsif to_status = 'HELD' or r.status = 'HELD' then
    perform orders.want_hold(r);
  end if;
  return query select word, null::integer, null::integer, filed;
end $$;

-- Why no refund of this order can be filed now; null where one can.
create or replace function orders.refund_refusal(r orders.reviews) returns text language sql stable as $$
  select case when r.amount_minor = 0 then 'nothing_paid'
    when exists (select from refunds.ledger_entries e where e.tenant_id = r.tenant_id
      and e.refund_id = orders.refund_name(r.source, r.order_id)) then 'refund_exists' end
$$;

-- An analyst's word on an order: fulfil, refund or hold a queued one; retry, refund or hold one that came back. With its owner's rights, because the console may neither
-- change a review nor write into the ledger: what it may is this. Review first, approval second: everybody locks in this order.
-- result: the word; "recorded" while more people have to approve; or a refusal, and then nothing was written.
create or replace function orders.resolve_review(
  tenant uuid, src text, ord text, operator uuid, word text, why text, shown_digest text, how text, event uuid, second_event uuid
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
  if r.status in ('SHOP_REFUSED', 'REFUND_REFUSED', 'HELD') then
    return query select * from orders.resolve_returned(r, operator, word, why, how); return;
  end if;
  refusal := case when r.review_id is null then 'unknown'
    when r.status <> 'QUEUED' or r.resolution is not null or r.approval_id is null or word = 'retry' then 'not_queued'
    when word = 'refund' then orders.refund_refusal(r) end;
  if refusal is not null then return query select refusal, null::integer, null::integer, null::text; return; end if;
  select * into said from sentinel.resolve_approval(tenant, r.approval_id, operator,
    case word when 'fulfil' then 'approve' else 'reject' end, why, shown_digest, how, event, second_event);
  select p.email into person from sentinel.operators p where p.tenant_id = tenant and p.operator_id = operator;
  if said.result in ('approved', 'rejected', 'recorded') then
    perform orders.keep_word(r, word, operator, person, why, how);
  end if;
  if said.result not in ('approved', 'rejected') then
    return query select said.result, said.approvals_given, said.people_required, null::text; return;
  end if;
  -- An approved one stays queued until the intake has its permit; it looks at once.
  update orders.reviews set resolution = word, resolved_by = person, resolution_reason = why, resolved_at = clock_timestamp(),
    next_attempt_at = clock_timestamp(),
    status = case word when 'fulfil' then 'QUEUED' when 'refund' then 'REFUND_FILED' else 'HELD' end,
    last_event = case word when 'fulfil' then last_event when 'refund' then 'refund_filed' else 'held' end
  where tenant_id = tenant and review_id = r.review_id and status = 'QUEUED' and resolution is null;
  if word = 'refund' then
    perform orders.file_refund(r);
    filed := orders.refund_name(src, ord);
  elsif word = 'hold' then
    perform orders.want_hold(r);
  end if;
  return query select word, said.approvals_given, said.people_required, filed;
end $$;
