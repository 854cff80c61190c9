-- Names that an engineer would search for. Functions whose parameters have other names come back with the schema files.
alter table sentinel.crowded_keys rename to keys_at_limit;
do $$
declare
  named text;
begin
  for named in select conname from pg_constraint where conrelid = 'sentinel.keys_at_limit'::regclass and conname like 'crowded\_keys\_%' loop
    execute format('alter table sentinel.keys_at_limit rename constraint %I to %I', named, replace(named, 'crowded_keys', 'keys_at_limit'));
  end loop;
end $$;

drop function if exists sentinel.mark_crowded_keys(integer, integer, integer);
drop function if exists sentinel.all_plain(sentinel.guard_terms[], sentinel.guard_row[], sentinel.budget_sum[], sentinel.rate_sum[],
  sentinel.limit_parts, uuid[], timestamptz);
drop function if exists sentinel.plain_rows(sentinel.guard_terms[], sentinel.guard_row[], sentinel.budget_sum[], sentinel.rate_sum[],
  sentinel.limit_parts, uuid[], timestamptz);
drop function if exists sentinel.record_rows(sentinel.guard_input[], uuid[], timestamptz);
drop function if exists orders.resolve_review(uuid, text, text, uuid, text, text, text, text, text, uuid, uuid);
drop function if exists orders.resolve_returned(orders.reviews, uuid, text, text, text);
drop function if exists refunds.resolve_budget_doubts(uuid, jsonb);
