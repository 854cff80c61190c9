-- Protected changes: people, their roles and passwords, keys, and receivers of events. Every such change goes through request_change; a
-- change that gives power waits for a second administrator once there are two. The console's role can write these tables through these
-- functions only (deploy/roles.sql).

-- One row for each approval that asks for a second administrator: exactly what was requested. It holds no secret: passwords and keys are
-- generated when the requester collects the approved change.
create table sentinel.protected_changes (
  tenant_id   uuid not null,
  approval_id uuid not null,
  request     text not null,                                               -- canonical JSON; its SHA-256 is the approval's digest
  asked_by    uuid,                                                        -- null: a command on the machine, in nobody's name
  done_at     timestamptz,
  outcome     text,                                                        -- done, or why it could not be done after approval
  primary key (tenant_id, approval_id),
  foreign key (tenant_id, approval_id) references sentinel.approvals,
  constraint protected_changes_done_once check ((done_at is null) = (outcome is null))
);

-- Whether this kind of change waits for a second administrator; taking power away (deactivating, ending sessions, revoking) never does.
create or replace function sentinel.needs_second_administrator(action text) returns boolean language sql immutable parallel safe as $$
  select action in ('operator.create', 'operator.set_role', 'operator.reactivate', 'operator.reset_password',
    'operator.reset_second_factor', 'key.issue', 'key.rotate', 'webhook.add', 'webhook.enable')
$$;

-- Whether this kind of change makes a password or key, which is generated when the requester collects it.
create or replace function sentinel.makes_secret(action text) returns boolean language sql immutable parallel safe as $$
  select action in ('operator.create', 'operator.reset_password', 'key.issue', 'key.rotate')
$$;

-- Whether a change that this operator requests must wait: once there are two administrators. `by_id` null is a command on the machine
-- itself; with the login of the schema's owner it does not wait, because that login can write every table. With any other login, the person
-- behind a null `by_id` may be any operator. So a deactivated administrator still counts if the requester alone may have deactivated them:
-- the requester did, or it was done in nobody's name, or, for a null `by_id`, any operator did.
create or replace function sentinel.is_change_pending(tenant uuid, by_id uuid) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select (by_id is not null or not sentinel.is_owners_login()) and 2 <= (
    select count(*) from sentinel.operators o
    where o.tenant_id = tenant and o.role = 'admin'
      and (o.active or o.deactivated_by in (by_id, o.operator_id) or by_id is null and o.deactivated_by is not null))
$$;

-- Inserts a new key. Returns done, or made_before if the id exists already.
create or replace function sentinel.add_key(
  tenant uuid, p jsonb, given jsonb, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
declare
  k sentinel.agent_keys;
begin
  insert into sentinel.agent_keys
    (tenant_id, key_id, principal_id, key_hash, hint, label, agent_id, scopes, owner_operator_id, maker_ids, expires_at)
  values (tenant, (p ->> 'key_id')::uuid, (given ->> 'principal_id')::uuid, decode(given ->> 'key_hash', 'hex'), given ->> 'hint',
    coalesce(p ->> 'label', ''), p ->> 'agent_id', array(select jsonb_array_elements_text(p -> 'scopes')),
    (p ->> 'owner_operator_id')::uuid, array_remove(array[by_id], null),
    clock_timestamp() + make_interval(secs => (p ->> 'expires_seconds')::integer))
  on conflict do nothing returning * into k;
  if not found then return 'made_before'; end if;
  perform sentinel.append_event(tenant, event, 'key_created', null, k.agent_id, clock_timestamp(), sentinel.key_facts(k, who));
  return 'done';
end $$;

-- Inserts the successor of a usable key, with the same principal, label, agent, scopes and owner; the old key expires after the overlap,
-- never later than it would have. Returns done, unknown, made_before or over.
create or replace function sentinel.rotate_key(
  tenant uuid, p jsonb, given jsonb, by_id uuid, who text, event uuid
) returns text language plpgsql as $$
declare
  old sentinel.agent_keys;
  k sentinel.agent_keys;
begin
  select * into old from sentinel.agent_keys where tenant_id = tenant and key_id = (p ->> 'old_key_id')::uuid for update;
  if not found then return 'unknown'; end if;
  if exists (select from sentinel.agent_keys where tenant_id = tenant and key_id = (p ->> 'key_id')::uuid) then return 'made_before'; end if;
  if old.revoked_at is not null or old.expires_at <= clock_timestamp() then return 'over'; end if;
  update sentinel.agent_keys
  set expires_at = least(expires_at, clock_timestamp() + make_interval(secs => (p ->> 'overlap_seconds')::integer))
  where tenant_id = tenant and key_id = old.key_id returning * into old;
  insert into sentinel.agent_keys
    (tenant_id, key_id, principal_id, key_hash, hint, label, agent_id, scopes, owner_operator_id, maker_ids, expires_at)
  values (tenant, (p ->> 'key_id')::uuid, old.principal_id, decode(given ->> 'key_hash', 'hex'), given ->> 'hint', old.label, old.agent_id,
    old.scopes, old.owner_operator_id, array_remove(old.maker_ids || by_id, null),
    clock_timestamp() + make_interval(secs => (p ->> 'expires_seconds')::integer)) returning * into k;
  perform sentinel.append_event(tenant, event, 'key_rotated', null, k.agent_id, clock_timestamp(), sentinel.key_facts(k, who)
    || jsonb_build_object('old_key_id', old.key_id, 'old_expires_at', sentinel.utc_text(old.expires_at)));
  return 'done';
end $$;

-- Revokes a key now. Returns done, unknown, or same if it was revoked before.
create or replace function sentinel.revoke_key(tenant uuid, key uuid, who text, event uuid) returns text language plpgsql as $$
declare
  k sentinel.agent_keys;
begin
  update sentinel.agent_keys set revoked_at = clock_timestamp()
  where tenant_id = tenant and key_id = key and revoked_at is null returning * into k;
  if not found then
    return case when exists (select from sentinel.agent_keys where tenant_id = tenant and key_id = key) then 'same' else 'unknown' end;
  end if;
  perform sentinel.append_event(tenant, event, 'key_revoked', null, k.agent_id, clock_timestamp(), sentinel.key_facts(k, who));
  return 'done';
end $$;

create or replace function sentinel.key_facts(k sentinel.agent_keys, who text) returns jsonb language sql stable as $$
  select jsonb_build_object('by', who, 'key_id', k.key_id, 'agent_id', k.agent_id, 'scopes', k.scopes,
    'owner_operator_id', k.owner_operator_id, 'expires_at', sentinel.utc_text(k.expires_at))
$$;

-- Makes the change that `request` describes, whoever requested it; `given` has the stored form of a password or key. Only the functions
-- below call it, in a transaction that holds the lock of the tenant's people. `agreed`: a second administrator has approved.
create or replace function sentinel.make_change(
  tenant uuid, by_id uuid, who text, request jsonb, given jsonb, agreed boolean, event uuid
) returns text language plpgsql as $$
declare
  act text := request ->> 'action';
  p jsonb := request -> 'params';
  person uuid := (p ->> 'operator_id')::uuid;
  hands uuid;
  said text;
begin
  if act = 'operator.create' then
    said := sentinel.add_operator(tenant, person, p ->> 'email', given ->> 'password_hash', p ->> 'role',
      coalesce((given ->> 'one_time')::boolean, true), by_id, who, event);
    return case said when 'added' then 'done' else said end;
  elsif act = 'key.issue' then return sentinel.add_key(tenant, p, given, by_id, who, event);
  elsif act = 'key.rotate' then return sentinel.rotate_key(tenant, p, given, by_id, who, event);
  elsif act = 'key.revoke' then return sentinel.revoke_key(tenant, (p ->> 'key_id')::uuid, who, event);
  elsif act = 'webhook.add' then return sentinel.add_endpoint(tenant, p, who, event);
  elsif act like 'webhook.%' then return sentinel.change_endpoint(tenant, act, p, who, event);
  end if;
  select changed_by into hands from sentinel.operators where tenant_id = tenant and operator_id = person;
  said := sentinel.change_operator(tenant, person,
    case act when 'operator.set_role' then 'role_set' when 'operator.deactivate' then 'deactivated' when 'operator.reactivate' then 'reactivated'
      when 'operator.reset_password' then 'password_reset' when 'operator.reset_second_factor' then 'second_factor_reset'
      when 'operator.end_access' then 'access_ended' when 'operator.confirm' then 'confirmed'
      when 'operator.end_sessions' then 'access_ended' end,                  -- the name that an older console sends
    coalesce(p ->> 'role', given ->> 'password_hash'), p ->> 'seen', by_id, who, event);
  -- A change that two administrators made, and that gave neither of them a secret, does not change who controls the account. A password that
  -- the requester was shown gives the requester control, also where the account's owner alone approved it and there is no third.
  if agreed and said = 'done' then
    update sentinel.operators set changed_by = case when sentinel.makes_secret(act) then by_id else hands end
    where tenant_id = tenant and operator_id = person;
  end if;
  return said;
end $$;

-- The only entry point for these changes. Makes the change at once or, if it must wait, tries it, rolls it back and opens an approval for a
-- second administrator. The result is that of the change, or waits; the same request again while it waits returns the same approval.
create or replace function sentinel.request_change(
  tenant uuid, by_id uuid, who text, via text, asked text, given jsonb, approval uuid, event uuid, lasts_seconds integer
) returns table (result text, waits_for uuid) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  request jsonb := asked::jsonb;
  act text := request ->> 'action';
  moment timestamptz;
begin
  perform sentinel.take_operators_lock(tenant);
  -- Checked again after the lock was taken: the requester may have been deactivated or demoted since the request began.
  if by_id is not null and not sentinel.is_active_admin(tenant, by_id) then result := 'role'; return next; return; end if;
  if not sentinel.needs_second_administrator(act) or not sentinel.is_change_pending(tenant, by_id) then
    result := sentinel.make_change(tenant, by_id, who, request, given, false, event);
    return next; return;
  end if;
  select c.approval_id into waits_for from sentinel.protected_changes c join sentinel.approvals a using (tenant_id, approval_id)
  where c.tenant_id = tenant and c.request = asked and c.asked_by is not distinct from by_id and c.done_at is null
    and (a.status = 'pending' and a.expires_at > clock_timestamp() or sentinel.is_collectable(a));
  if found then result := 'waits'; return next; return; end if;
  begin
    result := sentinel.make_change(tenant, by_id, who, request, given, false, event);
    raise exception 'tried' using errcode = 'triggered_action_exception';
  exception when triggered_action_exception then null;
  end;
  if result <> 'done' then return next; return; end if;
  moment := clock_timestamp();
  insert into sentinel.approvals
    (tenant_id, approval_id, operation_id, principal_id, requester_operator_id, agent_id, action, resource, digest, reasons, policy_digest,
     required_role, required_people, offers_approve, created_at, expires_at)
  values (tenant, approval, approval, approval, by_id, via, act, request ->> 'resource', sentinel.sha256_text(asked),
     array['second_administrator'], 'built_in', 'admin', 1, true, moment, moment + make_interval(secs => lasts_seconds));
  insert into sentinel.protected_changes (tenant_id, approval_id, request, asked_by) values (tenant, approval, asked, by_id);
  perform sentinel.append_event(tenant, event, 'change_asked', approval, via, moment, jsonb_build_object(
    'approval_id', approval, 'by', who, 'digest', sentinel.sha256_text(asked), 'request', request));
  result := 'waits'; waits_for := approval;
  return next;
end $$;

create or replace function sentinel.is_active_admin(tenant uuid, person uuid) returns boolean language sql stable as $$
  select exists (select from sentinel.operators o
    where o.tenant_id = tenant and o.operator_id = person and o.role = 'admin' and o.active)
$$;

-- Whether an approved password or key can still be collected: for one day after the decision, while its approving votes still count.
create or replace function sentinel.is_collectable(a sentinel.approvals) returns boolean language sql stable as $$
  select a.status = 'approved' and a.decided_at > clock_timestamp() - interval '1 day'
    and (select count(*) from sentinel.counted_votes(a, a.required_role)) >= a.required_people
$$;

-- Makes an approved change, once: at the vote that approved it (`given` null), or when the requester collects a password or key. Returns
-- the result of the change, or unknown, not_yours, not_approved, too_late, collected or role; null for a change that is still to be
-- collected.
create or replace function sentinel.make_approved_change(
  tenant uuid, approval uuid, by_id uuid, who text, given jsonb, event uuid
) returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  c sentinel.protected_changes;
  a sentinel.approvals;
  said text;
begin
  select * into c from sentinel.protected_changes where tenant_id = tenant and approval_id = approval;
  if not found then return 'unknown'; end if;
  perform sentinel.take_operators_lock(tenant);
  select * into c from sentinel.protected_changes where tenant_id = tenant and approval_id = approval for update;
  select * into a from sentinel.approvals where tenant_id = tenant and approval_id = approval;
  if given is null and sentinel.makes_secret(a.action) then return null; end if;
  said := case
    when given is not null and c.asked_by is distinct from by_id then 'not_yours'
    when c.done_at is not null then 'collected'
    when a.status <> 'approved' or a.digest <> sentinel.sha256_text(c.request)
      or (select count(*) from sentinel.counted_votes(a, a.required_role)) < a.required_people then 'not_approved'
    when not sentinel.is_collectable(a) then 'too_late'
    when c.asked_by is not null and not sentinel.is_active_admin(tenant, c.asked_by) then 'role' end;
  if said is null then
    said := sentinel.make_change(tenant, c.asked_by, who, c.request::jsonb, given, true, event);
  elsif given is not null or said = 'collected' then
    return said;
  end if;
  update sentinel.protected_changes set done_at = clock_timestamp(), outcome = said
  where tenant_id = tenant and approval_id = approval and done_at is null;
  return said;
end $$;
