-- An entry that was begun outside is not denied, whether it names an order or not.
drop trigger set_budget_part on refunds.ledger_entries;
create trigger set_budget_part before update on refunds.ledger_entries for each row
  when ((new.order_ref is not null or new.status in ('ERROR', 'DENIED'))
    and (new.status is distinct from old.status or new.budget_part is distinct from old.budget_part))
  execute function refunds.set_budget_part();
