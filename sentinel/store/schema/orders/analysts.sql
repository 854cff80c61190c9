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
  insert into refunds.orders (tenant_id, channel, source, order_ref, account_ref, ordered_at, paid_minor, currency)
  values (r.tenant_id, 'retail', r.source, r.order_id, r.account_ref,
          least(r.received_at, (r.order_facts->>'placed_at')::timestamptz), r.amount_minor, r.currency) on conflict do nothing;
  insert into refunds.ledger_entries (tenant_id, ledger_entry_id, refund_id, action, amount_minor, currency, channel, scenario,
    account_ref, source, order_ref)
  values (r.tenant_id, named, named, 'refund.create', r.amount_minor, r.currency, 'retail', 'standard', r.account_ref, r.source, r.order_id);
end $$;

-- An analyst's word on a queued order: fulfil, refund or hold. With its owner's rights, because the console may neither
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
  refusal := case when not found then 'unknown'
    when r.status <> 'QUEUED' or r.resolution is not null or r.approval_id is null then 'not_queued'
    when word = 'refund' and r.amount_minor = 0 then 'nothing_paid'
    when word = 'refund' and exists (select from refunds.ledger_entries e
         where e.tenant_id = tenant and e.refund_id = orders.refund_name(src, ord)) then 'refund_exists' end;
  if refusal is not null then return query select refusal, null::integer, null::integer, null::text; return; end if;
  select * into said from sentinel.resolve_approval(tenant, r.approval_id, operator,
    case word when 'fulfil' then 'approve' else 'reject' end, why, shown_digest, how, event, second_event);
  if said.result not in ('approved', 'rejected') then
    return query select said.result, said.approvals_given, said.people_required, null::text; return;
  end if;
  select p.email into person from sentinel.operators p where p.tenant_id = tenant and p.operator_id = operator;
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
    insert into orders.effects (tenant_id, review_id, kind, lane, operation_id)
    values (tenant, r.review_id, 'hold', r.lane, r.operation_id);
  end if;
  return query select word, said.approvals_given, said.people_required, filed;
end $$;
