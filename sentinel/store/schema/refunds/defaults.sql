-- The business side: orders, the refund ledger and its executions. Lives in the worker's database, which may be another one.
-- The worker proposes; these constraints and triggers decide what can become a row. The first file of the schema `refunds`.

create schema refunds;

-- The tenant that rows belong to when nothing says otherwise; one line, written when the tenant is made.
create table refunds.defaults (
  only_row  boolean primary key default true check (only_row),
  tenant_id uuid not null
);

create or replace function refunds.default_tenant() returns uuid language sql stable as
  $$ select tenant_id from refunds.defaults $$;

create or replace function refunds.refuse_change() returns trigger language plpgsql as $$
begin
  raise exception 'append-only: % on %.% is refused', tg_op, tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;

-- A tenant's public name, for programs that may read nothing of the authority's; null where this database has none of it.
create or replace function refunds.tenant_label(tenant uuid) returns text language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$ select t.label from sentinel.tenants t where t.tenant_id = tenant $$;
