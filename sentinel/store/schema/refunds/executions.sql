-- Executions: written once, under a started permit, with everything that goes with them.

create or replace function refunds.check_execution() returns trigger language plpgsql as $$
declare
  entry refunds.ledger_entries;
begin
  select * into entry from refunds.ledger_entries
  where tenant_id = new.tenant_id and ledger_entry_id = new.ledger_entry_id for update;
  if not found or entry.status <> 'ALLOWED' or entry.claim_epoch <> new.claim_epoch
     or entry.operation_id is distinct from new.operation_id or entry.start_id is distinct from new.start_id
     or (entry.refund_id, entry.amount_minor, entry.currency) is distinct from (new.refund_id, new.amount_minor, new.currency) then
    raise exception 'no started permit of this claim matches the execution'
      using errcode = 'check_violation', constraint = 'execution_matches_permit';
  end if;
  return new;
end $$;

-- Executions, EXECUTED and the reports to come: one transaction for one or many rows, each only while its claim still
-- holds it, its lease runs and its time to act is not over, with the trail that led there. Returns the entries that were executed; for the others
-- nothing was written.
-- settled: [{ledger_entry_id, epoch, execution_id, start_event_id, system, report_id, report, steps}]
create or replace function refunds.record_executions(tenant uuid, settled jsonb) returns setof text language plpgsql as $$
declare
  held text[];
begin
  held := array(
    select e.ledger_entry_id from refunds.ledger_entries e
    join jsonb_to_recordset(settled) as s (ledger_entry_id text, epoch bigint)
      on e.ledger_entry_id = s.ledger_entry_id and e.claim_epoch = s.epoch
    where e.tenant_id = tenant and e.status = 'ALLOWED' and e.lease_until > clock_timestamp() and e.act_until > clock_timestamp()
    order by e.ledger_entry_id for update of e);
  insert into refunds.executions (tenant_id, execution_id, ledger_entry_id, refund_id, amount_minor, currency, system,
                                  operation_id, start_id, start_event_id, claim_epoch)
  select e.tenant_id, s.execution_id, e.ledger_entry_id, e.refund_id, e.amount_minor, e.currency, s.system,
         e.operation_id, e.start_id, s.start_event_id, e.claim_epoch
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, execution_id uuid, start_event_id uuid, system text)
  join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = s.ledger_entry_id
  where e.ledger_entry_id = any (held);
  insert into refunds.outbox (tenant_id, outbox_id, ledger_entry_id, payload)
  select tenant, s.report_id, s.ledger_entry_id, s.report
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, report_id uuid, report jsonb)
  where s.ledger_entry_id = any (held);
  insert into refunds.step_trails (tenant_id, ledger_entry_id, claim_epoch, steps)
  select tenant, s.ledger_entry_id, s.epoch, s.steps
  from jsonb_to_recordset(settled) as s (ledger_entry_id text, epoch bigint, steps jsonb)
  where s.ledger_entry_id = any (held) and s.steps is not null;
  -- The permit is used up: a slip that is worth nothing any more need not lie about.
  return query
    update refunds.ledger_entries e set status = 'EXECUTED', last_event = 'executed', event_number = e.event_number + 1, lease_until = null, permit_token = null,
      last_error = null
    where e.tenant_id = tenant and e.ledger_entry_id = any (held)
    returning e.ledger_entry_id;
end $$;
