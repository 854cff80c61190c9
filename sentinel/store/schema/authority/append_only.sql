-- Refuses every UPDATE, DELETE and TRUNCATE; each append-only table calls it by a trigger named append_only.
create or replace function sentinel.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;
