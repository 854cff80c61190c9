-- The payment that an effect may have been asked of, fixed before it is first asked; null until then. What is recorded by now may
-- have been asked of the payment that its order names.
alter table refunds.effects add column payment_ref text
  check (length(payment_ref) between 1 and 128 and payment_ref !~ '[^A-Za-z0-9._:/@-]');
alter table refunds.effects alter column payment_ref set statistics 10;
alter table refunds.effects disable trigger check_effect;
update refunds.effects f set payment_ref = o.payment_ref
from refunds.ledger_entries e join refunds.orders o
  on (o.tenant_id, o.channel, o.source, o.order_ref) = (e.tenant_id, e.channel, e.source, e.order_ref)
where e.tenant_id = f.tenant_id and e.ledger_entry_id = f.ledger_entry_id and f.system = 'stripe';
alter table refunds.effects enable trigger check_effect;
alter table refunds.settlement_findings drop constraint settlement_findings_finding_check,
  add constraint settlement_findings_finding_check check (finding in ('refund_failed', 'refunded_elsewhere', 'payment_unknown'));
