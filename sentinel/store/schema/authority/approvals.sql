-- Approvals: requested, decided once by the required number of people, or expired.

-- One question to people about one operation, with the terms under which their votes are valid.
create table sentinel.approvals (
  tenant_id             uuid not null,
  approval_id           uuid not null,
  operation_id          uuid not null,
  principal_id          uuid not null,                                     -- the principal whose key asked
  requester_operator_id uuid,                                              -- the owner of the key that asked
  agent_id              text not null,
  action                text not null,
  resource              text not null,
  amount_minor          bigint,
  currency              text,
  digest                text not null,                                     -- of the operation: what was shown is what is approved
  reasons               text[] not null,                                   -- the only reasons this approval can lift
  policy_digest         text not null,
  required_role         text not null check (required_role in ('approver', 'admin')),
  required_people       integer not null check (required_people between 1 and 5), -- how many votes it takes
  status                text not null default 'pending' check (status in ('pending', 'approved', 'rejected', 'expired')),
  created_at            timestamptz not null,
  expires_at            timestamptz not null,                              -- after this moment nobody can decide it
  decided_at            timestamptz,
  decided_by            text,                                              -- the deciding operators' addresses
  reason                text,
  -- False: a person may reject it or handle it by hand; approval is not offered, because it would let the machine do what it cannot do now.
  offers_approve        boolean not null default true,
  handled_reference     text,                                              -- where it was handled, as the person who did says
  -- The earlier approval that this one replaces, because its terms were no longer enough: its votes are shown with this one.
  follows               uuid,
  primary key (tenant_id, approval_id),
  constraint decided_has_time check ((status = 'pending') = (decided_at is null)),
  constraint approved_in_time check (status <> 'approved' or decided_at <= expires_at),
  constraint handled_is_rejected check (handled_reference is null or status = 'rejected'),
  constraint handled_reference_length check (length(handled_reference) between 1 and 200)
);
create index approvals_pending on sentinel.approvals (tenant_id, expires_at) where status = 'pending';
create index approvals_decided on sentinel.approvals (tenant_id, decided_at) where decided_at is not null;
-- Decisions since a moment: for the principal that asked, and for the agent in whose name any key asked.
create index approvals_decided_of_principal on sentinel.approvals (tenant_id, principal_id, decided_at) where decided_at is not null;
create index approvals_decided_of_agent on sentinel.approvals (tenant_id, agent_id, decided_at) where decided_at is not null;
-- In the order of the page of decided approvals, by result: a handled approval is not shown as rejected.
create index approvals_by_status on sentinel.approvals (tenant_id, status, decided_at, approval_id)
  where decided_at is not null and handled_reference is null;
create index approvals_handled on sentinel.approvals (tenant_id, decided_at, approval_id) where handled_reference is not null;
-- One agent's approvals by status, for lists with the newest first.
create index approvals_of_agent on sentinel.approvals (tenant_id, agent_id, status, approval_id);
create index approvals_operation on sentinel.approvals (operation_id);
-- How many pending approvals a key has.
create index approvals_asked on sentinel.approvals (principal_id) where status = 'pending';

-- Votes on approvals, one per person. Append-only.
create table sentinel.approval_votes (
  tenant_id   uuid not null,
  approval_id uuid not null,
  operator_id uuid not null,
  verdict     text not null check (verdict in ('approve', 'reject', 'handled')),
  reason      text not null,
  via         text not null check (via in ('console', 'local_administrator')), -- the console, or a command on the machine itself
  voted_at    timestamptz not null,
  primary key (tenant_id, approval_id, operator_id),                       -- one person, one vote
  foreign key (tenant_id, approval_id) references sentinel.approvals
);
create trigger append_only before update or delete or truncate on sentinel.approval_votes
  for each statement execute function sentinel.refuse_change();

-- From when on an account that another person has just created or changed may decide: now, or after all that is pending and the votes on it,
-- where these are dated ahead of the clock because it was set back since.
create or replace function sentinel.after_what_is_pending(tenant uuid) returns timestamptz language sql as $$
  select greatest(clock_timestamp(), max(greatest(a.created_at, (
    select max(v.voted_at) from sentinel.approval_votes v
    where v.tenant_id = a.tenant_id and v.approval_id = a.approval_id))) + interval '1 microsecond')
  from sentinel.approvals a where a.tenant_id = tenant and a.status = 'pending'
$$;

-- Allows one transition, and only with the votes it takes: a role that cannot insert votes (the authority's) cannot approve either. An
-- approval that does not offer "approve" is never approved, whichever function tries.
create or replace function sentinel.check_approval() returns trigger language plpgsql as $$
declare
  wanted text[] := case when new.status = 'approved' then array['approve']
                        when new.handled_reference is not null then array['handled'] else array['reject'] end;
begin
  if tg_op = 'INSERT' and new.status <> 'pending' or tg_op = 'UPDATE' and old.status <> 'pending' and (
      new.status <> old.status or new.handled_reference is distinct from old.handled_reference) then
    raise exception 'an approval begins pending and is decided once' using errcode = 'check_violation', constraint = 'approval_decided_once';
  end if;
  if tg_op = 'UPDATE' and old.status = 'pending' and new.status = 'approved' and not new.offers_approve then
    raise exception 'this question does not offer approval' using errcode = 'check_violation', constraint = 'approval_offered';
  end if;
  if tg_op = 'UPDATE' and old.status = 'pending' and new.status = 'approved'
      and (select count(*) from sentinel.counted_votes(new, new.required_role)) < new.required_people
    or tg_op = 'UPDATE' and old.status = 'pending' and new.status = 'rejected' and not exists (
      select from sentinel.approval_votes v
      where v.tenant_id = new.tenant_id and v.approval_id = new.approval_id and v.verdict = any(wanted)) then
    raise exception 'an approval needs the voices of its people' using errcode = 'check_violation', constraint = 'approval_has_voices';
  end if;
  return new;
end $$;

-- The people who have approved this, each person once (sentinel.person_of): by a vote on it, or on an approval that it follows. A vote
-- counts while its voter could still give it: the account is active, has the role that is required now, and does not answer for the
-- requester. A vote given after another person changed the voter's account counts only on an approval created after that change. A vote on
-- an earlier approval is about the same operation (the key binds the digest), and counts only if that approval listed every reason asked
-- now.
create or replace function sentinel.counted_votes(a sentinel.approvals, role_wanted text)
returns table (operator_id uuid, email text, voted_at timestamptz) language sql stable as $$
  with recursive chain as (
    select a.approval_id, a.follows, a.created_at
    union
    select earlier.approval_id, earlier.follows, earlier.created_at from chain c
    join sentinel.approvals earlier on earlier.tenant_id = a.tenant_id and earlier.approval_id = c.follows
    where earlier.operation_id = a.operation_id and a.reasons <@ earlier.reasons)
  select distinct on (sentinel.person_of(a.tenant_id, p.operator_id)) p.operator_id, p.email, v.voted_at from chain c
  join sentinel.approval_votes v on v.tenant_id = a.tenant_id and v.approval_id = c.approval_id and v.verdict = 'approve'
  join sentinel.operators p on p.tenant_id = v.tenant_id and p.operator_id = v.operator_id
  where p.active and (p.role = 'admin' or p.role = role_wanted) and not sentinel.is_requester(a, p.operator_id)
    and (v.voted_at < p.changed_by_another_at or c.created_at >= p.changed_by_another_at)
  order by sentinel.person_of(a.tenant_id, p.operator_id), v.voted_at
$$;

-- Whether an approval is still enough for what the policy requires now: the terms have not become stricter, or the people who gave it are
-- enough under the new terms too. The caller compares the reasons.
create or replace function sentinel.approval_suffices(a sentinel.approvals, ask sentinel.guard_input) returns boolean
language plpgsql stable as $$
begin
  return (ask.required_role <> 'admin' or a.required_role = 'admin') and ask.required_people <= a.required_people
      or (select count(*) from sentinel.counted_votes(a, ask.required_role)) >= ask.required_people;
end $$;

create or replace function sentinel.new_approval(
  ask sentinel.guard_input, operation uuid, why text[], moment timestamptz, earlier uuid default null
) returns void language sql as $$
  insert into sentinel.approvals
    (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, amount_minor,
     currency, digest, reasons, policy_digest, required_role, required_people, offers_approve,
     created_at, expires_at, follows)
  values (ask.tenant_id, ask.approval_id, operation, ask.principal_id, ask.owner_operator_id, ask.agent_id, ask.action,
     ask.resource, ask.amount_minor, ask.currency, ask.digest, why, ask.policy_digest, ask.required_role,
     ask.required_people, coalesce(ask.approvable, true), moment, moment + make_interval(secs => ask.approval_seconds), earlier)
$$;

create or replace function sentinel.expire_approval(tenant uuid, approval uuid, event uuid, moment timestamptz)
returns boolean language plpgsql as $$
declare
  a sentinel.approvals;
begin
  update sentinel.approvals set status = 'expired', decided_at = moment
  where tenant_id = tenant and approval_id = approval and status = 'pending' and expires_at <= moment returning * into a;
  if not found then return false; end if;
  update sentinel.operation_states set status = 'expired', reason_code = 'approval_expired', once_live = false
  where tenant_id = tenant and operation_id = a.operation_id and status = 'pending' and approval_id = approval;
  perform sentinel.append_event(tenant, event, 'approval_expired', a.operation_id, a.agent_id, moment,
    jsonb_build_object('approval_id', approval));
  return true;
end $$;

-- Whether an approval is a request to a second administrator (protected_changes.sql), not a question about an agent's operation.
create or replace function sentinel.is_protected_change(a sentinel.approvals) returns boolean language sql stable as $$
  select exists (select from sentinel.protected_changes c where c.tenant_id = a.tenant_id and c.approval_id = a.approval_id)
$$;

-- How an event refers to the subject of an approval. For an operation: the salted commitment of its decision's proof pack. Events and their
-- hashes are published, and the digest has no salt, so anyone who knows the amount could find account and order numbers by trial. A
-- protected change is named by its digest: its request has identifiers that cannot be guessed.
create or replace function sentinel.asked_in_evidence(a sentinel.approvals) returns jsonb language sql stable as $$
  select case when sentinel.is_protected_change(a) then jsonb_build_object('digest', a.digest) else jsonb_build_object('operation_digest', (
    select e.body::jsonb ->> 'operation_digest'
    from sentinel.operation_states s join sentinel.events e on e.tenant_id = s.tenant_id and e.event_id = s.decision_event_id
    where s.tenant_id = a.tenant_id and s.operation_id = a.operation_id)) end
$$;

-- Whether a person may mark an approval as handled elsewhere: not a change of people or keys, and not an order under review, which an
-- analyst fulfils, refunds or holds; "handled" denies the operation, and the order would be held in the shop.
create or replace function sentinel.may_be_handled(a sentinel.approvals) returns boolean language sql stable as $$
  select not sentinel.is_protected_change(a) and (a.agent_id, a.action) <> ('order-review', 'order.fulfill')
$$;

-- Whether an operator answers for a requester of this approval, of the operation, or of any other approval of the operation: as the key's
-- owner at the time of asking, or because they own, made or rotated, at any time, a key of the same principal or one bound to the agent (a
-- proxy asks in the agent's name with a key of its own). Accounts controlled by one person (person_of) count as one.
create or replace function sentinel.is_requester(a sentinel.approvals, operator uuid) returns boolean language sql stable as $$
  with askers as materialized (
    select a.principal_id, a.requester_operator_id
    union
    select o.principal_id, null from sentinel.operations o where o.tenant_id = a.tenant_id and o.operation_id = a.operation_id
    union
    select e.principal_id, e.requester_operator_id from sentinel.approvals e where e.operation_id = a.operation_id and e.tenant_id = a.tenant_id
  ), people as (
    select requester_operator_id as operator_id from askers
    union
    -- In two parts, each by its index: a condition with "or" would read every key that the tenant ever had.
    select hand from (
      select k.maker_ids, k.owner_operator_id from sentinel.agent_keys k where k.tenant_id = a.tenant_id and k.agent_id = a.agent_id
      union all
      select k.maker_ids, k.owner_operator_id from sentinel.agent_keys k
      where k.tenant_id = a.tenant_id and k.principal_id in (select askers.principal_id from askers)
    ) k cross join lateral unnest(k.maker_ids || k.owner_operator_id) as hand
    -- A change of people or keys was not requested with a key, whatever its agent_id says.
    where not sentinel.is_protected_change(a)
  )
  select exists (
    select from people where operator_id is not null
      and sentinel.person_of(a.tenant_id, operator_id) = sentinel.person_of(a.tenant_id, is_requester.operator))
$$;

-- Records a vote on an approval and, when it decides the approval, its result.
-- result: approved | rejected | handled | recorded | unknown | not_pending | not_offered | not_handled | expired | requester | too_new |
--   same_hands | already_voted | role | changed
-- outcome: for a change of people, keys or receivers that this vote approved: done, or why it was not done; null for everything else, and
-- for a change that is made when its requester collects it.
create or replace function sentinel.resolve_approval(
  tenant uuid, approval uuid, operator uuid, vote text, why text, shown_digest text, how text, event uuid, second_event uuid,
  elsewhere text default null, third_event uuid default null
) returns table (result text, approvals_given integer, people_required integer, outcome text) language plpgsql as $$
declare
  a sentinel.approvals;
  person sentinel.operators;
  moment timestamptz;
  given integer;
  names text;
begin
  select * into a from sentinel.approvals where tenant_id = tenant and approval_id = approval;
  if not found then result := 'unknown'; return next; return; end if;
  -- The state's row is locked first, in the same order as in a replay.
  perform from sentinel.operation_states where tenant_id = tenant and operation_id = a.operation_id for update;
  select * into a from sentinel.approvals where tenant_id = tenant and approval_id = approval for update;
  moment := clock_timestamp();
  people_required := a.required_people;
  select * into person from sentinel.operators where tenant_id = tenant and operator_id = operator and active;
  result := case
    when a.status <> 'pending' then 'not_pending'
    when a.expires_at <= moment then 'expired'
    when person.operator_id is null or not (person.role = 'admin' or person.role = a.required_role) then 'role'
    when sentinel.is_requester(a, person.operator_id) then 'requester'
    when person.changed_by_another_at > a.created_at then 'too_new'
    when vote = 'approve' and exists (
      select from sentinel.counted_votes(a, a.required_role) v
      join sentinel.operators q on q.tenant_id = tenant and q.operator_id = v.operator_id
      where q.operator_id <> operator and sentinel.person_of(tenant, q.operator_id) = sentinel.person_of(tenant, operator))
      then 'same_hands'
    when shown_digest is distinct from a.digest then 'changed'
    when vote = 'handled' and not sentinel.may_be_handled(a) then 'not_handled'
    when vote = 'approve' and not a.offers_approve then 'not_offered' end;
  if result is not null then
    if result = 'expired' then perform sentinel.expire_approval(tenant, approval, event, moment); end if;
    return next; return;
  end if;
  insert into sentinel.approval_votes (tenant_id, approval_id, operator_id, verdict, reason, via, voted_at)
  values (tenant, approval, operator, vote, why, how, moment) on conflict do nothing;
  if found then
    perform sentinel.append_event(tenant, event, 'approval_vote', a.operation_id, a.agent_id, moment,
      sentinel.asked_in_evidence(a) || jsonb_build_object('approval_id', approval, 'operator', person.email, 'reason', why,
                                                          'reference', elsewhere, 'verdict', vote, 'via', how));
  -- Votes may have come to count again since the last one, as when a voter was reactivated, and nobody else may be left to vote: then
  -- approving again, by a person whose approval counts, decides.
  elsif vote <> 'approve' or not exists (
      select from sentinel.counted_votes(a, a.required_role) v where v.operator_id = operator)
      or (select count(*) from sentinel.counted_votes(a, a.required_role)) < a.required_people then
    result := 'already_voted'; return next; return;
  end if;
  given := 0; names := person.email;
  if vote = 'approve' then
    select count(*), string_agg(v.email, ', ' order by v.voted_at) into given, names from sentinel.counted_votes(a, a.required_role) as v;
  end if;
  approvals_given := given;
  if vote = 'approve' and given < a.required_people then result := 'recorded'; return next; return; end if;
  result := case vote when 'approve' then 'approved' when 'handled' then 'handled' else 'rejected' end;
  update sentinel.approvals set status = case vote when 'approve' then 'approved' else 'rejected' end,
    decided_at = moment, decided_by = names, reason = why, handled_reference = elsewhere
  where tenant_id = tenant and approval_id = approval and status = 'pending' and expires_at > moment;
  update sentinel.operation_states set status = case vote when 'approve' then 'approved' else 'denied' end,
    decision = case vote when 'approve' then decision else 'DENY' end,
    reason_code = case vote when 'approve' then reason_code when 'handled' then 'handled_by_person' else 'approval_rejected' end,
    -- A person has done this elsewhere, so no other key may do it again: the once-key stays held.
    once_live = once_live and vote <> 'reject'
  where tenant_id = tenant and operation_id = a.operation_id and status = 'pending' and approval_id = approval;
  perform sentinel.append_event(tenant, second_event, 'approval_' || result, a.operation_id, a.agent_id, moment,
    sentinel.asked_in_evidence(a) || jsonb_build_object('approval_id', approval, 'decided_by', names, 'reasons', a.reasons,
      'operator', case vote when 'handled' then person.email end, 'reference', elsewhere));
  if result = 'approved' and sentinel.is_protected_change(a) then
    outcome := sentinel.make_approved_change(tenant, approval, null, names, null, third_event);
  end if;
  return next;
end $$;

-- The rank of an approval in the queue: by its reasons and by the policy's own threshold for two people, because amounts in different
-- currencies cannot be compared. 1: two people are required, a person is given power, or a reason points to fraud or manipulation. 2:
-- several reasons, a limit, a large amount or a repeated attempt. 3: the rest. Within a rank, the earliest expiry comes first. The page
-- explains it in the same words (approvals.html).
create or replace function sentinel.risk_rank(required_people integer, reasons text[]) returns integer
language sql immutable parallel safe as $$ select case
  when required_people > 1 or reasons && array['suspicious_reason', 'account_mismatch', 'blacklisted', 'refunded_before',
    'order_overdrawn', 'image_mismatch', 'critic_amount', 'critic_scenario', 'critic_instructions', 'critic_encoded_text',
    'critic_repeated_text', 'critic_markup', 'critic_rejected', 'unknown_escalation', 'second_administrator']::text[] then 1
  when cardinality(reasons) > 1 or reasons && array['limit_exceeded', 'account_unknown', 'over_limit_early', 'amount_needs_approval',
    'amount_needs_analyst', 'repeated_attempts', 'currency_not_covered', 'fact_missing', 'halted']::text[] then 2
  else 3 end
$$;

-- Whether the caller now asks for a person about a reason that no approval has lifted: then it must not keep a permit.
create or replace function sentinel.requires_approval(ask sentinel.guard_input, s sentinel.operation_states)
returns boolean language plpgsql stable as $$
begin
  return coalesce(ask.asks_person, false) and not ask.reasons <@ coalesce((
    select a.reasons from sentinel.approvals a
    where a.tenant_id = s.tenant_id and a.approval_id = s.approval_id and a.status = 'approved'), '{}');
end $$;

create trigger check_approval before insert or update on sentinel.approvals
  for each row execute function sentinel.check_approval();

-- A tenant's pending approvals in the order of the queue.
create index approvals_queue on sentinel.approvals (tenant_id, sentinel.risk_rank(required_people, reasons), expires_at, approval_id)
  where status = 'pending';
