-- Scenario switches, and the gate reports that are required to turn them on.

-- Changed switches only: a switch without a row here has its state from policies/switches.yaml.
create table sentinel.switches (
  tenant_id      uuid not null references sentinel.tenants,
  name           text not null check (name ~ '^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$' and length(name) <= 64),
  is_on          boolean not null,
  canary_percent integer not null check (canary_percent between 0 and 100), -- share of the accounts it covers, 0 to 100
  changed_at     timestamptz not null,
  changed_by     text not null,                                            -- a person's address, or the program that turned it off
  reason         text not null,
  proven_after   timestamptz,                                              -- only a gate report newer than this counts
  primary key (tenant_id, name),
  constraint off_is_for_nobody check (is_on or canary_percent = 0)
);

-- The result of a run of the labelled cases; a passed one allows its switch to be turned on. Append-only.
create table sentinel.gate_reports (
  tenant_id        uuid not null references sentinel.tenants,
  report_id        uuid not null,
  scenario         text not null,
  switch           text not null,
  policy_digest    text not null check (policy_digest ~ '^sha256:[0-9a-f]{64}$'),
  passed           boolean not null,
  cases            integer not null check (cases > 0),                     -- labelled cases that were run
  correct          integer not null check (correct >= 0),
  lower_bound_ppm  integer not null check (lower_bound_ppm between 0 and 1000000), -- of the correct rate, 95 % interval
  wrong_executions integer not null check (wrong_executions >= 0),
  not_covered      integer not null check (not_covered >= 0),              -- cases that proved nothing
  report           jsonb not null,                                         -- the whole report
  created_at       timestamptz not null,
  recorded_by      text not null,
  primary key (tenant_id, report_id),
  constraint counts_add_up check (correct + not_covered <= cases),
  -- The threshold of a launch gate, enforced here too: no writer can record a report below it as passed.
  constraint passed_means_proven check (not passed or wrong_executions = 0 and correct > 0 and lower_bound_ppm >= 950000)
);
create index gate_reports_newest on sentinel.gate_reports (tenant_id, switch, created_at);
create trigger append_only before update or delete or truncate on sentinel.gate_reports
  for each statement execute function sentinel.refuse_change();

-- The maximum age of a report: customers' requests and agents' behaviour drift within longer times.
create or replace function sentinel.gate_report_max_age() returns interval language sql immutable parallel safe as
  $$ select interval '7 days' $$;

-- Why the newest report does not allow this switch to be turned on now; '' if it does.
create or replace function sentinel.gate_refusal(tenant uuid, switch_name text, gate text, policy text) returns text
language sql stable as $$
  select case when f.policy_digest is null then 'policy_not_in_force'
              when r.report_id is null then 'no_report'
              when not r.passed then 'report_failed'
              when r.policy_digest <> f.policy_digest then 'report_stale'
              when r.created_at < clock_timestamp() - sentinel.gate_report_max_age() then 'report_old'
              when r.created_at <= s.proven_after then 'report_disproved'
              else '' end
  from (values (1)) as always
  left join sentinel.policies_in_force f on f.policy_id = policy
  left join sentinel.switches s on s.tenant_id = tenant and s.name = switch_name
  left join lateral (
    select g.report_id, g.passed, g.policy_digest, g.created_at from sentinel.gate_reports g
    where g.tenant_id = tenant and g.switch = switch_name and g.scenario = gate
    order by g.created_at desc, g.report_id desc limit 1) as r on true
$$;

-- Turns a switch on, or changes the canary of one that is on. Returns '' when done, else 'unchanged', 'canary_too_wide' or gate_refusal's
-- result.
-- A switch that was off is turned on for at most `first_percent` of the accounts. The canary of one that is on may be narrowed whatever the
-- gate says: the smaller share is part of the larger one, so like turning off it only tightens. A switch without a gate (gate null) is
-- refused only as unchanged or too wide. `default_on`: its state, for all accounts, as long as it was never changed.
create or replace function sentinel.turn_switch_on(
  tenant uuid, switch_name text, gate text, policy text, percent integer, first_percent integer, who text, why text, event uuid,
  default_on boolean default false
) returns text language plpgsql as $$
declare
  moment timestamptz;                                                      -- after any concurrent change of the switch
  before sentinel.switches;
  was_flipped boolean;
  narrows boolean;
begin
  -- Wait for a concurrent change of the switch; the gate is checked after that.
  select * into before from sentinel.switches s where s.tenant_id = tenant and s.name = switch_name for update;
  was_flipped := found;
  narrows := case when was_flipped then before.is_on and percent < before.canary_percent else default_on and percent < 100 end;
  insert into sentinel.switches as s (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
    select tenant, switch_name, true, percent, clock_timestamp(), who, why
    where (gate is null or narrows or sentinel.gate_refusal(tenant, switch_name, gate, policy) = '')
      and (percent <= first_percent or default_on and not was_flipped or exists (
        select from sentinel.switches s where s.tenant_id = tenant and s.name = switch_name and s.is_on))
  on conflict (tenant_id, name) do update set
    is_on = true, canary_percent = excluded.canary_percent, changed_at = clock_timestamp(),
    changed_by = excluded.changed_by, reason = excluded.reason
  where case when s.is_on then s.canary_percent <> excluded.canary_percent else excluded.canary_percent <= first_percent end
    and (was_flipped or s.proven_after is null)                            -- else: first changed meanwhile, because something went wrong
  returning s.changed_at into moment;
  if not found then
    return coalesce((select 'unchanged' from sentinel.switches s
                     where s.tenant_id = tenant and s.name = switch_name and s.is_on and s.canary_percent = percent),
                    case when gate is not null then nullif(sentinel.gate_refusal(tenant, switch_name, gate, policy), '') end,
                    'canary_too_wide');
  end if;
  perform sentinel.append_event(tenant, event, 'switch_on', null, null, moment, jsonb_build_object(
    'canary_percent', percent, 'changed_by', who, 'gate', gate, 'policy_digest', case when gate is not null then (
      select f.policy_digest from sentinel.policies_in_force f where f.policy_id = policy) end,
    'reason', why, 'switch', switch_name));
  return '';
end $$;

-- Turns a switch off; never refused to a caller that may execute it. Returns false if it was off already. With `went_wrong` earlier gate
-- reports no longer count, even if the switch was off; each such call appends an event that names who made it.
create or replace function sentinel.turn_switch_off(tenant uuid, switch_name text, who text, why text, event uuid, went_wrong boolean default false)
returns boolean language plpgsql as $$
declare
  moment timestamptz;                                                      -- after any concurrent change of the switch
  turned boolean;
begin
  insert into sentinel.switches as s (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
    values (tenant, switch_name, false, 0, clock_timestamp(), who, why)
  on conflict (tenant_id, name) do update set
    is_on = false, canary_percent = 0, changed_at = clock_timestamp(), changed_by = excluded.changed_by,
    reason = excluded.reason
  where s.is_on
  returning s.changed_at into moment;
  turned := found;
  -- A call repeated because its answer was lost has its event already.
  if not turned and (not went_wrong or exists (
      select from sentinel.event_rows e where e.tenant_id = tenant and e.event_id = event)) then return false; end if;
  if went_wrong then
    moment := coalesce(moment, clock_timestamp());
    -- The newest report may be later than now, because the clock was set back since.
    update sentinel.switches set proven_after = greatest(moment, (
      select max(g.created_at) from sentinel.gate_reports g where g.tenant_id = tenant and g.switch = switch_name))
    where tenant_id = tenant and name = switch_name;
  end if;
  perform sentinel.append_event(tenant, event, 'switch_off', null, null, moment, jsonb_build_object(
    'changed_by', who, 'reason', why, 'switch', switch_name) || case when turned then '{}' else '{"already": true}' end::jsonb);
  return turned;
end $$;

-- Refuses any write that sets a switch on by a role that may not execute turn_switch_on.
create or replace function sentinel.check_switch() returns trigger language plpgsql as $$
begin
  if new.is_on and not has_function_privilege('sentinel.turn_switch_on(uuid, text, text, text, integer, integer, text, text, uuid, boolean)', 'execute') then
    raise exception 'only operators turn a switch on' using errcode = 'insufficient_privilege';
  end if;
  return new;
end $$;

-- Stores the report of a run of the labelled cases, with the database's time, and its event; once, even if the call is repeated because its
-- answer was lost. It is later than what was recorded before it, also where the clock was set back since: the newest report counts, and only
-- one from after an agent turned the switch off.
create or replace function sentinel.record_gate_report(
  tenant uuid, report_id uuid, scenario text, switch_name text, digest text, has_passed boolean, case_count integer,
  correct_count integer, bound_ppm integer, wrong_count integer, uncovered_count integer, document jsonb, who text, event uuid
) returns void language plpgsql as $$
declare
  moment timestamptz := clock_timestamp();
  before timestamptz := greatest(
    (select max(g.created_at) from sentinel.gate_reports g where g.tenant_id = tenant and g.switch = switch_name),
    (select s.proven_after from sentinel.switches s where s.tenant_id = tenant and s.name = switch_name));
begin
  insert into sentinel.gate_reports values (tenant, report_id, scenario, switch_name, digest, has_passed, case_count,
    correct_count, bound_ppm, wrong_count, uncovered_count, document,
    greatest(moment, before + interval '1 microsecond'), who)
  on conflict on constraint gate_reports_pkey do nothing;
  if not found then return; end if;
  perform sentinel.append_event(tenant, event, 'gate_report_recorded', null, null, moment, jsonb_build_object(
    'passed', has_passed, 'policy_digest', digest, 'recorded_by', who, 'report_id', report_id,
    'report_digest', sentinel.sha256_text(document::text), 'scenario', scenario, 'switch', switch_name,
    'wrong_executions', wrong_count));
end $$;

create trigger check_switch before insert or update on sentinel.switches
  for each row execute function sentinel.check_switch();
