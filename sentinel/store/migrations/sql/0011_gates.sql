-- A switch that was turned off because something went wrong is not opened again by a report from before that.

alter table sentinel.switches add column proven_after timestamptz;           -- only a newer report counts

create or replace function sentinel.gate_refusal(tenant uuid, switch_name text, gate text, policy text) returns text
language sql stable as $$
  select case when f.policy_digest is null then 'policy_not_in_force'
              when r.report_id is null then 'no_report'
              when not r.passed then 'report_failed'
              when r.policy_digest <> f.policy_digest then 'report_stale'
              when r.created_at < clock_timestamp() - sentinel.gate_report_lasts() then 'report_old'
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

-- Always works, for anybody who may call it. False when it had been turned off before. `went_wrong`: not a person's choice.
drop function sentinel.turn_switch_off;
create function sentinel.turn_switch_off(tenant uuid, switch_name text, who text, why text, event uuid, went_wrong boolean default false)
returns boolean language plpgsql as $$
declare
  moment timestamptz := clock_timestamp();
  turned boolean;
begin
  insert into sentinel.switches as s (tenant_id, name, is_on, canary_percent, changed_at, changed_by, reason)
    values (tenant, switch_name, false, 0, moment, who, why)
  on conflict (tenant_id, name) do update set
    is_on = false, canary_percent = 0, changed_at = excluded.changed_at, changed_by = excluded.changed_by,
    reason = excluded.reason
  where s.is_on;
  turned := found;
  if went_wrong then
    update sentinel.switches set proven_after = moment where tenant_id = tenant and name = switch_name;
  end if;
  if not turned then return false; end if;
  perform sentinel.append_event(tenant, event, 'switch_off', null, null, moment,
    jsonb_build_object('changed_by', who, 'reason', why, 'switch', switch_name));
  return true;
end $$;
