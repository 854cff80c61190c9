-- Old signatures of functions whose arguments or results changed. Databases that are migrated get the new ones from the schema files.
drop function if exists orders.resolve_review(uuid, text, text, uuid, text, text, text, text, uuid, uuid);
drop function if exists sentinel.resolve_in_doubt(uuid, uuid, boolean, text, text, uuid);
drop function if exists sentinel.resolve_approval(uuid, uuid, uuid, text, text, text, text, uuid, uuid, text, uuid);
select 1;
create index if not exists approvals_by_status on sentinel.approvals (tenant_id, status, decided_at, approval_id)
  where decided_at is not null and handled_reference is null;
create index if not exists approvals_handled on sentinel.approvals (tenant_id, decided_at, approval_id) where handled_reference is not null;
