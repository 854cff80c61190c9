-- Which revision the database is at: one row. Kept by alembic where scripts run.

create table public.schema_version (
  version_num varchar(32) not null,
  constraint schema_version_pkc primary key (version_num)
);
