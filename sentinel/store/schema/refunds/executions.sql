-- Executions: written once, under a started permit, together with the ledger row's status, the report and the trail.

-- The simulated money movement. At most one per ledger entry, per operation and per refund, for ever. Append-only.
create table refunds.executions (
  tenant_id       uuid not null default refunds.default_tenant(),
  execution_id    uuid not null,
  ledger_entry_id text not null,
  refund_id       text not null,
  amount_minor    bigint not null check (amount_minor > 0),
  currency        text not null,
  system          text not null default 'simulated_refund',                -- the settlement system that executed it
  operation_id    uuid not null,                                           -- the authority's
  start_id        uuid not null,                                           -- the start id under which the permit was redeemed
  start_event_id  uuid not null,                                           -- the authority's receipt of the start
  claim_epoch     bigint not null,                                         -- of the claim that executed
  executed_at     timestamptz not null default clock_timestamp(),
  primary key (tenant_id, execution_id),
  constraint executions_entry_once unique (tenant_id, ledger_entry_id),
  constraint executions_operation_once unique (tenant_id, operation_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create unique index executions_refund_once on refunds.executions (tenant_id, refund_id);
create index executions_by_time on refunds.executions (tenant_id, executed_at);
create trigger append_only before update or delete or truncate on refunds.executions
  for each statement execute function refunds.refuse_change();

-- Reports to the authority, to be sent until it has acknowledged them.
create table refunds.outbox (
  tenant_id       uuid not null default refunds.default_tenant(),
  outbox_id       uuid not null,                                           -- the report's id, the same in every try
  ledger_entry_id text not null,
  payload         jsonb not null,                                          -- the report as it is sent
  attempts        integer not null default 0,
  next_attempt_at timestamptz not null default clock_timestamp(),
  last_error      text,
  acknowledged_at timestamptz,                                             -- null: to be sent; beside a last_error: discarded by a person
  created_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, outbox_id)
) with (fillfactor = 70);
create index outbox_open on refunds.outbox (tenant_id, next_attempt_at) where acknowledged_at is null;

-- Checks that every execution that a statement inserts matches its entry: the permit of this claim and its start. Each entry is looked up
-- by its key alone, and locked: neither the inserted rows nor the entries in progress have statistics, and a plan by status would be a
-- nested loop over all of them.
create or replace function refunds.check_executions() returns trigger language plpgsql as $$
begin
  if exists (
      select from written x left join lateral (
        select l.* from refunds.ledger_entries l
        where l.tenant_id = x.tenant_id and l.ledger_entry_id = x.ledger_entry_id for update) e on true
      where (e.claim_epoch = x.claim_epoch and e.start_id = x.start_id
        and (e.refund_id, e.amount_minor, e.currency) = (x.refund_id, x.amount_minor, x.currency)
        and e.status in ('ALLOWED', 'EXECUTED') and e.operation_id = x.operation_id
      ) is not true) then
    raise exception 'no started permit of this claim matches the execution'
      using errcode = 'check_violation', constraint = 'execution_matches_permit';
  end if;
  return null;
end $$;

-- Records executions, status EXECUTED, the reports to send and the trails, for one or many rows in one transaction. A row is recorded only
-- while its claim is current, its lease runs and act_until is not over. Returns the entries that were executed; for the others nothing
-- was written. An ALLOW whose guard included the start is recorded here too: such an entry is in GUARDING and names no order.
-- settled: [{ledger_entry_id, epoch, execution_id, start_event_id, system, report_id, report, steps,
--   start_id, decision, reason_code, operation_id, decision_event_id, proof_id, approval_id}], the last seven only for such an ALLOW
-- shared: the steps that several of the rows have in common, to which their `steps` refer by number; null: none
create or replace function refunds.record_executions(tenant uuid, settled jsonb, shared jsonb default null)
returns setof text language plpgsql as $$
begin
  return query
  with held as materialized (
    select s.*
    from jsonb_to_recordset(settled) as s (ledger_entry_id text, epoch bigint, execution_id uuid, start_event_id uuid, system text,
      report_id uuid, report jsonb, steps jsonb, start_id uuid, decision text, reason_code text, operation_id uuid,
      decision_event_id uuid, proof_id text, approval_id uuid)
    join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = s.ledger_entry_id and e.claim_epoch = s.epoch
    where e.lease_until > clock_timestamp() and e.act_until > clock_timestamp()
      and (s.operation_id is null and e.status = 'ALLOWED'
           or s.operation_id is not null and e.status = 'GUARDING' and e.start_id = s.start_id and e.order_ref is null)
    order by e.ledger_entry_id for update of e
  ), executed as (
    -- The permit has been redeemed: its token is worth nothing any more and is not kept.
    update refunds.ledger_entries e set status = 'EXECUTED', last_event = 'executed',
      event_number = e.event_number + case e.status when 'ALLOWED' then 1 else 2 end, lease_until = null, permit_token = null,
      last_error = null, decision = coalesce(h.decision, e.decision), reason_code = coalesce(h.reason_code, e.reason_code),
      operation_id = coalesce(h.operation_id, e.operation_id), decision_event_id = coalesce(h.decision_event_id, e.decision_event_id),
      proof_id = coalesce(h.proof_id, e.proof_id), approval_id = coalesce(h.approval_id, e.approval_id),
      waits = case e.status when 'ALLOWED' then e.waits else 0 end
    from held as h where e.tenant_id = tenant and e.ledger_entry_id = h.ledger_entry_id
    returning e.ledger_entry_id, e.refund_id, e.amount_minor, e.currency, e.operation_id, e.start_id, e.claim_epoch,
      h.execution_id, h.start_event_id, h.system, h.report_id, h.report, h.steps
  ), executions as (
    insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, system, operation_id,
                                    start_id, start_event_id, claim_epoch)
    select tenant, x.execution_id, x.ledger_entry_id, x.refund_id, x.amount_minor, x.currency, x.system, x.operation_id,
           x.start_id, x.start_event_id, x.claim_epoch
    from executed as x
  ), reports as (
    insert into refunds.outbox (tenant_id, outbox_id, ledger_entry_id, payload)
    select tenant, x.report_id, x.ledger_entry_id, x.report from executed as x
  ), common as (
    insert into refunds.shared_steps (tenant_id, steps)
    select tenant, shared where shared is not null and exists (select from executed)
    returning shared_id
  ), trails as (
    insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps, shared_id)
    select tenant, x.ledger_entry_id, x.claim_epoch, x.steps, (select c.shared_id from common as c)
    from executed as x where x.steps is not null
  )
  select x.ledger_entry_id from executed as x;
end $$;

-- Discards reports that the authority refused permanently: a person decided that they are not sent any more; `said` is who and why. A row
-- in doubt whose report was a success was paid, although the authority was not told: its amount counts against its order. Returns the ids
-- of the discarded reports.
create or replace function refunds.discard_reports(tenant uuid, reports uuid[], said text) returns setof uuid language plpgsql as $$
declare
  one record;
begin
  for one in
    update refunds.outbox o set acknowledged_at = clock_timestamp(),
      last_error = left(said || coalesce('; it was refused with: ' || o.last_error, ''), 500)
    where o.tenant_id = tenant and o.outbox_id = any (reports) and o.acknowledged_at is null and o.next_attempt_at = 'infinity'
    returning o.outbox_id, o.ledger_entry_id, o.payload ->> 'outcome' as outcome
  loop
    if one.outcome = 'success' then
      perform refunds.resolve_budget_doubts(tenant, jsonb_build_array(jsonb_build_object(
        'ledger_entry_id', one.ledger_entry_id, 'executed', true, 'never_started', false,
        'last_error', left('it was done, and the report of it was ' || said, 500))));
    end if;
    return next one.outbox_id;
  end loop;
end $$;

create trigger check_executions after insert on refunds.executions
  referencing new table as written for each statement execute function refunds.check_executions();
