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
