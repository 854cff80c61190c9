-- Pages that are filled from now on keep room for an entry's later versions.
alter table refunds.ledger_entries set (fillfactor = 30);

-- One index for the trail of an entry: nothing looks for an event by its number alone.
drop index refunds.ledger_events_entry;
alter table refunds.ledger_events drop constraint ledger_events_pkey, add primary key (tenant_id, ledger_entry_id, event_id);

-- What never changes is checked once, at the insert, and not at every update.
create function refunds.refuse_new_entry() returns trigger language plpgsql as $$
begin
  raise exception 'an id, the currency or the source of a ledger entry is not well-formed'
    using errcode = 'check_violation', constraint = 'ledger_texts_well_formed';
end $$;
create trigger check_new_entry before insert on refunds.ledger_entries for each row when ((
    length(new.ledger_entry_id) between 1 and 120 and new.ledger_entry_id !~ '[^A-Za-z0-9._:/@-]'
    and length(new.refund_id) between 1 and 128 and new.refund_id !~ '[^A-Za-z0-9._:/@-]'
    and length(new.source) <= 64 and new.source !~ '[^A-Za-z0-9._:/@-]'
    and new.currency ~ '^[A-Z]{3}$') is false)
  execute function refunds.refuse_new_entry();
alter table refunds.ledger_entries drop constraint ledger_entries_ledger_entry_id_check, drop constraint ledger_entries_refund_id_check,
  drop constraint ledger_entries_currency_check, drop constraint ledger_entries_source_check;
