"""Alembic's hook: runs on the connection that `sentinel.store.migrate` hands over, in its transaction."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="schema_version", version_table_schema="public")
with context.begin_transaction():
    context.run_migrations()
