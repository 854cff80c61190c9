-- When breakers counted an operation again at its renewals (docs/decisions/0023-velocity-breaker.md).
alter table sentinel.operation_states add column counted_at jsonb;
alter table sentinel.operation_states alter column counted_at set statistics 10;
drop function if exists sentinel.breakers_without(jsonb, timestamptz, timestamptz);
-- Renewals say which limit of their key they met (docs/decisions/0029-open-permits.md); the new text comes with the schema files.
drop function if exists sentinel.renew_permit(sentinel.guard_input, sentinel.operation_states, timestamptz);

-- How far the sequencer is with what was restored into a new cluster.
alter table sentinel.sequencer add column restart_at xid8, add column restored_upto xid8;
alter table sentinel.sequencer alter column restart_at set statistics 10, alter column restored_upto set statistics 10;

-- A switch is turned with how it stands by default; the new text comes with the schema files.
drop function if exists sentinel.turn_switch_on(uuid, text, text, text, integer, integer, text, text, uuid);
