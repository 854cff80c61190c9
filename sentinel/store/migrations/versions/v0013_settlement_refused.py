"""A refund that its settlement system refuses for good ends at once."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    """Run the file."""
    op.get_bind().exec_driver_sql((_SQL / "0013_settlement_refused.sql").read_text().replace("%", "%%"))


def downgrade() -> None:
    """Evidence is not thrown away by a command."""
    raise RuntimeError("There is no way back from this migration; restore a backup instead.")
