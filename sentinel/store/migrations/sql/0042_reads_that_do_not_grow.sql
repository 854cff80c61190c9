-- Who said the same lately, without all who ever did.
drop index refunds.ledger_text;
create index ledger_text on refunds.ledger_entries (refunds.text_key(reason), requested_at)
  where length(reason) >= 40 and account_ref is not null;
-- Rows that only their order tells the account of.
create index ledger_without_account on refunds.ledger_entries (tenant_id, channel, requested_at)
  where account_ref is null and order_ref is not null;

-- Whether a payment is one of an order of ours.
create index orders_payment on refunds.orders (payment_ref) where payment_ref is not null;
