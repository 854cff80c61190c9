-- Tenants: every row belongs to one. The first file of the schema `sentinel`.
--
-- tenant_id is in every key, so that a database per tenant, or a sharded one, stays possible. Indexes do not start with it: on a new table
-- without statistics the planner would use any index that starts with a column of the query, by tenant alone, to find a row that the
-- primary key finds, and would keep that plan.
-- An append-only table has INSERT and SELECT grants only (deploy/roles.sql), and a trigger that refuses everything else.
-- Amounts are integers in the currency's minor unit (`_minor`), times are the database's, digests "sha256:" and hex.

create schema sentinel;

-- The owners of all other rows.
create table sentinel.tenants (
  tenant_id  uuid primary key,
  label      text not null check (label ~ '^[a-z0-9][a-z0-9-]{0,62}$'),    -- public name, e.g. "public-demo"
  created_at timestamptz not null default clock_timestamp()
);
