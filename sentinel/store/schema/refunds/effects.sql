-- Effects outside that belong to a refund: intended before they are done, taken back or in doubt.

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

-- An execution says that everything it needs was done; the record must say so too.
create or replace function refunds.check_effects_done() returns trigger language plpgsql as $$
begin
  if exists (select from refunds.effects f
             where f.tenant_id = new.tenant_id and f.ledger_entry_id = new.ledger_entry_id and not f.best_effort
             having count(*) > 0 and count(*) filter (where f.state = 'done') <> max(f.must_total)) then
    raise exception 'an effect of this entry is not done' using errcode = 'check_violation', constraint = 'execution_needs_effects';
  end if;
  return new;
end $$;

-- An entry that is given up takes no effect with it into silence: what was under way is in doubt, for a person.
create or replace function refunds.doubt_effects() returns trigger language plpgsql as $$
begin
  update refunds.effects set state = 'in_doubt', last_error = coalesce(last_error, 'the entry was given up')
  where tenant_id = new.tenant_id and ledger_entry_id = new.ledger_entry_id and state in ('intended', 'compensating')
    and not best_effort;
  return null;
end $$;
