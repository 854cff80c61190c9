-- The payment that an effect was begun with. Null: its order named none, or it was begun before this revision.
alter table refunds.effects add column payment_ref text
  check (length(payment_ref) between 1 and 128 and payment_ref !~ '[^A-Za-z0-9._:/@-]');
alter table refunds.effects alter column payment_ref set statistics 10;
alter table refunds.settlement_findings drop constraint settlement_findings_finding_check,
  add constraint settlement_findings_finding_check check (finding in ('refund_failed', 'refunded_elsewhere', 'payment_unknown'));
