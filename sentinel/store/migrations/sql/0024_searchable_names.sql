-- Names that an engineer would search for. Functions that nothing but functions and programs call are replaced by their present text.
alter type orders.answered rename to delivery_response;

alter table orders.words rename to analyst_decisions;
alter table orders.analyst_decisions rename column word_id to decision_id;
alter table orders.analyst_decisions rename column word to decision;
alter table orders.analyst_decisions rename column said_by to decided_by;
alter table orders.analyst_decisions rename column said_at to decided_at;
alter sequence orders.words_word_id_seq rename to analyst_decisions_decision_id_seq;
do $$
declare
  named text;
begin
  for named in select conname from pg_constraint where conrelid = 'orders.analyst_decisions'::regclass and conname like 'words\_%' loop
    execute format('alter table orders.analyst_decisions rename constraint %I to %I', named,
      replace(replace(replace(regexp_replace(named, '^words_', 'analyst_decisions_'), '_word_id_', '_decision_id_'), '_word_', '_decision_'),
              '_said_', '_decided_'));
  end loop;
end $$;

alter function refunds.place_in_budget() rename to set_budget_part;
alter trigger place_in_budget on refunds.ledger_entries rename to set_budget_part;
alter function refunds.keep_order_budgets() rename to update_order_budgets;
alter trigger keep_order_budgets on refunds.ledger_entries rename to update_order_budgets;
alter function refunds.keep_order_paid() rename to update_order_paid;
alter trigger keep_order_paid_entered on refunds.orders rename to update_order_paid_entered;
alter trigger keep_order_paid_corrected on refunds.orders rename to update_order_paid_corrected;
