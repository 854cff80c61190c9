-- In doubt: operations that were started and whose outcome is unknown; a person's resolution, and reports that contradict it.

-- A success reported after "not executed" was recorded: the evidence that one of the two is wrong. Append-only.
create table sentinel.contradictions (
  tenant_id     uuid not null,
  operation_id  uuid not null,
  event_id      uuid not null,                                             -- of the event that records it
  report_digest text not null,                                             -- of the report that contradicts
  halt_id       uuid not null,                                             -- the halt that it set, or that was in force already
  once_held     boolean not null,                                          -- whether the operation holds its once-key again
  reported_at   timestamptz not null,
  primary key (tenant_id, operation_id)
);
create trigger append_only before update or delete or truncate on sentinel.contradictions
  for each statement execute function sentinel.refuse_change();

-- Records a success that is reported after a person said "not executed". One of the two is wrong and the money may have moved, so the
-- budget and the once-key are held again, the operation is in doubt again, and this action of this agent is halted until a person lifts
-- the halt. Security definer: no agent's program can set a halt in any other way.
-- The halt lock is taken first and keeps every decision and start out. Reports and housekeeping do not take the halt lock; the locks of
-- the operation's budgets keep them out of those budgets.
create or replace function sentinel.record_contradiction(ask sentinel.report_input, halt uuid, halt_event uuid)
returns sentinel.receipt language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  found_one sentinel.contradictions;
  told sentinel.moved;
  s sentinel.operation_states;
  moment timestamptz;
  hash text;
  once_held boolean;
begin
  perform pg_advisory_xact_lock(sentinel.halt_lock());
  perform sentinel.take_locks(sentinel.locks_of_operations(array[ask.tenant_id], array[ask.idempotency_key]), clock_timestamp() + interval '2 seconds');
  told := sentinel.judge_report(ask, (sentinel.lock_operations(array[ask.tenant_id], array[ask.idempotency_key]))[1]);
  if (told.receipt).result <> 'resolved_not_executed' then return told.receipt; end if;
  select * into found_one from sentinel.contradictions c
  where c.tenant_id = ask.tenant_id and c.operation_id = (told.receipt).operation_id;
  if found then
    return row(case when found_one.report_digest = ask.content_digest then 'contradiction_repeated' else 'contradicts' end, null,
      found_one.event_id, (select e.hash from sentinel.events e where e.tenant_id = ask.tenant_id and e.event_id = found_one.event_id),
      found_one.operation_id)::sentinel.receipt;
  end if;
  select * into s from sentinel.operation_states t
  where t.tenant_id = ask.tenant_id and t.operation_id = (told.receipt).operation_id for update;
  moment := clock_timestamp();
  update sentinel.operation_states t set status = 'in_doubt', in_doubt_since = moment, in_doubt_reason = 'contradiction',
    outcome = 'success', report_digest = coalesce(t.report_digest, ask.content_digest), reported_at = coalesce(t.reported_at, moment),
    report_event_id = coalesce(t.report_event_id, ask.event_id)
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id;
  perform sentinel.hold_again(s.tenant_id, s.operation_id);
  once_held := sentinel.restore_once_key(s.tenant_id, s.operation_id);
  select h.halt_id into halt from sentinel.insert_halt(s.tenant_id, halt, 'agent_action', ask.agent_id || ' ' || ask.action, 'kill',
    'success reported after "not executed": operation ' || s.operation_id, 'sentinel', halt_event, moment) h;
  hash := sentinel.append_event(s.tenant_id, ask.event_id, 'contradiction', s.operation_id, ask.agent_id, moment,
    jsonb_build_object('action', ask.action, 'agent_id', ask.agent_id, 'halt_id', halt, 'not_executed_at',
      sentinel.utc_text(s.not_executed_at), 'once_held', once_held, 'outcome', 'success', 'report_id', ask.report_id));
  update sentinel.operation_states t set report_hash = hash
  where t.tenant_id = s.tenant_id and t.operation_id = s.operation_id and t.report_event_id = ask.event_id;
  insert into sentinel.contradictions values (s.tenant_id, s.operation_id, ask.event_id, ask.content_digest, halt, once_held, moment);
  return row('contradiction', null, ask.event_id, hash, s.operation_id)::sentinel.receipt;
end $$;

-- Makes an operation hold its once-key again; false if another operation holds it by now. True for an operation without a once-key.
create or replace function sentinel.restore_once_key(tenant uuid, operation uuid) returns boolean language plpgsql as $$
begin
  update sentinel.operation_states t set once_live = true
  where t.tenant_id = tenant and t.operation_id = operation and t.once_key is not null;
  return true;
exception when unique_violation then
  return false;
end $$;

-- Records a person's resolution of a doubt. "Not executed" is final, and is possible only when no caller may act under the start any more.
-- `shown` is the `in_doubt_since` of the doubt that the person looked at, so a decision about an earlier doubt does not end a later one.
-- Null ends any doubt, except that "not executed" for a contradiction, the only doubt that can follow another, must name it.
-- result: resolved | unknown | not_in_doubt | changed | still_acting (until `act_until`)
create or replace function sentinel.resolve_in_doubt(
  tenant uuid, operation uuid, executed boolean, who text, evidence text, event uuid, shown timestamptz default null
) returns table (result text, act_until timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
  s sentinel.operation_states;
  o record;
  moment timestamptz;
begin
  perform sentinel.take_held_locks(tenant, operation);
  select * into s from sentinel.operation_states t where t.tenant_id = tenant and t.operation_id = operation for update;
  moment := clock_timestamp();
  act_until := s.act_until;
  result := case when s.operation_id is null then 'unknown' when s.status <> 'in_doubt' then 'not_in_doubt'
                 when s.in_doubt_since is distinct from shown and (shown is not null or s.in_doubt_reason = 'contradiction' and not executed) then 'changed'
                 when not executed and s.act_until > moment then 'still_acting' else 'resolved' end;
  if result <> 'resolved' then return next; return; end if;
  update sentinel.operation_states t set status = 'completed', outcome = case when executed then 'success' else 'error' end,
    in_doubt_since = null, in_doubt_reason = null, once_live = t.once_live and executed,
    not_executed_at = case when executed then t.not_executed_at else coalesce(t.not_executed_at, moment) end,
    reservation = case when t.reservation = 'held' then case when executed then 'captured' else 'released' end else t.reservation end
  where t.tenant_id = tenant and t.operation_id = operation and t.status = 'in_doubt';
  perform sentinel.settle_usage(array[s], case when executed then 'captured' else 'released' end);
  select t.agent_id, t.action into o from sentinel.operations t where t.tenant_id = tenant and t.operation_id = operation;
  perform sentinel.append_event(tenant, event, 'in_doubt_resolved', operation, o.agent_id, moment,
    jsonb_build_object('act_until', sentinel.utc_text(s.act_until), 'action', o.action, 'agent_id', o.agent_id, 'evidence', evidence,
      'executed', executed, 'resolved_by', who));
  return next;
end $$;
