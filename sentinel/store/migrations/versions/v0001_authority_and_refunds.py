"""The authority's tables and functions, and the refund ledger."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the three files in order."""
    for name in ("0001_authority_tables.sql", "0001_authority_functions.sql", "0001_refunds.sql"):
        op.get_bind().exec_driver_sql((_SQL / name).read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from the first migration; restore a backup instead.")
