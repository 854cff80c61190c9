-- Functions whose arguments or results changed lose their old signatures: the new ones come with the schema files, which make all functions anew.
drop function if exists orders.resolve_review(uuid, text, text, uuid, text, text, text, text, uuid, uuid);
drop function if exists sentinel.resolve_in_doubt(uuid, uuid, boolean, text, text, uuid);
drop function if exists sentinel.resolve_approval(uuid, uuid, uuid, text, text, text, text, uuid, uuid, text, uuid);
create index if not exists approvals_by_status on sentinel.approvals (tenant_id, status, decided_at, approval_id)
  where decided_at is not null and handled_reference is null;
create index if not exists approvals_handled on sentinel.approvals (tenant_id, decided_at, approval_id) where handled_reference is not null;

-- What ends in doubt is asked about whether it names an order or not.
drop trigger set_budget_part on refunds.ledger_entries;
create trigger set_budget_part before update on refunds.ledger_entries for each row
  when ((new.order_ref is not null or new.status = 'ERROR')
    and (new.status is distinct from old.status or new.budget_part is distinct from old.budget_part))
  execute function refunds.set_budget_part();

-- A refund that a bank sent back is not counted as paid back any more.
alter table refunds.ledger_entries drop constraint ledger_entries_budget_part_check,
  add constraint ledger_entries_budget_part_check check (budget_part in ('reserved', 'executed', 'handled', 'in_doubt', 'returned'));
-- How many questions a key has open, beside its permits (docs/decisions/0029-open-permits.md).
alter table sentinel.crowded_keys add column open_questions integer not null default 0;
alter table sentinel.crowded_keys alter column open_questions set statistics 10;
create index approvals_asked on sentinel.approvals (principal_id) where status = 'pending';
drop function if exists sentinel.mark_crowded_keys(integer, integer);
drop function if exists sentinel.renew_permit(sentinel.guard_input, sentinel.operation_states, timestamptz);

-- What ended so before is asked about too: an entry that names no order, and may have been started. Beside the triggers, whose functions are
-- the old ones still.
alter table refunds.ledger_entries disable trigger user;
update refunds.ledger_entries e set budget_part = 'in_doubt'
where e.status = 'ERROR' and e.order_ref is null and e.budget_part is null and e.guard_request is not null
  and e.start_id is not null and e.act_until is not null
  and e.last_event is distinct from 'not_executed' and e.reason_code is distinct from 'not_executed'
  and not exists (select from refunds.executions x where x.tenant_id = e.tenant_id and x.ledger_entry_id = e.ledger_entry_id)
  and coalesce((
    select v.event from refunds.ledger_events v
    where v.tenant_id = e.tenant_id and v.ledger_entry_id = e.ledger_entry_id and v.event in ('allowed', 'start_refused')
    order by v.event_id desc limit 1), 'allowed') = 'allowed';
alter table refunds.ledger_entries enable trigger user;
-- And what ended without a payment before gives its order back.
delete from refunds.orders_taken t using refunds.ledger_entries e
where e.tenant_id = t.tenant_id and e.ledger_entry_id = t.ledger_entry_id and e.status in ('DENIED', 'ERROR') and e.budget_part is null;
