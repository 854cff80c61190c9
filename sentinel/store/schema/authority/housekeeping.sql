-- Housekeeping: periodic expiry of permits and approvals, and putting operations without a report in doubt.

-- Expires approvals whose time is over, at most as many as there are ids for their events, earliest expiry first; returns how many. Goes
-- through each tenant's pending approvals by their index, so that those with time left cost nothing.
create or replace function sentinel.expire_due_approvals(event_ids uuid[]) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  due record;
  most integer := cardinality(event_ids);
  used integer := 0;
  expired integer := 0;
  moment timestamptz := clock_timestamp();
begin
  -- The operation's state is locked first; a transaction that holds it is about to decide the approval, so it is skipped.
  for due in select a.tenant_id, a.approval_id from sentinel.tenants t cross join lateral (
               select p.tenant_id, p.approval_id, p.operation_id, p.expires_at from sentinel.approvals p
               where p.tenant_id = t.tenant_id and p.status = 'pending' and p.expires_at <= moment order by p.expires_at limit most) as a
             join sentinel.operation_states s on s.operation_id = a.operation_id and s.tenant_id = a.tenant_id
             order by a.expires_at limit most for update of s skip locked loop
    used := used + 1;
    if sentinel.expire_approval(due.tenant_id, due.approval_id, event_ids[used], moment) then expired := expired + 1; end if;
  end loop;
  -- Approvals by a second administrator have no operation.
  for due in select c.tenant_id, c.approval_id from sentinel.tenants t cross join lateral (
               select p.tenant_id, p.approval_id, p.expires_at from sentinel.approvals p
               where p.tenant_id = t.tenant_id and p.status = 'pending' and p.expires_at <= moment order by p.expires_at limit most) as a
             join sentinel.approvals c on c.tenant_id = a.tenant_id and c.approval_id = a.approval_id
             where sentinel.is_protected_change(c)
             order by a.expires_at limit most - used for update of c skip locked loop
    used := used + 1;
    if sentinel.expire_approval(due.tenant_id, due.approval_id, event_ids[used], moment) then expired := expired + 1; end if;
  end loop;
  return expired;
end $$;

-- Puts started operations in doubt that were not reported within report_deadline_seconds, at most as many as there are ids for their events,
-- earliest start first; returns how many. Skips locked rows.
create or replace function sentinel.doubt_unreported_starts(report_deadline_seconds integer, event_ids uuid[]) returns integer
language plpgsql as $$
declare
  due record;
  o record;
  doubted integer := 0;
  moment timestamptz := clock_timestamp();
begin
  for due in select s.tenant_id, s.operation_id from sentinel.operation_states s
             where s.status = 'started' and s.started_at < moment - make_interval(secs => report_deadline_seconds)
             order by s.started_at limit cardinality(event_ids) for update skip locked loop
    doubted := doubted + 1;
    update sentinel.operation_states set status = 'in_doubt', in_doubt_since = moment, in_doubt_reason = 'no_report'
    where tenant_id = due.tenant_id and operation_id = due.operation_id and status = 'started';
    select t.agent_id, t.action into o from sentinel.operations t where t.tenant_id = due.tenant_id and t.operation_id = due.operation_id;
    perform sentinel.append_event(due.tenant_id, event_ids[doubted], 'in_doubt', due.operation_id, o.agent_id, moment,
      jsonb_build_object('action', o.action, 'agent_id', o.agent_id, 'reason', 'no_report'));
  end loop;
  return doubted;
end $$;

-- One round of housekeeping: releases expired permits, expires approvals, and puts started operations in doubt that were not reported
-- within report_deadline_seconds. Small steps that skip locked rows. Half of the event ids are for approvals, half for operations.
create or replace function sentinel.run_housekeeping(report_deadline_seconds integer, event_ids uuid[])
returns table (permits_expired integer, approvals_expired integer, fell_in_doubt integer) language plpgsql as $$
declare
  most integer := cardinality(event_ids) / 2;
begin
  permits_expired := sentinel.release_run_out(200);
  delete from sentinel.velocity where bucket < clock_timestamp() - interval '1 day';
  approvals_expired := sentinel.expire_due_approvals(event_ids[1:most]);
  fell_in_doubt := sentinel.doubt_unreported_starts(report_deadline_seconds, event_ids[most + 1:]);
  return next;
end $$;
