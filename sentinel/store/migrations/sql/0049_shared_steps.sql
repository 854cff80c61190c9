-- The steps that the trails of one batch have in common are stored once; trails from before keep all of theirs.
alter table refunds.step_trails add column shared_id bigint;
alter table refunds.step_trails alter column shared_id set statistics 10;
create table refunds.shared_steps (
  tenant_id uuid not null,
  shared_id bigint generated always as identity,
  steps     jsonb not null,
  primary key (tenant_id, shared_id)
);
alter table refunds.shared_steps alter column tenant_id set statistics 10, alter column shared_id set statistics 10,
  alter column steps set statistics 10;
create trigger append_only before update or delete or truncate on refunds.shared_steps
  for each statement execute function refunds.refuse_change();
create view refunds.trails as
  select t.tenant_id, t.ledger_entry_id, t.trail_id, t.claim_epoch,
    case when t.shared_id is null then t.steps else (
      select jsonb_agg(case jsonb_typeof(e.step) when 'number' then s.steps -> e.step::integer else e.step end order by e.place)
      from jsonb_array_elements(t.steps) with ordinality as e (step, place)) end as steps,
    t.occurred_at
  from refunds.step_trails t
  left join refunds.shared_steps s on s.tenant_id = t.tenant_id and s.shared_id = t.shared_id;
-- A worker of an earlier version calls the new one without its last argument.
drop function refunds.record_executions(uuid, jsonb);
