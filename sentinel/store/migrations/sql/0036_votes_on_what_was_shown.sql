-- Functions whose arguments or results changed lose their old signatures: the new ones come with the schema files, which make all functions anew.
drop function if exists orders.resolve_review(uuid, text, text, uuid, text, text, text, text, uuid, uuid);
drop function if exists sentinel.resolve_in_doubt(uuid, uuid, boolean, text, text, uuid);
drop function if exists sentinel.resolve_approval(uuid, uuid, uuid, text, text, text, text, uuid, uuid, text, uuid);
create index if not exists approvals_by_status on sentinel.approvals (tenant_id, status, decided_at, approval_id)
  where decided_at is not null and handled_reference is null;
create index if not exists approvals_handled on sentinel.approvals (tenant_id, decided_at, approval_id) where handled_reference is not null;
