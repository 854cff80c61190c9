-- The ledger: which state follows which, and the trail of it.

create or replace function refunds.default_tenant() returns uuid language sql stable as
  $$ select tenant_id from refunds.defaults $$;

-- One key for texts that a person would call the same: repeated texts over accounts are found by it.
create or replace function refunds.text_key(words text) returns text language sql immutable parallel safe as
  $$ select md5(lower(regexp_replace(btrim(words), '\s+', ' ', 'g'))) $$;

create or replace function refunds.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;

-- The trail of a ledger entry is written once per statement: many rows move in one. What may move is checked row by row.
create or replace function refunds.check_transition() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.status <> 'NEW' then
      raise exception 'a ledger entry begins as NEW, not %', new.status using errcode = 'check_violation', constraint = 'ledger_begins_new';
    end if;
    return new;
  end if;
  if (new.tenant_id, new.ledger_entry_id, new.refund_id, new.amount_minor, new.currency, new.action, new.agent_id,
      new.channel, new.source, new.order_ref)
     is distinct from (old.tenant_id, old.ledger_entry_id, old.refund_id, old.amount_minor, old.currency, old.action, old.agent_id,
      old.channel, old.source, old.order_ref) then
    raise exception 'what a ledger entry asks for cannot change' using errcode = 'check_violation', constraint = 'ledger_terms_fixed';
  end if;
  if new.claim_epoch < old.claim_epoch then
    raise exception 'the claim epoch only grows' using errcode = 'check_violation', constraint = 'ledger_epoch_grows';
  end if;
  if old.guard_request is not null and new.guard_request is distinct from old.guard_request then
    raise exception 'the question to the authority is fixed' using errcode = 'check_violation', constraint = 'ledger_question_fixed';
  end if;
  if old.start_id is not null and new.start_id is distinct from old.start_id then
    raise exception 'a start id is chosen once' using errcode = 'check_violation', constraint = 'ledger_start_fixed';
  end if;
  new.updated_at := clock_timestamp();
  if new.event_number = old.event_number and (new.status, new.claim_epoch) = (old.status, old.claim_epoch)
     and new.last_event is not distinct from old.last_event then
    return new;                                                            -- no event: a lease, a question, a note
  end if;
  if new.event_number <> old.event_number + 1 or not exists (select from refunds.transitions t
                 where t.from_status = old.status and t.event = new.last_event and t.to_status = new.status) then
    raise exception 'no way from % to % by %', old.status, new.status, coalesce(new.last_event, 'nothing')
      using errcode = 'check_violation', constraint = 'ledger_transition';
  end if;
  -- Taking a row is the one thing that grows the epoch, by one, and nobody takes what another still holds.
  if new.claim_epoch <> old.claim_epoch + (new.last_event in ('claimed', 'reclaimed'))::int
     or new.last_event = 'reclaimed' and old.lease_until > clock_timestamp() then
    raise exception 'a claim needs a free or lapsed row' using errcode = 'check_violation', constraint = 'ledger_claim';
  end if;
  if new.last_event = 'retried' then
    if refunds.may_have_been_paid(old) is not null or not exists (select from refunds.retries r
         where r.tenant_id = new.tenant_id and r.ledger_entry_id = new.ledger_entry_id and r.event_number = new.event_number) then
      raise exception 'ledger entry % is not tried again: %', new.ledger_entry_id,
        coalesce(refunds.may_have_been_paid(old) || ', so it may have been paid', 'nobody said who and why')
        using errcode = 'check_violation', constraint = 'ledger_retry_unpaid';
    end if;
  end if;
  if new.status = 'EXECUTED' and not exists (select from refunds.executions e
       where e.tenant_id = new.tenant_id and e.ledger_entry_id = new.ledger_entry_id) then
    raise exception 'EXECUTED needs its execution' using errcode = 'check_violation', constraint = 'ledger_executed_has_execution';
  end if;
  return new;
end $$;

-- With its owner's rights: no program may write the trail itself.
create or replace function refunds.write_ledger_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch, worker, reason_code, note)
  select n.tenant_id, n.ledger_entry_id, o.status, n.last_event, n.status, n.claim_epoch,
         case when n.last_event = 'retried' then refunds.retry_of(n.tenant_id, n.ledger_entry_id, n.event_number) ->> 'retried_by'
              else coalesce(n.claimed_by, o.claimed_by) end, n.reason_code,
         case when n.last_event = 'retried' then refunds.retry_of(n.tenant_id, n.ledger_entry_id, n.event_number) ->> 'reason' end
  from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
  where n.event_number <> o.event_number;
  return null;
end $$;

-- A tenant's public name, for programs that may read nothing of the authority's; null where this database has none of it.
create or replace function refunds.tenant_label(tenant uuid) returns text language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$ select t.label from sentinel.tenants t where t.tenant_id = tenant $$;
