-- A trail is written by its trigger and by nobody else: the two functions run with their owner's rights, and no program may
-- insert into a trail. Nor may one run them from a trigger of its own, on a table that it filled itself: see deploy/roles.sql.

alter function orders.write_events() security definer set search_path = pg_catalog, pg_temp;
alter function refunds.write_ledger_events() security definer set search_path = pg_catalog, pg_temp;
