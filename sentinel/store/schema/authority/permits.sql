-- Permits: renewed after all checks were made again, released when they expire unused.

-- Keys that get no further permit, or no further question to people, for now, because too many of theirs are open.
create table sentinel.keys_at_limit (
  principal_id   uuid primary key,
  tenant_id      uuid not null,
  open_permits   integer not null,                                         -- how many are open; 0: below its limit
  valid_until    timestamptz not null,
  open_questions integer not null default 0                                -- how many are pending; 0: below its limit
);

-- Whether a key has so many pending questions that it may not put a further one to people for now.
create or replace function sentinel.is_at_question_limit(principal uuid, moment timestamptz) returns boolean language sql stable as $$
  select exists (select from sentinel.keys_at_limit c where c.principal_id = principal and c.open_questions > 0 and c.valid_until > moment)
$$;

-- Whether a key has so many open permits that it gets no further one for now.
create or replace function sentinel.is_at_permit_limit(principal uuid, moment timestamptz) returns boolean language sql stable as $$
  select exists (select from sentinel.keys_at_limit c where c.principal_id = principal and c.open_permits > 0 and c.valid_until > moment)
$$;

-- How another operation holds this once-key: 'same', 'alike' (under another spelling), or null if none does. Read-only, for dry runs.
create or replace function sentinel.once_seen(tenant uuid, once text, own uuid) returns text language sql stable as $$
  select case when bool_or(s.once_key = once) then 'same' when count(*) > 0 then 'alike' end
  from sentinel.operation_states s
  where s.tenant_id = tenant and sentinel.once_folded(s.once_key) = sentinel.once_folded(once) and s.once_live and s.operation_id is distinct from own
$$;

-- The same, after releasing the once-key from expired permits and approvals. An operation that a person approved keeps it: its permit can
-- be renewed. The caller holds the lock of the folded key, so that two spellings at once see each other. An expired holder whose row is
-- locked by another transaction is in the way for a moment only: raises deadlock_detected, and the caller begins its transaction again.
create or replace function sentinel.once_held(tenant uuid, once text, own uuid) returns text language plpgsql as $$
declare
  due record;
  moment timestamptz := clock_timestamp();
begin
  perform sentinel.release_expired(array_agg(s.tenant_id), array_agg(s.operation_id)) from sentinel.operation_states s
  where s.tenant_id = tenant and sentinel.once_folded(s.once_key) = sentinel.once_folded(once) and s.once_live
    and s.status in ('allowed', 'approved') and s.permit_expires_at <= moment having count(*) > 0;
  for due in select s.approval_id from sentinel.operation_states s
             join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
             where s.tenant_id = tenant and sentinel.once_folded(s.once_key) = sentinel.once_folded(once) and s.once_live
               and s.status = 'pending' and a.expires_at <= moment for update of s skip locked loop
    perform sentinel.expire_approval(tenant, due.approval_id, sentinel.id_at(moment), moment);
  end loop;
  if exists (
      select from sentinel.operation_states s left join sentinel.approvals a on a.tenant_id = s.tenant_id and a.approval_id = s.approval_id
      where s.tenant_id = tenant and sentinel.once_folded(s.once_key) = sentinel.once_folded(once) and s.once_live
        and (s.status = 'allowed' and s.permit_expires_at <= moment or s.status = 'pending' and a.expires_at <= moment)) then
    raise exception 'what ran out is in other hands' using errcode = 'deadlock_detected';
  end if;
  return sentinel.once_seen(tenant, once, own);
end $$;

-- Releases the budget and once-key of those of these permits that expired before they were started; returns how many. An approval stays
-- valid. Rows and budgets that another transaction has locked are left for the next call, because waiting here could deadlock: a guard
-- that finds its limit full calls this while it holds locks.
create or replace function sentinel.release_expired(tenants uuid[], operations uuid[]) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  gone sentinel.operation_states[];
  busy bigint[];
  moment timestamptz := clock_timestamp();
begin
  gone := array(
    select s from unnest(tenants, operations) as p (tenant_id, operation_id)
    join sentinel.operation_states s on s.operation_id = p.operation_id and s.tenant_id = p.tenant_id
    where s.status in ('allowed', 'approved') and s.permit_expires_at <= moment for update of s skip locked);
  busy := array(
    select l.lock from (select distinct unnest(g.holds || g.total_holds) as lock from unnest(gone) as g) as l
    where not pg_try_advisory_xact_lock(l.lock));
  if cardinality(busy) > 0 then
    gone := array(select g from unnest(gone) as g where not coalesce(g.holds || g.total_holds && busy, false));
  end if;
  if cardinality(gone) = 0 then return 0; end if;
  update sentinel.operation_states s
    set permit_id = null, permit_expires_at = null, holds = null, total_holds = null, reserved_minor = null, limit_keys = null,
      limit_owner = null, limit_buckets = null, parts_id = null, limit_overrides = null, reservation = null, once_live = s.once_live and s.approval_id is not null
  from unnest(gone) as g where s.operation_id = g.operation_id and s.tenant_id = g.tenant_id;
  perform sentinel.settle_usage(gone, 'released');
  return cardinality(gone);
end $$;

-- Releases expired permits that hold one of these budgets, found by the budget: at most `most` by their first budget, and as many by any.
create or replace function sentinel.release_expired_holding(budgets bigint[], most integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
  return (
    select coalesce(sentinel.release_expired(array_agg(found.tenant_id), array_agg(found.operation_id)), 0) from (
      (select s.tenant_id, s.operation_id from sentinel.operation_states s
       where s.status in ('allowed', 'approved') and s.holds is not null and s.holds[1] = any(budgets) and s.permit_expires_at <= clock_timestamp()
       limit most)
      union
      (select s.tenant_id, s.operation_id from sentinel.operation_states s
       where s.status in ('allowed', 'approved') and s.holds[2] is not null and s.holds && budgets and s.permit_expires_at <= clock_timestamp()
       limit most)) as found);
end $$;

-- The same for totals, `most` permits at most. Nearly all expired permits of a tenant are counted in its totals, so only the oldest 1,000
-- of each key are looked at. A caller that finds none among them goes without, and housekeeping releases those that come first.
create or replace function sentinel.release_expired_of_totals(tenant uuid, totals bigint[], most integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  if cardinality(totals) = 0 then return 0; end if;
  return (
    select coalesce(sentinel.release_expired(array_agg(found.tenant_id), array_agg(found.operation_id)), 0) from (
      select oldest.tenant_id, oldest.operation_id
      from (select distinct k.principal_id from sentinel.keys_with_open_permits() as k where k.tenant_id = tenant) as k
      cross join lateral (
        select s.tenant_id, s.operation_id, s.total_holds, s.permit_expires_at from sentinel.operation_states s
        where s.status in ('allowed', 'approved') and s.permit_id is not null and s.principal_id = k.principal_id
          and s.permit_expires_at <= clock_timestamp()
        order by s.permit_expires_at limit 1000) as oldest
      where oldest.tenant_id = tenant and oldest.total_holds && totals
      order by oldest.permit_expires_at limit most) as found);
end $$;

-- The keys that have open permits, not redeemed yet; one index probe for each key.
create or replace function sentinel.keys_with_open_permits() returns table (tenant_id uuid, principal_id uuid) language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  loop
    select s.tenant_id, s.principal_id into keys_with_open_permits.tenant_id, keys_with_open_permits.principal_id
    from sentinel.operation_states s
    where s.status in ('allowed', 'approved') and s.permit_id is not null
      and s.principal_id > coalesce(keys_with_open_permits.principal_id, '00000000-0000-0000-0000-000000000000')
    order by s.principal_id, s.permit_expires_at limit 1;
    exit when not found;
    return next;
  end loop;
end $$;

-- Releases at most `most` permits, those that expired first, whatever they hold: called by housekeeping. It holds no locks, so it can wait
-- up to 0.5 seconds for the locks of their budgets; a budget that stays locked is left for the next round.
create or replace function sentinel.release_run_out(most integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  due sentinel.operation_states[];
  moment timestamptz := clock_timestamp();
begin
  due := array(
    select s from sentinel.keys_with_open_permits() as k cross join lateral (
      select one from sentinel.operation_states one
      where one.status in ('allowed', 'approved') and one.permit_id is not null
        and one.principal_id = k.principal_id and one.permit_expires_at <= moment
      order by one.permit_expires_at limit most) as found (s)
    order by (s).permit_expires_at limit most);
  if cardinality(due) = 0 then return 0; end if;
  begin
    perform sentinel.take_locks(array(select unnest(d.holds || d.total_holds) from unnest(due) as d), moment + interval '0.5 seconds');
  exception when lock_not_available then null;
  end;
  return sentinel.release_expired(array_agg(d.tenant_id), array_agg(d.operation_id)) from unnest(due) as d;
end $$;

-- The keys that have pending questions; one index probe for each key.
create or replace function sentinel.keys_with_open_questions() returns table (tenant_id uuid, principal_id uuid) language plpgsql stable
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  loop
    select a.tenant_id, a.principal_id into keys_with_open_questions.tenant_id, keys_with_open_questions.principal_id
    from sentinel.approvals a
    where a.status = 'pending'
      and a.principal_id > coalesce(keys_with_open_questions.principal_id, '00000000-0000-0000-0000-000000000000')
    order by a.principal_id limit 1;
    exit when not found;
    return next;
  end loop;
end $$;

-- Marks the keys that have so many open permits, or so many pending questions, that they get no further one; every decision reads the
-- marks. Counted periodically instead of at each guard, so a key can pass its limit by what it asks between two counts. Returns how many.
create or replace function sentinel.mark_keys_at_limits(most integer, most_questions integer, valid_seconds integer) returns integer language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  moment timestamptz := clock_timestamp();
  marked integer;
begin
  if not pg_try_advisory_xact_lock(7305013942711303) then return 0; end if;
  with at_limit as (
    select k.principal_id, k.tenant_id, counted.open_permits, 0 as open_questions
    from sentinel.keys_with_open_permits() as k cross join lateral (
      select count(*)::integer as open_permits from (
        select from sentinel.operation_states s
        where s.status in ('allowed', 'approved') and s.permit_id is not null and s.principal_id = k.principal_id limit most
      ) as few) as counted
    where counted.open_permits >= most
    union all
    select k.principal_id, k.tenant_id, 0, counted.open_questions
    from sentinel.keys_with_open_questions() as k cross join lateral (
      select count(*)::integer as open_questions from (
        select from sentinel.approvals a where a.status = 'pending' and a.principal_id = k.principal_id limit most_questions
      ) as few) as counted
    where counted.open_questions >= most_questions)
  insert into sentinel.keys_at_limit as c (principal_id, tenant_id, open_permits, open_questions, valid_until)
  select l.principal_id, (array_agg(l.tenant_id))[1], max(l.open_permits), max(l.open_questions), moment + make_interval(secs => valid_seconds)
  from at_limit as l group by l.principal_id
  on conflict (principal_id) do update
    set open_permits = excluded.open_permits, open_questions = excluded.open_questions, valid_until = excluded.valid_until;
  get diagnostics marked = row_count;
  -- A mark of an earlier round may end later than this one's, because the clock was set back since.
  delete from sentinel.keys_at_limit c where c.valid_until <> moment + make_interval(secs => valid_seconds);
  return marked;
end $$;

-- Whether another requester asked for this operation: the key has another principal and is not bound to the operation's agent. A key and
-- its successors after rotations have the same principal.
create or replace function sentinel.is_anothers(o sentinel.operations, principal uuid, bound_agent text) returns boolean language plpgsql immutable as $$
begin
  return not coalesce(o.principal_id = principal, false) and not coalesce(o.agent_id = bound_agent, false);
end $$;

-- Whether this question would leave one more permit open, that is, whether its caller starts later, if at all.
create or replace function sentinel.leaves_permit_out(ask sentinel.guard_input) returns boolean language plpgsql immutable as $$
begin
  return ask.verdict = 'ALLOW' and ask.start_id is null and not coalesce(ask.hand_out_is_start, false);
end $$;

-- Renews the permit of an operation that was decided before: it was approved since, or its permit expired before a start. All checks are
-- made again. An approval lifts the reasons it lists and no others, and only while its votes are enough for the current policy
-- (docs/decisions/0028-approvals-bind-their-terms.md). A new reason leads to a refusal or to a new question to a person. The renewal is
-- counted against those breakers that no longer count the operation's decision. Returns null, or why nothing was written here:
-- too_many_questions for a first question of a key with too many pending ones, too_many_open for a further permit of a key with too many
-- open ones; the expired permit has been released by then.
create or replace function sentinel.renew_permit(ask sentinel.guard_input, s sentinel.operation_states, moment timestamptz)
returns text language plpgsql as $$
declare
  a sentinel.approvals;
  lifted text[] := '{}';
  open_reasons text[];
  states sentinel.limit_state[] := '{}';
  refusal text;
  held_as text;
  passed sentinel.breaker_ask;
begin
  if s.approval_id is not null then
    select * into a from sentinel.approvals given
    where given.tenant_id = s.tenant_id and given.approval_id = s.approval_id and given.status = 'approved';
    if found and sentinel.approval_suffices(a, ask) then lifted := a.reasons; end if;
  end if;
  -- A question that does not offer "approve" cannot have been approved, even if an earlier approval lists a reason of the same name.
  if not coalesce(ask.approvable, true) then lifted := '{}'; end if;
  if ask.verdict = 'DENY' then
    refusal := ask.reason_code;
  elsif ask.once_key <> split_part(coalesce(s.once_key, ''), '~', 1) then
    -- The once-key is recorded with the operation for good: under another one the action could be done a second time.
    refusal := 'once_key_changed';
  elsif s.once_key is not null then
    held_as := sentinel.once_held(s.tenant_id, s.once_key, s.operation_id);
    if held_as = 'same' then refusal := 'duplicate_resource'; end if;
  end if;
  if refusal is null and ask.amount_minor is not null and jsonb_array_length(ask.limits) > 0 then
    states := sentinel.fitted_limits(ask, moment);
    select l.reason_code into refusal from unnest(states) as l where not l.fits and l.verdict = 'DENY' limit 1;
  end if;

  if refusal is not null then
    update sentinel.operation_states set status = 'denied', decision = 'DENY', reason_code = refusal, once_live = false,
      permit_id = null, permit_expires_at = null
    where tenant_id = s.tenant_id and operation_id = s.operation_id;
    perform sentinel.append_event(ask.tenant_id, ask.second_event_id, 'refused', s.operation_id, ask.agent_id, moment,
      jsonb_build_object('action', ask.action, 'agent_id', ask.agent_id, 'reason_code', refusal, 'policy_digest', ask.policy_digest));
    return null;
  end if;

  open_reasons := array(
    select distinct r from unnest(case when ask.verdict = 'ALLOW' then '{}' else ask.reasons end
      || array(select l.reason_code from unnest(states) as l where not l.fits)
      || case when held_as = 'alike' then array['looks_like_duplicate'] else '{}' end) as r
    where not r = any(lifted) order by r);
  if cardinality(open_reasons) > 0 then
    if s.approval_id is null and sentinel.is_at_question_limit(ask.principal_id, moment) then return 'too_many_questions'; end if;
    perform sentinel.new_approval(ask, s.operation_id, array(select distinct r from unnest(open_reasons || lifted) r order by r), moment, s.approval_id);
    update sentinel.operation_states set status = 'pending', decision = 'APPROVAL_REQUIRED', reason_code = open_reasons[1],
      approval_id = ask.approval_id, once_live = once_key is not null, permit_id = null, permit_expires_at = null
    where tenant_id = s.tenant_id and operation_id = s.operation_id;
    perform sentinel.append_event(ask.tenant_id, ask.second_event_id, 'asked_again', s.operation_id, ask.agent_id, moment,
      jsonb_build_object('reasons', open_reasons, 'approval_id', ask.approval_id, 'policy_digest', ask.policy_digest,
        'follows', s.approval_id, 'required_role', ask.required_role, 'required_people', ask.required_people));
    return null;
  end if;

  -- An operation that needed a person's approval is not counted against breakers, neither here nor when it was decided.
  if s.approval_id is null then
    ask.breakers := sentinel.breakers_without(ask, s, moment);
    passed := sentinel.passed_breaker(ask, moment);
    if passed.breaker_key is not null then
      perform sentinel.trip_breaker(ask, passed, moment);
      return null;
    end if;
    if sentinel.leaves_permit_out(ask) and sentinel.is_at_permit_limit(ask.principal_id, moment) then return 'too_many_open'; end if;
    perform sentinel.count_velocity(ask, moment);
    s.counted_at := coalesce(s.counted_at || counted.again, counted.again, s.counted_at) from (
      select jsonb_object_agg(b ->> 'breaker_key', moment) as again from jsonb_array_elements(ask.breakers) as b) as counted;
  end if;
  if cardinality(states) > 0 then perform sentinel.hold_usage(ask.tenant_id, ask.amount_minor, states); end if;
  s := sentinel.with_reservation(s, ask.amount_minor, states);
  update sentinel.operation_states set reserved_minor = s.reserved_minor, limit_keys = s.limit_keys, limit_owner = s.limit_owner,
    limit_buckets = s.limit_buckets, parts_id = s.parts_id, limit_overrides = s.limit_overrides, reservation = s.reservation, permit_id = ask.permit_id, permit_for_person = coalesce(ask.asks_person, false), once_live = once_key is not null,
    permit_expires_at = moment + make_interval(secs => ask.permit_seconds), principal_id = ask.principal_id,
    holds = case when cardinality(states) > 0 then sentinel.locks_of_limits(ask.tenant_id, ask.limits, false) end,
    total_holds = case when cardinality(states) > 0 then sentinel.locks_of_limits(ask.tenant_id, ask.limits, true) end,
    counted_at = s.counted_at
  where tenant_id = s.tenant_id and operation_id = s.operation_id;
  return null;
end $$;

-- Starts an operation with the answer that hands out its permit: for a caller without a start step, or with a start id in the guard.
create or replace function sentinel.start_on_hand_out(ask sentinel.guard_input, operation uuid, permit uuid, moment timestamptz)
returns text language plpgsql as $$
declare
  e sentinel.events := sentinel.start_event(ask.tenant_id, ask.second_event_id, operation, ask.agent_id, ask.action, permit,
                                            ask.start_id, moment);
begin
  perform sentinel.write_events(array[e]);
  update sentinel.operation_states set status = 'started', started_at = moment, start_id = ask.start_id,
    start_event_id = e.event_id, start_hash = e.hash, act_until = sentinel.leave_until(ask.act_seconds, moment)
  where tenant_id = ask.tenant_id and operation_id = operation and status in ('allowed', 'approved');
  return e.hash;
end $$;
