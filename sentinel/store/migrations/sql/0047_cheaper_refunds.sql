-- Pages that are filled from now on keep room for an entry's later versions.
alter table refunds.ledger_entries set (fillfactor = 30);

-- One index for the trail of an entry: nothing looks for an event by its number alone.
drop index refunds.ledger_events_entry;
alter table refunds.ledger_events drop constraint ledger_events_pkey, add primary key (tenant_id, ledger_entry_id, event_id);
