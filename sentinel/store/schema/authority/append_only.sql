-- Tables whose rows nobody changes or takes away: a trigger append_only on each calls this.
create or replace function sentinel.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;
