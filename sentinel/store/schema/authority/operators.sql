-- Operators: people and what they may do.

-- A person's account.
create table sentinel.operators (
  tenant_id             uuid not null references sentinel.tenants,
  operator_id           uuid not null,
  email                 text not null check (email = lower(email)),
  password_hash         text not null,                                     -- argon2id
  role                  text not null check (role in ('viewer', 'approver', 'admin')), -- each includes the previous one's rights
  active                boolean not null default true,                     -- false: deactivated
  created_at            timestamptz not null default clock_timestamp(),
  last_signed_in_at     timestamptz,
  -- When another person last created or changed the account: it may not decide approvals that were created before that.
  changed_by_another_at timestamptz not null default clock_timestamp(),
  -- A password that another person set works once, and only to set the person's own.
  password_one_time     boolean not null default false,
  password_used_at      timestamptz,                                       -- when a one-time password was used
  -- The operator who controls the account: who created or last changed it, until a second administrator confirms it; null: nobody else.
  changed_by            uuid,
  -- Who deactivated the account, until it is active again: an administrator who deactivates the second one does not become the only one by
  -- it. The account's own id, which no operator can cause: done in nobody's name and not with the owner's login. Null: with that login.
  deactivated_by        uuid,
  primary key (tenant_id, operator_id),
  constraint operators_email_once unique (tenant_id, email),
  constraint operators_only_one_time_used check (password_one_time or password_used_at is null),
  constraint operators_changed_by_another foreign key (tenant_id, changed_by) references sentinel.operators,
  constraint operators_change_others check (changed_by <> operator_id),
  constraint operators_deactivated_by foreign key (tenant_id, deactivated_by) references sentinel.operators,
  constraint operators_deactivated check (deactivated_by is null or not active)
);
create index operators_by_email on sentinel.operators (email);

-- Serializes changes to people within a tenant: otherwise two admins could demote each other at the same time.
create or replace function sentinel.operators_lock(tenant uuid) returns bigint language sql immutable as $$
  select hashtextextended('sentinel.operators ' || tenant, 0)
$$;

-- The account that controls this one in the end: follows changed_by to an account that nobody else controls. Accounts with the same result
-- count as one person's. Accounts that control each other in a circle all get the smallest id of the circle.
create or replace function sentinel.person_of(tenant uuid, operator uuid) returns uuid language plpgsql stable as $$
declare
  hands uuid[] := array[operator];
  following uuid;
begin
  loop
    select o.changed_by into following from sentinel.operators o
    where o.tenant_id = tenant and o.operator_id = hands[cardinality(hands)];
    if following is null then return hands[cardinality(hands)]; end if;
    exit when following = any(hands);
    hands := hands || following;
  end loop;
  return (select min(one::text)::uuid from unnest(hands[array_position(hands, following):]) as one);
end $$;

-- Whether there is an active administrator other than these two, who can confirm a change. One whose own account is controlled by somebody
-- is confirmed first: if that one did not count, whoever changes an account would hold it, and it would count as a separate person.
create or replace function sentinel.has_second_administrator(tenant uuid, first_id uuid, besides uuid) returns boolean language sql stable as $$
  select exists (
    select from sentinel.operators o
    where o.tenant_id = tenant and o.role = 'admin' and o.active and o.operator_id <> first_id and o.operator_id <> besides)
$$;

-- Whether this session's login is a member of the schema's owner: that login can write every table anyway.
create or replace function sentinel.is_owners_login() returns boolean language sql stable as $$
  select pg_has_role(session_user, 'sentinel_owner', 'member')
$$;

-- Adds a person; `person` is an id generated in advance, so that a form sent twice adds one person. `one_time`: another person chose the
-- password, which then only serves to set the person's own. Returns added, repeated or taken.
create or replace function sentinel.add_operator(
  tenant uuid, person uuid, address text, first_password_hash text, first_role text, one_time boolean, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
begin
  perform sentinel.take_operators_lock(tenant);
  if exists (select from sentinel.operators where tenant_id = tenant and operator_id = person and email = address) then
    return 'repeated';
  end if;
  insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role, changed_by_another_at, password_one_time, changed_by)
  values (tenant, person, address, first_password_hash, first_role, sentinel.after_what_is_pending(tenant), one_time,
    case when sentinel.has_second_administrator(tenant, by_id, person) then by_id end) on conflict do nothing;
  if not found then return 'taken'; end if;
  perform sentinel.append_event(tenant, event, 'operator_added', null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', address, 'operator_id', person, 'role', first_role));
  return 'added';
end $$;

-- Changes a person's account. `by_id` is the operator who changes it: null for a command on the machine itself, where a lock-out cannot
-- happen.
-- act: role_set (to `given`; `seen` is the role that was shown), deactivated, reactivated, password_reset (hash in `given`),
-- second_factor_reset, access_ended, confirmed (by a second administrator). Returns done, same, unknown, changed, self, same_hands,
-- not_own or last_admin.
create or replace function sentinel.change_operator(
  tenant uuid, person uuid, act text, given text, seen text, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
declare
  p sentinel.operators;
begin
  perform sentinel.take_operators_lock(tenant);
  -- Locked before any session is ended: opening a session locks this row too, so a new session is either ended here or not opened.
  select * into p from sentinel.operators where tenant_id = tenant and operator_id = person for no key update;
  if not found then return 'unknown'; end if;
  if act = 'role_set' and p.role = given or act = 'reactivated' and p.active
      or act = 'deactivated' and not p.active and (by_id is not null or p.deactivated_by is null or not sentinel.is_owners_login()) then
    return 'same';
  end if;
  if by_id = person then return 'self'; end if;
  if act = 'role_set' and p.role <> seen then return 'changed'; end if;
  if by_id is not null and p.role = 'admin' and p.active and act in ('role_set', 'deactivated') and not exists (
    select from sentinel.operators o
    where o.tenant_id = tenant and o.role = 'admin' and o.active and o.operator_id <> person) then
    return 'last_admin';
  end if;
  if act = 'confirmed' then
    if p.changed_by is null then return 'same'; end if;
    if by_id is not null and (sentinel.person_of(tenant, by_id) = sentinel.person_of(tenant, person) or exists (
        select from sentinel.operators o where o.tenant_id = tenant and o.operator_id = by_id and o.changed_by is not null)) then
      return 'same_hands';
    end if;
    -- Whoever set this password could still use it, and would hold a confirmed account.
    if p.password_one_time then return 'not_own'; end if;
    update sentinel.operators set changed_by = null where tenant_id = tenant and operator_id = person;
  elsif act = 'role_set' then
    update sentinel.operators set role = given where tenant_id = tenant and operator_id = person;
  elsif act in ('deactivated', 'reactivated') then
    update sentinel.operators set active = act = 'reactivated', deactivated_by = case
      when act = 'deactivated' then coalesce(by_id, case when not sentinel.is_owners_login() then person end) end
    where tenant_id = tenant and operator_id = person;
  elsif act = 'password_reset' then
    update sentinel.operators set password_hash = given, password_one_time = true, password_used_at = null
    where tenant_id = tenant and operator_id = person;
  elsif act = 'second_factor_reset' then
    delete from sentinel.second_factors where tenant_id = tenant and operator_id = person;
    if not found then return 'same'; end if;
  elsif act is distinct from 'access_ended' then
    raise exception 'no such act: %', act;
  end if;
  -- A person who is signed out is signed out everywhere: tokens for scripts are revoked with the sessions.
  if act in ('deactivated', 'password_reset', 'second_factor_reset', 'access_ended') then
    update sentinel.operator_sessions set revoked_at = clock_timestamp()
    where tenant_id = tenant and operator_id = person and revoked_at is null;
    update sentinel.operator_tokens set revoked_at = clock_timestamp()
    where tenant_id = tenant and operator_id = person and revoked_at is null;
    -- An unconfirmed second factor is deleted: a person who has just lost access may have seen its secret.
    delete from sentinel.second_factors where tenant_id = tenant and operator_id = person and confirmed_at is null;
  end if;
  -- From now on another person may control the account: it may decide only approvals that are created after this.
  if act in ('role_set', 'reactivated', 'password_reset', 'second_factor_reset') then
    update sentinel.operators set changed_by_another_at = sentinel.after_what_is_pending(tenant),
      changed_by = case when sentinel.has_second_administrator(tenant, by_id, person) then by_id end
    where tenant_id = tenant and operator_id = person;
  end if;
  perform sentinel.append_event(tenant, event, 'operator_' || act, null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', p.email, 'operator_id', person) || case act when 'role_set' then jsonb_build_object(
    'from', p.role, 'to', given) else '{}'::jsonb end);
  return 'done';
end $$;
