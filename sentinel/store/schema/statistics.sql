-- Lower statistics targets: `analyze` samples 3,000 rows of a table instead of 30,000 (docs/decisions/0081-small-samples.md). Queries use
-- keys and partial indexes over the few rows in progress, so finer statistics of the other rows would choose no other plan.
do $$
declare
  target record;
begin
  for target in
    select format('alter table %s alter column %I set statistics 10', c.oid::regclass, a.attname) as statement
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace::regnamespace::text in ('sentinel', 'refunds', 'orders') and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    union all
    -- An index on an expression has statistics of its own, and the largest target of a table sets how many rows are sampled.
    select format('alter index %s alter column %s set statistics 10', x.indexrelid::regclass, place)
    from pg_index x join pg_class c on c.oid = x.indrelid cross join generate_series(1, x.indnkeyatts) as place
    where c.relnamespace::regnamespace::text in ('sentinel', 'refunds', 'orders') and c.relkind = 'r' and x.indkey[place - 1] = 0
  loop
    execute target.statement;
  end loop;
end
$$;
