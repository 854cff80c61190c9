-- Locks: the one order in which they are taken, their numbers, and bounded waiting.
--
-- Every function takes the locks it needs in this order, so no deadlock is possible (docs/decisions/0021-lock-order.md):
--   1  the halt lock: shared by functions that decide or start, exclusive for those that set or lift a halt
--   2  the locks of operations (by key, before they exist), budgets, once-keys and velocity breakers, ascending by number
--   3  rows of operation_states, ascending by tenant and key; housekeeping, and functions that release what expired permits and
--      approvals hold, skip locked rows instead of waiting for them
--   4  rows of approvals: only while holding the row of their operation's state
--   5  rows of budgets and usage_parts: only while holding 2 and 3, so these locks never wait
-- A function that holds a lock further down may try one further up without waiting, and goes on without it.
-- Functions that decide or start write nothing before they have lock 1: a transaction gets its id with its first write, and the event log
-- orders transactions by id. So nothing that was allowed after a halt was lifted is logged between its setting and its lifting.

-- The lock of one owner's budgets: of everything that any limit counts for this subject.
create or replace function sentinel.budget_lock(tenant uuid, subject text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended('budget/' || tenant::text || '/' || subject, 1) $$;

-- The locks of several owners; null for none.
create or replace function sentinel.budget_locks(tenant uuid, subjects text[]) returns bigint[] language plpgsql immutable as $$
declare
  locks bigint[];
  subject text;
begin
  if subjects is null then return null; end if;
  foreach subject in array subjects loop locks := locks || sentinel.budget_lock(tenant, subject); end loop;
  return locks;
end $$;

-- The lock of a once-key in all its spellings, so that two spellings at once see each other.
create or replace function sentinel.once_lock(tenant uuid, once text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended('once/' || tenant::text || '/' || sentinel.once_folded(once), 1) $$;

-- The lock of one operation, taken before its row. Waiting for a row that another transaction waits for too is two waits in PostgreSQL,
-- each with the whole lock_timeout; waiting for this lock is one, and the row gets the time that is left.
create or replace function sentinel.operation_lock(tenant uuid, key text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended('operation/' || tenant::text || '/' || key, 1) $$;

-- The lock of what one velocity breaker counts.
create or replace function sentinel.velocity_lock(tenant uuid, breaker text) returns bigint language sql immutable parallel safe as
  $$ select hashtextextended('velocity/' || tenant::text || '/' || breaker, 1) $$;

-- The locks of the budgets that a permit holds under these limits: those of totals, or those of the other limits. Stored in the operation's
-- state, so that a release finds the permit by the budget and the budgets by the permit.
create or replace function sentinel.locks_of_limits(tenant uuid, asks jsonb, totals boolean) returns bigint[] language plpgsql immutable as $$
begin
  return (select array_agg(sentinel.budget_lock(tenant, o.subject))
          from (select distinct ask ->> 'subject' as subject from jsonb_array_elements(asks) as ask
                where coalesce((ask ->> 'is_total')::boolean, false) = totals) as o);
end $$;

-- The locks of everything that decisions on a batch read before they write, computed from the rows, so that no caller can leave one out.
-- A replay may release what its permit holds, under a policy that had other limits, so the locks held by known keys are included.
create or replace function sentinel.locks_of_batch(
  terms sentinel.guard_terms[], batch sentinel.guard_row[], rates sentinel.rate_sum[]
) returns bigint[] language plpgsql stable as $$
#variable_conflict use_column
begin
  return array(
    with a as materialized (select r.tenant_id, r.idempotency_key, r.once_key, r.subjects from unnest(batch) as r)
    select sentinel.operation_lock(a.tenant_id, a.idempotency_key) from a
    union all
    select sentinel.once_lock(a.tenant_id, a.once_key) from a where a.once_key is not null
    union all
    select sentinel.budget_lock(a.tenant_id, one.subject) from a cross join lateral unnest(a.subjects) as one (subject)
    union all
    select sentinel.budget_lock(t.tenant_id, one.subject) from unnest(terms) as t cross join lateral unnest(t.total_subjects) as one (subject)
    union all
    select sentinel.velocity_lock(b.tenant_id, b.breaker_key) from unnest(rates) as b
    union all
    select unnest(s.holds || s.total_holds || sentinel.once_lock(s.tenant_id, s.once_key)) from a
    cross join lateral (select from_key.operation_id from sentinel.operations from_key
                        where from_key.idempotency_key = a.idempotency_key and from_key.tenant_id = a.tenant_id offset 0) as known
    cross join lateral (select * from sentinel.operation_states one
                        where one.operation_id = known.operation_id and one.tenant_id = a.tenant_id offset 0) as s);
end $$;

-- Takes those of the wanted locks that are not in `had`, without waiting: a transaction that holds locks must not wait for one further up.
-- Raises deadlock_detected if one is not free; the caller begins its transaction again.
create or replace function sentinel.take_late_locks(wanted bigint[], had bigint[]) returns void language plpgsql as $$
begin
  if exists (select from unnest(wanted) as late (lock)
             where late.lock is not null and (late.lock = any(had)) is not true and not pg_try_advisory_xact_lock(late.lock)) then
    raise exception 'a lock came too late' using errcode = 'deadlock_detected';
  end if;
end $$;

-- The locks of these operations by key, of the budgets that their permits hold now, and of their once-keys.
-- The plan must not depend on the table sizes at the time it was made.
create or replace function sentinel.locks_of_operations(tenants uuid[], keys text[]) returns bigint[] language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return array(
    select sentinel.operation_lock(k.tenant_id, k.idempotency_key) from unnest(tenants, keys) as k (tenant_id, idempotency_key)
    union all
    select unnest(s.holds || s.total_holds || sentinel.once_lock(s.tenant_id, s.once_key)) from unnest(tenants, keys) as k (tenant_id, idempotency_key)
    join sentinel.operations o on o.idempotency_key = k.idempotency_key and o.tenant_id = k.tenant_id
    join sentinel.operation_states s on s.operation_id = o.operation_id and s.tenant_id = o.tenant_id);
end $$;

-- Sets lock_timeout so that this transaction waits for its next lock until this moment at most.
create or replace function sentinel.wait_until(moment timestamptz) returns void language plpgsql as $$
begin
  perform set_config('lock_timeout', greatest(1, ceil(extract(epoch from moment - clock_timestamp()) * 1000))::bigint::text, true);
end $$;

create or replace function sentinel.wait_for_lock(wanted bigint, moment timestamptz) returns boolean language plpgsql as $$
begin
  perform sentinel.wait_until(moment);
  perform pg_advisory_xact_lock(wanted);
  return true;
end $$;

-- Takes all these locks in ascending order and waits until this moment at most, for all of them and the next lock together.
create or replace function sentinel.take_locks(wanted bigint[], moment timestamptz) returns void language plpgsql as $$
declare
  began timestamptz := clock_timestamp();
begin
  perform case when pg_try_advisory_xact_lock(w.lock) then true else sentinel.wait_for_lock(w.lock, moment) end
  from (select distinct one as lock from unnest(wanted) as one where one is not null order by 1) as w;
  if clock_timestamp() > began + interval '20 milliseconds' then perform sentinel.wait_until(moment); end if;
end $$;

-- Only the authority's role may take advisory locks (deploy/roles.sql): a program that held them could stop all others. Operators' actions
-- at the console need a few of them; these security definer functions take exactly those.
create or replace function sentinel.take_halt_lock() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock(sentinel.halt_lock());
end $$;

-- Takes the locks of the budgets that one operation's permit holds, waiting two seconds at most.
create or replace function sentinel.take_held_locks(tenant uuid, operation uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform sentinel.take_locks(o.holds || o.total_holds, clock_timestamp() + interval '2 seconds') from sentinel.operation_states o
  where o.tenant_id = tenant and o.operation_id = operation;
end $$;

create or replace function sentinel.take_operators_lock(tenant uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock(sentinel.operators_lock(tenant));
end $$;

create or replace function sentinel.take_tenants_lock() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform pg_advisory_xact_lock(7305013942711305);
end $$;
