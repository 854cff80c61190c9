"""Lookups: indexes open with what they are for."""

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0008_lookups.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
