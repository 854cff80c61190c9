-- Housekeeping: what runs out or falls silent by itself.

-- What time does by itself: permits and approvals run out, silent operations fall in doubt. Small steps, skipping locked rows.
create or replace function sentinel.run_housekeeping(report_deadline_seconds integer, event_ids uuid[])
returns table (permits_expired integer, approvals_expired integer, fell_in_doubt integer) language plpgsql as $$
declare
  due record;
  used integer := 0;
  moment timestamptz := clock_timestamp();
begin
  permits_expired := sentinel.release_run_out(200);
  delete from sentinel.velocity where bucket < moment - interval '1 day';
  approvals_expired := 0; fell_in_doubt := 0;
  -- Their operations' states, which come first: who holds one is about to decide its approval.
  for due in select a.tenant_id, a.approval_id from sentinel.approvals a
             join sentinel.operation_states s on s.operation_id = a.operation_id and s.tenant_id = a.tenant_id
             where a.status = 'pending' and a.expires_at <= moment
             order by a.expires_at limit cardinality(event_ids) / 2 for update of s skip locked loop
    used := used + 1;
    if sentinel.expire_approval(due.tenant_id, due.approval_id, event_ids[used], moment) then
      approvals_expired := approvals_expired + 1;
    end if;
  end loop;
  -- Those of a second administrator have no operation.
  for due in select a.tenant_id, a.approval_id from sentinel.approvals a
             where a.status = 'pending' and a.expires_at <= moment and sentinel.is_protected_change(a)
             order by a.expires_at limit cardinality(event_ids) / 2 - used for update skip locked loop
    used := used + 1;
    if sentinel.expire_approval(due.tenant_id, due.approval_id, event_ids[used], moment) then
      approvals_expired := approvals_expired + 1;
    end if;
  end loop;
  for due in select s.tenant_id, s.operation_id from sentinel.operation_states s
             where s.status = 'started' and s.started_at < moment - make_interval(secs => report_deadline_seconds)
             order by s.started_at limit cardinality(event_ids) / 2 for update skip locked loop
    used := used + 1;
    update sentinel.operation_states set status = 'in_doubt', in_doubt_since = moment, in_doubt_reason = 'no_report'
    where tenant_id = due.tenant_id and operation_id = due.operation_id and status = 'started';
    perform sentinel.append_event(due.tenant_id, event_ids[used], 'in_doubt', due.operation_id, null, moment,
      jsonb_build_object('reason', 'no_report'));
    fell_in_doubt := fell_in_doubt + 1;
  end loop;
  return next;
end $$;
