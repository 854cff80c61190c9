-- The trace and span that a guard came from, kept with its decision (docs/decisions/0080-traces-of-guards.md). Null where none was named.
alter table sentinel.event_rows add column trace bytea;
alter table sentinel.event_rows alter column trace set statistics 10;
alter type sentinel.guard_row add attribute trace bytea;
alter type sentinel.guard_input add attribute trace bytea;
