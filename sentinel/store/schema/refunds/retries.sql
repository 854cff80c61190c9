-- Retries: a person brings a row back from ERROR, with a reason, and only if it surely has not been paid.

-- Who retried a row, and why. Append-only.
create table refunds.retries (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  event_number    bigint not null,                                         -- of the event in the row's trail
  retried_by      text not null,                                           -- the person
  login           text not null,                                           -- the database login of the session
  reason          text not null,
  error_before    text not null,                                           -- the row's last_error before
  retried_at      timestamptz not null default clock_timestamp(),
  primary key (tenant_id, ledger_entry_id, event_number),
  constraint retries_who_and_why check (btrim(retried_by) <> '' and btrim(reason) <> ''),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
create trigger append_only before update or delete or truncate on refunds.retries
  for each statement execute function refunds.refuse_change();

-- Whether a start may be on record under the entry's start id: false if it surely was not started, or if the start of its last permit was
-- surely refused.
create or replace function refunds.may_be_started(e refunds.ledger_entries) returns boolean language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
begin
  return e.start_id is not null and e.act_until is not null and coalesce((
    select v.event from refunds.ledger_events v
    where v.tenant_id = e.tenant_id and v.ledger_entry_id = e.ledger_entry_id
      and v.event in ('allowed', 'start_refused') order by v.event_id desc limit 1), 'allowed') = 'allowed';
end $$;

-- Why a row may have been paid, may still be paid by something in progress, or can never be paid any more; null if none of these is true.
create or replace function refunds.may_have_been_paid(e refunds.ledger_entries) returns text language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
begin
  return case
    when exists (select from refunds.executions x
                 where x.tenant_id = e.tenant_id and x.ledger_entry_id = e.ledger_entry_id) then 'executed'
    when e.budget_part = 'handled' or e.reason_code = 'executed_elsewhere' then 'handled' -- how its doubt was resolved
    when e.reason_code in ('started_elsewhere', 'settlement_refused') then e.reason_code
    when refunds.is_begun_outside(e.tenant_id, e.ledger_entry_id) then 'effects_open'
    when e.budget_part is not null then 'start_in_doubt'                   -- its order's budget still counts its amount
    -- A person's decision, which is final for the authority; if the settlement system did it all the same, a person must look again.
    when e.reason_code = 'not_executed' then case
      when e.last_event = 'not_executed' or e.act_until is null then 'not_executed' else 'start_in_doubt' end
    when refunds.may_be_started(e) then 'start_in_doubt'
    when refunds.is_closed_by_analyst(e.tenant_id, e.ledger_entry_id) then 'closed_by_analyst' -- last: nothing else prevents a retry
  end;
end $$;

-- Whether an analyst filed this entry and an analyst has since decided otherwise about its order: held it, or filed another refund.
create or replace function refunds.is_closed_by_analyst(tenant uuid, entry text) returns boolean language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  return exists (select from orders.refunds f where f.tenant_id = tenant and f.ledger_entry_id = entry and f.state = 'closed');
end $$;

-- Why a row in ERROR cannot be retried, for a program that shows it and may not read all of it; null if it can be, or is not in ERROR.
create or replace function refunds.retry_refusal(tenant uuid, entry text) returns text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp as $$
begin
  return (select refunds.may_have_been_paid(e) from refunds.ledger_entries e
          where e.tenant_id = tenant and e.ledger_entry_id = entry and e.status = 'ERROR');
end $$;

-- Who retried a row at this event of its trail, and why.
create or replace function refunds.retry_of(tenant uuid, entry text, number bigint) returns jsonb language plpgsql stable
  set search_path = pg_catalog, pg_temp as $$
begin
  return (select jsonb_build_object('retried_by', r.retried_by, 'reason', r.reason) from refunds.retries r
          where r.tenant_id = tenant and r.ledger_entry_id = entry and r.event_number = number);
end $$;

-- Sets rows from ERROR back to NEW and records who did it and why: those of `entries`, or all if null. Returns per requested row: null, or
-- why it stays. A row that may have been paid, or can never be paid, is refused here and also by the trigger of the table.
create or replace function refunds.retry_entries(tenant uuid, entries text[], who text, why text)
returns table (ledger_entry_id text, refusal text) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  able text[];
begin
  perform 1 from refunds.ledger_entries e
  where e.tenant_id = tenant and e.status = 'ERROR' and (entries is null or e.ledger_entry_id = any (entries))
  order by e.ledger_entry_id for update;
  able := array(
    select e.ledger_entry_id from refunds.ledger_entries e
    where e.tenant_id = tenant and e.status = 'ERROR' and (entries is null or e.ledger_entry_id = any (entries))
      and refunds.may_have_been_paid(e) is null);
  return query
    select coalesce(e.ledger_entry_id, asked.id), case
        when e.ledger_entry_id is null then 'no_such_row'
        when e.status <> 'ERROR' then 'not_in_error'
        else refunds.may_have_been_paid(e) end
    from unnest(coalesce(entries, array(select x.ledger_entry_id from refunds.ledger_entries x
                                        where x.tenant_id = tenant and x.status = 'ERROR'))) as asked (id)
    left join refunds.ledger_entries e on e.tenant_id = tenant and e.ledger_entry_id = asked.id
    order by 1;
  insert into refunds.retries (tenant_id, ledger_entry_id, event_number, retried_by, login, reason, error_before)
  select e.tenant_id, e.ledger_entry_id, e.event_number + 1, who, session_user, why, e.last_error
  from refunds.ledger_entries e where e.tenant_id = tenant and e.ledger_entry_id = any (able) and e.status = 'ERROR';
  update refunds.ledger_entries e set status = 'NEW', last_event = 'retried', event_number = e.event_number + 1, attempts = 0,
    waits = 0, next_attempt_at = clock_timestamp(), last_error = null, reason_code = null, claimed_by = null, lease_until = null
  where e.tenant_id = tenant and e.ledger_entry_id = any (able) and e.status = 'ERROR' and refunds.may_have_been_paid(e) is null;
end $$;
