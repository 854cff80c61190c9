-- Where an order is refunded once without a person's word, one entry takes it, in the statement that records the permission.
-- Entries that are looked at at the same time do not see each other: the gate alone would let both through.

create table refunds.orders_taken (
  tenant_id       uuid not null,
  channel         text not null,
  order_ref       text not null,
  ledger_entry_id text not null,
  taken_at        timestamptz not null default clock_timestamp(),
  primary key (order_ref, channel, tenant_id),
  foreign key (tenant_id, ledger_entry_id) references refunds.ledger_entries
);
insert into refunds.orders_taken (tenant_id, channel, order_ref, ledger_entry_id)
select e.tenant_id, e.channel, e.order_ref, e.ledger_entry_id from refunds.ledger_entries e
where e.order_ref is not null and e.channel <> 'retail' and e.status in ('ALLOWED', 'EXECUTED')
order by e.status desc, e.created_at
on conflict do nothing;
