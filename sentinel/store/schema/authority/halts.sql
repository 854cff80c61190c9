-- Halts: the kill switch, and the lock that orders it against decisions and starts.

-- A halt is in force until it is lifted; at most one per tenant, scope and target is in force.
create table sentinel.halts (
  tenant_id   uuid not null,                                               -- the nil uuid for a global halt
  halt_id     uuid not null,
  scope       text not null check (scope in ('global', 'tenant', 'agent', 'action', 'scenario', 'agent_action')),
  target      text not null default '',                                    -- "AGENT ACTION" for one action of one agent: no name has a space
  level       text not null default 'kill' check (level in ('pause', 'kill')), -- what a heartbeat tells the agent: pause: wait, kill: end
  reason      text not null,
  set_by      text not null,                                               -- a person's address, or the part of the system that set it
  set_at      timestamptz not null,
  lifted_by   text,
  lifted_at   timestamptz,
  breaker_key text,                                                        -- the breaker that set it; null where a person did
  primary key (tenant_id, halt_id),
  constraint lifted_by_someone check ((lifted_at is null) = (lifted_by is null)),
  constraint target_fits_scope check ((target = '') = (scope in ('global', 'tenant'))),
  constraint halts_pair_target check ((scope = 'agent_action') = (strpos(target, ' ') > 0))
);
create unique index halts_in_force on sentinel.halts (tenant_id, scope, target) where lifted_at is null;

create or replace function sentinel.halt_lock() returns bigint language sql immutable parallel safe as
  $$ select 7305013942711301::bigint $$;

-- A halt in force that covers this request, or null. PL/pgSQL, like everything that the hot path calls, because its plans are cached.
create or replace function sentinel.halt_over(tenant uuid, agent text, act text, scene text) returns uuid language plpgsql stable as $$
begin
  return (
    select halt_id from sentinel.halts
    where lifted_at is null
      and (scope = 'global' or tenant_id = tenant and (
           scope = 'tenant' or scope = 'agent' and target = agent
           or scope = 'action' and (target = act or right(target, 2) = '.*' and starts_with(act, left(target, -1)))
           or scope = 'agent_action' and target = agent || ' ' || act
           or scope = 'scenario' and target = scene))
    limit 1);
end $$;

-- The one agent that a halt is about, or null.
create or replace function sentinel.halted_agent(halt_scope text, halt_target text) returns text language sql immutable parallel safe as
  $$ select case when halt_scope in ('agent', 'agent_action') then split_part(halt_target, ' ', 1) end $$;

-- Whether this transaction holds the halt lock exclusively, so that no other transaction decides or starts.
create or replace function sentinel.holds_halt_lock() returns boolean language sql stable as $$
  select exists (
    select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and mode = 'ExclusiveLock' and granted
      and database = (select oid from pg_database where datname = current_database()) and objsubid = 1
      and classid::bigint = sentinel.halt_lock() >> 32 and objid::bigint = sentinel.halt_lock() & 4294967295)
$$;

-- Sets a halt for a person, a velocity breaker (then with its key) or a contradiction. If one of the same scope and target is in force, it
-- stays and its id is returned with `already`; but a kill replaces a pause, within this transaction, so that there is no moment without a
-- halt. The caller holds the halt lock exclusively.
create or replace function sentinel.insert_halt(
  owner uuid, halt uuid, halt_scope text, halt_target text, halt_level text, why text, who text, event uuid, moment timestamptz,
  breaker text default null
) returns table (halt_id uuid, already boolean) language plpgsql as $$
declare
  weaker uuid;
begin
  if not sentinel.holds_halt_lock() then
    raise exception 'a halt is set alone' using errcode = 'object_not_in_prerequisite_state';
  end if;
  if halt_level = 'kill' then
    update sentinel.halts h set lifted_at = moment, lifted_by = who
    where h.tenant_id = owner and h.scope = halt_scope and h.target = halt_target and h.lifted_at is null and h.level = 'pause'
    returning h.halt_id into weaker;
  end if;
  select h.halt_id, true into halt_id, already from sentinel.halts h
  where h.tenant_id = owner and h.scope = halt_scope and h.target = halt_target and h.lifted_at is null;
  if found then return next; return; end if;
  insert into sentinel.halts (tenant_id, halt_id, scope, target, level, reason, set_by, set_at, breaker_key)
  values (owner, halt, halt_scope, halt_target, halt_level, why, who, moment, breaker);
  perform sentinel.append_event(owner, event, 'halt_set', null, sentinel.halted_agent(halt_scope, halt_target), moment,
    jsonb_build_object('halt_id', halt, 'level', halt_level, 'reason', why, 'replaces', weaker, 'scope', halt_scope, 'set_by', who,
      'target', halt_target));
  halt_id := halt; already := false;
  return next;
end $$;

-- Sets a halt for a person.
create or replace function sentinel.set_halt(
  owner uuid, halt uuid, halt_scope text, halt_target text, halt_level text, why text, who text, event uuid
) returns table (halt_id uuid, already boolean) language plpgsql as $$
begin
  perform sentinel.take_halt_lock();
  return query select p.halt_id, p.already
    from sentinel.insert_halt(owner, halt, halt_scope, halt_target, halt_level, why, who, event, clock_timestamp()) p;
end $$;

create or replace function sentinel.lift_halt(owner uuid, halt uuid, who text, why text, event uuid) returns boolean language plpgsql as $$
declare
  h sentinel.halts;
  moment timestamptz;
begin
  perform sentinel.take_halt_lock();
  moment := clock_timestamp();
  update sentinel.halts set lifted_at = moment, lifted_by = who
  where tenant_id = owner and halt_id = halt and lifted_at is null returning * into h;
  if not found then return false; end if;
  perform sentinel.reset_velocity(owner, h.scope, h.target);
  perform sentinel.append_event(owner, event, 'halt_lifted', null, sentinel.halted_agent(h.scope, h.target), moment,
    jsonb_build_object('halt_id', halt, 'lifted_by', who, 'reason', why, 'scope', h.scope, 'target', h.target));
  return true;
end $$;
