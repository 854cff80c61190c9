-- The business side: orders, the refund ledger and its executions. It is in the worker's database, which may not be the authority's.
-- The worker proposes rows; these constraints and triggers decide what is accepted. The first file of the schema `refunds`.

create schema refunds;

-- The tenant of a row that is inserted without one; one row, written when the tenant is created.
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

-- A tenant's public name, for programs that may not read the authority's tables; null if this database does not have the tenant.
create or replace function refunds.tenant_label(tenant uuid) returns text language sql stable security definer
  set search_path = pg_catalog, pg_temp as $$ select t.label from sentinel.tenants t where t.tenant_id = tenant $$;
