-- What gives somebody power waits for a second administrator once a tenant has two: an approval of the same queue, and beside
-- it exactly what was asked. It holds no secret: passwords and keys are made when the asker collects what was approved.
create table sentinel.protected_changes (
  tenant_id   uuid not null,
  approval_id uuid not null,
  request     text not null,                                               -- canonical JSON; its SHA-256 is the approval's digest
  asked_by    uuid,                                                        -- null: on the machine itself, in nobody's name
  done_at     timestamptz,
  outcome     text,                                                        -- done, or why it could not be done when it was approved
  primary key (tenant_id, approval_id),
  foreign key (tenant_id, approval_id) references sentinel.approvals,
  constraint protected_changes_done_once check ((done_at is null) = (outcome is null))
);

-- Who shut an account out, until it is let in again: an administrator who has shut out the second one is not thereby the only one.
alter table sentinel.operators add column shut_out_by uuid,
  add constraint operators_shut_out_by foreign key (tenant_id, shut_out_by) references sentinel.operators,
  add constraint operators_shut_out check (shut_out_by is null or not active);

-- It takes one more event id: of the change that a vote does.
drop function if exists sentinel.resolve_approval(uuid, uuid, uuid, text, text, text, text, uuid, uuid, text);
