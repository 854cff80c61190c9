-- What a permit holds, where whoever looks for it finds it: the locks of its budgets and the key that asked, with the
-- operation's state. A run-out permit is found by either without looking at all the others.
alter table sentinel.operation_states
  add column principal_id uuid,
  add column holds bigint[];

-- Limits of one owner share a lock. A reservation knows the owner of its first limit; a limit's key is "policy/limit|owner".
update sentinel.operation_states s set holds = (
  select array_agg(distinct hashtextextended('budget/' || r.tenant_id || '/' || regexp_replace(leg, '^[^|]*\|', ''), 1))
  from unnest(r.limit_keys) as leg)
from sentinel.reservations r
where r.tenant_id = s.tenant_id and r.permit_id = s.permit_id and r.state = 'held';

update sentinel.operation_states s set principal_id = o.principal_id from sentinel.operations o
where o.tenant_id = s.tenant_id and o.operation_id = s.operation_id and s.status in ('allowed', 'approved') and s.permit_id is not null;

-- Reservations are found by their permit; by their operation they were looked for only to find the budgets they hold.
drop index sentinel.reservations_held;

-- Told for how long they may wait; present texts in schema/authority.
drop function sentinel.record_decisions(jsonb);
drop function sentinel.start_operations(jsonb);
drop function sentinel.report_outcomes(jsonb);

-- Only the housekeeper and who looks for a budget or a key asks for permits that are out; a permit that is redeemed in the
-- commit that gives it is in neither index.
drop index sentinel.operation_states_permits;
create index operation_states_permits on sentinel.operation_states (principal_id, permit_expires_at)
  where status in ('allowed', 'approved') and permit_id is not null;
-- "holds is not null" follows from the question for a budget and from no other, so that no other plan takes this index.
create index operation_states_holds on sentinel.operation_states using gin (holds) with (fastupdate = off)
  where status in ('allowed', 'approved') and holds is not null;

-- Keys with so many permits out that they get no further one for now.
create table sentinel.crowded_keys (
  principal_id uuid primary key,
  tenant_id    uuid not null,
  open_permits integer not null,
  valid_until  timestamptz not null
);
drop function sentinel.release_expired_permits(uuid, text[], text, integer);

-- The approval that was asked before this one, under terms that were not enough any more: its words are shown with this one.
alter table sentinel.approvals add column follows uuid;
drop function sentinel.new_approval(sentinel.guard_input, uuid, text[], timestamptz);
