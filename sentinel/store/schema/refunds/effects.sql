-- Effects of a refund in outside systems: recorded as intended before they are done, then done, refused, compensated or in doubt.
-- Each is recorded before it is tried, so that a crash at any point can be resolved.

-- The transitions of worker/settlement/effects.py as data; a test compares the two. Any other transition is refused here, for every role.
create table refunds.effect_transitions (
  from_state text not null,
  to_state   text not null,
  primary key (from_state, to_state)
);
insert into refunds.effect_transitions (from_state, to_state) values
  ('intended', 'done'),
  ('intended', 'refused'),
  ('intended', 'in_doubt'),
  ('in_doubt', 'intended'),
  ('in_doubt', 'done'),
  ('in_doubt', 'refused'),
  ('in_doubt', 'compensating'),
  ('done', 'compensating'),
  ('compensating', 'compensated'),
  ('compensating', 'in_doubt');

-- One effect of one entry in one outside system.
create table refunds.effects (
  tenant_id           uuid not null default refunds.default_tenant(),
  ledger_entry_id     text not null,
  effect_number       smallint not null check (effect_number between 1 and 20),
  operation_reference uuid not null,                                       -- the entry's start id: one for all its effects
  system              text not null check (length(system) between 1 and 40 and system !~ '[^a-z_]'),
  reference           uuid not null,                                       -- the idempotency key sent to the system
  best_effort         boolean not null default false,                      -- a notice: its failure undoes nothing
  must_total          smallint not null check (must_total between 0 and 20), -- how many effects of the entry must be done
  state               text not null default 'intended',
  system_reference    text check (length(system_reference) <= 200),        -- the system's id of what it did
  last_error          text check (length(last_error) <= 500),
  claim_epoch         bigint not null,
  tries               integer not null default 1,
  tried_at            timestamptz not null default clock_timestamp(),
  next_attempt_at     timestamptz not null default clock_timestamp(),      -- of a best-effort effect
  created_at          timestamptz not null default clock_timestamp(),
  updated_at          timestamptz not null default clock_timestamp(),
  -- The payment that the effect is requested on, fixed before the first request: it is looked up and done there, whatever payment the order
  -- names later.
  payment_ref         text check (length(payment_ref) between 1 and 128 and payment_ref !~ '[^A-Za-z0-9._:/@-]'),
  -- By entry and number, not by reference: an entry has each of its effects once, whatever reference it is tried under.
  constraint effects_once primary key (tenant_id, ledger_entry_id, effect_number),
  constraint effects_reference_once unique (tenant_id, system, reference),
  constraint effects_state check (state in ('intended', 'done', 'refused', 'compensating', 'compensated', 'in_doubt')),
  constraint effects_done_has_reference check (state <> 'done' or system_reference is not null),
  constraint effects_trouble_has_text check (state not in ('refused', 'in_doubt') or last_error is not null),
  constraint effects_notice_stays check (not best_effort or state not in ('compensating', 'compensated')),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
) with (fillfactor = 70);
create index effects_operation on refunds.effects (tenant_id, operation_reference);
create index effects_later on refunds.effects (tenant_id, next_attempt_at)
  where best_effort and state in ('intended', 'in_doubt');
create index effects_open on refunds.effects (tenant_id, updated_at) where state in ('compensating', 'in_doubt');

-- Whether an effect was begun in an outside system for this entry and was neither refused nor compensated: the entry may have been paid.
create or replace function refunds.is_begun_outside(tenant uuid, entry text) returns boolean language sql stable as $$
  select exists (select from refunds.effects f
                 where f.tenant_id = tenant and f.ledger_entry_id = entry and not f.best_effort and f.state not in ('refused', 'compensated'))
$$;

create or replace function refunds.check_effect() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    if new.state <> 'intended' then
      raise exception 'an effect begins as intended, not %', new.state using errcode = 'check_violation', constraint = 'effects_begin_intended';
    end if;
    return new;
  end if;
  if (new.tenant_id, new.ledger_entry_id, new.effect_number, new.operation_reference, new.system, new.reference, new.best_effort, new.must_total)
     is distinct from
     (old.tenant_id, old.ledger_entry_id, old.effect_number, old.operation_reference, old.system, old.reference, old.best_effort, old.must_total) then
    raise exception 'what an effect is cannot change' using errcode = 'check_violation', constraint = 'effects_terms_fixed';
  end if;
  if old.payment_ref is not null and new.payment_ref is distinct from old.payment_ref then
    raise exception 'the payment that an effect was begun with is fixed' using errcode = 'check_violation', constraint = 'effects_payment_fixed';
  end if;
  if new.claim_epoch < old.claim_epoch then
    raise exception 'the claim epoch only grows' using errcode = 'check_violation', constraint = 'effects_epoch_grows';
  end if;
  if new.state <> old.state and not exists (select from refunds.effect_transitions t
       where t.from_state = old.state and t.to_state = new.state) then
    raise exception 'no way from % to %', old.state, new.state using errcode = 'check_violation', constraint = 'effects_transition';
  end if;
  new.updated_at := clock_timestamp();
  return new;
end $$;

-- Checks that every effect that an execution needs is recorded as done.
create or replace function refunds.check_effects_done() returns trigger language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  if exists (select from written x
             join refunds.effects f on f.tenant_id = x.tenant_id and f.ledger_entry_id = x.ledger_entry_id and not f.best_effort
             group by x.ledger_entry_id having count(*) filter (where f.state = 'done') <> max(f.must_total)) then
    raise exception 'an effect of this entry is not done' using errcode = 'check_violation', constraint = 'execution_needs_effects';
  end if;
  return null;
end $$;

-- When an entry ends as ERROR or DENIED, sets its effects that are in progress to in_doubt, so that a person looks at them.
create or replace function refunds.doubt_effects() returns trigger language plpgsql as $$
begin
  update refunds.effects set state = 'in_doubt', last_error = coalesce(last_error, 'the entry was given up')
  where tenant_id = new.tenant_id and ledger_entry_id = new.ledger_entry_id and state in ('intended', 'compensating')
    and not best_effort;
  return null;
end $$;

create trigger check_effect before insert or update on refunds.effects
  for each row execute function refunds.check_effect();
create trigger never_forgotten before delete or truncate on refunds.effects
  for each statement execute function refunds.refuse_change();
create trigger check_effects_done after insert on refunds.executions
  referencing new table as written for each statement execute function refunds.check_effects_done();
create trigger doubt_effects after update of status on refunds.ledger_entries
  for each row when (new.status in ('ERROR', 'DENIED') and old.status <> new.status)
  execute function refunds.doubt_effects();
