-- The database's revision: one row. alembic updates it when migration scripts run.

create table public.schema_version (
  version_num varchar(32) not null,
  constraint schema_version_pkc primary key (version_num)
);
