-- Whoever may read a card may know whether its row still waits, and nothing else of the ledger.
create or replace function refunds.entry_is_open(tenant uuid, entry text) returns boolean language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$
  select exists (select from refunds.ledger_entries e
                 where e.tenant_id = tenant and e.ledger_entry_id = entry and e.status not in ('DENIED', 'EXECUTED', 'ERROR'))
$$;
