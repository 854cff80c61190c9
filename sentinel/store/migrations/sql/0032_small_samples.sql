-- Samples of 3,000 rows for the planner's statistics (docs/decisions/0081-small-samples.md).
do $$
declare
  target record;
begin
  for target in
    select format('alter table %s alter column %I set statistics 10', c.oid::regclass, a.attname) as statement
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace::regnamespace::text in ('sentinel', 'refunds', 'orders') and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    union all
    -- What an index computes has statistics of its own, and the largest target of a table says how many rows are drawn.
    select format('alter index %s alter column %s set statistics 10', x.indexrelid::regclass, place)
    from pg_index x join pg_class c on c.oid = x.indrelid cross join generate_series(1, x.indnkeyatts) as place
    where c.relnamespace::regnamespace::text in ('sentinel', 'refunds', 'orders') and c.relkind = 'r' and x.indkey[place - 1] = 0
  loop
    execute target.statement;
  end loop;
end
$$;
