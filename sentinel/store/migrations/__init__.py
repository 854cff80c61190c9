"""The schema's history since its baseline: alembic scripts that run the SQL beside them. Imported only when migrating.

`docs/decisions/0046-one-present-schema.md` says how a migration is added.
"""

from pathlib import Path

_SQL = Path(__file__).parent / "sql"


def run_files(revision: str) -> None:
    """Run the files `sql/<revision>_*.sql` in the order of their names."""
    from alembic import op

    for file in sorted(_SQL.glob(f"{revision}_*.sql")):
        op.get_bind().exec_driver_sql(file.read_text().replace("%", "%%"))
