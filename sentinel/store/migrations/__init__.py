"""The schema's history: alembic scripts that run the SQL beside them. Imported only when migrating."""
