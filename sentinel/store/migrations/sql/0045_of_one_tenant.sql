-- The queue, rare events and gate reports of a tenant, without those of others.
drop index sentinel.approvals_queue;
create index approvals_queue on sentinel.approvals (tenant_id, sentinel.risk_rank(required_people, reasons), expires_at, approval_id)
  where status = 'pending';
alter index sentinel.approvals_queue alter column 2 set statistics 10;
create index events_seldom_of_tenant on sentinel.event_rows (tenant_id, event_id)
  where kind not in ('decision', 'start', 'outcome') and occurred_at > '-infinity';
drop index sentinel.gate_reports_newest;
create index gate_reports_newest on sentinel.gate_reports (tenant_id, switch, created_at);
