-- What a permit reserves stands with its operation's state. What permits reserved that are none any more was free again and is not
-- kept; their events are.
alter table sentinel.operation_states
  add column reserved_minor bigint check (reserved_minor > 0),
  add column limit_keys text[],
  add column limit_buckets timestamptz[],
  add column limit_overrides boolean[],
  add column reservation text check (reservation in ('held', 'captured', 'released'));
update sentinel.operation_states s set reserved_minor = r.amount_minor, limit_keys = r.limit_keys, limit_buckets = r.buckets,
  limit_overrides = case when true = any(r.overrides) then r.overrides end, reservation = r.state
from sentinel.reservations r where r.tenant_id = s.tenant_id and r.permit_id = s.permit_id;
alter table sentinel.operation_states
  add constraint reserved_in_limits check ((reservation is null) = (reserved_minor is null) and (reservation is null) = (limit_keys is null)
    and cardinality(limit_buckets) = cardinality(limit_keys));
drop type sentinel.decided cascade;
drop table sentinel.reservations cascade;
create view sentinel.reservations as
  select tenant_id, permit_id, operation_id, reserved_minor as amount_minor, limit_keys, limit_buckets as buckets,
         coalesce(limit_overrides, array_fill(false, array[cardinality(limit_keys)])) as overrides, reservation as state
  from sentinel.operation_states where reservation is not null;
create type sentinel.decided as (
  answer sentinel.guard_output, event sentinel.events, state sentinel.operation_states, start sentinel.events
);

drop function if exists sentinel.hold_again(uuid, uuid);
