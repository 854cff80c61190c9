-- The ledger: its states, the allowed transitions, and the trail of each row.

-- The transitions of worker/refunds/rows.py as data; a test compares the two. Any other transition is refused here, for every role.
create table refunds.transitions (
  from_status text not null,
  event       text not null,
  to_status   text not null,
  primary key (from_status, event)
);
insert into refunds.transitions (from_status, event, to_status) values
  ('NEW', 'claimed', 'GUARDING'),
  ('APPROVAL_REQUIRED', 'claimed', 'GUARDING'),
  ('GUARDING', 'reclaimed', 'GUARDING'),
  ('ALLOWED', 'reclaimed', 'GUARDING'),
  ('GUARDING', 'allowed', 'ALLOWED'),
  ('GUARDING', 'approval_required', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'awaiting_customer', 'APPROVAL_REQUIRED'),
  ('GUARDING', 'customer_ended', 'DENIED'),                                -- the customer declined, or the card expired
  ('GUARDING', 'denied', 'DENIED'),
  ('GUARDING', 'put_back', 'NEW'),
  ('GUARDING', 'gave_up', 'ERROR'),
  ('ALLOWED', 'executed', 'EXECUTED'),
  ('ALLOWED', 'start_refused', 'GUARDING'),
  ('ALLOWED', 'settlement_refused', 'ERROR'),                              -- refused permanently: needs a person
  ('ALLOWED', 'not_executed', 'ERROR'),                                    -- a person said so before: final
  ('ERROR', 'retried', 'NEW');

-- One key for texts that a person would call the same (case and extra blanks ignored), to find texts that several accounts repeat.
create or replace function refunds.text_key(words text) returns text language sql immutable parallel safe as
  $$ select md5(lower(regexp_replace(btrim(words), '\s+', ' ', 'g'))) $$;

-- One requested refund and its state. An entry grows to two and a half times its first size until it is executed, and a page has room for
-- that: a version that leaves its page has to be entered into every index again.
create table refunds.ledger_entries (
  tenant_id         uuid not null default refunds.default_tenant(),
  -- Patterns here and below have no counted repetition: PostgreSQL would expand and scan it at every update.
  ledger_entry_id   text not null check (length(ledger_entry_id) between 1 and 120 and ledger_entry_id !~ '[^A-Za-z0-9._:/@-]'),
  refund_id         text not null check (length(refund_id) between 1 and 128 and refund_id !~ '[^A-Za-z0-9._:/@-]'),
  agent_id          text not null default 'retail-refund-agent',           -- the agent that asks the authority
  action            text not null default 'refund.create',
  status            text not null default 'NEW' check (status in
                      ('NEW', 'GUARDING', 'ALLOWED', 'APPROVAL_REQUIRED', 'DENIED', 'EXECUTED', 'ERROR')),
  last_event        text,                                                  -- the latest event
  event_number      bigint not null default 0,                             -- number of events so far
  amount_minor      bigint not null check (amount_minor between 1 and 1000000000000),
  currency          text not null check (currency ~ '^[A-Z]{3}$'),
  idempotency_key   text not null generated always as ('refund:' || ledger_entry_id) stored,
  channel           text not null default 'retail',
  scenario          text not null default 'standard',                      -- e.g. standard, fee, price_diff
  account_ref       text,
  order_ref         text,                                                  -- the order's id at the source
  requested_at      timestamptz not null default clock_timestamp(),        -- when the customer asked for it
  reason            text,                                                  -- the customer's words; must never leave this schema
  risk              jsonb not null default '{}',                           -- facts as submitted; the ledger's own facts win
  redaction_status  text not null default 'customer data hidden',
  -- the claim
  claim_epoch       bigint not null default 0,                             -- each claim adds 1; writes of an older one are refused
  claimed_by        text,                                                  -- the worker that holds it
  lease_until       timestamptz,                                           -- end of the claim unless renewed
  attempts          integer not null default 0,                            -- failed ones; waits for other services are in `waits`
  next_attempt_at   timestamptz not null default clock_timestamp(),        -- not claimed before
  -- the question to the authority and its answer
  guard_request     jsonb,                                                 -- {action, params}, fixed at the first guard; retries repeat it
  operation_id      uuid,                                                  -- the authority's, as the next five
  decision_event_id uuid,
  decision          text,
  reason_code       text,
  proof_id          text,
  approval_id       uuid,
  waiting_for       text check (waiting_for in ('operator', 'customer')),
  permit_token      text,                                                  -- until it is redeemed
  start_id          uuid,                                                  -- stored before the start request
  last_error        text,
  created_at        timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  -- what the request contained
  mode              text check (length(mode) between 1 and 40 and mode !~ '[^a-z_]'), -- variant of the scenario, e.g. price_drop
  language          text check (length(language) between 2 and 35 and language !~ '[^A-Za-z0-9-]'), -- of messages to the customer
  contact           text check (length(contact) <= 320),                   -- where the confirm link is sent; must never leave this schema
  source            text not null default '' check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]'),
  -- The part of its order's budget that the amount is counted in; null: none, or the entry names no order. A refund that a bank sent back
  -- after its execution is `returned`, which no sum counts.
  budget_part       text check (budget_part in ('reserved', 'executed', 'handled', 'in_doubt', 'returned')),
  -- Until when the worker may act under its start, by this database's clock; set before the start request: with ALLOWED, or with the guard
  -- that includes the start. Without it nothing is executed. Null beside a start id: surely not started under that id, or not executed as
  -- a person said.
  act_until         timestamptz,
  waits             integer not null default 0,                            -- times postponed because another service did not answer
  -- Why a person must be asked, if the program or person that filed the row requires it; it can only tighten.
  escalation        text check (length(escalation) between 1 and 64 and escalation !~ '[^a-z_]'),
  primary key (tenant_id, ledger_entry_id),
  constraint guarding_has_lease check (status not in ('GUARDING', 'ALLOWED') or lease_until is not null),
  constraint waiting_has_someone check ((status = 'APPROVAL_REQUIRED') = (waiting_for is not null)),
  constraint error_has_text check (status <> 'ERROR' or last_error is not null),
  constraint allowed_has_permit check (status <> 'ALLOWED' or (operation_id is not null and decision_event_id is not null
                                       and permit_token is not null and start_id is not null)),
  -- An entry that may be or was executed is counted in its order's budget, whichever role writes it.
  constraint ledger_permitted_holds_budget
    check (order_ref is null or status not in ('ALLOWED', 'EXECUTED') or budget_part is not null)
) with (fillfactor = 30);
create index ledger_due on refunds.ledger_entries (tenant_id, next_attempt_at, ledger_entry_id)
  where status in ('NEW', 'APPROVAL_REQUIRED');
-- For a worker whose key is bound to its agent: another agent's backlog may be long.
create index ledger_due_of_agent on refunds.ledger_entries (tenant_id, agent_id, next_attempt_at, ledger_entry_id)
  where status in ('NEW', 'APPROVAL_REQUIRED');
create index ledger_leased on refunds.ledger_entries (tenant_id, lease_until) where status in ('GUARDING', 'ALLOWED');
create index ledger_refund on refunds.ledger_entries (refund_id);
create index ledger_order on refunds.ledger_entries (order_ref, channel) where order_ref is not null;
create index ledger_account on refunds.ledger_entries (account_ref, requested_at) where account_ref is not null;
create index ledger_approval on refunds.ledger_entries (approval_id) where approval_id is not null;
-- Finds recent entries with the same text: the time is in the index because many customers use a common text.
create index ledger_text on refunds.ledger_entries (refunds.text_key(reason), requested_at)
  where length(reason) >= 40 and account_ref is not null;
-- Rows whose account is known only by their order, for an account with too many orders to look up each.
create index ledger_without_account on refunds.ledger_entries (tenant_id, channel, requested_at)
  where account_ref is null and order_ref is not null;
-- For pages only, whose queries repeat the condition: it is true of every row, and keeps other statements from using this index.
create index ledger_newest on refunds.ledger_entries (tenant_id, created_at desc, ledger_entry_id desc) where created_at > '-infinity';
-- Rows that a worker gave up on: a person has to look at them, among a hundred thousand rows that need no person.
create index ledger_failed on refunds.ledger_entries (tenant_id, created_at) where status = 'ERROR';

-- Denied rows are searched and counted; like the failed ones by a partial index, so that other steps do not have to maintain it.
create index ledger_denied on refunds.ledger_entries (tenant_id, created_at desc, ledger_entry_id desc) where status = 'DENIED';
create index ledger_in_doubt on refunds.ledger_entries (tenant_id, created_at) where budget_part = 'in_doubt';

-- The trail of a row: every change of status, written by a trigger of ledger_entries and by nothing else. Append-only.
create table refunds.ledger_events (
  tenant_id       uuid not null,
  event_id        bigint generated always as identity,
  ledger_entry_id text not null,
  from_status     text not null,
  event           text not null,
  to_status       text not null,
  claim_epoch     bigint not null,
  worker          text,                                                    -- or the person who retried the row
  reason_code     text,                                                    -- of the decision, or why the worker gave up
  occurred_at     timestamptz not null default clock_timestamp(),
  note            text,                                                    -- the person's reason for a retry
  primary key (tenant_id, ledger_entry_id, event_id)
);
create trigger append_only before update or delete or truncate on refunds.ledger_events
  for each statement execute function refunds.refuse_change();

-- The workflow steps of one run, written with the event that they led to. The trails of all runs of a row are kept. Read them as
-- refunds.trails.
create table refunds.step_trails (
  tenant_id       uuid not null,
  ledger_entry_id text not null,
  trail_id        bigint generated always as identity,
  claim_epoch     bigint not null,
  steps           jsonb not null,                                          -- [{step, …}] in order; a number n: element n of the shared steps
  occurred_at     timestamptz not null default clock_timestamp(),
  shared_id       bigint,                                                  -- of the shared steps; null: all are in `steps`
  primary key (tenant_id, ledger_entry_id, trail_id)
);
create trigger append_only before update or delete or truncate on refunds.step_trails
  for each statement execute function refunds.refuse_change();

-- The steps that the trails of one batch have in common, stored once.
create table refunds.shared_steps (
  tenant_id uuid not null,
  shared_id bigint generated always as identity,
  steps     jsonb not null,                                                -- [{step, …}], elements counted from 0
  primary key (tenant_id, shared_id)
);
create trigger append_only before update or delete or truncate on refunds.shared_steps
  for each statement execute function refunds.refuse_change();

-- Trails with all their steps.
create view refunds.trails as
  select t.tenant_id, t.ledger_entry_id, t.trail_id, t.claim_epoch,
    case when t.shared_id is null then t.steps else (
      select jsonb_agg(case jsonb_typeof(e.step) when 'number' then s.steps -> e.step::integer else e.step end order by e.place)
      from jsonb_array_elements(t.steps) with ordinality as e (step, place)) end as steps,
    t.occurred_at
  from refunds.step_trails t
  left join refunds.shared_steps s on s.tenant_id = t.tenant_id and s.shared_id = t.shared_id;

-- Checks row by row what may change in a ledger entry. The trail is written once per statement (write_ledger_events), because one statement
-- may change many rows.
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
    return new;                                                            -- no event: e.g. a lease, a question or a note changed
  end if;
  -- An ALLOW whose guard included the start is recorded together with its execution: two events at once. An entry that names an order
  -- records its ALLOW, which takes from the order's budget, before the start.
  if new.event_number <> old.event_number + 1 and not (new.event_number = old.event_number + 2 and new.last_event = 'executed'
     and old.status = 'GUARDING' and new.order_ref is null) then
    raise exception 'no way from % to % by %', old.status, new.status, coalesce(new.last_event, 'nothing')
      using errcode = 'check_violation', constraint = 'ledger_transition';
  end if;
  -- Only a claim raises the epoch, by one, and a row cannot be reclaimed while another worker's lease runs.
  if new.claim_epoch <> old.claim_epoch + (new.last_event in ('claimed', 'reclaimed'))::int
     or new.last_event = 'reclaimed' and old.lease_until > clock_timestamp() then
    raise exception 'a claim needs a free or lapsed row' using errcode = 'check_violation', constraint = 'ledger_claim';
  end if;
  if new.last_event = 'retried' then
    if refunds.may_have_been_paid(old) is not null or not exists (select from refunds.retries r
         where r.tenant_id = new.tenant_id and r.ledger_entry_id = new.ledger_entry_id and r.event_number = new.event_number) then
      raise exception 'ledger entry % is not tried again: %', new.ledger_entry_id,
        coalesce(refunds.may_have_been_paid(old) || case when refunds.may_have_been_paid(old) in ('not_executed', 'closed_by_analyst') then ', which is final'
                   else ', so it may have been paid' end, 'nobody said who and why')
        using errcode = 'check_violation', constraint = 'ledger_retry_unpaid';
    end if;
  end if;
  return new;
end $$;

-- Runs once per statement, for all rows that it changed: every transition must be declared, EXECUTED needs an execution, and the trail is
-- written. Security definer: no program may write the trail itself. The transition tables have no statistics, and a plan made for one row
-- would join them by nested loops, so hash joins are forced.
create or replace function refunds.write_ledger_events() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set enable_mergejoin = off as $$
declare
  wrong record;
begin
  select o.status as from_status, n.status as to_status, n.last_event, t.to_status is not null as is_way into wrong
  from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
  left join refunds.transitions t on t.event = n.last_event and t.to_status = n.status
    and t.from_status = case when n.event_number = o.event_number + 2 then 'ALLOWED' else o.status end
  where n.event_number <> o.event_number and (t.to_status is null or n.status = 'EXECUTED' and (
    select x.operation_id from refunds.executions x
    where x.tenant_id = n.tenant_id and x.ledger_entry_id = n.ledger_entry_id) is distinct from n.operation_id)
  limit 1;
  if wrong.is_way then
    raise exception 'EXECUTED needs its execution' using errcode = 'check_violation', constraint = 'ledger_executed_has_execution';
  elsif not wrong.is_way then
    raise exception 'no way from % to % by %', wrong.from_status, wrong.to_status, coalesce(wrong.last_event, 'nothing')
      using errcode = 'check_violation', constraint = 'ledger_transition';
  end if;
  insert into refunds.ledger_events (tenant_id, ledger_entry_id, from_status, event, to_status, claim_epoch, worker, reason_code, note)
  select n.tenant_id, n.ledger_entry_id, m.from_status, m.event, m.to_status, n.claim_epoch,
         case when m.event = 'retried' then refunds.retry_of(n.tenant_id, n.ledger_entry_id, n.event_number) ->> 'retried_by'
              else coalesce(n.claimed_by, o.claimed_by) end, n.reason_code,
         case when m.event = 'retried' then refunds.retry_of(n.tenant_id, n.ledger_entry_id, n.event_number) ->> 'reason' end
  from moved_from o join moved_to n on n.tenant_id = o.tenant_id and n.ledger_entry_id = o.ledger_entry_id
  cross join lateral (
    select o.status, n.last_event, n.status where n.event_number = o.event_number + 1
    union all select o.status, 'allowed', 'ALLOWED' where n.event_number = o.event_number + 2
    union all select 'ALLOWED', n.last_event, n.status where n.event_number = o.event_number + 2
  ) as m (from_status, event, to_status)
  where n.event_number <> o.event_number;
  return null;
end $$;

create trigger check_transition before insert or update on refunds.ledger_entries
  for each row execute function refunds.check_transition();
create trigger write_ledger_events after update on refunds.ledger_entries
  referencing old table as moved_from new table as moved_to for each statement execute function refunds.write_ledger_events();
