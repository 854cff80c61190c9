-- The console: sessions that can be listed and stepped up, a second factor, and what a page has still to say.

alter table sentinel.operator_sessions
  add column session_id    uuid not null default gen_random_uuid(),        -- its name in lists; opens nothing
  add column kind          text not null default 'api' check (kind in ('api', 'page')),
  add column stepped_up_at timestamptz,                                    -- when the person last proved who they are
  add column address       text not null default '',
  add column user_agent    text not null default '',
  add column said          jsonb;                                          -- told by the next page, then gone
create index operator_sessions_of on sentinel.operator_sessions (operator_id) where revoked_at is null;

-- sign-in: the second factor, when somebody last came in, attempts of browsers that are known ------------------------------
-- The secret is encrypted with a key that the database does not have (services/second_factor.py).
create table sentinel.second_factors (
  tenant_id    uuid not null,
  operator_id  uuid not null,
  secret       text not null,
  last_step    bigint not null default 0,                                  -- of the code used last: each opens once
  created_at   timestamptz not null default clock_timestamp(),
  confirmed_at timestamptz,                                                -- null: shown, and not asked for yet
  primary key (tenant_id, operator_id),
  foreign key (tenant_id, operator_id) references sentinel.operators
);
alter table sentinel.operators add column last_signed_in_at timestamptz;
alter table sentinel.sign_in_attempts add column device_hash bytea;        -- a browser that came in before; its own counter

-- Changes to people go one after another within a tenant: else two admins could demote each other at once.
create function sentinel.operators_lock(tenant uuid) returns bigint language sql immutable as $$
  select hashtextextended('sentinel.operators ' || tenant, 0)
$$;

-- Adds a person; `person` is a name made before, so that the same form sent twice adds one. Answers added, repeated or taken.
create function sentinel.add_operator(
  tenant uuid, person uuid, address text, first_password_hash text, first_role text, who text, event uuid
) returns text language plpgsql as $$
begin
  perform pg_advisory_xact_lock(sentinel.operators_lock(tenant));
  if exists (select from sentinel.operators where tenant_id = tenant and operator_id = person and email = address) then
    return 'repeated';
  end if;
  insert into sentinel.operators (tenant_id, operator_id, email, password_hash, role)
  values (tenant, person, address, first_password_hash, first_role) on conflict do nothing;
  if not found then return 'taken'; end if;
  perform sentinel.append_event(tenant, event, 'operator_added', null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', address, 'operator_id', person, 'role', first_role));
  return 'added';
end $$;

-- Changes what a person may do. `by_id` is who changes it: null on the machine itself, where nobody can be locked out.
-- act: role_set (to `given`; `seen` is the role that was shown), shut_out, let_in, password_reset (hash in `given`),
-- second_factor_reset, sessions_ended. Answers done, same, unknown, changed, self or last_admin.
create function sentinel.change_operator(
  tenant uuid, person uuid, act text, given text, seen text, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
declare
  p sentinel.operators;
begin
  perform pg_advisory_xact_lock(sentinel.operators_lock(tenant));
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
    update sentinel.operators set password_hash = given where tenant_id = tenant and operator_id = person;
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
  perform sentinel.append_event(tenant, event, 'operator_' || act, null, null, clock_timestamp(), jsonb_build_object(
    'by', who, 'operator', p.email, 'operator_id', person) || case act when 'role_set' then jsonb_build_object(
    'from', p.role, 'to', given) else '{}'::jsonb end);
  return 'done';
end $$;

-- approvals: the order in which people look at what waits ---------------------------------------------------------------------
-- By reasons and by the policy's own threshold for two people, because amounts of different currencies do not compare.
-- 1: two people are asked for, or a reason speaks of fraud or manipulation. 2: several reasons, a limit, a large amount or
-- a repeated attempt. 3: the rest. Within a rank, what runs out first. The page says it in the same words (approvals.html).
create function sentinel.risk_rank(required_people integer, reasons text[]) returns integer
language sql immutable parallel safe as $$ select case
  when required_people > 1 or reasons && array['suspicious_reason', 'account_mismatch', 'blacklisted', 'refunded_before',
    'image_mismatch', 'critic_amount', 'critic_scenario', 'critic_instructions', 'critic_encoded_text',
    'critic_repeated_text', 'critic_rejected', 'unknown_escalation']::text[] then 1
  when cardinality(reasons) > 1 or reasons && array['limit_exceeded', 'over_limit_early', 'amount_needs_approval',
    'amount_needs_analyst', 'repeated_attempts', 'currency_not_covered', 'fact_missing', 'halted']::text[] then 2
  else 3 end
$$;
create index approvals_queue on sentinel.approvals (sentinel.risk_rank(required_people, reasons), expires_at, approval_id)
  where status = 'pending';
-- What a worker gave up: a person has to look, among a hundred thousand rows that need nobody.
create index ledger_failed on refunds.ledger_entries (updated_at) where status = 'ERROR';

-- events: the log is read by its key; kinds that come seldom are found without looking through what every operation leaves
create index events_seldom on sentinel.events (event_id) where kind not in ('decision', 'start', 'outcome');

-- ledger: what was denied is looked for and counted; like the failed, not by an index that every step would pay for
create index ledger_denied on refunds.ledger_entries (created_at desc, ledger_entry_id) where status = 'DENIED';
