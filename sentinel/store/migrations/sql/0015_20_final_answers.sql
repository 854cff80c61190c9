-- A person's "not executed" is final: until when each answered start gives leave to act, and since when nobody has it any more.

alter table sentinel.operation_states
  -- Until when whoever was told "started" may act: moved forward by every answered start, ended by a report of "error".
  add column act_until timestamptz,
  -- When a person said that it was not executed. Set once; nothing starts after it.
  add column not_executed_at timestamptz;

-- What is open from before is given the time that nobody declared; what a person said before stays said.
update sentinel.operation_states set act_until = clock_timestamp() + interval '15 minutes'
where status = 'started' or status = 'in_doubt' and outcome is null;
update sentinel.operation_states s set not_executed_at = e.occurred_at
from sentinel.events e
where e.kind = 'in_doubt_resolved' and e.body::jsonb ->> 'executed' = 'false' and e.tenant_id = s.tenant_id
  and e.operation_id = s.operation_id and s.status = 'completed' and s.outcome = 'error';

alter table sentinel.operation_states
  add constraint started_may_act check (status <> 'started' or act_until is not null),
  add constraint not_executed_was_started check (not_executed_at is null or status in ('in_doubt', 'completed')),
  -- Whoever answers a start must move act_until past now: with this, no answer can say "go" after "not executed", nor can
  -- that be said while an answer still says "go".
  add constraint not_executed_is_final check (act_until <= not_executed_at);

alter type sentinel.guard_input add attribute act_seconds integer;
alter type sentinel.start_input add attribute act_seconds integer;

-- A success that was reported after "not executed": the evidence that one of the two is wrong. Append-only.
create table sentinel.contradictions (
  tenant_id     uuid not null,
  operation_id  uuid not null,
  event_id      uuid not null,
  report_digest text not null,
  halt_id       uuid not null,                                             -- the halt it set, or found in force
  once_held     boolean not null,                                          -- whether it holds its once-key again
  reported_at   timestamptz not null,
  primary key (tenant_id, operation_id)
);
create trigger append_only before update or delete or truncate on sentinel.contradictions
  for each statement execute function sentinel.refuse_change();

-- A halt of one action of one agent; its target is "AGENT ACTION", and neither name has a space.
alter table sentinel.halts drop constraint halts_scope_check,
  add constraint halts_scope_check check (scope in ('global', 'tenant', 'agent', 'action', 'scenario', 'agent_action')),
  add constraint halts_pair_target check ((scope = 'agent_action') = (strpos(target, ' ') > 0));

-- It tells until when somebody may still act.
drop function sentinel.resolve_in_doubt(uuid, uuid, boolean, text, text, uuid);

-- The worker's own end of its leave to act, by its database's clock; set with ALLOWED, before the start is asked.
-- Without one nothing is executed.
alter table refunds.ledger_entries add column act_until timestamptz;
-- Held from before: the lease bounds them, as it did.
update refunds.ledger_entries set act_until = lease_until where status = 'ALLOWED';

-- The authority refused the start because a person had said "not executed": nothing of this row may happen any more.
insert into refunds.transitions (from_status, event, to_status) values ('ALLOWED', 'not_executed', 'ERROR');
