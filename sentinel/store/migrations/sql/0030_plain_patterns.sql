-- The checks of a ledger entry's source and escalation, and of its order's, are patterns without counted repetition: such a one is unrolled
-- and walked at every update of the row, 16 µs for a shop's name.
alter table refunds.ledger_entries
  drop constraint ledger_entries_source_check, drop constraint ledger_entries_escalation_check,
  add constraint ledger_entries_source_check check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]'),
  add constraint ledger_entries_escalation_check check (length(escalation) between 1 and 64 and escalation !~ '[^a-z_]');
alter table refunds.orders
  drop constraint orders_source_check, drop constraint orders_payment_ref_check,
  add constraint orders_source_check check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]'),
  add constraint orders_payment_ref_check check (length(payment_ref) between 1 and 128 and payment_ref !~ '[^A-Za-z0-9._:/@-]');
alter table refunds.order_flags
  drop constraint order_flags_source_check,
  add constraint order_flags_source_check check (length(source) <= 64 and source !~ '[^A-Za-z0-9._:/@-]');
