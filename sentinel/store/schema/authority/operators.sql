-- Operators: people and what they may do.

-- Changes to people go one after another within a tenant: else two admins could demote each other at once.
create or replace function sentinel.operators_lock(tenant uuid) returns bigint language sql immutable as $$
  select hashtextextended('sentinel.operators ' || tenant, 0)
$$;

-- Adds a person; `person` is a name made before, so that the same form sent twice adds one. `one_time`: somebody else chose the
-- password, which then only serves to set one's own. Answers added, repeated or taken.
create or replace function sentinel.add_operator(
  tenant uuid, person uuid, address text, first_password_hash text, first_role text, one_time boolean, who text, event uuid
) returns text language plpgsql as $$
begin
  perform sentinel.take_operators_lock(tenant);
  if exists (select from sentinel.operators where tenant_id = tenant and operator_id = person and email = address) then
    return 'repeated';
  end if;
  insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role, password_one_time)
  values (tenant, person, address, first_password_hash, first_role, one_time) on conflict do nothing;
  if not found then return 'taken'; end if;
  perform sentinel.append_event(tenant, event, 'operator_added', null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', address, 'operator_id', person, 'role', first_role));
  return 'added';
end $$;

-- Changes what a person may do. `by_id` is who changes it: null on the machine itself, where nobody can be locked out.
-- act: role_set (to `given`; `seen` is the role that was shown), shut_out, let_in, password_reset (hash in `given`),
-- second_factor_reset, sessions_ended. Answers done, same, unknown, changed, self or last_admin.
create or replace function sentinel.change_operator(
  tenant uuid, person uuid, act text, given text, seen text, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
declare
  p sentinel.operators;
begin
  perform sentinel.take_operators_lock(tenant);
  select * into p from sentinel.operators where tenant_id = tenant and operator_id = person;
  if not found then return 'unknown'; end if;
  if act = 'role_set' and p.role = given or act = 'shut_out' and not p.active or act = 'let_in' and p.active then
    return 'same';
  end if;
  if by_id = person then return 'self'; end if;
  if act = 'role_set' and p.role <> seen then return 'changed'; end if;
  if by_id is not null and p.role = 'admin' and p.active and act in ('role_set', 'shut_out') and not exists (
    select from sentinel.operators o
    where o.tenant_id = tenant and o.role = 'admin' and o.active and o.operator_id <> person) then
    return 'last_admin';
  end if;
  if act = 'role_set' then
    update sentinel.operators set role = given where tenant_id = tenant and operator_id = person;
  elsif act in ('shut_out', 'let_in') then
    update sentinel.operators set active = act = 'let_in' where tenant_id = tenant and operator_id = person;
  elsif act = 'password_reset' then
    update sentinel.operators set password_hash = given, password_one_time = true, password_used_at = null
    where tenant_id = tenant and operator_id = person;
  elsif act = 'second_factor_reset' then
    delete from sentinel.second_factors where tenant_id = tenant and operator_id = person;
    if not found then return 'same'; end if;
  elsif act <> 'sessions_ended' then
    raise exception 'no such act: %', act;
  end if;
  if act in ('shut_out', 'password_reset', 'second_factor_reset', 'sessions_ended') then
    update sentinel.operator_sessions set revoked_at = clock_timestamp()
    where tenant_id = tenant and operator_id = person and revoked_at is null;
  end if;
  if act in ('shut_out', 'password_reset') then
    update sentinel.operator_tokens set revoked_at = clock_timestamp()
    where tenant_id = tenant and operator_id = person and revoked_at is null;
  end if;
  -- From here the account may be in other hands: it decides only what is asked from now on.
  if act in ('role_set', 'let_in', 'password_reset', 'second_factor_reset') then
    update sentinel.operators set changed_by_another_at = clock_timestamp() where tenant_id = tenant and operator_id = person;
  end if;
  perform sentinel.append_event(tenant, event, 'operator_' || act, null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', p.email, 'operator_id', person) || case act when 'role_set' then jsonb_build_object(
    'from', p.role, 'to', given) else '{}'::jsonb end);
  return 'done';
end $$;
