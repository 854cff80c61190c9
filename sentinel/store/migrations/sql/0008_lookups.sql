-- Every index of the hot tables opens with what it is for, never with the tenant. A planner that knows nothing of a young
-- table yet takes any index that opens with a column of the question, and keeps to it: one that began with the tenant was
-- read from end to end for a key, until the first statistics came.
alter table sentinel.operations
  drop constraint operations_pkey, add constraint operations_pkey primary key (operation_id, tenant_id),
  drop constraint operations_key_once, add constraint operations_key_once unique (idempotency_key, tenant_id);
alter table sentinel.operation_states
  drop constraint operation_states_pkey, add constraint operation_states_pkey primary key (operation_id, tenant_id);
drop index sentinel.operation_states_once;
create unique index operation_states_once on sentinel.operation_states (once_key, tenant_id) where once_live;
