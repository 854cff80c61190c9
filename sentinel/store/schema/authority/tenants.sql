-- Tenants: whose everything is. The first file of the schema `sentinel`.
--
-- tenant_id stands in every key, so that a database per tenant or a sharded one stays open. Indexes do not open with it: on
-- a young table without statistics the planner would take any index that opens with a column of the question, by tenant
-- alone, for a row that the primary key finds, and keep that plan.
-- What is append-only has INSERT and SELECT grants only (deploy/roles.sql) and a trigger that refuses the rest.
-- Amounts are integers in the currency's minor unit (`_minor`), times are the database's, digests "sha256:" and hex.

create schema sentinel;

-- Whose everything is.
create table sentinel.tenants (
  tenant_id  uuid primary key,
  label      text not null check (label ~ '^[a-z0-9][a-z0-9-]{0,62}$'),    -- public name, e.g. "public-demo"
  created_at timestamptz not null default clock_timestamp()
);
